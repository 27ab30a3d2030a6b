"""The evaluations of a training run: pass@k on held-out problems after some of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr.distributed import gather, share
from rlvr.model.progress import enter
from rlvr.training.best import best_steps, kept_steps, since_best
from rlvr.training.evaluate import evaluate
from rlvr.training.run import Run
from rlvr.traits import BatchVerifier
from rlvr.types import Problem


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
