"""Entry point: compose, resolve and check a run config, then run it (`python -m relax.train`, `relax-train`).

Exit codes: 0 the run ended well, 1 it failed, 2 the config is wrong, 130 it was interrupted.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from relax.config.check import resolve_and_check
from relax.config.compose import (
    conf_dir,
    explain_hydra_error,
    open_mappings,
    register_schemas,
    resume_run_config,
    to_run_config,
)
from relax.config.errors import ConfigError
from relax.data.errors import DataError

register_schemas()


@hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")
def _run(composed: DictConfig) -> float | None:
    config = to_run_config(composed)
    hydra_config = HydraConfig.get()
    run_dir = Path(hydra_config.runtime.output_dir)
    resuming = config.resume is not None
    if config.resume is not None:
        run_dir = Path(config.resume).expanduser().absolute()
        config = resume_run_config(run_dir, list(hydra_config.overrides.task))
    config, changes, warnings = resolve_and_check(config)
    for violation in warnings:
        print(violation, file=sys.stderr)
    # heavy imports only after the config has passed
    from relax.runtime.launch import launch

    return launch(config, run_dir=run_dir, changes=changes, resuming=resuming)


def main() -> None:
    """Console entry point."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach us as exceptions instead of Hydra's own printing
    sys.argv[1:] = open_mappings(sys.argv[1:])
    try:
        _run()
    except (ConfigError, DataError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except (HydraException, OmegaConfBaseException) as error:
        print(f"error: {explain_hydra_error(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
