"""From a config to a finished run: data, policy, verifier, fine-tuning, training, evaluation, report.

Part of the command line: it knows the verifiers and the packs, which the trainer does not.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from accelerate import Accelerator
from transformers.utils.logging import disable_progress_bar

from rlvr.commands.console import Display, describe_alarm, describe_evaluation, describe_step, evaluation_table
from rlvr.commands.outcome import eval_command, saved_models, what_happened
from rlvr.commands.prompt import dry_run
from rlvr.commands.report import write_report
from rlvr.commands.task import build_monitor, build_task, corpus
from rlvr.commands.verifier_runners import judges
from rlvr.config import Config
from rlvr.distributed import gather, share
from rlvr.model.context import fit_task, run_limit
from rlvr.model.critic import Critic
from rlvr.model.device import tune_cpu
from rlvr.model.health import check_weights
from rlvr.model.optim import make_optimizer
from rlvr.model.policy import Policy, load_policy
from rlvr.runs.log import STREAMS, RunLog
from rlvr.runs.trackers import make_accelerator, start_trackers
from rlvr.sampling.samplers import open_sampler
from rlvr.tasks.base import sealed
from rlvr.train import is_due, stop_requested, train
from rlvr.training.alarm import AlarmStop
from rlvr.training.best import best_steps, describe_checkpoints, eras, kept_steps
from rlvr.training.checkpoint import damage, list_checkpoints, load_checkpoint, newest_whole, save_checkpoint
from rlvr.training.demonstrations import with_demonstrations
from rlvr.training.evaluate import evaluate
from rlvr.training.monitor import Monitor
from rlvr.training.resume import is_fine_tuned, train_folder
from rlvr.training.run import Run
from rlvr.training.sft import sft
from rlvr.training.signals import Stopped, StopRequest
from rlvr.types import Task, Verifier
from rlvr.verifiers.runner import Runner


def launch(config: Config, *, task: Task | None = None, verifier: Verifier | None = None) -> list[dict[str, Any]]:
    """Runs a config from start to end, or from its last checkpoint on. Returns the lines of eval.jsonl.

    `task` and `verifier` replace those that the config names. Stopped, a KeyboardInterrupt, is raised when a signal
    ended the run: after a checkpoint, with how to go on in its text, or at once.
    """
    with StopRequest().answering() as stop:
        stop.left = lambda: what_is_left(config)
        return _launch(config, task, verifier, stop)


def _launch(config: Config, task: Task | None, verifier: Verifier | None, stop: StopRequest) -> list[dict[str, Any]]:
    stop.doing = "reading the task"
    config.check()
    named = task is None and verifier is None
    task = with_demonstrations(sealed(task or build_task(config)), config.sft)
    task = dataclasses.replace(task, verifier=verifier or task.verifier)
    watcher = build_monitor(config, task)
    tune_cpu()
    disable_progress_bar()
    if config.sft.steps and not task.demonstrations:
        raise ValueError(
            f"sft.steps is {config.sft.steps} and task {task.name!r} has no demonstrations; set --sft.steps 0, "
            "or --sft.data to a file with prompt and completion"
        )
    folder = train_folder(config, task.fingerprint)
    folder.check()
    accelerator = make_accelerator(config)
    if accelerator.num_processes > 1 and config.sampler.name != "torch":
        raise ValueError(f"sampler {config.sampler.name} works with one training process; use torch")
    display = Display(enabled=accelerator.is_main_process)
    if config.run.dry_run:
        dry_run(config, task, display.say)
        return []
    stop.quiet, stop.bars, stop.doing = not accelerator.is_main_process, display.height, "loading the model"
    model = config.model
    if accelerator.num_processes > 1:  # each process has a GPU of its own
        model = dataclasses.replace(model, device=str(accelerator.device))
    policy = load_policy(model, corpus=corpus(task), seed=config.run.seed)
    check_weights(policy.model.named_parameters(), f"model {model.name!r} cannot be trained")
    task = fit_task(config, task, policy, run_limit(config, policy.causal.config), display.say)
    with ExitStack() as stack:
        stack.callback(display.close)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            for line in (*stack.enter_context(folder.locked()), *folder.claim()):
                display.say(line)
        accelerator.wait_for_everyone()
        start_trackers(config, accelerator)
        processes = f", {accelerator.num_processes} processes" if accelerator.num_processes > 1 else ""
        sizes = f"{len(task.train)} problems to train on, {len(task.test)} held out"
        display.say(f"{config.run.task}: {sizes}; {policy.describe()}{processes}")
        run, start = open_run(stack, config, task, watcher, policy, accelerator, display, stop)
        carry_out(run, start, display)
        evaluations = run.log.read("eval")
        if accelerator.is_main_process:
            finish(config, evaluations, display, named=named)
    accelerator.end_training()
    return evaluations


def open_run(
    stack: ExitStack,
    config: Config,
    task: Task,
    watcher: Verifier | None,
    policy: Policy,
    accelerator: Accelerator,
    display: Display,
    stop: StopRequest,
) -> tuple[Run, int]:
    """Opens verifiers, logs and sampler, and restores what is saved. Returns the run and the step it begins at.

    What was opened is closed with `stack`.
    """
    r = config.rollout

    def open_judges(judge: Verifier) -> dict[str, Runner]:
        return stack.enter_context(judges(judge, workers=r.workers, timeout=r.timeout, error_budget=r.error_budget))

    runners = open_judges(task.verifier)
    watchers = open_judges(watcher) if watcher is not None else {}
    optimizer = make_optimizer(policy.parameters(), config.optim)
    log = RunLog(config.run.out_dir)
    stop.doing = "loading the last checkpoint"
    start, reference, critic = restore(config, task, policy, optimizer, log, accelerator, display, stop)
    check_weights(policy.model.named_parameters(), f"the policy that is saved in {config.run.out_dir} is broken")
    if stop_requested(stop, accelerator):
        raise stopped(stop, config, f"after the fine-tuning, which is saved in {config.run.out_dir / 'start'}")
    stop.doing = "starting the sampler"
    sampler = stack.enter_context(open_sampler(config.sampler, policy))
    run = Run(config, policy, optimizer, sampler, task.train, runners["verifier"], log, accelerator, reference, critic)
    run.stop = stop
    if watchers:
        accelerator.wait_for_everyone()  # until the logs have been cut back to the checkpoint
        assert config.monitor is not None
        run.monitor = Monitor(watchers["verifier"], config.monitor, log.read("metrics"))
    run.evaluate = evaluator(run, task, watchers if config.eval.verifier == "monitor" else runners, display)
    run.on_step = step_printer(config, display)
    run.on_warning = lambda text: display.say(f"WARNING {text}")
    run.on_alarm = lambda record: display.say(describe_alarm(record))
    return run, start


def carry_out(run: Run, start: int, display: Display) -> None:
    """Evaluates, trains from a step on, and evaluates again. Raises Stopped where a signal ended it."""
    config, stop, evaluate = run.config, run.stop, run.evaluate
    assert evaluate is not None
    evaluate_ends = config.eval.every >= 0
    # Also that of the step after which a signal ended the run; what has been measured is not measured again.
    if evaluate_ends and (start == 0 or is_due(start, config.eval.every)):
        evaluate(start)
        if stop_requested(stop, run.accelerator):
            raise stopped(stop, config, f"after the evaluation of step {start}, which is in {run.log.path('eval')}")
    if start < config.run.steps:
        display.start("training", config.run.steps, start)
    try:
        ended = train(run, start)
    except AlarmStop:
        display.close()
        if run.accelerator.is_main_process:
            display.say(f"report: {write_report(config.run.out_dir)}")
        raise
    finally:
        display.close()
    if ended:
        raise stopped(stop, config, f"after a checkpoint, {list_checkpoints(config.run.out_dir)[-1][1]}")
    stop.work, stop.unsaved, stop.doing = "", "", "writing the report"
    if evaluate_ends:
        evaluate(config.run.steps)


def stopped(stop: StopRequest, config: Config, when: str) -> Stopped:
    """What is raised where a run has ended in good order, because a signal asked for it."""
    by = stop.signal.name if stop.signal else "another process"
    return Stopped(f"stopped by {by} {when}; {same_command(config)} goes on from there", stop.signal or signal.SIGINT)


def same_command(config: Config) -> str:
    """What to run again: with --run.overwrite it would delete what has been done."""
    return f"the same command{' without --run.overwrite' if config.run.overwrite else ''}"


def what_is_left(config: Config) -> str:
    """Where the same command begins after a run was ended at once."""
    saved = list_checkpoints(config.run.out_dir)
    if saved:
        return f"{same_command(config)} goes on from step {saved[-1][0]} ({saved[-1][1]})"
    begins = "after the fine-tuning" if is_fine_tuned(config.run.out_dir) else "anew"
    return f"{same_command(config)} begins {begins}"


def restore(
    config: Config,
    task: Task,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    log: RunLog,
    accelerator: Accelerator,
    display: Display,
    stop: StopRequest,
) -> tuple[int, Policy | None, Critic | None]:
    """The step to start from, the reference policy and the critic. Fine-tunes where nothing has been saved yet."""
    out_dir = config.run.out_dir
    saved = newest_whole(out_dir, display.say, move=accelerator.is_main_process)
    first = out_dir / "start"
    if not saved and accelerator.is_main_process:
        if log.read("metrics"):
            display.say(f"{out_dir} has no checkpoint yet: its steps are repeated, and its logs replaced")
        log.truncate_to(dict.fromkeys((*STREAMS, "parts"), 0), step=-1)
    if config.sft.steps:
        why = damage(first)
        if why is None:
            load_checkpoint(first, policy, None)
        else:
            if first.exists():
                display.say(f"{first} is damaged ({why}); fine-tuning again")
            with stop.busy("the fine-tuning"):
                fine_tune(config, task, policy, accelerator, display, stop)
                if accelerator.is_main_process:
                    save_checkpoint(first, 0, policy, None, {})
    reference = policy.reference() if config.algo.needs_reference else None
    critic = Critic(policy, config.critic, config.optim) if config.critic is not None else None
    if not saved:
        accelerator.wait_for_everyone()  # until the logs have been cut back
        return 0, reference, critic
    step, folder = saved
    state = load_checkpoint(folder, policy, optimizer, critic)
    if accelerator.is_main_process:
        log.truncate_to(state["log"], step)
    accelerator.wait_for_everyone()
    display.say(f"resuming from step {step} ({folder})")
    return step, reference, critic


def fine_tune(
    config: Config, task: Task, policy: Policy, accelerator: Accelerator, display: Display, stop: StopRequest
) -> None:
    """The fine-tuning on the pack's demonstrations."""
    total = config.sft.steps
    display.start("fine-tuning", total)

    def show(step: int, loss: float) -> None:
        stop.work = f"the fine-tuning ({step} of {total} steps done)"
        display.step(step, f"loss {loss:.3f}")

    sft(
        policy,
        task.demonstrations,
        config.sft,
        accelerator,
        seed=config.run.seed,
        tokens_per_microbatch=config.optim.tokens_per_microbatch,
        on_step=show,
    )
    display.finish()


def evaluator(run: Run, task: Task, runners: Mapping[str, Runner], display: Display) -> Any:
    """The function that measures pass@k after a step and adds the line to eval.jsonl; done once for a step.

    It returns whether the weights are to be kept as the best so far.
    """
    config = run.config
    problems = list(task.test[: config.eval.num_problems])
    # Read before any process can add a line, so that all of them agree on what is left to do.
    measured = {record["step"] for record in run.log.read("eval")}
    run.accelerator.wait_for_everyone()

    def measure(step: int) -> bool:
        if not problems or step in measured:
            return False
        measured.add(step)
        display.start(f"evaluating step {step}", len(share(problems, run.accelerator)))
        with run.stop.busy(f"the evaluation of step {step}"):
            result = evaluate(
                run.policy,
                run.sampler,
                problems,
                runners["verifier"],
                runners.get("lenient"),
                runners.get("strict"),
                sampling=config.eval_sampling(),
                samples=config.eval.samples,
                ks=config.eval.k,
                threshold=config.eval.threshold,
                seed=config.run.seed,
                progress=lambda done: display.step(done, ""),
                accelerator=run.accelerator,
            )
            if run.accelerator.is_main_process:
                run.log.append("eval", [{"step": step, **result}])
        display.finish()
        if run.accelerator.is_main_process:
            display.say(f"step {step}: {describe_evaluation(result, config.eval.k)}")
        return config.run.keep_best and is_best(run, step)

    return measure


def is_best(run: Run, step: int) -> bool:
    """Whether a step's evaluation is the best of those whose weights are there; all processes are told the same."""
    best = []
    if run.accelerator.is_main_process:
        best = best_steps(run.log.out_dir, run.log.read("eval"), kept_steps(run.log.out_dir) | {step})
    return step in gather(best, run.accelerator)[-1:]


def step_printer(config: Config, display: Display) -> Any:
    """The function that shows each step, and now and then a rollout."""

    def show(step: int, metrics: dict[str, float], rollouts: list[dict[str, Any]]) -> None:
        display.step(step, describe_step(metrics))
        if is_due(step, config.run.sample_every):
            display.sample(rollouts[0])

    return show


def finish(config: Config, evaluations: list[dict[str, Any]], display: Display, *, named: bool) -> None:
    """The table of pass@k, the report, what happened, where the checkpoints are, and what to type next.

    `named`: the config names the task and the verifier that were used, so that another command can have them too.
    """
    if evaluations:
        display.print_table(evaluation_table(evaluations))
    for comparable in eras(config.run.out_dir, evaluations)[-1:]:
        display.say(what_happened(comparable), wrap=True)
    checkpoints = saved_models(config)
    lines = describe_checkpoints(config.run.out_dir, evaluations)
    for line in lines or [f"{name}: {folder}" for name, folder in checkpoints]:
        display.say(line)
    display.say(f"report: {write_report(config.run.out_dir)}")
    if checkpoints and named:
        display.say("next, to measure it on all held-out problems:")
        display.say(f"  {eval_command(config, checkpoints[0][1])}")
