"""The part of `rlvr rm` that needs torch: pairs are sampled, a reward model trained on them, and measured."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from rlvr.config import ModelConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.core.files.models import SETTINGS
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, RunError, Sampling, Task, Verifier
from rlvr.distributed import gather
from rlvr.model.cpu.processor import tuned_cpu
from rlvr.model.load.policy import load_policy
from rlvr.model.load.pretrained import pick_device
from rlvr.model.optim.optimizer import check_optimizer
from rlvr.model.optim.sharding import check_shard, make_mesh
from rlvr.reward_model.preferences import PreferencePair, pairs_of, split_by_prompt, write_pairs
from rlvr.reward_model.training import (
    TrainableRewardModel,
    load_trainer,
    measure,
    num_training_steps,
    train_reward_model,
)
from rlvr.runs.log import RunLog
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.checkpoint.checkpoint import write_folder_whole
from rlvr.training.checkpoint.folders import folder_of_unfinished, list_checkpoints
from rlvr.training.rollout.rollout import rollout, verify
from rlvr.training.sft.sft import SupervisedCheckpoints, discard
from rlvr.training.supervision.signals import StopRequest, same_command
from rlvr.verifiers.runner import Runner

from ..console import Display
from .folder import HELD_OUT, TRAIN, fingerprint_of, model_folder, read_split, result_of, reward_folder

PROBLEMS_AT_ONCE = 64
SHARED = ("trust_remote_code", "dtype", "device", "system_prompt", "chat")  # settings of both models
ERROR_BUDGET = 0.02
TRAINING = "the training of the reward model"


@tuned_cpu()
def execute(
    config: RewardConfig, sampled: tuple[Task, Verifier] | None, given: Sequence[PreferencePair], stop: StopRequest
) -> dict[str, Any]:
    """Train and measure the model, from the last checkpoint on. Return the line of eval.jsonl.

    sampled: the pack and the verifier of the pairs that are sampled; None where all are given. Raises Stopped where a
    signal ended it.
    """
    stop.left = lambda: what_is_left(config)
    disable_progress_bar()
    accelerator = Accelerator(cpu=pick_device(config.model.device).type == "cpu")
    check_shard(config.model.shard, accelerator.num_processes)
    if accelerator.num_processes > 1:  # each rank has its own GPU
        own = dataclasses.replace(config.model, device=str(accelerator.device))
        config = dataclasses.replace(config, model=own)
    check_optimizer(config.optim, pick_device(config.model.device))
    main = accelerator.is_main_process
    display = Display(enabled=main)
    stop.quiet, stop.bars = not main, display.height
    folder = reward_folder(config, fingerprint_of(sampled and sampled[0], given))
    with ExitStack() as stack:
        stack.callback(display.close)
        lines = stack.enter_context(folder.lock()) if main else []
        split = gather([read_split(folder)] if main and sampled is not None else [None], accelerator)[0]
        if split is None:
            pairs: Sequence[PreferencePair] = ()
            if sampled is not None:
                # Rank 0 alone samples, because verdicts could differ between ranks where time is short.
                stop.doing = "sampling pairs"
                pairs = gather(sample_pairs(config, *sampled, display) if main else [], accelerator)
            split = split_by_prompt([*pairs, *given], config.pairs.held_out, seed=config.run.seed)
        for line in (*lines, *folder.claim()) if main else ():
            display.say(line)
        accelerator.wait_for_everyone()
        return train_on(config, *split, display, accelerator, stop)


def train_on(
    config: RewardConfig,
    train: Sequence[PreferencePair],
    held_out: Sequence[PreferencePair],
    display: Display,
    accelerator: Accelerator,
    stop: StopRequest,
) -> dict[str, Any]:
    """Write the pairs, train the model unless it is there, and show the metrics."""
    if accelerator.is_main_process:
        write_pairs(config.run.out_dir / TRAIN, train)
        write_pairs(config.run.out_dir / HELD_OUT, held_out)
    display.say(f"{len(train)} pairs to train on, {len(held_out)} held out")
    log = RunLog(config.run.out_dir)
    result = result_of(config, log) or train_model(config, train, held_out, log, display, accelerator, stop)
    if accelerator.is_main_process:
        discard(model_folder(config))
    display.print_table(result_table(result))
    display.say(f"model: {result['folder']}")
    return result


def what_is_left(config: RewardConfig) -> str:
    """Return where the same command would begin if the training were killed now."""
    saved = list_checkpoints(folder_of_unfinished(model_folder(config)))
    if saved:
        step, folder = saved[-1]
        return f"run {same_command(config)} to resume {TRAINING} from step {step} ({folder})"
    sampled = config.pairs.file is None and (config.run.out_dir / HELD_OUT).exists()
    return f"run {same_command(config)} to {'resume with the pairs that are sampled' if sampled else 'start again'}"


def train_model(
    config: RewardConfig,
    train: Sequence[PreferencePair],
    held_out: Sequence[PreferencePair],
    log: RunLog,
    display: Display,
    accelerator: Accelerator,
    stop: StopRequest,
) -> dict[str, Any]:
    """Train, measure and save the model. All ranks train, and rank 0 writes."""
    name = config.model.name or config.pairs.policy
    assert name is not None, "config.check asks for one of them"
    stop.doing = "loading the model"
    seed = derive_seed(config.run.seed, "reward model", 0)
    mesh = make_mesh(config.model.shard, accelerator.device)
    trainer = load_trainer(config.model, name, seed=seed, mesh=mesh)
    display.start("training", num_training_steps(len(train), config.train))

    def show(metrics: dict[str, float]) -> None:
        if accelerator.is_main_process:
            log.append("metrics", [{"model": 0, **metrics}])
        display.step(int(metrics["step"]), f"loss {metrics['loss']:.3f}  accuracy {metrics['accuracy']:.2f}")

    def rewind(step: int) -> None:
        log.keep("metrics", lambda line: line["step"] <= step)
        log.keep("eval", lambda line: False)

    folder = model_folder(config)
    with SupervisedCheckpoints(
        folder,
        TRAINING,
        accelerator,
        every=config.train.save_every,
        config=config,
        sharded=mesh is not None,
        stop=stop,
        say=display.say,
        rewind=rewind,
        flush=log.position,
    ) as saver:
        beside = {"accelerator": accelerator, "seed": seed, "on_step": show, "checkpoints": saver}
        train_reward_model(trainer, train, config.train, config.optim, **beside)
    display.finish()
    with stop.busy("measuring and saving the model"):
        return measure_and_save(trainer.gather(), folder, held_out, log, accelerator)


def measure_and_save(
    trainer: TrainableRewardModel,
    folder: Path,
    held_out: Sequence[PreferencePair],
    log: RunLog,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Measure a model with full weights on held-out pairs, and save it. Return its line of eval.jsonl."""
    measured = measure(trainer, held_out)
    if measured["std"] < 1e-6:
        raise RunError("the trained model gives every held-out completion the same score; it has learned nothing")
    result = {"model": 0, "folder": str(folder), **measured}
    if accelerator.is_main_process:
        log.append("eval", [result])  # before the model is saved, so that a complete model has its line
        log.position()
        save_trainer(trainer, folder, measured)
    accelerator.wait_for_everyone()
    return result


def save_trainer(trainer: TrainableRewardModel, folder: Path, result: dict[str, Any]) -> None:
    """Write the model with its rendering settings and metrics, which the verifier `reward_model` reads."""
    renderer = trainer.renderer
    settings = {
        "chat": "always" if renderer.chat else "never",
        "system_prompt": renderer.system_prompt,
        "max_tokens": renderer.max_tokens,
        **result,
    }
    with write_folder_whole(folder) as partial:
        trainer.save(partial)
        (partial / SETTINGS).write_text(json.dumps(settings, indent=2))


def sample_pairs(config: RewardConfig, task: Task, verifier: Verifier, display: Display) -> list[PreferencePair]:
    """Return pairs of the policy's completions of a pack's training problems, which the verifier labels.

    RunError if no problem has both a correct completion and another one, and there are no other pairs.
    """
    p, model = config.pairs, config.model
    assert p.policy is not None, "config.check asks for it"
    policy = load_policy(
        ModelConfig(
            name=p.policy,
            revision=model.revision if model.name in (None, p.policy) else None,
            **{name: getattr(model, name) for name in SHARED},
        )
    )
    sampler = TorchSampler(policy, batch_size=p.batch_size)
    sampling = Sampling(p.max_new_tokens, p.temperature)
    problems = list(task.train[: p.num_problems])
    pairs: list[PreferencePair] = []
    seed = derive_seed(config.run.seed, "reward pairs")
    display.start("sampling pairs", len(problems))
    with Runner(verifier, workers=p.workers, timeout=p.timeout, error_budget=ERROR_BUDGET) as runner:
        for start in range(0, len(problems), PROBLEMS_AT_ONCE):
            chosen: Sequence[Problem] = problems[start : start + PROBLEMS_AT_ONCE]
            groups = rollout(policy, sampler, chosen, sampling, group_size=p.samples, seed=(seed,))
            for group in verify(groups, runner):
                pairs += pairs_of(group, limit=p.per_problem, seed=config.run.seed)
            display.step(start + len(chosen), f"{len(pairs)} pairs")
        counts = dict(runner.counts)
    display.finish()
    if not pairs and not p.also:
        found = ", ".join(f"{count} {status}" for status, count in counts.items())
        raise RunError(
            f"no pairs: none of {len(problems)} problems has both a correct completion and one that is not ({found}); "
            "sample more, or another policy"
        )
    return pairs


def result_table(result: dict[str, Any]) -> Table:
    """Return a table of the model's accuracy with its interval, loss, calibration error, mean and std of scores."""
    table = Table(title=f"held-out pairs: {result['pairs']}")
    for name in ("accuracy", "loss", "ECE", "mean", "std"):
        table.add_column(name, justify="right", no_wrap=True)
    low, high = result["accuracy_ci"]
    numbers = (f"{result[name]:.3f}" for name in ("loss", "ece", "mean", "std"))
    table.add_row(f"{result['accuracy']:.3f} \\[{low:.2f}, {high:.2f}]", *numbers)
    return table
