"""Entry point: compose, resolve and check a run config, then run it (`python -m relax.train`, `relax-train`).

Exit codes: 0 the run ended well, 1 it failed, 2 the config is wrong, 130 it was interrupted.
"""

from __future__ import annotations

import contextlib
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
    run_dir_of,
    to_run_config,
)
from relax.config.errors import ConfigError, RunFailedError
from relax.data.errors import DataError

register_schemas()


_failures: list[RunFailedError] = []
"""Runs that had started and failed."""

_bad_inputs: list[Exception] = []
"""Errors of a person's input. They do not travel through Hydra, so that a sweep goes on and no traceback is printed."""


@hydra.main(config_path=str(conf_dir()), config_name="config", version_base="1.3")
def _run(composed: DictConfig) -> float | None:
    hydra_config = HydraConfig.get()
    run_dir = Path(hydra_config.runtime.output_dir)
    try:
        return _check_and_launch(composed, run_dir, list(hydra_config.overrides.task))
    except RunFailedError as error:
        _failures.append(error)
        return None
    except (ConfigError, DataError) as error:
        _bad_inputs.append(error)
        with contextlib.suppress(OSError):  # Hydra made the folder; it goes when nothing was written into it
            run_dir.rmdir()
        return None


def _check_and_launch(composed: DictConfig, run_dir: Path, overrides: list[str]) -> float | None:
    config = to_run_config(composed)
    resuming = config.resume is not None
    if config.resume is not None:
        with contextlib.suppress(OSError):
            run_dir.rmdir()
        run_dir = run_dir_of(config.resume)
        config = resume_run_config(run_dir, overrides)
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
    _bad_inputs.clear()
    _failures.clear()
    try:
        _run()
    except (HydraException, OmegaConfBaseException) as error:
        _bad_inputs.append(ConfigError(f"error: {explain_hydra_error(error)}"))
    except OSError as error:  # Hydra makes the run directory before anything of ours runs
        _bad_inputs.append(ConfigError(f"hydra.run.dir or paths.output_dir cannot be used: {error}"))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    for problem in [*_bad_inputs, *_failures]:
        print(problem, file=sys.stderr)
    if _bad_inputs or _failures:
        sys.exit(2 if _bad_inputs else 1)


if __name__ == "__main__":
    main()
