"""`python -m relax.launch [overrides …]`: check a config and submit its run to the launcher it names.

`launcher=slurm` writes an sbatch script, `launcher=kuberay` a RayJob manifest; `local` and `ray` run here at once.
`--render` prints what would be submitted or run instead. Exit codes: 0 submitted, 1 the submission failed, 2 the config
is wrong.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from relax.config.compose import compose_run
from relax.config.errors import ConfigError
from relax.config.resolve import resolve
from relax.config.rules import Scope, Severity, check
from relax.config.schema import LauncherKind, RunConfig

SUBMIT_TIMEOUT_SECONDS = 60
"""Longest wait for sbatch or kubectl."""

SUBMIT_COMMANDS = {
    LauncherKind.slurm: ["sbatch"],
    LauncherKind.kuberay: ["kubectl", "create", "-f", "-"],
}
"""Commands that take the rendered text on standard input."""

_TEMPLATES = {LauncherKind.slurm: "slurm.sbatch.j2", LauncherKind.kuberay: "rayjob.yaml.j2"}


def main(arguments: list[str] | None = None) -> int:
    """Render or submit; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="as for relax.train")
    parser.add_argument("--render", action="store_true", help="print the script, manifest or command; submit nothing")
    options = parser.parse_args(arguments)
    try:
        config, _ = resolve(compose_run(options.overrides))
        errors = [str(v) for v in check(config, scopes=(Scope.static,)) if v.severity is Severity.error]
        if errors:
            raise ConfigError("\n".join(errors))
        text = render(config, options.overrides)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if options.render:
        print(text, end="" if text.endswith("\n") else "\n")
        return 0
    if config.launcher.kind not in SUBMIT_COMMANDS:
        return subprocess.run(shlex.split(text), check=False).returncode
    return submit(SUBMIT_COMMANDS[config.launcher.kind], text)


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
    """The sbatch script or RayJob manifest of a checked config; for `local` and `ray` the command line.

    Raises:
        ConfigError: a time limit that is not hours:minutes:seconds.
    """
    kind = config.launcher.kind
    if kind not in _TEMPLATES:
        return shlex.join([sys.executable, "-m", "relax.train", *overrides])
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(template_dir()), undefined=StrictUndefined, keep_trailing_newline=True
    )
    # on the cluster the run joins the Ray that the job has started
    command = shlex.join(["python", "-m", "relax.train", *overrides, "launcher.kind=ray"])
    launcher = config.launcher
    return environment.get_template(_TEMPLATES[kind]).render(
        name=job_name(config.name),
        nodes=launcher.num_nodes,
        gpus=launcher.num_gpus,
        cpus=launcher.num_cpus,
        time_limit=launcher.time_limit,
        time_limit_seconds=time_limit_seconds(launcher.time_limit),
        partition=launcher.partition,
        account=launcher.account,
        setup=launcher.setup,
        start_timeout=int(launcher.start_timeout_seconds),
        namespace=launcher.namespace,
        command=command,
        pod=_pod(config),
    )


def template_dir() -> Path:
    """Folder of the templates: the packaged one, else the checkout's."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "launchers", package.parent / "launchers"):
        if (candidate / _TEMPLATES[LauncherKind.slurm]).is_file():
            return candidate
    raise ConfigError(f"launchers/ found neither in {package} nor beside it: reinstall relax-rl")


def job_name(name: str) -> str:
    """A name that Slurm and Kubernetes accept (RFC 1123 label)."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:53] or "relax"


def time_limit_seconds(text: str) -> int:
    """Seconds of `hours:minutes:seconds`.

    Raises:
        ConfigError: another form.
    """
    match = re.fullmatch(r"(\d+):([0-5]?\d):([0-5]?\d)", text)
    if match is None:
        raise ConfigError(f"launcher.time_limit={text!r} must be hours:minutes:seconds, for example 24:00:00")
    hours, minutes, seconds = map(int, match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _pod(config: RunConfig) -> dict[str, Any]:
    launcher = config.launcher
    limits = {"nvidia.com/gpu": launcher.num_gpus} if launcher.num_gpus else {}
    requests = {"cpu": launcher.num_cpus} if launcher.num_cpus else {}
    resources = {name: amounts for name, amounts in (("limits", limits), ("requests", requests)) if amounts}
    return {"spec": {"containers": [{"name": "ray", "image": launcher.image, "resources": resources}]}}


if __name__ == "__main__":
    sys.exit(main())
