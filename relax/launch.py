"""`python -m relax.launch [overrides …]`: check a config and submit its run to the launcher it names.

`launcher=slurm` writes an sbatch script, `launcher=kuberay` a RayJob manifest; `local` and `ray` run here at once.
`--render` shows what would be submitted or run instead. Exit codes: 0 submitted, 1 the submission failed, 2 the config
is wrong.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from relax.config.availability import unavailable
from relax.config.compose import compose_run, resume_run_config
from relax.config.errors import ConfigError
from relax.config.resolve import resolve
from relax.config.rules import Scope, Severity, check
from relax.config.schema import LauncherConfig, LauncherKind, RunConfig
from relax.runtime.placement import plan_placement
from relax.tracking.files import write_text_atomic

SUBMIT_TIMEOUT_SECONDS = 60
"""Longest wait for sbatch or kubectl."""

SUBMIT_COMMANDS = {
    LauncherKind.slurm: ["sbatch"],
    LauncherKind.kuberay: ["kubectl", "create", "-f", "-"],
}
"""Commands that take the rendered text on standard input."""

SHARED_DIR = "/mnt/relax"
"""Where a kuberay job mounts its volume when launcher.shared_dir says nothing."""

MAX_RAYJOB_NAME = 47
"""Longest name that KubeRay accepts for a RayJob."""

_TEMPLATES = {LauncherKind.slurm: "slurm.sbatch.j2", LauncherKind.kuberay: "rayjob.yaml.j2"}


def main(arguments: list[str] | None = None) -> int:
    """Render or submit; the exit code. `local` and `ray` replace this process by the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for relax.train")
    parser.add_argument("--render", action="store_true", help="show the script, manifest or command; submit nothing")
    parser.add_argument("--output", type=Path, metavar="FILE", help="with --render: write it there")
    options = parser.parse_intermixed_args(arguments)
    if options.output is not None and not options.render:
        parser.error("--output needs --render")
    try:
        config, overrides = load(options.overrides)
        _raise_problems(config, submitting=not options.render)
        text = render(config, overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if options.render:
        return _show(text, options.output)
    if config.launcher.kind not in SUBMIT_COMMANDS:
        os.execv(sys.executable, _command(config, overrides))  # signals reach the run itself
    return submit(SUBMIT_COMMANDS[config.launcher.kind], text)


def load(overrides: list[str]) -> tuple[RunConfig, list[str]]:
    """The resolved config of the job, and the overrides that `relax.train` gets.

    A resumed run takes its config from its run directory, as relax.train does; there `launcher=X` means its kind.

    Raises:
        ConfigError: what composing or resuming refuses.
    """
    config = compose_run(overrides)
    if config.resume is not None:
        overrides = [re.sub(r"^launcher=", "launcher.kind=", item) for item in overrides]
        config = resume_run_config(Path(config.resume).expanduser().absolute(), overrides)
    return resolve(config)[0], overrides


def _raise_problems(config: RunConfig, *, submitting: bool) -> None:
    """Raise ConfigError with all that is wrong, together. What has not landed yet keeps a job from being submitted, but
    may be rendered, with a warning."""
    errors = [str(v) for v in check(config, scopes=(Scope.static,)) if v.severity is Severity.error]
    errors += [f"error: {problem}" for problem in _job_problems(config)]
    in_the_job = replace(config, launcher=replace(config.launcher, kind=LauncherKind.ray))
    missing = list(unavailable(in_the_job))
    if submitting:
        errors += [f"error: {line}" for line in missing]
    if errors:
        raise ConfigError("\n".join(errors))
    for line in missing:
        print(f"warning: {line}", file=sys.stderr)


def _job_problems(config: RunConfig) -> Iterator[str]:
    """What a submitted job needs beyond the rules of every run."""
    launcher = config.launcher
    if launcher.kind not in _TEMPLATES:
        return
    if time_limit_seconds(launcher.time_limit) in (None, 0):
        yield f"launcher.time_limit={launcher.time_limit!r} must be hours:minutes:seconds above 0, like 24:00:00"
    for name in ("partition", "account", "namespace", "image", "volume_claim", "shared_dir"):
        value = vars(launcher)[name]
        if value is not None and not re.fullmatch(r"[\w.,:@/+-]+", value):
            yield f"launcher.{name}={value!r} must be one word of letters, digits and . , : @ / + - _"
    if launcher.shared_dir is not None and not launcher.shared_dir.startswith("/"):
        yield f"launcher.shared_dir={launcher.shared_dir} must be an absolute path"
    needed = _cpus_needed(config)
    if launcher.num_cpus is not None and launcher.num_cpus < needed:
        yield f"launcher.num_cpus={launcher.num_cpus}: the run needs {needed} CPUs a node: null asks for as many"
    if launcher.kind is LauncherKind.kuberay and launcher.volume_claim is None:
        yield (
            "launcher.volume_claim=null: the run directory would vanish with its pod, and other nodes would not see "
            "it: launcher.volume_claim=NAME of a PersistentVolumeClaim"
        )


def _cpus_needed(config: RunConfig) -> int:
    """CPUs a node must have for its share of the placement's bundles."""
    bundles = plan_placement(config).bundles
    return math.ceil(len(bundles) / max(1, config.launcher.num_nodes)) * math.ceil(bundles[0]["CPU"])


def _show(text: str, output: Path | None) -> int:
    if output is None:
        print(text, end="" if text.endswith("\n") else "\n")
        return 0
    try:
        write_text_atomic(output, text)
    except OSError as error:
        print(f"--output {output}: {error}", file=sys.stderr)
        return 1
    return 0


def submit(command: list[str], text: str) -> int:
    """Hand the rendered text to the submission command; its exit status as 0 or 1."""
    try:
        done = subprocess.run(command, input=text, text=True, timeout=SUBMIT_TIMEOUT_SECONDS, check=False)
    except FileNotFoundError:
        print(f"{command[0]} is not installed here; --render shows what to submit elsewhere", file=sys.stderr)
        return 1
    except subprocess.TimeoutExpired:
        print(f"waited {SUBMIT_TIMEOUT_SECONDS} s for {shlex.join(command)}", file=sys.stderr)
        return 1
    return 0 if done.returncode == 0 else 1


def render(config: RunConfig, overrides: list[str]) -> str:
    """The sbatch script or RayJob manifest of a checked config; for `local` and `ray` the command line."""
    launcher = config.launcher
    command = shlex.join(_command(config, overrides))
    if launcher.kind not in _TEMPLATES:
        return command + "\n"
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template_dir()), undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.filters["yaml"] = _yaml
    cpus = launcher.num_cpus or _cpus_needed(config)
    return environment.get_template(_TEMPLATES[launcher.kind]).render(
        launcher=launcher,
        name=job_name(config.name),
        cpus=cpus,
        time_limit_seconds=time_limit_seconds(launcher.time_limit),
        start_timeout=math.ceil(launcher.start_timeout_seconds),
        command=command,
        pod=_pod(launcher, cpus),
    )


def _yaml(value: Any) -> str:
    """`value` on one line of YAML. (Jinja's tojson escapes for HTML, and beyond 16 bits as YAML does not.)"""
    import yaml

    style = '"' if isinstance(value, str) else None
    return yaml.safe_dump(value, default_style=style, default_flow_style=True, width=math.inf, sort_keys=False).strip()


def _command(config: RunConfig, overrides: list[str]) -> list[str]:
    """The run's command line; within a submitted job it joins the Ray that the job has started."""
    if config.launcher.kind in _TEMPLATES:
        return ["python", "-m", "relax.train", *overrides, "launcher.kind=ray"]
    return [sys.executable, "-m", "relax.train", *overrides]


def template_dir() -> Path:
    """Folder of the templates: the packaged one, else the checkout's."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "launchers", package.parent / "launchers"):
        if (candidate / _TEMPLATES[LauncherKind.slurm]).is_file():
            return candidate
    raise ConfigError(f"launchers/ found neither in {package} nor beside it: reinstall relax-rl")


def job_name(name: str) -> str:
    """A name that Slurm accepts, and KubeRay with the five characters Kubernetes adds (a DNS-1035 label)."""
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    label = words if re.match(r"[a-z]", words) else f"relax-{words}".strip("-")
    return label[: MAX_RAYJOB_NAME - 6].strip("-")


def time_limit_seconds(text: str) -> int | None:
    """Seconds of `hours:minutes:seconds`, None for another form."""
    match = re.fullmatch(r"(\d+):([0-5]?\d):([0-5]?\d)", text, re.ASCII)
    if match is None:
        return None
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _pod(launcher: LauncherConfig, cpus: int) -> dict[str, Any]:
    """Pod template of every node: its resources, and the shared volume as working folder."""
    shared = launcher.shared_dir or SHARED_DIR
    resources: dict[str, Any] = {"requests": {"cpu": cpus}}
    if launcher.num_gpus:
        resources["limits"] = {"nvidia.com/gpu": launcher.num_gpus}
    container = {
        "name": "ray",
        "image": launcher.image,
        "workingDir": shared,
        "resources": resources,
        "volumeMounts": [{"name": "shared", "mountPath": shared}],
    }
    volume = {"name": "shared", "persistentVolumeClaim": {"claimName": launcher.volume_claim}}
    return {"spec": {"containers": [container], "volumes": [volume]}}


if __name__ == "__main__":
    sys.exit(main())
