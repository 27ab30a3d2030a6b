"""The training loop: sample groups, verify them, turn rewards into advantages, update the policy."""

from __future__ import annotations

from rlvr.training.monitor.alarm import GuardStop
from rlvr.training.records import finish_step
from rlvr.training.rollout.slices import open_rollouts
from rlvr.training.run import Run, is_due
from rlvr.training.saving import CheckpointSaver
from rlvr.training.step.learner import adapt_coefficients
from rlvr.training.step.prepare import kl_costs
from rlvr.training.step.rewards import check_credit, credit_metrics, credited_advantages, credited_rewards
from rlvr.training.step.update import update
from rlvr.training.supervision.signals import StopRequest


def train(run: Run, start: int = 0) -> StopRequest:
    """Train from `start` to config.run.steps, or until eval.patience is used up. Return the stop request.

    It is truthy if a signal ended training early.

    Raises GuardStop if the reward-hacking alarm or a regression ends the run (after a checkpoint); RollBack if the run
    is to go back to its best checkpoint; NotFinite for non-finite weights or logits, or for gradients that are
    non-finite in three consecutive steps.
    """
    config, learner, timer = run.config, run.learner, run.worker.timer
    with (
        run.training(start) as steps,
        open_rollouts(run.worker, start) as rollouts,
        CheckpointSaver(run) as saver,
    ):
        saver.save_start(start)
        for step in steps:
            saver.check()  # completes a checkpoint that a thread has written, or raises its error

            sampled = rollouts.take(step)
            check_credit(sampled, learner.config)
            groups = [group for group in sampled if group.kept]  # all of them, unless sampling is dynamic
            rewards = credited_rewards(groups, learner.config, learner.policy.decode)
            stats = rollouts.describe(step) | credit_metrics(rewards)
            with timer("train"):
                costs = kl_costs(learner, groups, stats)
                advantages = credited_advantages(groups, rewards, learner.config.algo, costs)
                stats |= update(learner, step, groups, advantages, run.reporter.warn)
                stats |= adapt_coefficients(learner, step + 1, stats, groups)
            rollouts.load_weights()

            guard = finish_step(run, step + 1, sampled, advantages, costs, stats)
            if isinstance(guard, GuardStop):
                saver.save(step + 1, rollouts.ahead)
            if guard:
                saver.finish()
                raise guard
            if run.asked_to_stop():
                break
            evaluated = is_due(step + 1, config.eval.every)
            regression = run.evaluate(step + 1) if evaluated else ""
            if run.asked_to_stop():
                break
            best = evaluated and saver.holds_best(step + 1)
            last = step + 1 == config.run.steps or run.has_converged(step + 1)
            if best or last or regression or is_due(step + 1, config.run.save_every):
                saver.save(step + 1, rollouts.ahead)
            if regression:
                saver.finish()
                run.act_on_regression(step + 1, regression)
        else:
            return StopRequest()  # a signal after the last step ends nothing
        saver.save(step + 1, rollouts.ahead)
    return run.stop
