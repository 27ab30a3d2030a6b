"""The evaluations of a training run: pass@k on held-out problems after some of its steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rlvr.core.heartbeat import enter
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Problem
from rlvr.distributed import gather, share
from rlvr.runs.conclusions import Evaluation, group_comparable
from rlvr.runs.records import is_graded, measured_name, number_since_best, quality
from rlvr.training.checkpoint.folders import checkpoint_folder, list_checkpoints
from rlvr.training.evaluation.evaluate import evaluate
from rlvr.training.run import Run

# The checkpoint that measured best on held-out problems, found from eval.jsonl and the folder.


def best_steps(out_dir: Path, evaluations: Sequence[Evaluation], steps: Collection[int]) -> list[int]:
    """Return the step of each era's best evaluation among `steps`; of equal ones the earliest."""
    found = [[e for e in era if e["step"] in steps] for era in group_comparable(out_dir, evaluations)]
    return [max(era, key=quality)["step"] for era in found if era]


def since_best(out_dir: Path, evaluations: Sequence[Evaluation]) -> int:
    """Return how many evaluations have been made since the best one, of those that can be compared with the last."""
    return next((number_since_best(era) for era in group_comparable(out_dir, evaluations)[-1:]), 0)


def kept_steps(out_dir: Path) -> set[int]:
    """Return the steps whose weights exist: those of the checkpoints, and 0 for the model before training."""
    return {0, *(step for step, _ in list_checkpoints(out_dir))}


def describe_checkpoints(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[str]:
    """Return lines for the end of a run: the last checkpoint, and the best one where that is another."""
    steps = kept_steps(out_dir)
    last = max(steps)
    if last == 0:
        return []
    by_step = {e["step"]: e for e in evaluations}
    best = best_steps(out_dir, evaluations, steps)[-1:]
    name = "last checkpoint, and the best" if best == [last] else "last checkpoint"
    lines = [f"{name}: {checkpoint_folder(out_dir, last)}{measured(by_step.get(last))}"]
    if best and best != [last]:
        start = out_dir / "start"
        origin = start if start.exists() else "the model before the first step"
        where = checkpoint_folder(out_dir, best[0]) if best[0] else origin
        lines.append(f"best checkpoint: {where}{measured(by_step[best[0]])}")
    return lines


def measured(evaluation: Evaluation | None) -> str:
    """Return an evaluation's result in words that follow a path."""
    if evaluation is None:
        return ""
    name = measured_name(evaluation)
    score = f", score {evaluation['score']:.3f}" if is_graded([evaluation]) else ""
    return f", held-out {name} {evaluation[name]:.3f}{score}"


class HeldOutEvaluation:
    """Measures pass@k after a step of a run, logs it and tells the callbacks; once for each step.

    verifiers: by the names of `evaluate`'s parameters, "verifier" and perhaps "lenient" and "strict".
    """

    def __init__(self, run: Run, problems: Sequence[Problem], verifiers: Mapping[str, BatchVerifier]) -> None:
        self.run = run
        self.problems = problems
        self.verifiers = verifiers
        self.reload()

    def reload(self) -> None:
        """Take note of what eval.jsonl says; all processes do so before any of them adds a line."""
        self.measured = {record["step"] for record in self.run.reporter.log.read("eval")}
        self._step = max(self.measured, default=-1)
        self._since_best = self._count_since_best()
        self.run.learner.accelerator.wait_for_everyone()

    def enough(self, step: int) -> bool:
        """Return whether training ends after `step` steps: eval.patience evaluations in a row were no better."""
        patience = self.run.config.eval.patience
        return 0 < patience <= self._since_best and step == self._step and step > 0

    def _count_since_best(self) -> int:
        """Return the evaluations since the best one; the same on all processes."""
        if not self.run.config.eval.patience:
            return 0
        log, counts = self.run.reporter.log, list[int]()
        if self.run.learner.accelerator.is_main_process:
            counts = [since_best(log.out_dir, log.read("eval"))]
        return gather(counts, self.run.learner.accelerator)[0]

    def __call__(self, step: int) -> bool:
        """Evaluate after `step` steps. Return whether the weights are to be kept, as the best so far."""
        if not self.problems or step in self.measured:
            return False
        self.measured.add(step)
        config, accelerator, reporter = self.run.config, self.run.learner.accelerator, self.run.reporter
        count = len(share(self.problems, accelerator))
        enter("evaluation", step)
        reporter.tell(lambda callback: callback.on_evaluate_begin(step, count))
        with self.run.stop.busy(f"the evaluation of step {step}"):
            result = evaluate(
                self.run.worker.policy,
                self.run.worker.sampler,
                self.problems,
                self.verifiers["verifier"],
                self.verifiers.get("lenient"),
                self.verifiers.get("strict"),
                sampling=config.eval_sampling(),
                samples=config.eval.samples,
                ks=config.eval.k,
                threshold=config.eval.threshold,
                seed=config.run.seed,
                progress=lambda done: reporter.tell(lambda callback: callback.on_prediction_step(step, done)),
                accelerator=accelerator,
                plan=self.run.worker.plan,
            )
            reporter.evaluation({"step": step, **result})
        self._step, self._since_best = step, self._count_since_best()
        return config.run.keep_best and self.is_best(step)

    def is_best(self, step: int) -> bool:
        """Return whether a step measured best of those whose weights are there; the same on all processes."""
        best, log = list[int](), self.run.reporter.log
        if self.run.learner.accelerator.is_main_process:
            best = best_steps(log.out_dir, log.read("eval"), kept_steps(log.out_dir) | self.run.being_saved | {step})
        return step in gather(best, self.run.learner.accelerator)[-1:]


def describe_early_end(step: int, patience: int) -> str:
    """Return one line on why training has ended early."""
    count = "evaluation was" if patience == 1 else f"{patience} evaluations were"
    return f"ended early after step {step}: the last {count} no better than one before (--eval.patience {patience})"
