"""Packs of other libraries: tasks of reasoning-gym, and tasksets of `verifiers` 0.4 (Prime Intellect, prime-rl).

reasoning-gym has about a hundred generated tasks, which are made and scored in the sandbox.

`reasoning_gym:NAME` is the pack `reasoning_gym` with dataset=NAME, `verifiers:MODULE` the pack `verifiers` with
taskset=MODULE.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlvr.core.registry import did_you_mean, register_task
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Task
from rlvr.verifiers.reasoning_gym import GraderFailure, check_dataset, get_grader
from rlvr.verifiers.verifiers_task import hash_of, load_tasks, prompt_of

from .base import build_task, hold_out, normalize_prompt

logger = logging.getLogger("rlvr.tasks")

PROMPTS = ("none", "default", "simple", "direct", "chain_of_draft", "DeepSeekZero")
MOST = 100_000
_AT_ONCE = 16
_WALL = 600.0  # seconds by the clock of a request


@register_task("reasoning_gym", member="dataset")
def reasoning_gym(
    *,
    dataset: str,
    config: str = "{}",
    seed: int = 0,
    num_train: int = 256,
    num_test: int = 64,
    system: str = "default",
    messages: bool = True,
    graded: bool = True,
    least: float = 0.1,
) -> Task:
    """Generated puzzles, algorithms, games and mathematics: reasoning_gym:NAME is one of reasoning-gym's tasks.

    config: settings of the task, as JSON. system: which of the package's system prompts precedes a problem, or none;
    as a message of its own, or with messages=False in one text, for a model without a chat template. A test problem
    is never trained on. graded, least: see the verifier `reasoning_gym`. Needs the extra reasoning-gym.
    """
    check_dataset(dataset)
    name = f"reasoning_gym:{dataset}"
    if system not in PROMPTS:
        raise ValueError(f"task {name!r}: no system prompt {system!r}; {did_you_mean(system, PROMPTS)}")
    if not (0 <= num_train <= MOST and 0 <= num_test <= MOST):
        raise ValueError(f"task {name!r}: {num_train} and {num_test} problems; expected 0 to {MOST:,}")
    settings = _read_config(name, config)
    known = get_grader().ask("settings", name=dataset)
    if unknown := [key for key in settings if key not in known]:
        raise ValueError(f"task {name!r} has no setting {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    introduction = "" if system == "none" else str(get_grader().ask("describe")["prompts"][system]).strip()

    def problem(part: str, index: int, row: Mapping[str, Any]) -> Problem:
        question = row["question"]
        prompt: Any = f"{introduction}\n\n{question}" if introduction else question
        if introduction and messages:
            prompt = [{"role": "system", "content": introduction}, {"role": "user", "content": question}]
        reference = {"dataset": dataset, "config": settings, "entry": row["entry"]}
        return Problem(f"{name}/{part}/{index}", prompt, reference, {"answer": row["answer"]})

    rejected = 0
    held: dict[str, str] = {}
    parts: dict[str, list[Problem]] = {"test": [], "train": []}
    for part, count in (("test", num_test), ("train", num_train)):
        # Item i of a seed is item 0 of the seed i further on: seeds of the parts are far apart.
        number = derive_seed("reasoning_gym", dataset, part, seed) % 2**31
        for index, row in enumerate(_rows(name, dataset, settings, number, count)):
            if row["own"].get("score") != 1:
                rejected += 1
            elif held.setdefault(normalize_prompt(row["question"]), part) == part:
                parts[part].append(problem(part, index, row))
    _report_rejected(name, rejected, num_train + num_test)
    if num_train and not parts["train"]:
        raise ValueError(f"task {name!r}: all of its problems are test problems; ask for fewer (num_test)")
    options = {"graded": graded, "least": least}
    return build_task(
        name,
        train=parts["train"],
        test=parts["test"],
        verifier="reasoning_gym",
        verifier_options=options,
        check_references=False,
    )


def _report_rejected(name: str, rejected: int, count: int) -> None:
    """Tell how many of the package's own answers its scorer rejects. Raise ValueError for more than half."""
    if 2 * rejected > count:
        raise ValueError(f"task {name!r}: its scorer rejects the package's own answers to {rejected} problems")
    if rejected:
        logger.warning(
            f"task {name!r}: {rejected} problems are left out: their scorer rejects the package's own answer"
        )


def _read_config(name: str, config: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that are given as JSON. Raises ValueError for anything but an object."""
    try:
        settings = json.loads(config) if isinstance(config, str) else json.loads(json.dumps(dict(config)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"task {name!r}, config {config!r:.80}: {error}; expected JSON, as in {{}}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"task {name!r}, config {config!r:.80}: expected a JSON object, as in {{}}")
    return settings


def _rows(name: str, dataset: str, settings: Mapping[str, Any], seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the problems of a seed, made in the sandbox. Raise ValueError where the package does."""

    def make(first: int) -> list[dict[str, Any]]:
        values = {"name": dataset, "config": settings, "seed": seed, "size": count}
        reply = get_grader().ask("problems", _WALL, **values, first=first, count=min(_AT_ONCE, count - first))
        return list(reply["problems"])

    with ThreadPoolExecutor(get_grader().slots) as threads:
        try:
            for rows in threads.map(make, range(0, count, _AT_ONCE)):
                yield from rows
        except GraderFailure as error:
            raise ValueError(f"task {name!r}, config {json.dumps(settings)}: {error}") from None


MOST_TASKS = 1_000_000


@register_task("verifiers", member="taskset")
def verifiers(
    *, taskset: str, config: str = "{}", most: int = 10_000, test_share: float = 0.1, seed: int = 0, full: float = 1.0
) -> Task:
    """Tasks of one turn of the package `verifiers`: verifiers:MODULE is the taskset that a module exports.

    config: settings of the taskset, as JSON. most: tasks that are read. A hash of the prompt decides which share is
    held out. full: the sum of rewards that is correct (the verifier `verifiers_task`). Needs the extra verifiers.
    """
    name = f"verifiers:{taskset}"
    if not 0 <= test_share <= 1 or not 1 <= most <= MOST_TASKS:
        raise ValueError(
            f"task {name!r}: test_share {test_share}, most {most}; expected a share, and 1 to {MOST_TASKS:,}"
        )
    settings = _read_config(name, config)
    problems = []
    for index, task in enumerate(load_tasks(taskset, settings, most)):
        reference = {"taskset": taskset, "config": settings, "most": most, "hash": hash_of(task)}
        problems.append(Problem(f"{name}/{index}", prompt_of(task), reference))
    train, test, notes = hold_out("verifiers", problems, test_share, seed)
    return build_task(
        name,
        train=train,
        test=test,
        verifier="verifiers_task",
        verifier_options={"full": full},
        split_notes=notes,
        check_references=False,
    )
