"""Rendering: valid scripts and manifests, with overrides quoted right."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from omegaconf import OmegaConf

import relax.launch
from relax.config.compose import compose_run
from relax.config.resolve import resolve
from relax.config.schema import LauncherKind
from relax.launch import job_name, load, render, time_limit_seconds

# the part of KubeRay's RayJob (ray.io/v1) that the manifest uses; unknown fields are refused as a strict server does
AMOUNTS = {"type": "object", "additionalProperties": {"type": ["integer", "string"]}}
START_PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
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
                            "workingDir": {"type": "string", "pattern": "^/"},
                            "resources": {
                                "type": "object",
                                "additionalProperties": False,
                                "properties": {"limits": AMOUNTS, "requests": AMOUNTS},
                            },
                            "volumeMounts": {
                                "type": "array",
                                "items": {"type": "object", "required": ["name", "mountPath"]},
                            },
                        },
                        "additionalProperties": False,
                    },
                },
                "volumes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name", "persistentVolumeClaim"],
                        "properties": {
                            "persistentVolumeClaim": {
                                "type": "object",
                                "required": ["claimName"],
                                "properties": {"claimName": {"type": "string"}},
                            }
                        },
                    },
                },
            },
            "additionalProperties": False,
        }
    },
}
HEAD = {
    "type": "object",
    "required": ["rayStartParams", "template"],
    "additionalProperties": False,
    "properties": {"rayStartParams": START_PARAMS, "template": POD},
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
        "rayStartParams": START_PARAMS,
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
            "required": ["generateName"],
            "additionalProperties": False,
            "properties": {
                # KubeRay wants a DNS-1035 label of at most 47; the API server adds 5 characters
                "generateName": {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?-$", "maxLength": 42},
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
                "activeDeadlineSeconds": {"type": "integer", "minimum": 1},
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
AWKWARD = [
    "name=a 'quoted' \"name\"",
    "+data.task_args.x={a: [1, $HOME]}",
    "data.prompt_template='{prompt} = ?\n'",
    "name=`id` $(id) \\ #! \t é 😀 \x85 {{ name }}",
]
KUBERAY = ("launcher=kuberay", "launcher.volume_claim=runs")


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
    text = rendered(*KUBERAY, f"launcher.num_nodes={nodes}", "launcher.num_gpus=8", "name=A_Run.1")
    manifest = yaml.safe_load(text)
    jsonschema.validate(manifest, RAY_JOB)
    assert manifest["metadata"]["generateName"] == "a-run-1-"
    cluster = manifest["spec"]["rayClusterSpec"]
    assert sum(group["replicas"] for group in cluster.get("workerGroupSpecs", [])) == nodes - 1
    pod = cluster["headGroupSpec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": 8}, "requests": {"cpu": 16}}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "16"}
    assert container["workingDir"] == container["volumeMounts"][0]["mountPath"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "runs"}


@pytest.mark.parametrize("name", ["x" * 200, "1-b", "___", "a" * 40 + "_b"])
def test_any_name_of_a_run_gives_a_name_that_kuberay_takes(name: str) -> None:
    jsonschema.validate(yaml.safe_load(rendered(*KUBERAY, f"name={name}")), RAY_JOB)


def test_overrides_survive_quoting() -> None:
    config = resolve(compose_run([*KUBERAY]))[0]
    entrypoint = yaml.safe_load(render(config, AWKWARD))["spec"]["entrypoint"]
    assert shlex.split(entrypoint)[3:-1] == AWKWARD
    script = render(resolve(compose_run(["launcher=slurm"]))[0], AWKWARD)
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=10, check=False).returncode == 0
    assert shlex.join(AWKWARD) in script


def test_local_renders_the_command_and_bad_configs_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert relax.launch.main(["--render", "train.lr=1e-4"]) == 0
    assert capsys.readouterr().out.endswith("-m relax.train train.lr=1e-4\n")
    assert relax.launch.main(["--render", "train.lr=-1"]) == 2
    assert relax.launch.main(["--render", "launcher=slurm", "launcher.time_limit=soon"]) == 2
    assert "hours:minutes:seconds" in capsys.readouterr().err


def test_all_problems_of_a_job_are_said_together(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [
        "launcher.partition='a\tb'",
        "launcher.num_cpus=1",
        "parallelism=dp2",
        "launcher.shared_dir=here",
        "train.lr=-1",
    ]
    assert relax.launch.main(["--render", "launcher=kuberay", *wrong]) == 2
    said = capsys.readouterr().err
    for part in ("partition", "num_cpus=1: the run needs 2 CPUs", "shared_dir", "volume_claim=NAME", "train.lr"):
        assert part in said


def test_what_has_not_landed_is_rendered_with_a_warning_and_not_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    config = [*KUBERAY, "debug.dump=dump"]
    assert relax.launch.main(["--render", *config]) == 0
    assert "warning: debug.dump" in capsys.readouterr().err
    assert relax.launch.main(config) == 2
    assert "error: debug.dump" in capsys.readouterr().err


def test_render_writes_a_file_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "jobs" / "run.sbatch"
    assert relax.launch.main(["launcher=slurm", "--render", "--output", str(target), "name=a"]) == 0
    assert capsys.readouterr().out == ""
    assert target.read_text() == rendered("launcher=slurm", "name=a")
    assert [path.name for path in target.parent.iterdir()] == ["run.sbatch"]
    with pytest.raises(SystemExit):
        relax.launch.main(["launcher=slurm", "--output", str(target)])


def test_a_resumed_run_keeps_its_own_config(tmp_path: Path) -> None:
    OmegaConf.save(OmegaConf.structured(compose_run(["launcher.num_nodes=3", "seed=7"])), tmp_path / "config.yaml")
    config, overrides = load([f"resume={tmp_path}", "launcher=slurm", "launcher.time_limit=1:00:00"])
    assert (config.seed, config.launcher.num_nodes, config.launcher.kind) == (7, 3, LauncherKind.slurm)
    assert overrides == [f"resume={tmp_path}", "launcher.kind=slurm", "launcher.time_limit=1:00:00"]
    assert "launcher.kind=slurm" in render(config, overrides)


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
    assert time_limit_seconds("90") is None
    assert time_limit_seconds("1:60:00") is None
