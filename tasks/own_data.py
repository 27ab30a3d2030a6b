"""Data of your own: local files or a data set of the hub, with any verifier.

`jsonl` takes rows with a prompt and a reference, and refuses a file with a row that cannot be used. `hub` takes columns
that are named on the command line, and leaves such rows out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
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
from .sources import Convert, Row, convert_rows, find_split, numbered_rows, stream_hub, usable_problems

_FIELD = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def local_rows(data: Path, split: str) -> Iterator[tuple[str, Row]]:
    """Yield place and content of each row of a file, or of a split's files in a folder."""
    if not data.exists():
        raise FileNotFoundError(f"{data}: no such file or folder")
    for path in find_split(data, split) if data.is_dir() else [data]:
        yield from numbered_rows(path)


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


# Rows with a prompt and a reference


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
    splits = ("train", "test") if data.is_dir() else ("",)
    if data.is_dir() and not any(find_split(data, split) for split in splits):
        raise FileNotFoundError(f"{data}: no train file; expected train.jsonl, .json or .parquet")
    for split in splits:
        for index, (where, row) in enumerate(local_rows(data, split)):
            yield split, f"{split or data.stem}/{index}", where, row


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
    return build_task(
        "jsonl",
        train=train if include_weak else without_weak("jsonl", judge, train),
        test=test,
        verifier=verifier,
        verifier_options=options,
        split_notes=notes,
        check_references=False,
    )


# Columns by name


def cell(row: Mapping[str, Any], path: str, where: str) -> Any:
    """Return the value of a column, or of a field in it by a dotted path (reward_model.ground_truth).

    Raises ValueError, which names the columns, where there is none.
    """
    held: Any = row
    for depth, name in enumerate(path.split(".")):
        if isinstance(held, list) and name.isdecimal() and int(name) < len(held):
            held = held[int(name)]
        elif isinstance(held, Mapping) and name in held:
            held = held[name]
        elif held is None and depth:
            return None
        else:
            inside = f" in {'.'.join(path.split('.')[:depth])}" if depth else ""
            known = ", ".join(map(str, held)) if isinstance(held, Mapping) else kind_of(held)
            raise ValueError(f"{where}: no column {name!r}{inside}; there are {known}")
    return held


class Columns:
    """Reads columns row by row. A column that an earlier row has may be missing: it is empty there."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def get(self, row: Mapping[str, Any], path: str, where: str) -> Any:
        """Return `cell`, and None where this row lacks what an earlier one has."""
        try:
            held = cell(row, path, where)
        except ValueError:
            if path in self._known:
                return None
            raise
        self._known.add(path)
        return held

    def fields(self, template: str, row: Row, reference: str, where: str) -> dict[str, str] | None:
        """Return the texts for the names in a template other than {prompt}; None if one is empty.

        Raises ValueError for a name that is no column, for one that shows the reference, and for a list or mapping.
        """
        found: dict[str, str] = {}
        for name in sorted(set(_FIELD.findall(template)) - {"prompt"}):
            if f"{reference}.".startswith(f"{name}.") or name.startswith(f"{reference}."):
                raise ValueError(
                    f"option template {template!r:.80}: {{{name}}} is the reference, which the model must not see"
                )
            held = self.get(row, name, f"{where}, option template")
            if held is None or held == "":
                return None
            if isinstance(held, (list, Mapping)):
                inside = next(iter(held), 0) if isinstance(held, Mapping) else 0
                raise ValueError(
                    f"{where}, option template: {{{name}}} is {kind_of(held)}; expected text or a number, such "
                    f"as {{{name}.{inside}}}"
                )
            found[name] = str(held)
        return found


def fill_template(template: str, question: Prompt, fields: Mapping[str, str]) -> Prompt:
    """Replace {prompt} and the names of `fields` in a template. In a chat only the last message is changed."""
    if not template:
        return question
    if isinstance(question, str):
        return _FIELD.sub(lambda match: {**fields, "prompt": question}[match[1]], template)
    last = str(fill_template(template, question[-1]["content"], fields))
    return [*question[:-1], {**question[-1], "content": last}]


def _converter(prompt: str, reference: str, template: str) -> Convert:
    columns = Columns()

    def convert(row: Row, where: str, default: str) -> Problem | str:
        question, answer = columns.get(row, prompt, where), columns.get(row, reference, where)
        blank = question is None or question == [] or (isinstance(question, str) and not question.strip())
        if blank or answer is None:
            return "without a prompt or a reference"
        fields = columns.fields(template, row, reference, where)
        if fields is None:
            return "without what the template names"
        return Problem(default, fill_template(template, to_prompt(question, where), fields), answer)

    return convert


def _check_options(
    dataset: str, data: Path | None, split: str, test_split: str, of_hub: Mapping[str, str], template: str
) -> None:
    """Raise ValueError for options that do not go together. of_hub: options that only a data set on the hub has."""
    if bool(dataset) == (data is not None):
        both = "both are given" if dataset else "neither is given"
        raise ValueError(f"task 'hub': {both}; expected dataset=ORG/NAME, or a local file or folder as data")
    for name, wanted in of_hub.items():
        if wanted and data is not None:
            raise ValueError(f"task 'hub', {name} {wanted!r}: it is of a data set on the hub; leave it out with data")
    if data is not None and data.is_file() and (test_split or split not in ("train", "none")):
        raise ValueError(
            f"task 'hub', data {data}: one file has no splits; leave split and test_split out, or name a folder"
        )
    if test_split and test_split == split:
        raise ValueError(
            f"task 'hub': split {split!r} and test_split {test_split!r} are the same problems; expected two splits, or "
            "no test_split, so that test_share is held out"
        )
    if template and "{prompt}" not in template:
        raise ValueError(
            f"option template {template!r:.80} has no {{prompt}}; expected a text such as '{{prompt}} Answer:'"
        )


@register_task("hub")
def hub(
    *,
    dataset: str = "",
    data: Path | None = None,
    prompt: str = "prompt",
    reference: str = "reference",
    split: str = "train",
    test_split: str = "",
    config: str = "",
    revision: str = "",
    verifier: str = "math",
    verifier_options: tuple[str, ...] = (),
    template: str = "",
    test_share: float = 0.1,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
    seed: int = 0,
) -> Task:
    r"""Any data set of the hub, or local files, by the names of its columns, with any verifier.

    dataset: its name on the hub, with config and revision (a commit, branch or tag) where it has several. data: a
    local file or folder instead. prompt, reference: columns, or fields in them (reward_model.ground_truth); a prompt
    may be a chat. template: a text with {prompt}, and with {NAME} for other columns or fields; \boxed{} stays as it is.
    split, test_split: of the data set; "none" for no training. Without test_split the share test_share is held out, by
    a hash of the prompt. verifier_options: key=value. Rows that cannot be used are left out, and the log counts them.
    """
    data = None if data is None else Path(data)
    check_probabilities("hub", test_share=test_share)
    _check_options(dataset, data, split, test_split, {"config": config, "revision": revision}, template)
    options = VERIFIERS.check_options(verifier, key_values(verifier_options, "option"))
    judge = make_verifier(verifier, **options)
    pack = data.stem if data is not None else dataset
    convert = _converter(prompt, reference, template)

    def read(part: str, held_out: Sequence[Problem] = ()) -> list[Problem]:
        if data is None:
            rows = stream_hub(dataset, config or None, part, revision or None)
        elif data.is_dir() and not find_split(data, part):
            raise FileNotFoundError(
                f"{data}: no {part} file; expected {part}.jsonl, .json or .parquet, or another split"
            )
        else:
            rows = (row for _, row in local_rows(data, part))
        return usable_problems("hub", part, convert_rows(pack, part, rows, convert), judge, held_out)

    test = read(test_split) if test_split else []
    train = read(split, test) if split != "none" else []
    notes: tuple[str, ...] = ()
    if not test_split:
        train, test, notes = hold_out("hub", train, test_share, seed)
    return build_task(
        "hub",
        train=(train if include_weak else without_weak("hub", judge, train))[:num_train],
        test=test[:num_test],
        verifier=verifier,
        verifier_options=options,
        split_notes=notes,
        check_references=False,  # `usable_problems` has read them
    )
