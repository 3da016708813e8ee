#!/usr/bin/env bash
# Run on this machine: launchers/local.sh [overrides …], for example `launchers/local.sh parallelism=tp2`.
set -euo pipefail
cd "$(dirname "$0")/.."
make --no-print-directory setup
exec .venv/bin/python -m relax.train launcher=local "$@"
