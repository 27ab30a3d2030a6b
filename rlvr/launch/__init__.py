"""From a config to a finished run, in three phases. Part of the command line: it knows the verifiers and the packs.

| phase | does | where |
|---|---|---|
| check | settings, names, machine, data; wrong ones are reported before torch is imported, which takes seconds | here |
| open | folder, processes, model, verifiers, sampler; restores what is saved | execute.py |
| run | evaluates, trains, evaluates again, and says what came out | execute.py |

One `Session` goes through all of them; each phase fills in what the later ones read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlvr.commands.machine import check_device, check_optimizer_extra
from rlvr.commands.task import build_monitor, build_task, check_names, check_turns
from rlvr.config import Config, RunConfig
from rlvr.core.files.models import find_model
from rlvr.core.printable import kind_of
from rlvr.core.types import Task, Verifier
from rlvr.runs.trackers import check_trackers
from rlvr.sampling.samplers import check_sampler
from rlvr.tasks.base import judge_with, seal_task
from rlvr.training.checkpoint.resume import resolve_start_from
from rlvr.training.problems.pass_rates import choose_problems
from rlvr.training.sft.demonstrations import with_demonstrations
from rlvr.training.supervision.signals import StopRequest

if TYPE_CHECKING:
    from accelerate import Accelerator

    from rlvr.commands.console import Display
    from rlvr.model.load.policy import Policy
    from rlvr.training.callbacks import Reporter, TrainerCallback
    from rlvr.training.run import Run


@dataclass
class Session:
    """A run on its way from settings to its end.

    stop: the request of a signal to stop, which also says what would be lost. named: the config names both task and
    verifier (they were not passed as objects), so that another command can use them too. notes: lines to print when
    the run begins.
    """

    config: Config
    stop: StopRequest
    named: bool
    callbacks: Sequence[TrainerCallback] = ()
    # Set by `check`.
    task: Task = field(init=False)
    monitor: Verifier | None = field(init=False)
    notes: list[str] = field(default_factory=list)
    # Set by `open_run`. start: the step to go on from.
    accelerator: Accelerator = field(init=False)
    display: Display = field(init=False)
    policy: Policy = field(init=False)
    reporter: Reporter = field(init=False)
    run: Run = field(init=False)
    start: int = field(init=False)


def launch(
    config: Config,
    *,
    task: Task | str | None = None,
    verifier: Verifier | str | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> list[dict[str, Any]]:
    """Run a config from start to end, or from its last checkpoint on. Return the lines of eval.jsonl.

    `task` and `verifier` replace those that the config names; each is an object, or a name as on the command line.
    Settings of the config such as `run.verifier` and `run.environment` hold for a task that is an object, too.
    `callbacks` are notified of steps, evaluations, checkpoints and alarms (rlvr.training.callbacks). Raises Stopped, a
    KeyboardInterrupt, where a signal ended the run: after a checkpoint (the message says how to resume), or at once.
    """
    config, task, verifier = write_names(config, task, verifier)
    with StopRequest().handling_signals() as stop:
        stop.doing, stop.left = "reading the task", lambda: "nothing was written; run the same command again"
        # With the model of the run that this one starts from.
        session = Session(resolve_start_from(config), stop, task is None and verifier is None, callbacks)
        check(session, task, verifier)
        from .execute import execute  # torch takes seconds, for which a wrong name does not wait

        return execute(session)


def write_names(
    config: Config, task: Task | str | None, verifier: Verifier | str | None
) -> tuple[Config, Task | None, Verifier | None]:
    """Return the config with the names among task and verifier, and those that are objects.

    A verifier that is given takes the place of the config's and of its options. Raises TypeError for anything else.
    """
    if not isinstance(task, Task | str | None):
        raise TypeError(f"task is {kind_of(task)}; expected a Task, or the name of a pack such as 'gsm8k'")
    if not (verifier is None or isinstance(verifier, str) or callable(verifier) or hasattr(verifier, "verify_batch")):
        raise TypeError(f"verifier is {kind_of(verifier)}; expected a function, or the name of one such as 'math'")
    run = config.run
    if isinstance(task, str):
        run, task = dataclasses.replace(run, task=task), None
    elif task is not None and (run.task_option or run.data is not None):
        raise ValueError("run.task_option and run.data are for a pack that is named, and the task is an object")
    if isinstance(verifier, str):
        options = run.verifier_option if run.verifier in (None, verifier) else ()
        run, verifier = dataclasses.replace(run, verifier=verifier, verifier_option=options), None
    elif verifier is not None:
        run = dataclasses.replace(run, verifier=None, verifier_option=())
    return dataclasses.replace(config, run=run), task, verifier


def check(session: Session, task: Task | None, verifier: Verifier | None) -> None:
    """Check settings, names and the machine; then read the task, and check it against the settings.

    Raises ValueError, LookupError or OSError with one line for what is wrong.
    """
    config = session.config
    config.check()
    check_device(config.model.device)
    check_sampler(config.sampler)
    check_optimizer_extra(config.optim)
    check_trackers(config.run)
    own = config.run if task is None else dataclasses.replace(config.run, task=RunConfig().task)
    check_names(dataclasses.replace(config, run=own))

    # The data. Everything above is told without reading them.
    task, chosen = choose_problems(seal_task(build_task(config, task)), config.curriculum)
    task = with_demonstrations(task, config.sft)
    task = task if verifier is None else judge_with(task, verifier)
    check_turns(task, config.rollout, "rollout.")
    session.task, session.monitor = task, build_monitor(config, task)
    session.notes += [chosen] if chosen else []
    check_demonstrations(config, task)
    check_turn_credit(config, task)
    check_packs(config, task)

    # Last, since it may ask the hub.
    if config.model.name != "tiny":
        session.stop.doing = "looking for the model"
        find_model(config.model.name, config.model.revision)
    if config.teacher is not None and config.teacher_kind == "model":
        find_model(config.teacher.name or "", None)


def check_demonstrations(config: Config, task: Task) -> None:
    """Raise ValueError where the fine-tuning, the pretraining mix or the teacher has no demonstrations."""
    off_policy = config.teacher.off_policy if config.teacher is not None else 0.0
    wanted = {"sft.steps": config.sft.steps, "algo.ptx_coef": config.algo.ptx_coef, "teacher.off_policy": off_policy}
    for name, value in wanted.items():
        if value and not task.demonstrations:
            raise ValueError(
                f"{name} is {value} and task {task.name!r} has no demonstrations; set --{name.replace('_', '-')} 0, "
                "or --sft.data to a file with prompt and completion"
            )


def check_turn_credit(config: Config, task: Task) -> None:
    """Raise ValueError for credit per turn without an environment: a rollout is one turn then."""
    if config.algo.credit == "turn" and task.environment is None:
        raise ValueError(
            f"algo.credit turn, and task {task.name!r} has no environment: a rollout is one turn, so leave it out"
        )


def check_packs(config: Config, task: Task) -> None:
    """Raise ValueError for a weight of a pack that the task does not have."""
    packs = config.teacher.weights_of_packs if config.teacher is not None else {}
    for pack in packs.keys() - task.shares.keys():
        known = f"known: {', '.join(task.shares)}" if task.shares else f"task {task.name!r} is no mixture"
        raise ValueError(f"teacher.pack_weight {pack}: no such pack; {known}")
