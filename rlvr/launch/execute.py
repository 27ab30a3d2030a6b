"""The phases that need torch: open (policy, verifiers, sampler, restored state) and run (train, evaluate, report)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from transformers.utils.logging import disable_progress_bar

from rlvr.commands.console import (
    Display,
    describe_alarm,
    describe_evaluation,
    describe_outcome,
    describe_step,
    list_saved_models,
    make_evaluation_table,
)
from rlvr.commands.eval import build_eval_command
from rlvr.commands.prompt import dry_run
from rlvr.commands.report.page import write_report
from rlvr.commands.task import collect_corpus
from rlvr.commands.verifier_runners import open_runners
from rlvr.config import Config
from rlvr.core.types import Task, Verifier
from rlvr.model.cpu.processor import tuned_cpu
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.pretrained import pick_device
from rlvr.model.memory.estimate import gpu_memory, shape_of
from rlvr.model.memory.plan import choose_checkpointing, model_settings, shape_of_config, warning_of_plan, with_teacher
from rlvr.model.optim.health import check_weights
from rlvr.model.optim.optimizer import check_optimizer, make_optimizer
from rlvr.model.optim.sharding import check_shard, make_mesh
from rlvr.model.text.context import TYPICAL, fit_task, run_limit
from rlvr.runs.conclusions import conclusions_of, group_comparable
from rlvr.runs.folder import RunFolder
from rlvr.runs.log import RunLog, append_event
from rlvr.runs.trackers import Tracked, make_accelerator, start_trackers
from rlvr.sampling.samplers import open_sampler
from rlvr.train import train
from rlvr.training.callbacks import Reporter, TrackerCallback, TrainerCallback, record_end
from rlvr.training.checkpoint.folders import describe_checkpoints, list_checkpoints
from rlvr.training.checkpoint.resume import describe_changes, train_folder
from rlvr.training.monitor.alarm import GuardStop, RollBack
from rlvr.training.monitor.monitor import Monitor
from rlvr.training.rollout.episodes import longest_row, plan_of
from rlvr.training.rollout.rollout import RolloutWorker
from rlvr.training.run import HeldOutEvaluation, Run, describe_early_end, is_due
from rlvr.training.saving import restore, roll_back
from rlvr.training.sft.sft import accumulate_mix
from rlvr.training.step.distillation.off_policy import accumulate_off_policy
from rlvr.training.step.learner import Learner
from rlvr.training.supervision.signals import describe_what_is_left, make_stopped, stop_requested
from rlvr.training.supervision.watchdog import watching
from rlvr.verifiers.runner import Runner

from . import Session


@tuned_cpu()
def execute(session: Session) -> list[dict[str, Any]]:
    """Open what a checked run needs, and run it. Return the lines of eval.jsonl.

    Raises ValueError for what cannot work and shows only now: the folder, the processes, the model.
    """
    config = session.config
    session.stop.left = lambda: describe_what_is_left(config)

    # Open: first what refuses a run at once, since the weights below take long. A dry run ends before them.
    check_optimizer(config.optim, pick_device(config.model.device))
    disable_progress_bar()
    folder = train_folder(config, session.task)
    folder.check()
    session.accelerator = open_accelerator(config)
    session.display = Display(enabled=session.accelerator.is_main_process)
    for line in session.notes:
        session.display.say(line)
    if config.run.dry_run:
        dry_run(config, session.task, session.display.say)
        return []
    session.config = choose_by_plan(config, session.task)
    load(session)

    # The folder's lock is held to the end, so that no second run writes there.
    with ExitStack() as stack:
        stack.callback(session.display.close)
        claim(session, folder, stack)
        with record_end(session.reporter), watching(session.accelerator, config.run.stall_timeout):
            open_run(session, stack)
            run_session(session)  # the last phase: evaluate, train, evaluate again
        evaluations = session.reporter.log.read("eval")
        if session.accelerator.is_main_process:
            finish(session, evaluations)
    session.accelerator.end_training()
    return evaluations


def choose_by_plan(config: Config, task: Task) -> Config:
    """Return the config in which, on a GPU, the memory plan has chosen what the user left open.

    config.json in the run's folder has the user's own settings.
    """
    memory = gpu_memory(pick_device(config.model.device))
    if memory is None or config.model.gradient_checkpointing is not None or config.model.name == "tiny":
        return config
    settings = model_settings(config.model)
    try:
        shape = with_teacher(shape_of_config(settings, trust_remote_code=config.model.trust_remote_code), config)
    except ValueError:  # of a model whose config has other names no plan can be made
        return config
    turns, context = task.environment is not None, run_limit(config, settings)
    gpus = torch.cuda.device_count()
    return choose_checkpointing(shape, config, memory=memory, gpus=gpus, turns=turns, context=context)


def load(session: Session) -> None:
    """Load the policy, and try it on rows as long as the run's."""
    config, stop = session.config, session.stop
    stop.quiet, stop.bars = not session.accelerator.is_main_process, session.display.height
    stop.doing = "loading the model"
    policy = session.policy = open_policy(config, session.task, session.accelerator)
    limit = run_limit(config, policy.causal.config)
    session.task = fit_task(config, session.task, policy, limit, session.display.say)
    session.display.say(check_rows(config, session.task, policy))


def open_accelerator(config: Config) -> Accelerator:
    """Return the Accelerator, with its trackers.

    Raises ValueError where the number of processes does not fit model.shard.
    """
    accelerator = make_accelerator(config, cpu=pick_device(config.model.device).type == "cpu")
    check_shard(config.model.shard, accelerator.num_processes)
    return accelerator


def open_policy(config: Config, task: Task, accelerator: Accelerator) -> Policy:
    """Load the policy onto this process's device. Raises NotFinite where its weights are broken."""
    model = config.model
    if accelerator.num_processes > 1:  # each process has its own GPU
        model = dataclasses.replace(model, device=str(accelerator.device))
    mesh = make_mesh(model.shard, accelerator.device)
    policy = load_policy(model, corpus=collect_corpus(task), seed=config.run.seed, mesh=mesh)
    check_weights(policy.model.named_parameters(), f"model {model.name!r} cannot be trained")
    policy.announce(task.environment)
    return policy


def check_rows(config: Config, task: Task, policy: Policy) -> str:
    """Try the model on rows as long as the run's; return how it trains on them and samples them.

    Raises ValueError where it can do neither in a way that gives the log-probabilities of its plain forward.
    """
    prompts = [len(policy.render(problem.prompt)) for problem in task.train[:TYPICAL]]
    longest = longest_row(task, config.rollout, max(prompts), run_limit(config, policy.causal.config))
    return policy.check_rows(longest, samples=config.sampler.name == "torch")


def claim(session: Session, folder: RunFolder, stack: ExitStack) -> None:
    """Lock the run's folder until `stack` closes and write the settings into it; open the logs and the trackers."""
    config, accelerator, display = session.config, session.accelerator, session.display
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        lines = stack.enter_context(folder.lock())
        known = len((folder.read_held() or {}).get("history", ()))
        for line in (*lines, *folder.claim()):
            display.say(line)
        for entry in (folder.read_held() or {}).get("history", ())[known:]:
            append_event(folder.path, entry["step"], "changed", describe_changes(entry))
            display.say(describe_changes(entry))
    accelerator.wait_for_everyone()
    start_trackers(config, accelerator)
    task = session.task
    for line in (describe_start(config, task, session.policy, accelerator), *task.split_notes, *task.notes):
        display.say(line, wrap=True)
    trackers = [TrackerCallback(Tracked(config.run, accelerator))] if config.run.trackers else []
    callbacks = [*trackers, ConsoleCallback(display, config), *session.callbacks]
    session.reporter = Reporter(RunLog(config.run.out_dir), accelerator, callbacks)


def describe_start(config: Config, task: Task, policy: Policy, accelerator: Accelerator) -> str:
    """Return one line: the task, its sizes, the model, the processes."""
    processes = f", {accelerator.num_processes} processes" if accelerator.num_processes > 1 else ""
    sizes = f"{len(task.train)} problems to train on, {len(task.test)} held out"
    return f"{task.name}: {sizes}; {policy.describe()}{processes}"


def open_run(session: Session, stack: ExitStack) -> None:
    """Open verifiers and sampler, and restore what is saved. What is opened is closed with `stack`."""
    config, task, policy, stop = session.config, session.task, session.policy, session.stop
    reporter, accelerator = session.reporter, session.accelerator
    r, monitor = config.rollout, session.monitor
    limit = run_limit(config, policy.causal.config)
    warn_of_memory(session, limit)

    def enter_runners(verifier: Verifier) -> dict[str, Runner]:
        opened = open_runners(verifier, workers=r.workers, timeout=r.timeout, error_budget=r.error_budget)
        return stack.enter_context(opened)

    runners = enter_runners(task.verifier)
    monitors = enter_runners(monitor) if monitor is not None else {}
    learner = Learner(config, policy, make_optimizer(policy.parameters(), config.optim), accelerator)
    if config.algo.ptx_coef:
        plan = plan_of(policy, task, config.rollout)
        learner.mix = partial(accumulate_mix, learner, task.demonstrations, plan)
    stop.doing = "loading the last checkpoint"
    session.start = restore(learner, task, reporter, session.display.say, stop)
    if learner.teacher is not None and learner.teacher.served is not None:
        stack.callback(learner.teacher.served.close)
    if learner.teacher is not None and learner.teacher.settings.off_policy:
        plan = plan_of(policy, task, config.rollout)
        learner.teacher.off_policy = partial(accumulate_off_policy, learner, task.demonstrations, plan)
    check_weights(policy.model.named_parameters(), f"the policy that is saved in {config.run.out_dir} is broken")
    if stop_requested(stop, accelerator):
        raise make_stopped(stop, config, f"after the fine-tuning, which is saved in {config.run.out_dir / 'start'}")
    stop.doing = "starting the sampler"
    sampler = stack.enter_context(open_sampler(config.sampler, policy, reporter.warn))
    worker = RolloutWorker(config, policy, sampler, task.train, runners["verifier"], accelerator, shares=task.shares)
    worker.plan = plan_of(policy, task, config.rollout, limit)
    watched = None
    if monitors:
        assert config.monitor is not None
        accelerator.wait_for_everyone()  # until the logs have been truncated to the checkpoint
        watched = Monitor(monitors["verifier"], config.monitor, reporter.log.read("metrics"))
    run = session.run = Run(learner, worker, reporter, watched, stop=stop)
    measured_by: Mapping[str, Runner] = monitors if config.eval.verifier == "monitor" else runners
    held_out = HeldOutEvaluation(run, list(task.test[: config.eval.num_problems]), measured_by)
    run.held_out = held_out
    if getattr(config.sampler, "in_flight", "rebuild") == "keep":
        session.display.say("--sampler.in-flight keep: a resumed run goes on, but not with the same bytes", wrap=True)


def warn_of_memory(session: Session, limit: int | None) -> None:
    """Warn where the plan of a run on GPUs does not fit, before hours are spent. limit: tokens that the model reads."""
    memory = gpu_memory(session.policy.device)
    if memory is None or (shape := shape_of(session.policy)) is None:
        return
    shape, gpus = with_teacher(shape, session.config), max(session.accelerator.num_processes, torch.cuda.device_count())
    turns = session.task.environment is not None
    if told := warning_of_plan(shape, session.config, memory=memory, gpus=gpus, turns=turns, context=limit):
        session.reporter.warn(told, "memory")


def run_session(session: Session) -> None:
    """Evaluate, train from step `start`, and evaluate again; after a rollback once more, from an earlier step.

    Raises Stopped where a signal ended the run, GuardStop where a guard did.
    """
    run, start, display = session.run, session.start, session.display
    asked: RollBack | None = None
    while True:
        try:
            if asked is not None:
                start = roll_back(run, asked)
            return carry_on(run, start, display)
        except RollBack as found:
            asked = found
        except GuardStop:
            if run.learner.accelerator.is_main_process:
                report(run.reporter, display)
            raise


def carry_on(run: Run, start: int, display: Display) -> None:
    """Evaluate, train from step `start`, and evaluate again. Raises what `train` raises, and Stopped."""
    config, stop = run.config, run.stop
    evaluates_start_and_end = config.eval.every >= 0
    # Catch up on an evaluation that an interrupted run missed; steps that are already in eval.jsonl are skipped.
    if evaluates_start_and_end and (start == 0 or is_due(start, config.eval.every)):
        regression = run.evaluate(start)
        if stop_requested(stop, run.learner.accelerator):
            in_log = f"after the evaluation of step {start}, which is in {run.reporter.log.path('eval')}"
            raise make_stopped(stop, config, in_log)
        run.act_on_regression(start, regression)
    ended = train(run, start)
    if ended:
        raise make_stopped(stop, config, f"after a checkpoint, {list_checkpoints(config.run.out_dir)[-1][1]}")
    stop.lose_nothing()
    stop.doing = "writing the report"
    if run.has_converged(run.reporter.last_step):
        display.say(describe_early_end(run.reporter.last_step, config.eval.patience), wrap=True)
    elif evaluates_start_and_end:
        regression = run.evaluate(config.run.steps)
        if not is_due(config.run.steps, config.eval.every):  # it was found before otherwise
            run.act_on_regression(config.run.steps, regression)


def report(reporter: Reporter, display: Display) -> None:
    """Write the page of the run, and say where it is."""
    path = write_report(reporter.log.out_dir)
    display.say(f"report: {path}")
    reporter.tell(lambda callback: callback.on_report(path))


def finish(session: Session, evaluations: list[dict[str, Any]]) -> None:
    """Show the table of pass@k, what happened, where the checkpoints and the report are, and what to type next."""
    config, display = session.config, session.display
    if evaluations:
        display.print_table(make_evaluation_table(evaluations))
    for comparable in group_comparable(config.run.out_dir, evaluations)[-1:]:
        display.say(describe_outcome(comparable), wrap=True)
    checkpoints = list_saved_models(config)
    lines = describe_checkpoints(config.run.out_dir, evaluations)
    for line in lines or [f"{name}: {folder}" for name, folder in checkpoints]:
        display.say(line)
    report(session.reporter, display)
    if checkpoints and session.named:
        whole = bool(evaluations) and evaluations[-1]["num_problems"] == len(session.task.test)
        display.say(f"next, {'for its answers to' if whole else 'to measure it on all'} the held-out problems:")
        display.say(f"  {build_eval_command(config, checkpoints[0][1])}")
    for line in conclusions_of(config.run.out_dir):
        display.say(f"WARNING {line}", wrap=True)


class ConsoleCallback(TrainerCallback):
    """Shows a run on `display`, and a rollout every run.sample_every steps."""

    def __init__(self, display: Display, config: Config) -> None:
        self.display = display
        self.config = config

    def on_sft_begin(self, num_steps: int) -> None:
        self.display.start("fine-tuning", num_steps)

    def on_sft_step(self, step: int, loss: float) -> None:
        self.display.step(step, f"loss {loss:.3f}")
        if step == self.config.sft.steps:
            self.display.finish()

    def on_train_begin(self, config: Config, start: int) -> None:
        if start < config.run.steps:
            self.display.start("training", config.run.steps, start)

    def on_step_end(self, step: int, metrics: Mapping[str, float], rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.display.step(step, describe_step(metrics))
        if is_due(step, self.config.run.sample_every):
            self.display.sample(rollouts[0])

    def on_evaluate_begin(self, step: int, num_problems: int) -> None:
        self.display.start(f"evaluating step {step}", num_problems)

    def on_prediction_step(self, step: int, num_done: int) -> None:
        self.display.step(num_done, "")

    def on_evaluate(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.display.finish()
        self.display.say(f"step {step}: {describe_evaluation(metrics, self.config.eval.k)}")

    def on_alarm(self, record: Mapping[str, Any]) -> None:
        self.display.say(describe_alarm(record))

    def on_warning(self, text: str) -> None:
        self.display.say(f"WARNING {text}")

    def on_train_end(self, step: int) -> None:
        self.display.close()
