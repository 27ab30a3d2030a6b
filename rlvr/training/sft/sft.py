"""Supervised fine-tuning on demonstrations: the loop, its checkpoints, and the pretraining mix of RL."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator

from rlvr.algo.batch import Batch, collate
from rlvr.config import Config, OptimConfig, SFTConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.core.files.write import PARTIAL
from rlvr.core.heartbeat import enter
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Completion, Group, Reply, Turn, correct
from rlvr.distributed import sum_gradients
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.memory.estimate import microbatch_tokens
from rlvr.model.optim.health import GradientWatch, check_weights, count_not_finite, python_warning
from rlvr.model.optim.optimizer import make_optimizer, optimizer_step

from ..checkpoint.checkpoint import Snapshot, SnapshotWriter, Weights, load_checkpoint, take_snapshot
from ..checkpoint.folders import checkpoint_folder, delete_old_checkpoints, find_newest_whole, folder_of_unfinished
from ..problems.draws import items_of_step
from ..rollout.episodes import TurnPlan, collect_replies
from ..step.learner import Learner
from ..step.prepare import Microbatch, run_microbatches
from ..supervision.signals import StopRequest, describe_steps, make_stopped, stop_requested
from .demonstrations import Demonstration


def discard(made: Path) -> None:
    """Delete the checkpoints of a training whose model is whole.

    First they lose their name, so that none is taken for damaged after an interruption.
    """
    folder = folder_of_unfinished(made)
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    if folder.exists():
        os.replace(folder, partial)
        shutil.rmtree(partial, ignore_errors=True)


class SupervisedCheckpoints(SnapshotWriter):
    """The checkpoints of one supervised training: fine-tuning, or a reward model.

    Until the model is whole they lie in MADE.training, beside the model's folder MADE. They hold weights and optimizer
    only, since the items of a step are a function of (seed, step). All ranks must make the same calls.

    what: the training in words ("the fine-tuning"). every: steps between checkpoints (0: only on a signal). keep: how
    many stay. config: of the command that resumes it. say: shows a line. stop: a signal ends the training after a
    checkpoint. On the main process `rewind(step)` drops later lines from a log before training begins, and `flush()`
    writes its lines to the disk before each checkpoint.
    """

    def __init__(
        self,
        made: Path,
        what: str,
        accelerator: Accelerator,
        *,
        every: int,
        keep: int = 2,
        beside: bool = False,
        config: Config | RewardConfig,
        sharded: bool,
        stop: StopRequest,
        say: Callable[[str], None],
        rewind: Callable[[int], object] = lambda step: None,
        flush: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(accelerator, sharded=sharded, beside=beside)
        self.folder = folder_of_unfinished(made)
        self.what, self.every, self.keep = what, every, keep
        self.config, self.stop, self.say = config, stop, say
        self.rewind, self.flush = rewind, flush

    def steps(
        self, count: int, weights: Weights, optimizer: torch.optim.Optimizer, gradients: GradientWatch
    ) -> Iterator[int]:
        """Yield the steps (from 0) that are left of `count`, from the newest checkpoint on, and save between them.

        The last step is not saved: the model is then. Raises Stopped where a signal ended the training, after a
        checkpoint; ValueError where all checkpoints are damaged.
        """
        saved = start = self._restore(weights, optimizer, gradients)
        for step in range(start, count):
            self.stop.work = f"step {step + 1} of {self.what}"
            lost = f"{describe_steps(saved, step + 1)} of {self.what}"
            self.stop.unsaved = partial(str, lost)
            enter(self.what, step + 1)
            self.check()
            yield step
            if step + 1 == count:
                break
            asked = stop_requested(self.stop, self.accelerator)
            if asked or (self.every and (step + 1) % self.every == 0):
                self._save(step + 1, weights, optimizer, gradients.streak)
                saved = step + 1
            if asked:
                self.finish()
                where = checkpoint_folder(self.folder, step + 1)
                raise make_stopped(self.stop, self.config, f"after a checkpoint of {self.what}, {where}")
        self.stop.lose_nothing()
        enter("preparation", 0)

    def _restore(self, weights: Weights, optimizer: torch.optim.Optimizer, gradients: GradientWatch) -> int:
        main = self.accelerator.is_main_process
        found = find_newest_whole(self.folder, self.say, move=main)
        step = 0
        if found is not None:
            step, folder = found
            gradients.streak = load_checkpoint(folder, weights, optimizer)["streak"]
            self.say(f"resuming {self.what} from step {step} ({folder})")
        if main:
            self.rewind(step)
        self.accelerator.wait_for_everyone()
        return step

    def _save(self, step: int, weights: Weights, optimizer: torch.optim.Optimizer, streak: int) -> None:
        def take() -> Snapshot | None:
            if not self.writes:
                return None
            if self.accelerator.is_main_process:
                self.flush()
            return take_snapshot(step, weights, optimizer, {"streak": streak}, copied=self.beside)

        def delete_older() -> None:
            # While gradients are not finite, the last good checkpoint may be among the older ones.
            if self.accelerator.is_main_process and not streak:
                delete_old_checkpoints(self.folder, self.keep)

        self.write(checkpoint_folder(self.folder, step), take, delete_older)


def sft(
    policy: Policy,
    demonstrations: Sequence[Demonstration],
    config: SFTConfig,
    accelerator: Accelerator,
    *,
    seed: int,
    tokens_per_microbatch: int,
    plan: TurnPlan | None = None,
    optim: OptimConfig | None = None,
    on_step: Callable[[int, float], None] | None = None,
    warn: Callable[[str], None] = python_warning,
    checkpoints: SupervisedCheckpoints | None = None,
) -> None:
    """Minimize the mean negative log-likelihood of the demonstrations' tokens, the end token included.

    With a `plan` they are the model's turns, played through its environment: replies are read, and not learned.

    AdamW (.9, .99), learning rate by `cosine`, gradient norm clipped at 1; of `optim` only `name` and `offload` are
    read. After each step `on_step(step, loss)` gets
    this process's part of the loss. `warn` gets one line for each step with a broken gradient. With `checkpoints` it
    goes on from the last one. Raises NotFinite where gradients are not finite in several steps in a row, or the weights
    at the end; Stopped where a signal ends it, after a checkpoint.
    """
    hint = f"--sft.lr ({config.lr:g}) and --model.dtype (float32 does not overflow where the others do)"
    gradients = GradientWatch(warn if accelerator.is_main_process else lambda text: None, hint)
    kind = replace(optim or OptimConfig(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.0)
    optimizer = make_optimizer(policy.parameters(), kind)
    left = checkpoints.steps(config.steps, policy, optimizer, gradients) if checkpoints else range(config.steps)
    for step in left:
        chosen = items_of_step(demonstrations, config.batch_size, seed=seed, step=step)
        loss = accumulate(policy, demonstration_batch(policy, chosen, plan, seed), accelerator, tokens_per_microbatch)
        norm = optimizer_step(optimizer, lr=cosine_rate(step, config), max_grad_norm=1.0)
        gradients.observe(step + 1, count_not_finite([norm]), "gradient of the fine-tuning")
        if on_step:
            on_step(step + 1, loss)
    check_weights(policy.model.named_parameters(), f"the fine-tuning broke the policy (look at {hint})")


def cosine_rate(step: int, config: SFTConfig) -> float:
    """Return the learning rate of a step (from 0): a linear warm-up, then lr (1 + cos(pi step / steps)) / 2.

    The cosine is counted from step 0, so that after the warm-up the rate goes on from slightly below lr.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    return config.lr * (1 + math.cos(math.pi * step / config.steps)) / 2


def demonstration_batch(
    policy: Policy, demonstrations: Sequence[Demonstration], plan: TurnPlan | None = None, seed: int = 0
) -> Batch:
    """Return demonstrations as a batch whose mask covers the turns of the model with their end tokens.

    seed: of an environment's random numbers, which are a function of it and the problem. Raises what `replies` does.
    """
    turns = [[said] if isinstance(said, str) else list(said) for _, said in demonstrations]
    found: Sequence[Sequence[Reply]] = [()] * len(turns)
    if plan is not None:
        found = collect_replies([(problem, said) for (problem, _), said in zip(demonstrations, turns)], plan, seed)
    groups = []
    for (problem, _), said, heard in zip(demonstrations, turns, found, strict=True):
        completion = completion_of_demonstration(policy, said, heard, plan)
        groups.append(Group(problem, tuple(policy.render(problem.prompt)), (completion,), (correct(),)))
    return collate(groups, [[1.0]] * len(groups), pad_id=policy.pad_id, device=policy.device)


def completion_of_demonstration(
    policy: Policy, said: Sequence[str], heard: Sequence[Reply], plan: TurnPlan | None
) -> Completion:
    """Return turns of the model, each with an end token, and the replies between them as a completion."""
    ids: list[int] = []
    turns: list[Turn] = []
    for number, text in enumerate(said):
        own = [*policy.encode(text), policy.eos_id]
        ids += own
        turns.append(Turn("assistant", text, len(own)))
        if plan is not None and number + 1 < len(said):
            reply = heard[number]
            reply = replace(reply, text=policy.shorten_reply(reply.text, plan.limits.reply_tokens, reply.payload))
            other = policy.encode_reply(reply, ended=policy.eos_id)
            ids += other
            turns.append(Turn(reply.role, reply.text, len(other)))
    return Completion(said[-1], tuple(ids), (0.0,) * len(ids), turns=tuple(turns) if plan is not None else ())


def accumulate(policy: Policy, batch: Batch, accelerator: Accelerator, tokens_per_microbatch: int) -> float:
    """Run forward and backward over a batch; return this process's part of the loss. Gradients are those of all."""
    loss = add_gradient(policy, batch, accelerator, tokens_per_microbatch)
    sum_gradients(policy.parameters(), accelerator)
    return loss


def add_gradient(
    policy: Policy, batch: Batch, accelerator: Accelerator, tokens_per_microbatch: int, weight: float = 1.0
) -> float:
    """Add weight x the gradient of the loss over this process's share of a batch; return its part of the loss.

    The loss is the mean negative log-likelihood per token of the whole batch.
    """
    total = batch.num_completion_tokens

    def compute(micro: Microbatch) -> float:
        logprobs, _ = token_logprobs(policy, micro.rows.tokens, micro.rows.scored)
        loss = -micro.weight * logprobs.sum() / total
        micro.backward(loss if weight == 1 else weight * loss)
        return float(loss.detach())

    return sum(run_microbatches(batch, policy, accelerator, tokens_per_microbatch, compute, policy.parameters()))


def accumulate_mix(
    learner: Learner, demonstrations: Sequence[Demonstration], plan: TurnPlan | None, number: int
) -> float:
    """Add the gradient of ptx_coef x the mean negative log-likelihood of some demonstrations' tokens; return that mean.

    number: of the update, from 0; the demonstrations are a function of it and the run's seed, in epochs. The gradient
    and the mean are this process's part: the caller adds them up over processes.
    """
    config, algo = learner.config, learner.algo
    seed = derive_seed(config.run.seed, "ptx")
    chosen = items_of_step(demonstrations, algo.ptx_batch_size, seed=seed, step=number)
    batch = demonstration_batch(learner.policy, chosen, plan, config.run.seed)
    tokens = microbatch_tokens(learner.policy, config)
    return add_gradient(learner.policy, batch, learner.accelerator, tokens, weight=algo.ptx_coef)
