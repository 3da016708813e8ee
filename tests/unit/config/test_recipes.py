"""Model options have their true dimensions; recipes compose, resolve and pass the rules."""

from __future__ import annotations

import pytest

from relax.config.availability import unavailable
from relax.config.cadence import due
from relax.config.compose import compose_run, conf_dir
from relax.config.flops import num_parameters
from relax.config.hf_arch import arch_from_hf_config, hf_config_dict
from relax.config.resolve import resolve
from relax.config.rules import Scope, Severity, check

# published parameter counts, in millions
PUBLISHED = {
    "tiny_qwen3": 0.07616,
    "qwen3_0_6b": 596.0,
    "qwen3_1_7b": 1720.6,
    "qwen3_4b": 4022.5,
    "qwen3_8b": 8190.7,
    "qwen3_14b": 14768.3,
    "qwen3_32b": 32762.1,
    "qwen2_5_0_5b": 494.0,
    "qwen2_5_1_5b": 1543.7,
    "qwen2_5_3b": 3085.9,
    "qwen2_5_7b": 7615.6,
    "qwen2_5_14b": 14770.0,
    "qwen2_5_32b": 32763.9,
    "llama3_2_1b": 1235.8,
    "llama3_2_3b": 3212.7,
    "llama3_1_8b": 8030.3,
}
RECIPES = sorted(path.stem for path in (conf_dir() / "experiment").glob("*.yaml"))
GPU_RECIPES = [name for name in RECIPES if "gpu" in name]


@pytest.mark.parametrize("option", sorted(PUBLISHED))
def test_a_model_option_has_the_published_number_of_parameters(option: str) -> None:
    arch = compose_run([f"model={option}"]).model.arch
    assert arch is not None
    assert num_parameters(arch) / 1e6 == pytest.approx(PUBLISHED[option], rel=0.001)


def test_every_model_option_with_dimensions_is_held_against_its_published_size() -> None:
    options = {path.stem for path in (conf_dir() / "model").glob("*.yaml")}
    assert options - set(PUBLISHED) == {"smollm2_135m"}


@pytest.mark.parametrize("option", sorted(PUBLISHED))
def test_a_model_option_agrees_with_its_folder_whoever_wrote_it(option: str) -> None:
    """transformers 5 keeps the rope's base and scaling in `rope_parameters`; before it they were two keys."""
    arch = compose_run([f"model={option}"]).model.arch
    assert arch is not None
    written_by_5 = hf_config_dict(arch)
    assert arch_from_hf_config(written_by_5) == arch
    written_by_4 = {name: value for name, value in written_by_5.items() if name != "rope_parameters"}
    written_by_4 |= {"rope_theta": arch.rope_theta, "rope_scaling": arch.rope_scaling or None}
    assert arch_from_hf_config(written_by_4) == arch


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_evaluation_falls_into_a_recipes_measured_window(recipe: str) -> None:
    config = compose_run([f"experiment={recipe}"])
    if config.evidence.window is not None:
        first, last = map(int, config.evidence.window.split("-"))
        assert not [step for step in range(first, last + 1) if due(step, config.eval.interval)]


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("toggle", [[], ["+perf=baseline"]], ids=["plain", "baseline"])
def test_a_recipe_passes_the_rules(recipe: str, toggle: list[str]) -> None:
    config, _ = resolve(compose_run([f"experiment={recipe}", *toggle]))
    assert config.name == recipe
    errors = [str(v) for v in check(config, scopes=(Scope.static,)) if v.severity is Severity.error]
    assert errors == []


@pytest.mark.parametrize("recipe", RECIPES)
def test_toggles_stay_free_on_the_command_line(recipe: str) -> None:
    config = compose_run([f"experiment={recipe}", "+perf=[skip_zero_adv,reuse_log_probs]"])
    assert config.perf.skip_zero_adv
    assert config.perf.reuse_log_probs


@pytest.mark.parametrize("recipe", [*GPU_RECIPES, "tiny_sdpo", "tiny_opsd", "tiny_opd", "opsd_math"])
def test_a_recipe_whose_parts_have_not_landed_says_so(recipe: str) -> None:
    config, _ = resolve(compose_run([f"experiment={recipe}"]))
    assert list(unavailable(config))


def test_the_dapo_recipe_is_what_it_says() -> None:
    config, _ = resolve(compose_run(["experiment=qwen3_4b_dapo_math_8gpu"]))
    assert (config.parallelism.tensor, config.parallelism.data) == (2, 4)
    assert (config.rollout.num_engines, config.rollout.num_gpus_per_engine) == (1, 8)
    assert (config.train.global_batch_size, config.train.num_steps_per_rollout) == (128, 2)


def test_the_sdpo_recipes_share_four_gpus() -> None:
    config, _ = resolve(compose_run(["experiment=sdpo_tooluse_4gpu"]))
    assert config.parallelism.tensor * (config.parallelism.data or 0) == 4
    assert (config.rollout.num_gpus, config.rollout.num_engines, config.teacher.num_gpus) == (3, 3, 1)
