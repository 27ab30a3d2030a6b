"""The part of `rlvr rm` that needs torch: pairs are sampled, reward models trained on them, and measured."""

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

from rlvr.commands.console import Display
from rlvr.commands.rm import reward_folder
from rlvr.config import ModelConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.distributed import gather
from rlvr.files.models import SETTINGS
from rlvr.model.device import pick_device, tune_cpu
from rlvr.model.optim import check_optimizer
from rlvr.model.policy import load_policy
from rlvr.model.sharding import check_shard, make_mesh
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
from rlvr.seeding import derive_seed
from rlvr.training.checkpoint import written_whole
from rlvr.training.rollout import rollout, verify
from rlvr.types import Problem, RunError, Sampling, Task, Verifier
from rlvr.verifiers.runner import Runner

PROBLEMS_AT_ONCE = 64
ERROR_BUDGET = 0.02


def execute(
    config: RewardConfig, sampled: tuple[Task, Verifier] | None, given: Sequence[PreferencePair]
) -> list[dict[str, Any]]:
    """Train and measure the models. Return the lines of eval.jsonl: each model's metrics on held-out pairs.

    sampled: the pack and the verifier of the pairs that are sampled; None where all are given.
    """
    tune_cpu()
    disable_progress_bar()
    accelerator = Accelerator(cpu=config.model.device == "cpu")
    check_shard(config.model.shard, accelerator.num_processes)
    if accelerator.num_processes > 1:  # each process has its own GPU
        own = dataclasses.replace(config.model, device=str(accelerator.device))
        config = dataclasses.replace(config, model=own)
    check_optimizer(config.optim, pick_device(config.model.device))
    main = accelerator.is_main_process
    display = Display(enabled=main)
    folder = reward_folder(config)
    with ExitStack() as stack:
        lines = stack.enter_context(folder.locked()) if main else []
        pairs: Sequence[PreferencePair] = ()
        if sampled is not None:
            # One process samples: verdicts could differ where time is short.
            pairs = gather(sample_pairs(config, *sampled, display) if main else [], accelerator)
        split = split_by_prompt([*pairs, *given], config.pairs.held_out, seed=config.run.seed)
        for line in (*lines, *folder.claim()) if main else ():
            display.say(line)
        accelerator.wait_for_everyone()
        return train_all(config, *split, display, accelerator)


def train_all(
    config: RewardConfig,
    train: Sequence[PreferencePair],
    held_out: Sequence[PreferencePair],
    display: Display,
    accelerator: Accelerator,
) -> list[dict[str, Any]]:
    """Write the pairs, train every model on them, and show the metrics."""
    if accelerator.is_main_process:
        write_pairs(config.run.out_dir / "pairs.jsonl", train)
        write_pairs(config.run.out_dir / "held_out.jsonl", held_out)
    display.say(f"{len(train)} pairs to train on, {len(held_out)} held out")
    log = RunLog(config.run.out_dir)
    numbers = range(config.run.models)
    results = [train_one(config, number, train, held_out, log, display, accelerator) for number in numbers]
    display.print_table(result_table(results))
    display.say(f"models: {', '.join(r['folder'] for r in results)}")
    return results


def train_one(
    config: RewardConfig,
    number: int,
    train: Sequence[PreferencePair],
    held_out: Sequence[PreferencePair],
    log: RunLog,
    display: Display,
    accelerator: Accelerator,
) -> dict[str, Any]:
    """Train, measure and save one model; all processes train, and the first one writes."""
    name = config.model.name or config.pairs.policy
    assert name is not None, "config.check asks for one of them"
    seed = derive_seed(config.run.seed, "reward model", number)
    mesh = make_mesh(config.model.shard, accelerator.device)
    trainer = load_trainer(config.model, name, seed=seed, mesh=mesh)
    title = f"model {number}" if config.run.models > 1 else "training"
    display.start(title, num_training_steps(len(train), config.train))

    def show(metrics: dict[str, float]) -> None:
        if accelerator.is_main_process:
            log.append("metrics", [{"model": number, **metrics}])
        display.step(int(metrics["step"]), f"loss {metrics['loss']:.3f}  accuracy {metrics['accuracy']:.2f}")

    train_reward_model(trainer, train, config.train, config.optim, accelerator=accelerator, seed=seed, on_step=show)
    display.finish()
    trainer = trainer.whole()
    result = measure(trainer, held_out)
    if result["std"] < 1e-6:
        raise RunError("the trained model gives every held-out completion the same score; it has learned nothing")
    folder = config.run.out_dir / f"model-{number}"
    if accelerator.is_main_process:
        save_trainer(trainer, folder, result)
        log.append("eval", [{"model": number, "folder": str(folder), **result}])
    accelerator.wait_for_everyone()
    return {"model": number, "folder": str(folder), **result}


def save_trainer(trainer: TrainableRewardModel, folder: Path, result: dict[str, Any]) -> None:
    """Write the model with its rendering settings and metrics, which the verifier `reward_model` reads."""
    renderer = trainer.renderer
    settings = {
        "chat": "always" if renderer.chat else "never",
        "system_prompt": renderer.system_prompt,
        "max_tokens": renderer.max_tokens,
        **result,
    }
    with written_whole(folder) as partial:
        trainer.save(partial)
        (partial / SETTINGS).write_text(json.dumps(settings, indent=2))


def sample_pairs(config: RewardConfig, task: Task, verifier: Verifier, display: Display) -> list[PreferencePair]:
    """Return pairs of the policy's completions of a pack's training problems, told apart by a verifier.

    RunError if no problem has both a correct completion and one that is not, and there are no other pairs.
    """
    p, model = config.pairs, config.model
    assert p.policy is not None, "config.check asks for it"
    policy = load_policy(
        ModelConfig(
            name=p.policy,
            revision=model.revision if model.name in (None, p.policy) else None,
            trust_remote_code=model.trust_remote_code,
            dtype=model.dtype,
            device=model.device,
            system_prompt=model.system_prompt,
            chat=model.chat,
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


def result_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return a table of each model's accuracy with its interval, loss, calibration error, mean and std of scores."""
    table = Table(title=f"held-out pairs: {results[0]['pairs']}")
    for name in ("model", "accuracy", "loss", "ECE", "mean", "std"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        low, high = r["accuracy_ci"]
        numbers = (f"{r[name]:.3f}" for name in ("loss", "ece", "mean", "std"))
        table.add_row(str(r["model"]), f"{r['accuracy']:.3f} \\[{low:.2f}, {high:.2f}]", *numbers)
    return table
