"""Rendering: valid scripts and manifests, with overrides quoted right."""

from __future__ import annotations

import shlex
import subprocess

import jsonschema
import pytest
import yaml

import relax.launch
from relax.config.compose import compose_run
from relax.config.errors import ConfigError
from relax.config.resolve import resolve
from relax.launch import job_name, render, time_limit_seconds

# the part of KubeRay's RayJob (ray.io/v1) that the manifest uses; unknown fields are refused as a strict server does
POD = {
    "type": "object",
    "required": ["spec"],
    "additionalProperties": False,
    "properties": {
        "spec": {
            "type": "object",
            "required": ["containers"],
            "properties": {
                "containers": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name", "image"],
                        "properties": {
                            "name": {"type": "string"},
                            "image": {"type": "string"},
                            "resources": {"type": "object"},
                        },
                    },
                }
            },
        }
    },
}
HEAD = {
    "type": "object",
    "required": ["rayStartParams", "template"],
    "additionalProperties": False,
    "properties": {"rayStartParams": {"type": "object"}, "template": POD},
}
WORKERS = {
    "type": "object",
    "required": ["groupName", "rayStartParams", "template"],
    "additionalProperties": False,
    "properties": {
        "groupName": {"type": "string"},
        "replicas": {"type": "integer"},
        "minReplicas": {"type": "integer"},
        "maxReplicas": {"type": "integer"},
        "rayStartParams": {"type": "object"},
        "template": POD,
    },
}
RAY_JOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
                "namespace": {"type": "string"},
            },
        },
        "spec": {
            "type": "object",
            "required": ["entrypoint", "rayClusterSpec"],
            "additionalProperties": False,
            "properties": {
                "entrypoint": {"type": "string"},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "activeDeadlineSeconds": {"type": "integer"},
                "rayClusterSpec": {
                    "type": "object",
                    "required": ["headGroupSpec"],
                    "additionalProperties": False,
                    "properties": {"headGroupSpec": HEAD, "workerGroupSpecs": {"type": "array", "items": WORKERS}},
                },
            },
        },
    },
}
AWKWARD = ["name=a 'quoted' \"name\"", "+data.task_args.x={a: [1, $HOME]}", "data.prompt_template='{prompt} = ?\n'"]


def rendered(*overrides: str) -> str:
    return render(resolve(compose_run([*overrides]))[0], list(overrides))


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_slurm_script_is_valid_bash_and_asks_for_what_the_config_says(nodes: int) -> None:
    script = rendered("launcher=slurm", f"launcher.num_nodes={nodes}", "launcher.num_gpus=8", "launcher.partition=big")
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=10, check=False).returncode == 0
    assert f"#SBATCH --nodes={nodes}\n" in script
    assert "#SBATCH --gpus-per-node=8\n" in script
    assert "#SBATCH --partition=big\n" in script
    assert "--account" not in script
    assert "set -euo pipefail" in script
    assert "launcher.kind=ray" in script


@pytest.mark.parametrize("nodes", [1, 3])
def test_the_rayjob_fits_the_schema(nodes: int) -> None:
    text = rendered("launcher=kuberay", f"launcher.num_nodes={nodes}", "launcher.num_gpus=8", "name=A_Run.1")
    manifest = yaml.safe_load(text)
    jsonschema.validate(manifest, RAY_JOB)
    assert manifest["metadata"]["name"] == "a-run-1"
    cluster = manifest["spec"]["rayClusterSpec"]
    assert sum(group["replicas"] for group in cluster.get("workerGroupSpecs", [])) == nodes - 1
    container = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}


def test_overrides_survive_quoting() -> None:
    config = resolve(compose_run(["launcher=kuberay"]))[0]
    entrypoint = yaml.safe_load(render(config, AWKWARD))["spec"]["entrypoint"]
    assert shlex.split(entrypoint)[3:-1] == AWKWARD
    script = render(resolve(compose_run(["launcher=slurm"]))[0], AWKWARD)
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=10, check=False).returncode == 0
    assert shlex.join(AWKWARD) in script


def test_local_renders_the_command_and_bad_configs_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert relax.launch.main(["--render", "train.lr=1e-4"]) == 0
    assert capsys.readouterr().out.strip().endswith("-m relax.train train.lr=1e-4")
    assert relax.launch.main(["--render", "train.lr=-1"]) == 2
    assert relax.launch.main(["--render", "launcher=slurm", "launcher.time_limit=soon"]) == 2
    assert "hours:minutes:seconds" in capsys.readouterr().err


def test_a_missing_submission_command_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert relax.launch.main(["launcher=slurm"]) == 1
    assert "sbatch is not installed here" in capsys.readouterr().err


def test_names_and_times() -> None:
    assert job_name("Ünï_Run!!") == "n-run"
    assert job_name("___") == "relax"
    assert time_limit_seconds("1:02:03") == 3723
    with pytest.raises(ConfigError, match="hours:minutes:seconds"):
        time_limit_seconds("90")
