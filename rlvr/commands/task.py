"""The task of a run and the verifiers that its config names. Part of the command line."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rlvr.config import Config
from rlvr.config.shared import EnvironmentSettings, TaskSettings, TurnSettings
from rlvr.core.files.jsonl import check_file, parse_object
from rlvr.core.registry import (
    ENVIRONMENTS,
    TASKS,
    VERIFIERS,
    has_option,
    key_values,
    make_environment,
    make_task,
    make_verifier,
    with_options,
)
from rlvr.core.types import Prompt, Task, Verifier
from rlvr.tasks.base import judge_with, prompt_digest, seal_task
from rlvr.tasks.mixture import RoutedVerifier
from rlvr.verifiers.runner.base import check_references, describe

logger = logging.getLogger("rlvr.tasks")

REGISTERED = {"verifier": VERIFIERS, "selector": VERIFIERS, "environment": ENVIRONMENTS}  # by the setting's name
PLAYED_DEMONSTRATIONS = 64  # demonstrations that are run through the environment to find the alphabet of a tiny model
READ_PROMPTS = 4096  # training problems that are read to find it


def build_task(config: Config, task: Task | None = None) -> Task:
    """Return the run's pack, or the given task, with the verifier that was asked for; its references are checked."""
    run = config.run
    task = apply_verifier(task or make_pack(run, "--run."), run, "--run.")
    if run.verifier is not None or run.verifier_option:
        check_references(task.verifier, [*task.train, *task.test])
    task = apply_environment(task, run, "--run.")
    if run.leave_out is not None:
        task = leave_problems_out(task, run.leave_out)
    if not task.train:
        raise ValueError(f"task {task.name!r} has no problems to train on; it is for evaluation (`rlvr eval`)")
    return task


def make_pack(settings: TaskSettings, at: str) -> Task:
    """Return the pack that settings name, with their options. at: prefix of the flags in messages.

    A pack of problems for any verifier (`jsonl`, `hub`) reads the references with the one that the settings name.
    """
    options = read_task_options(settings, at)
    names = {"verifier", "verifier_options"}
    if settings.verifier is not None and names <= TASKS.options(settings.task).keys() - options.keys():
        options |= {"verifier": settings.verifier, "verifier_options": settings.verifier_option}
    made: Task = make_task(settings.task, **options)
    return made


def apply_verifier(task: Task, settings: TaskSettings, at: str) -> Task:
    """Return the task with the verifier that the settings name; if they name none, its own with their options.

    The references are not checked with that verifier here.
    """
    options = key_values(settings.verifier_option, f"{at}verifier-option")
    if settings.verifier is not None:
        return judge_with(task, make_verifier(settings.verifier, **options))
    if not options:
        return task
    own = f"the verifier of task {task.name!r} ({describe(task.verifier)})"
    notes = () if "unevaluated" in options else task.notes  # they say which value was chosen for it
    return dataclasses.replace(task, verifier=apply_verifier_options(task.verifier, options, own), notes=notes)


def read_task_options(settings: TaskSettings, at: str) -> dict[str, Any]:
    """Return the options of the pack that settings name, `data` among them."""
    options: dict[str, Any] = key_values(settings.task_option, f"{at}task-option")
    return options if settings.data is None else {**options, "data": settings.data}


def apply_verifier_options(verifier: Verifier, options: Mapping[str, str], whose: str) -> Verifier:
    """Return a verifier with other values of its options; in a mixture those of each pack's verifier that has them."""
    if not isinstance(verifier, RoutedVerifier):
        changed: Verifier = with_options(verifier, options, whose)
        return changed
    parts = dict(verifier.components)
    for name, value in options.items():
        having = [pack for pack, part in parts.items() if has_option(part, name)]
        if not having:
            raise LookupError(f"none of the verifiers of the mixture's packs has an option {name!r}")
        parts |= {pack: with_options(parts[pack], {name: value}, f"the verifier of {pack!r}") for pack in having}
    return dataclasses.replace(verifier, components=parts)


def check_names(config: Any, at: str = "--") -> None:
    """Raise LookupError or ValueError for an unknown pack, verifier or environment, and for wrong options of one.

    None of them is constructed, so no data are read. config: settings of a command, or a group of them.
    """
    for setting in dataclasses.fields(config):
        name, value = setting.name, getattr(config, setting.name)
        if name in ("run", "pairs", "monitor") and dataclasses.is_dataclass(value):  # eval.verifier is no such name
            check_names(value, f"{at}{name}.")
        elif name == "task" and isinstance(value, str):
            TASKS.check_options(value, read_task_options(config, at))
        elif name in REGISTERED and isinstance(value, str):
            options = getattr(config, f"{name}_option", ())
            REGISTERED[name].check_options(value, key_values(options, f"{at}{name}-option"))


def leave_problems_out(task: Task, path: Path) -> Task:
    """Return the task without the training problems and demonstrations whose ids a file names; its fingerprint changes.

    A profile of the whole pack still fits. Raise ValueError for a line without an id, for a line of `rlvr audit` whose
    prompt is not that of the problem with its id, and where none of the ids is a problem's.
    """
    ids = read_ids(path)
    trained = [*task.train, *(problem for problem, _ in task.demonstrations)]
    for problem in trained:
        digest = ids.get(problem.id, "")
        if digest and digest != prompt_digest(problem.prompt):
            raise ValueError(
                f"{path}: problem {problem.id!r} has another prompt than in the audit; run `rlvr audit` with the task, "
                "the data and the options of this run"
            )
    train = [problem for problem in task.train if problem.id not in ids]
    shown = [(problem, said) for problem, said in task.demonstrations if problem.id not in ids]
    left = len(task.train) - len(train) + len(task.demonstrations) - len(shown)
    if ids and not left:
        raise ValueError(f"{path}: none of its {len(ids)} ids is that of a training problem of task {task.name!r}")
    if not ids:
        return task
    unknown = len(ids.keys() - {problem.id for problem in trained})
    told = f"; {unknown} of its {len(ids)} ids are not in the task" if unknown else ""
    logger.warning(f"task {task.name!r}: {left} training problems and demonstrations of {path} are left out{told}")
    whole = seal_task(task).fingerprint
    digest = hashlib.sha256("\n".join([whole, *sorted(ids)]).encode()).hexdigest()[:16]
    return dataclasses.replace(
        task, train=train, demonstrations=shown, fingerprint=digest, whole_fingerprint=task.whole_fingerprint or whole
    )


def read_ids(path: Path) -> dict[str, str]:
    """Return the ids that a file names, one a line or in JSON objects, each with the digest of its prompt or ""."""
    check_file(path)
    ids: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8-sig").splitlines(), 1):
        text, where = line.strip(), f"{path}, line {number}"
        if not text.startswith("{"):
            ids |= {text: ""} if text else {}
            continue
        row = parse_object(text.encode(), where)
        name, prompt = row.get("id"), row.get("prompt", "")
        if not isinstance(name, str) or not isinstance(prompt, str):
            raise ValueError(f"{where}: no id; expected an id, or a JSON object with one as text")
        ids[name] = prompt if row.get("held_out") is not None else ""
    return ids


def apply_environment(task: Task, settings: EnvironmentSettings, at: str) -> Task:
    """Return the task with the environment that the settings name; if they name none, its own with their options."""
    options = key_values(settings.environment_option, f"{at}environment-option")
    if settings.environment is not None:
        return dataclasses.replace(task, environment=make_environment(settings.environment, **options))
    if not options:
        return task
    if task.environment is None:
        raise ValueError(f"{at}environment-option: task {task.name!r} has no environment; set {at}environment too")
    own = f"the environment of task {task.name!r}"
    return dataclasses.replace(task, environment=with_options(task.environment, options, own))


def check_turns(task: Task, settings: TurnSettings, at: str) -> None:
    """Raise ValueError for settings of turns, and demonstrations of several, where the task has no environment."""
    if task.environment is not None:
        return
    names = [field.name for field in dataclasses.fields(TurnSettings)] + ["mask_void"]
    defaults = {field.name: field.default for field in dataclasses.fields(settings)}
    for name in names:
        if name in defaults and getattr(settings, name) != defaults[name]:
            shown = name.replace("_", "-") if at.startswith("--") else name
            raise ValueError(
                f"{at}{shown} {getattr(settings, name)}: task {task.name!r} has no environment, and its rollouts are "
                "one turn; leave it out, or choose an environment"
            )
    several = next((p.id for p, said in task.demonstrations if not isinstance(said, str)), None)
    if several is not None:
        raise ValueError(f"demonstration {several!r} has several turns, and task {task.name!r} has no environment")


def build_monitor(config: Config, task: Task) -> Verifier | None:
    """Return the monitor's verifier, its references checked; None without a monitor."""
    settings = config.monitor
    if settings is None:
        return None
    options = key_values(settings.verifier_option, "--monitor.verifier-option")
    monitor: Verifier = make_verifier(settings.verifier, **options)
    check_references(monitor, [*task.train, *task.test])
    return judge_with(task, monitor).verifier


def collect_corpus(task: Task) -> Iterator[str]:
    """Yield the texts that give a tiny model its alphabet: demonstrations with the first replies, and prompts.

    Of the training problems the first are read. Without demonstrations their references are what the model may write.
    """
    for problem, said in task.demonstrations:
        yield said if isinstance(said, str) else "\n".join(said)
        yield join_prompt(problem.prompt)
    for problem in chain(task.test, islice(task.train, READ_PROMPTS)):
        yield join_prompt(problem.prompt)
        if not task.demonstrations and isinstance(problem.reference, str | int | float):
            yield str(problem.reference)
    if task.environment is not None:
        from rlvr.training.rollout.episodes import replay

        yield getattr(task.environment, "announcement", "")
        for problem, said in task.demonstrations[:PLAYED_DEMONSTRATIONS]:
            turns = [said] if isinstance(said, str) else said
            yield from (reply.text for reply in replay(task.environment, problem, turns, seed=0))


def join_prompt(prompt: Prompt) -> str:
    """Return what a prompt says, without roles."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)
