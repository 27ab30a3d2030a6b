"""A run: what is trained, what samples and verifies, who is told, and the evaluations on held-out problems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rlvr.config import Config
from rlvr.core.heartbeat import enter
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem
from rlvr.distributed import gather, share
from rlvr.model.optim.health import GradientWatch, python_warning, streak_of

from .callbacks import Reporter
from .checkpoint.folders import count_since_best
from .evaluation.evaluate import evaluate
from .evaluation.kept import KeptAnswers
from .monitor.alarm import GuardStop, RollBack, describe_regression
from .monitor.monitor import Monitor
from .rollout.rollout import RolloutWorker
from .step.learner import Learner
from .supervision.signals import StopRequest, describe_unsaved, stop_requested


@dataclass
class Run:
    """The parts of a training run.

    learner: the policy and its optimizer. worker: samples and verifies. reporter: writes the logs and notifies the
    callbacks. monitor: a second verifier. held_out: measures pass@k. stop: set by a signal; the run then ends after a
    checkpoint.
    """

    learner: Learner
    worker: RolloutWorker
    reporter: Reporter
    monitor: Monitor | None = None
    held_out: HeldOutEvaluation | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    gradients: GradientWatch = field(default_factory=lambda: GradientWatch(python_warning, "--optim.lr"))

    @contextmanager
    def training(self, start: int) -> Iterator[Iterator[int]]:
        """Handle signals and notify the callbacks of begin and end. Yields the steps (from 0) that are left."""
        optim, model, log = self.config.optim, self.config.model, self.reporter.log
        hint = (
            f"--optim.lr ({optim.lr:g}), --model.dtype ({model.dtype}; float32 does not overflow where the others do) "
            f"and the rollouts of these steps in {log.path('rollouts')}; the checkpoints in {log.out_dir} stay"
        )
        self.gradients = GradientWatch(self.reporter.warn, hint, streak_of(log.read("metrics")) if start else 0)
        with self.stop.handling_signals(), self.reporter.training(self.config, start):
            yield self._steps(start)

    def _steps(self, start: int) -> Iterator[int]:
        """Yield the steps until evaluations no longer get better; seed torch and reset the timer for each."""
        for step in range(start, self.config.run.steps):
            if self.has_converged(step):
                return
            self.stop.work = f"step {step + 1}"
            self.stop.unsaved = partial(describe_unsaved, self.config.run.out_dir, step + 1)
            self.worker.timer.clear()
            enter("sampling", step + 1)
            torch.manual_seed(derive_seed(self.config.run.seed, "step", step))
            yield step

    def asked_to_stop(self) -> bool:
        """Return whether a signal asks the run to end. All processes get the same answer."""
        return stop_requested(self.stop, self.learner.accelerator)

    def evaluate(self, step: int) -> str:
        """Measure and log pass@k after `step` steps. Return how it fell below that of the start, "" if it did not."""
        return "" if self.held_out is None else self.held_out.measure(step)

    def act_on_regression(self, step: int, reason: str) -> None:
        """Carry out eval.on_regression if there is a reason. Raises GuardStop or RollBack, so save the step first."""
        action = self.config.eval.on_regression
        if reason and action == "rollback":
            raise RollBack(step, "regression", reason)
        if reason:
            self.reporter.warn(reason, "regression")
        if reason and action == "stop":
            how = "to continue, repeat the command with --eval.on-regression warn"
            raise GuardStop(f"stopped at step {step}: {reason}; {how}")

    def has_converged(self, step: int) -> bool:
        """Return whether the run ends after `step` steps because evaluations no longer get better (eval.patience)."""
        return self.held_out is not None and self.held_out.has_converged(step)

    @property
    def config(self) -> Config:
        """The settings of the run. Learner and worker hold the same."""
        return self.learner.config

    @config.setter
    def config(self, config: Config) -> None:
        self.learner.config = self.worker.config = config


def is_due(step: int, every: int) -> bool:
    """Return whether something that happens every `every` steps (0: never) happens after this one."""
    return every > 0 and step % every == 0


class HeldOutEvaluation:
    """Measures pass@k on held-out problems, logs it and notifies the callbacks. Each step is measured once.

    verifiers: "verifier", and optionally "lenient" and "strict" (see `evaluate`).
    """

    def __init__(self, run: Run, problems: Sequence[Problem], verifiers: Mapping[str, Any]) -> None:
        self.run = run
        self.problems = problems
        self.verifiers = verifiers
        self.reload()

    def reload(self) -> None:
        """Read eval.jsonl again. All processes do so before one of them appends a line."""
        self.measured = {record["step"] for record in self.run.reporter.log.read("eval")}
        self._step = max(self.measured, default=-1)
        self._since_best = self._count_since_best()
        self.run.learner.accelerator.wait_for_everyone()

    def has_converged(self, step: int) -> bool:
        """Return whether training ends after `step` steps: eval.patience evaluations in a row were no better."""
        patience = self.run.config.eval.patience
        return 0 < patience <= self._since_best and step == self._step and step > 0

    def _count_since_best(self) -> int:
        """Return the number of evaluations since the best one. All processes get the same number."""
        if not self.run.config.eval.patience:
            return 0
        log, counts = self.run.reporter.log, list[int]()
        if self.run.learner.accelerator.is_main_process:
            counts = [count_since_best(log.out_dir, log.read("eval"))]
        return gather(counts, self.run.learner.accelerator)[0]

    def measure(self, step: int) -> str:
        """Evaluate after `step` steps, once. Return in words how the policy fell below its start, "" if it did not."""
        if self.problems and step not in self.measured:
            self._measure(step)
        log, accelerator = self.run.reporter.log, self.run.learner.accelerator
        found = [describe_regression(log.out_dir, log.read("eval"), step)] if accelerator.is_main_process else []
        return gather(found, accelerator)[0]

    def _measure(self, step: int) -> None:
        self.measured.add(step)
        config, accelerator, reporter = self.run.config, self.run.learner.accelerator, self.run.reporter
        count = len(share(self.problems, accelerator))
        enter("evaluation", step)
        reporter.tell(lambda callback: callback.on_evaluate_begin(step, count))
        kept = KeptAnswers(self.problems[: config.eval.keep_answers])
        with self.run.stop.busy(f"the evaluation of step {step}"):
            result = evaluate(
                self.run.worker.policy,
                self.run.worker.sampler,
                self.problems,
                **self.verifiers,
                sampling=config.eval_sampling(),
                samples=config.eval.samples,
                ks=config.eval.k,
                threshold=config.eval.threshold,
                seed=config.run.seed,
                progress=lambda done: reporter.tell(lambda callback: callback.on_prediction_step(step, done)),
                accelerator=accelerator,
                plan=self.run.worker.plan,
                keep=kept.add,
            )
            kept.write(reporter.log, step, accelerator)
            reporter.evaluation({"step": step, **result})
        self._step, self._since_best = step, self._count_since_best()


def describe_early_end(step: int, patience: int) -> str:
    """Return one line on why training has ended early."""
    count = "evaluation was" if patience == 1 else f"{patience} evaluations were"
    return f"ended early after step {step}: the last {count} no better than one before (--eval.patience {patience})"
