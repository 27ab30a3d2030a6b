"""`rlvr rm RECIPE`: pairs, from a file or from a policy and a verifier; a reward model trained on them; its measures.

Part of the command line: it knows the verifiers and the packs, which the trainer does not.
"""

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

from rlvr.commands.arguments import key_values
from rlvr.commands.console import Display
from rlvr.commands.train import load_recipe, run_recipe, split_recipe
from rlvr.config import ModelConfig, to_json
from rlvr.config.reward_model import PairsConfig, RewardConfig
from rlvr.distributed import gather
from rlvr.files.models import SETTINGS
from rlvr.model.device import pick_device, tune_cpu
from rlvr.model.optim import check_optimizer
from rlvr.model.policy import load_policy
from rlvr.model.sharding import check_shard, make_mesh
from rlvr.registry import make_task, make_verifier
from rlvr.reward_model.preferences import PreferencePair, pairs_of, read_pairs, split_by_prompt, write_pairs
from rlvr.reward_model.training import (
    TrainableRewardModel,
    load_trainer,
    measure,
    num_training_steps,
    train_reward_model,
)
from rlvr.runs.folder import REWARD_MODEL, RunFolder, texts
from rlvr.runs.log import RunLog
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.seeding import derive_seed
from rlvr.training.checkpoint import written_whole
from rlvr.training.resume import versions
from rlvr.training.rollout import rollout, verify
from rlvr.types import Problem, RunError, Sampling, Task, Verifier
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import check_references

PROBLEMS_AT_ONCE = 64
ERROR_BUDGET = 0.02


def main(argv: Sequence[str]) -> int:
    """Run `rlvr rm RECIPE [flags]`."""
    name, flags = split_recipe(argv, "rm")
    return run_recipe(load_recipe(name, RewardConfig), flags, f"rlvr rm {name}")


def launch_reward_model(config: RewardConfig) -> list[dict[str, Any]]:
    """Run a config from start to end. Return the lines of eval.jsonl: each model's metrics on held-out pairs."""
    config.check()
    tune_cpu()
    disable_progress_bar()
    accelerator = Accelerator(cpu=config.model.device == "cpu")
    check_shard(config.model.shard, accelerator.num_processes)
    if accelerator.num_processes > 1:  # each process has its own GPU
        own = dataclasses.replace(config.model, device=str(accelerator.device))
        config = dataclasses.replace(config, model=own)
    check_optimizer(config.optim, pick_device(config.model.device))
    display = Display(enabled=accelerator.is_main_process)
    given = read_pairs(config.pairs.file) if config.pairs.file is not None else None
    also = [pair for path in config.pairs.also for pair in read_pairs(path)]
    held_out = config.pairs.held_out
    split = split_by_prompt([*given, *also], held_out, seed=config.run.seed) if given is not None else None
    folder = reward_folder(config)
    main = accelerator.is_main_process
    with ExitStack() as stack:
        lines = stack.enter_context(folder.locked()) if main else []
        if split is None:
            # One process samples: verdicts could differ where time is short.
            pairs = gather(sample_pairs(config, display) if main else [], accelerator)
            split = split_by_prompt([*pairs, *also], held_out, seed=config.run.seed)
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


def reward_folder(config: RewardConfig) -> RunFolder:
    """Return the folder of a reward model's training. It is never resumed; one without a model is overwritten."""
    wanted = json.loads(to_json(config))
    folder = config.run.out_dir
    return RunFolder(
        folder,
        REWARD_MODEL,
        flag="--run.out-dir",
        record=lambda held: {**wanted, **versions()},
        difference=lambda held: "a run already",
        loses=lambda held: any(folder.glob("model-*")),
        overwrite=config.run.overwrite,
        inputs=texts({**wanted, "run": {}}),
    )


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


def sample_pairs(config: RewardConfig, display: Display) -> list[PreferencePair]:
    """Return pairs of the policy's completions of a pack's training problems, told apart by a verifier.

    RunError if no problem has both a correct completion and one that is not, and there are no other pairs.
    """
    p, model = config.pairs, config.model
    task, verifier = pack(p)
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


def pack(config: PairsConfig) -> tuple[Task, Verifier]:
    """Return the pack that is sampled, and the verifier that tells its completions apart."""
    options: dict[str, Any] = key_values(config.task_option, "--pairs.task-option")
    if config.data is not None:
        options["data"] = config.data
    task: Task = make_task(config.task, **options)
    if task.environment is not None:
        raise ValueError(f"task {config.task!r} has an environment; pairs are made of completions of one turn")
    if len(task.train) < 2:
        raise ValueError(f"task {config.task!r} has {len(task.train)} problems to train on; pairs need at least 2")
    if config.verifier is None:
        return task, task.verifier
    verifier = make_verifier(config.verifier, **key_values(config.verifier_option, "--pairs.verifier-option"))
    check_references(verifier, task.train)
    return task, verifier


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


def with_policy(config: RewardConfig, policy: Path) -> RewardConfig:
    """Return the config with a policy to sample from, which is also the reward model's base unless one is named."""
    return dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, policy=str(policy)))
