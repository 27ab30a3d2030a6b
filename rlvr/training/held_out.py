"""The evaluations of a training run: pass@k on held-out problems after some of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlvr.distributed import gather, share
from rlvr.model.progress import enter
from rlvr.training.best import best_steps, kept_steps
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
        # Read before any process can add a line, so that all of them agree on what is left to measure.
        self.measured = {record["step"] for record in run.reporter.log.read("eval")}
        run.learner.accelerator.wait_for_everyone()

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
        return config.run.keep_best and self.is_best(step)

    def is_best(self, step: int) -> bool:
        """Return whether a step measured best of those whose weights are there; the same on all processes."""
        best, log = list[int](), self.run.reporter.log
        if self.run.learner.accelerator.is_main_process:
            best = best_steps(log.out_dir, log.read("eval"), kept_steps(log.out_dir) | self.run.being_saved | {step})
        return step in gather(best, self.run.learner.accelerator)[-1:]
