"""Where metrics go besides `metrics.jsonl`: TensorBoard and Weights & Biases, both optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from omegaconf import OmegaConf

from relax.config.errors import ConfigError
from relax.config.schema import RunConfig, WandbMode


class MetricSink(Protocol):
    """Receives one row of metrics a rollout, in order of steps."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one row."""
        ...

    def close(self) -> None:
        """Flush and stop."""
        ...


class TensorBoardSink:
    """TensorBoard event files in `<run>/tensorboard`."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tracking.tensorboard=true needs the tensorboard package: pip install 'relax-rl[tensorboard]'"
            ) from error
        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one row."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and stop."""
        self._writer.close()


class WandbSink:
    """A W&B run; offline runs are written into the run directory."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError("tracking.wandb needs the wandb package: pip install 'relax-rl[wandb]'") from error
        options = config.tracking.wandb
        plain: Any = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
        self._run: Any = wandb.init(
            project=options.project,
            entity=options.entity,
            group=options.group or config.name,
            name=folder.name,
            mode=options.mode.value,
            dir=str(folder),
            config=plain,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Record one row."""
        self._run.log(metrics, step=step)

    def close(self) -> None:
        """Flush and stop."""
        self._run.finish()


def build_sinks(config: RunConfig, folder: Path) -> list[MetricSink]:
    """The optional sinks a config asks for.

    Raises:
        ConfigError: the package of one is not installed.
    """
    sinks: list[MetricSink] = []
    if config.tracking.tensorboard:
        sinks.append(TensorBoardSink(folder / "tensorboard"))
    if config.tracking.wandb.mode is not WandbMode.disabled:
        sinks.append(WandbSink(config, folder))
    return sinks
