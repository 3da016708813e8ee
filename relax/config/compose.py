"""From the command line to one typed `RunConfig`: Hydra composition and the check for unknown keys.

Knows the dataclasses and `conf/`; imports neither torch nor Ray.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from relax.config.errors import ConfigError
from relax.config.schema import AlgorithmConfig, ArchConfig, GrpoConfig, OpdConfig, OpsdConfig, RunConfig, SdpoConfig

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "grpo": GrpoConfig,
    "opd": OpdConfig,
    "opsd": OpsdConfig,
    "sdpo": SdpoConfig,
}
"""Dataclass of each algorithm; its key is the value of `algorithm.name` and `<key>_schema` in the config store."""

FREE_FORM_MAPPINGS = ("rollout.sglang.", "data.task_args.", "model.arch.rope_scaling.")
"""Fields whose keys belong to another library; that library's own check decides about them."""

NEW_EVAL_SET = (
    "a new evaluation set is an option file (see conf/eval/reverse.yaml; eval=my_sets selects conf/eval/my_sets.yaml); "
    "the command line changes sets that are there: eval.sets.reverse.n_samples_per_prompt=8"
)
"""OmegaConf cannot make a typed set from command-line pieces."""


def conf_dir() -> Path:
    """Folder of the Hydra groups: the packaged one, else the checkout's."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml found neither in {package} nor beside it: reinstall relax-rl")


def register_schemas() -> None:
    """Put the dataclasses into Hydra's config store (idempotent)."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig, provider="relax")
    for name, schema in ALGORITHMS.items():
        store.store(group="algorithm", name=f"{name}_schema", node=schema, provider="relax")


def compose_run(overrides: Sequence[str] = ()) -> RunConfig:
    """Compose `conf/config.yaml` with command-line overrides.

    Raises:
        ConfigError: an unknown key or group option, or a value of the wrong type.
    """
    register_schemas()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            return to_run_config(compose(config_name="config", overrides=open_mappings(overrides)))
    except ConfigError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain_hydra_error(error)) from error


def open_mappings(overrides: Sequence[str]) -> list[str]:
    """Let keys of the free-form mappings be set without Hydra's `+` (`rollout.sglang.tp_size=2`)."""
    return [f"++{item}" if item.startswith(FREE_FORM_MAPPINGS) else item for item in overrides]


def to_run_config(composed: DictConfig) -> RunConfig:
    """The typed object of a composed config.

    Raises:
        ConfigError: it holds keys that the dataclasses do not have (Hydra lets `+train.foo=1` through).
    """
    unknown = [key for key in _keys_without_field(composed) if not key.startswith("hydra")]
    if unknown:
        raise ConfigError("\n".join(unknown_key_message(key) for key in unknown))
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise ConfigError(explain_hydra_error(error)) from error
    if not isinstance(config, RunConfig):
        raise ConfigError(f"conf/config.yaml must start from run_schema, it composed a {type(config).__name__}")
    return config


def load_run_config(path: Path) -> RunConfig:
    """Read the `config.yaml` of a run directory.

    Raises:
        ConfigError: the file is absent or does not fit this version's fields.
    """
    if not path.is_file():
        raise ConfigError(f"{path} does not exist: it should be the config.yaml of a run directory")
    try:
        saved = OmegaConf.load(path)
        if not isinstance(saved, DictConfig):
            raise ConfigError(f"{path} holds no mapping")
        name = str(OmegaConf.select(saved, "algorithm.name"))
        base = OmegaConf.structured(RunConfig(algorithm=ALGORITHMS[name]()))
        return to_run_config(OmegaConf.merge(base, saved))  # type: ignore[arg-type]
    except (KeyError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} does not fit this version of Relax: {error}") from error


RESUMABLE_OVERRIDES = (
    "train.num_rollout",
    "train.num_epoch",
    "train.stop.",
    "tracking.",
    "launcher.",
    "save.",
    "eval.",
)
"""Options that a resumed run may change: how long it goes on and where it reports, never what it trains."""


def resume_run_config(run_dir: Path, overrides: Sequence[str]) -> RunConfig:
    """The config of a run directory, with the few overrides that a resumed run allows.

    Raises:
        ConfigError: no such run, or an override that would change the experiment.
    """
    config = load_run_config(run_dir / "config.yaml")
    changes = [item.lstrip("+") for item in overrides if not item.startswith("resume=")]
    refused = [item for item in changes if not item.startswith(RESUMABLE_OVERRIDES)]
    if refused:
        raise ConfigError(
            f"resume={run_dir} takes its config from the run; {', '.join(refused)} would change the experiment "
            f"(allowed: {', '.join(RESUMABLE_OVERRIDES)})"
        )
    merged = OmegaConf.merge(OmegaConf.structured(config), OmegaConf.from_dotlist(changes))
    resumed = to_run_config(merged)  # type: ignore[arg-type]
    resumed.resume = str(run_dir)
    return resumed


def compose_or_resume(overrides: Sequence[str]) -> RunConfig:
    """The config that these overrides mean: composed, or for `resume=RUN_DIR` the run's own."""
    config = compose_run(overrides)
    if config.resume is None:
        return config
    return resume_run_config(run_dir_of(config.resume), list(overrides))


def run_dir_of(resume: str) -> Path:
    """The run directory that `resume` names.

    Raises:
        ConfigError: it is empty.
    """
    if not resume:
        raise ConfigError("resume is empty: resume=RUN_DIR, or leave it out")
    return Path(resume).expanduser().absolute()


def known_keys() -> list[str]:
    """Every dotted path of the tree, all algorithms' fields included."""
    keys: dict[str, None] = {}
    for algorithm in ALGORITHMS.values():
        keys |= dict.fromkeys(_walk(RunConfig(algorithm=algorithm())))
    return list(keys)


def unknown_key_message(key: str) -> str:
    """One line that names the unknown key and the nearest valid ones."""
    if key.startswith("eval.sets."):
        return f"unknown key {key}: {NEW_EVAL_SET}"
    owners = [name for name, schema in ALGORITHMS.items() if key in set(_walk(RunConfig(algorithm=schema())))]
    if owners:
        return f"unknown key {key}: only algorithm={'|'.join(owners)} has it; choose one of these or drop the key"
    keys = known_keys()
    near = difflib.get_close_matches(key, keys, n=3, cutoff=0.6)
    if not near:
        leaf = key.rsplit(".", 1)[-1]
        leaves = {k.rsplit(".", 1)[-1]: k for k in keys}
        near = [leaves[name] for name in difflib.get_close_matches(leaf, list(leaves), n=3, cutoff=0.6)]
    parent = key.rsplit(".", 1)[0] if "." in key else ""
    siblings = [k for k in keys if k.rsplit(".", 1)[0] == parent] if parent else [k for k in keys if "." not in k]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif siblings:
        hint = f"{parent or 'the top level'} has {', '.join(k.rsplit('.', 1)[-1] for k in siblings)}"
    else:
        hint = "see python -m relax.train --help for the groups"
    return f"unknown key {key}: {hint}"


def explain_hydra_error(error: BaseException) -> str:
    """Hydra's and OmegaConf's messages, in our words: the option, the value, what is allowed."""
    current: BaseException | None = error
    while current is not None:
        text = str(current)
        unknown = re.search(r"Key '([^']+)' is not in struct|Key '([^']+)' not in '\w+'", text)
        path = re.search(r"full_key: (\S+)", text) or re.search(r"Could not override '([^']+)'", text)
        if unknown and path:
            return unknown_key_message(path.group(1))
        current = current.__cause__ or current.__context__
    message = f"{error}\n{error.__cause__ or ''}".split("Config search path:")[0]
    if "EvalSetConfig" in message:
        return NEW_EVAL_SET
    noise = ("object_type=", "reference_type=", "Set the env", "full_key:", "See https:")
    # Hydra lists the options of a group one a line
    message, separator, options = message.partition("Available options in")
    if separator:
        group, *names = options.split()
        shown = [name for name in names if not name.endswith("_schema") and not name.startswith("base/")]
        message += f"available in {group} {', '.join(shown)}"
    lines = [line.strip() for line in message.splitlines() if not line.strip().startswith(noise)]
    return "\n".join(line for line in lines if line)


def _walk(config: Any, prefix: str = "") -> Iterator[str]:
    for item in dataclasses.fields(config):
        path = f"{prefix}{item.name}"
        yield path
        value = getattr(config, item.name)
        if path == "model.arch":  # optional, so the default object does not show its fields
            value = ArchConfig()
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{path}.")


def _keys_without_field(node: DictConfig, prefix: str = "") -> Iterator[str]:
    schema = OmegaConf.get_type(node)
    names = {item.name for item in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    for key in node:
        path = f"{prefix}{key!s}"
        if names is not None and key not in names:
            yield path
            continue
        if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, str(key)):
            continue
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            yield from _keys_without_field(child, f"{path}.")
