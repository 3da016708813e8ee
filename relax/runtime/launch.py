"""From a checked config to a finished run: data first (its errors come before any process), then Ray, then the loop."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from relax.config.arch import effective_arch
from relax.config.errors import ConfigError
from relax.config.hf_arch import arch_from_hf_config
from relax.config.resolve import Change, resolve_length
from relax.config.schema import RunConfig
from relax.data.model_folder import materialize_model
from relax.data.source import PromptSource
from relax.data.tokenizer import build_char_tokenizer, load_tokenizer
from relax.rewards.scoring import RewardScorer
from relax.runtime.checkpoint import latest_checkpoint
from relax.runtime.cluster import ray_session
from relax.runtime.colocate import run_colocate
from relax.runtime.engine_group import EngineGroup
from relax.runtime.failure import failure_reason, record_failure
from relax.runtime.ledger import Ledger
from relax.runtime.logs import collected_logs
from relax.runtime.run import EvalSet, Run
from relax.runtime.trainer_group import TrainerGroup
from relax.tracking.files import write_json_atomic
from relax.tracking.manifest import build_manifest, command_line
from relax.tracking.run_dir import RunDir
from relax.tracking.summary import finish_run
from relax.tracking.tracker import Tracker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def launch(config: RunConfig, *, run_dir: Path, changes: Sequence[Change], resuming: bool) -> float | None:
    """Run `config` in `run_dir`; returns the mean reward of the last rollouts (for sweepers), None without one.

    Raises:
        DataError, ConfigError: the data or the cluster does not allow the run; no process is left.
    """
    started = time.monotonic()
    tokenizer = _tokenizer(config)
    source = PromptSource(config.data, tokenizer, seed=config.seed)
    eval_sources = {
        name: PromptSource(item.data, tokenizer, seed=config.seed) for name, item in config.eval.sets.items()
    }
    _check_fit(config, tokenizer, source, eval_sources)
    scorer = RewardScorer(config.reward)
    config, length_changes = resolve_length(config, num_prompts=len(source))
    directory = RunDir(run_dir.absolute())
    checkpoint = latest_checkpoint(directory.checkpoints) if resuming else None
    if checkpoint is not None and checkpoint[1]["rollout_id"] + 1 >= (config.train.num_rollout or 1):
        raise ConfigError(
            f"resume={directory.root}: {checkpoint[1]['rollout_id'] + 1} of {config.train.num_rollout} rollouts are "
            "done, there is nothing to go on with: raise train.num_rollout"
        )
    directory.create(resuming=resuming)
    model_dir = materialize_model(config.model, seed=config.seed, folder=directory.initial_model).absolute()
    all_changes = [*changes, *length_changes]
    if checkpoint is not None:
        directory.truncate_after(checkpoint[1]["rollout_id"])
    else:
        directory.write_config(config, all_changes)
        manifest = build_manifest(config, model_dir=model_dir, command=command_line())
        write_json_atomic(directory.root / "manifest.json", manifest)
    tracker = Tracker(config, directory)
    _introduce(tracker, config, directory, all_changes, source)
    outcome, reason, run = "failed", None, None
    try:
        with ray_session(config) as (plan, placement), _terminate_as_interrupt():
            run = Run(
                config=config,
                arch=arch_from_hf_config(json.loads((model_dir / "config.json").read_text(encoding="utf-8"))),
                tokenizer=tokenizer,
                source=source,
                scorer=scorer,
                eval_sets=[
                    EvalSet(name, eval_sources[name], scorer if item.reward is None else RewardScorer(item.reward))
                    for name, item in config.eval.sets.items()
                ],
                trainer=TrainerGroup(config, model_dir=model_dir, plan=plan, placement=placement),
                engines=EngineGroup(config, model_dir=model_dir, plan=plan, placement=placement),
                ledger=Ledger(),
                tracker=tracker,
                run_dir=directory,
                num_rollout=config.train.num_rollout or 1,
            )
            with collected_logs(directory.root / "logs", say=tracker.display.say) as actors:
                actors |= run.trainer.wait_ready() | run.engines.wait_ready()
                tracker.display.say(f"trainer and engines are up after {time.monotonic() - started:.1f} s")
                run_colocate(run, first_rollout=_restore(run, checkpoint))
                run.ledger.check()
                if config.save.final_model:
                    run.trainer.save_hf(directory.final_model)
            outcome = "finished"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    except ConfigError as error:
        reason = str(error)
        raise
    except Exception as error:
        reason = failure_reason(error)
        raise record_failure(error, directory) from error
    finally:
        _finish(tracker, run, scorer, directory, outcome=outcome, reason=reason, started=started)
    rewards = run.recent_rewards
    return sum(rewards) / len(rewards) if rewards else None


def _restore(run: Run, checkpoint: tuple[Path, dict[str, Any]] | None) -> int:
    """Load a checkpoint where there is one; the first rollout to run."""
    run.trainer.set_total_steps(run.num_rollout * (run.config.train.num_steps_per_rollout or 1))
    if checkpoint is None:
        return 0
    folder, state = checkpoint
    run.trainer.load_checkpoint(folder)
    run.ledger = Ledger.from_state(state["ledger"])
    run.recent_rewards = state["recent_rewards"]
    run.tracker.hold(state["held_metrics"])
    return int(state["rollout_id"]) + 1


def _tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    if config.model.source is not None:
        return load_tokenizer(config.model.source)
    return build_char_tokenizer(config.model.charset or "")


def _check_fit(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    source: PromptSource,
    eval_sources: Mapping[str, PromptSource],
) -> None:
    """Raise ConfigError when tokenizer or longest sequence do not fit the model's vocabulary and context."""
    arch = effective_arch(config.model)
    if arch is None:
        return
    if len(tokenizer) > arch.vocab_size:
        raise ConfigError(
            f"model.source={config.model.source}: the tokenizer has {len(tokenizer)} tokens, the model's vocabulary "
            f"{arch.vocab_size}: they do not belong together"
        )
    cases = [("rollout", "data", source, config.rollout.max_response_len)]
    for name, item in config.eval.sets.items():
        response = item.max_response_len or config.rollout.max_response_len
        cases.append((f"eval.sets.{name}", f"eval.sets.{name}.data", eval_sources[name], response))
    for owner, data, prompts, response in cases:
        longest = prompts.report.max_prompt_tokens
        if longest + response > arch.max_position_embeddings:
            raise ConfigError(
                f"{owner}.max_response_len={response} with a longest prompt of {longest} tokens exceeds the model's "
                f"max_position_embeddings={arch.max_position_embeddings}: lower it, or drop long prompts with "
                f"{data}.max_prompt_len={max(1, arch.max_position_embeddings - response)}"
            )


def _introduce(
    tracker: Tracker, config: RunConfig, directory: RunDir, changes: Sequence[Change], source: PromptSource
) -> None:
    for change in changes:
        tracker.display.say(f"resolved {change}")
    report = source.report
    tracker.display.say(
        f"data: {report.num_kept} prompts kept of {report.num_read} ({report.num_bad} malformed, "
        f"{report.num_too_long} too long)"
    )
    tracker.display.say(f"run directory: {directory.root}")


def _finish(
    tracker: Tracker,
    run: Run | None,
    scorer: RewardScorer,
    directory: RunDir,
    *,
    outcome: str,
    reason: str | None,
    started: float,
) -> None:
    """Leave a readable run directory, whatever happened."""
    error = {"error": reason} if reason is not None else {}
    if run is not None:
        if outcome != "finished":
            run.ledger.abandon()
        write_json_atomic(directory.root / "ledger.json", {"outcome": outcome, **error, **run.ledger.state()})
        run.close()
    else:
        scorer.close()
        tracker.close()
    seconds = time.monotonic() - started
    finish_run(directory, outcome=outcome, error=reason, seconds=seconds, display=tracker.display)


class _terminate_as_interrupt:
    """SIGTERM ends the run as Ctrl-C does, so that nothing is left behind.

    Entered after Ray has started, since Ray sets a handler of its own.
    """

    def __enter__(self) -> None:
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._interrupt)

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt
