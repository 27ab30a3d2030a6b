"""The training loop: sample groups, verify them, turn rewards into advantages, update the policy."""

from __future__ import annotations

import torch

from rlvr.core.heartbeat import enter
from rlvr.core.seeding import derive_seed
from rlvr.model.optim.health import GradientWatch, dropped_updates, streak_of
from rlvr.training.monitor.guards import GuardStop, act_on_regression, find_regression
from rlvr.training.records import check_trained, finish_step, gradient_advice, is_due, log_alarm
from rlvr.training.rollout.rollout import RolloutPrefetcher
from rlvr.training.run import Run
from rlvr.training.saving import CheckpointSaver, can_roll_back
from rlvr.training.step.adaptive_coefficients import follow
from rlvr.training.step.prepare import kl_costs, subtracts_kl
from rlvr.training.step.rewards import check_credit, credit_metrics, credited_advantages, credited_rewards
from rlvr.training.step.update import update
from rlvr.training.supervision.signals import StopRequest, stop_requested, unsaved


def train(run: Run, start: int = 0) -> StopRequest:
    """Train from `start` to config.run.steps, or until eval.patience is used up. Return the stop request.

    It is truthy if a signal ended training early.

    Raises GuardStop where the reward-hacking alarm or a regression ends the run (after a checkpoint); RollBack where
    it is to go back to its best checkpoint; NotFinite for non-finite weights or logits, or gradients that are
    non-finite in three consecutive steps.
    """
    config, learner, timer, accelerator = run.config, run.learner, run.worker.timer, run.learner.accelerator
    log = run.reporter.log
    streak = streak_of(run.reporter.log.read("metrics")) if start else 0
    gradients = GradientWatch(run.reporter.warn, gradient_advice(run), streak)
    with (
        run.stop.answering(),
        run.reporter.training(config, start),
        RolloutPrefetcher(run.worker, start) as rollouts,
        CheckpointSaver(run) as saver,
    ):
        if start == 0 < config.run.steps and can_roll_back(config):
            saver.save_start()
        for step in range(start, config.run.steps):
            if run.has_converged(step):
                return StopRequest()
            begin_step(run, step)
            saver.check()

            sampled = rollouts.take(step)
            check_credit(sampled, config)
            groups = [group for group in sampled if group.kept]
            rewards = credited_rewards(groups, config, learner.policy.decode)
            costs, stats = None, rollouts.describe(step) | credit_metrics(rewards)
            with timer("train"):
                if subtracts_kl(learner):
                    costs, stats["kl"] = kl_costs(learner, groups)
                advantages = credited_advantages(groups, rewards, config.algo, costs)
                stats |= update(learner, step, groups, advantages, run.reporter.warn)
                stats |= follow(learner, step + 1, stats, groups)
            check_trained(learner, step + 1)
            rollouts.load_weights()

            metrics, records, signs = finish_step(run, step + 1, sampled, advantages, costs, stats)
            gradients.observe(step + 1, *dropped_updates(metrics))
            alarm = log_alarm(run, step + 1, signs, metrics, records)
            if isinstance(alarm, GuardStop):
                saver.save(step + 1, rollouts.ahead)
            if alarm:
                saver.finish()
                raise alarm
            if stop_requested(run.stop, accelerator):
                break
            evaluated = is_due(step + 1, config.eval.every)
            if evaluated:
                run.evaluate(step + 1)
            if stop_requested(run.stop, accelerator):
                break
            last = step + 1 == config.run.steps or run.has_converged(step + 1)
            best = evaluated and saver.holds_best(step + 1)
            regression = find_regression(log, accelerator, step + 1) if evaluated else ""
            if best or last or regression or is_due(step + 1, config.run.save_every):
                saver.save(step + 1, rollouts.ahead, keep_all=gradients.streak > 0)
            if regression:
                saver.finish()
                act_on_regression(config.eval.on_regression, step + 1, regression, run.reporter.warn)
        else:
            return StopRequest()  # a signal after the last step ends nothing
        saver.save(step + 1, rollouts.ahead, keep_all=gradients.streak > 0)
    return run.stop


def begin_step(run: Run, step: int) -> None:
    """Seed torch for a step (from 0), reset the timer, and record what a stop signal has to wait for."""
    run.stop.work = f"step {step + 1}"
    run.stop.unsaved = unsaved(run.config.run.out_dir, step + 1)
    run.worker.timer.clear()
    enter("sampling", step + 1)
    torch.manual_seed(derive_seed(run.config.run.seed, "step", step))
