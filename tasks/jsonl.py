"""Problems of your own: JSON Lines with a prompt and a reference, and any verifier."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.core.registry import VERIFIERS, key_values, make_verifier, register_task
from rlvr.core.types import Problem, Prompt, Task
from rlvr.verifiers.runner.base import check_references

from .base import (
    build_task,
    check_probabilities,
    hold_out,
    normalize_prompt,
    prompt_text,
    without_held_out,
    without_weak,
)
from .sources import Row, find_split, numbered_rows


def to_prompt(value: Any, where: str) -> Prompt:
    """Return a prompt: a non-empty string, or a list of messages with role and content. Raise ValueError otherwise."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        for message in value:
            if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
                raise ValueError(f"{where}: a message of the prompt has no role and content: {message!r:.200}")
            for name in ("role", "content"):
                if not isinstance(message[name], str):
                    kind = kind_of(message[name])
                    raise ValueError(f"{where}: {name} of a message of the prompt is {kind}; expected text")
        if value[-1]["role"] == "assistant":
            raise ValueError(
                f"{where}: the prompt ends with the assistant's message, which may be the answer; expected one that "
                "ends with the user's"
            )
        return [{"role": message["role"], "content": message["content"]} for message in value]
    raise ValueError(f"{where}: the prompt is {value!r:.200}; expected text or a list of messages")


def to_id(row: Row, default: str, where: str) -> str:
    """Return the id of a row, else the default. Raise ValueError where it is neither text nor a number."""
    name = row.get("id", default)
    if isinstance(name, bool) or not isinstance(name, str | int | float) or name == "":
        raise ValueError(f"{where}: the id is {name!r:.200}; expected text or a number, or no id")
    return str(name)


def to_problem(row: Row, where: str, default_id: str, prompt_key: str, reference_key: str) -> Problem:
    """Return a row as a problem; columns other than id, prompt and reference become its info."""
    if row.get(prompt_key) is None:
        raise ValueError(
            f"{where}: no {prompt_key}; its columns are {', '.join(row)}; name the column by the task option prompt_key"
        )
    info = {key: value for key, value in row.items() if key not in ("id", prompt_key, reference_key)}
    return Problem(to_id(row, default_id, where), to_prompt(row[prompt_key], where), row.get(reference_key), info)


def located_rows(data: Path) -> Iterator[tuple[str, str, str, Row]]:
    """Yield the rows of a file or folder: split ("" of a single file), default id, place for messages, row."""
    if not data.is_dir():
        if not data.exists():
            raise FileNotFoundError(f"{data}: no such file or folder")
        for index, (where, row) in enumerate(numbered_rows(data)):
            yield "", f"{data.stem}/{index}", where, row
        return
    present = {split: find_split(data, split) for split in ("train", "test")}
    if not any(present.values()):
        raise FileNotFoundError(f"{data}: no train file; expected train.jsonl, .json or .parquet")
    for split, files in present.items():
        for index, (where, row) in enumerate(found for file in files for found in numbered_rows(file)):
            yield split, f"{split}/{index}", where, row


class Seen:
    """Checks problems as they are read, so that an error can name the lines of both.

    A prompt may be repeated in a split with the same reference; `rlvr audit` reports that.
    """

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._splits: dict[str, tuple[str, str]] = {}
        self._references: dict[str, tuple[Any, str]] = {}

    def add(self, problem: Problem, split: str, where: str) -> None:
        """Add a problem. Raises ValueError for a repeated id, or a prompt in both splits or with two references."""
        first = self._ids.setdefault(problem.id, where)
        if first != where:
            raise ValueError(f"{where}: the id {problem.id!r:.200} is that of {first} too")
        held, first = self._splits.setdefault(normalize_prompt(problem.prompt), (split, where))
        if held != split:
            raise ValueError(f"{where}: overlap of train and test: the same prompt as in {first}; remove one")
        # Not normalised: 3² and 32 would be equal, and have different answers.
        reference, first = self._references.setdefault(prompt_text(problem.prompt), (problem.reference, where))
        if reference != problem.reference:
            raise ValueError(f"{where}: the prompt of {first} with another reference; remove one")


@register_task("jsonl")
def jsonl(
    *,
    data: Path,
    verifier: str = "math",
    verifier_options: tuple[str, ...] = (),
    prompt_key: str = "prompt",
    reference_key: str = "reference",
    test_share: float = 0.1,
    include_weak: bool = False,
    seed: int = 0,
) -> Task:
    """Your own prompts and references (JSON Lines), with any verifier.

    data: a folder with train.jsonl and test.jsonl (either may be missing), or one file, of which the share `test_share`
    is held out by a hash of the prompt. So copies of a prompt stay together, and adding lines keeps the split.
    verifier_options: key=value; if all references are numbers, `math` has unevaluated=reject unless they say otherwise.
    include_weak: also train on problems whose tests a program could pass that solves nothing (unit_tests).
    """
    check_probabilities("jsonl", test_share=test_share)
    options = VERIFIERS.check_options(verifier, key_values(verifier_options, "option"))
    judge = make_verifier(verifier, **options)
    splits: dict[str, list[Problem]] = {"": [], "train": [], "test": []}
    seen = Seen()
    for split, default_id, where, row in located_rows(Path(data)):
        problem = to_problem(row, where, default_id, prompt_key, reference_key)
        seen.add(problem, split, where)
        try:
            check_references(judge, [problem])
        except ValueError as error:
            if reference_key in row:
                raise ValueError(f"{where}: {error}") from None
            raise ValueError(
                f"{where}: no {reference_key}, and its columns are {', '.join(row)}: {error}; name the column by the "
                f"task option reference_key, or a verifier that reads none in place of {verifier!r}"
            ) from None
        splits[split].append(problem)
    if splits[""]:
        train, test, notes = hold_out("jsonl", splits[""], test_share, seed)
    else:
        train, test, notes = without_held_out("jsonl", splits["train"], splits["test"]), splits["test"], ()
    task = build_task(
        "jsonl",
        train=train if include_weak else without_weak("jsonl", judge, train),
        test=test,
        verifier=verifier,
        verifier_options=options,
        check_references=False,
    )
    return replace(task, split_notes=notes)
