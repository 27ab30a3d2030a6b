"""Any data set of the hub, or local files of the same form, with columns named on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.core.registry import VERIFIERS, make_verifier, register_task
from rlvr.core.types import Problem, Prompt, Task
from rlvr.tasks.base import build_task, hold_out, without_weak
from rlvr.tasks.jsonl import parse_options, to_prompt
from rlvr.tasks.sources import Convert, Row, convert_rows, find_split, first, stream, stream_hub, usable_problems

_FIELD = re.compile(r"\{(\w+(?:\.\w+)*)\}")


def cell(row: Mapping[str, Any], path: str, where: str) -> Any:
    """Return what a column holds, or with a dotted path a field in it: reward_model.ground_truth.

    Raise ValueError that names the columns where there is none.
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


class Cells:
    """What columns hold, row by row. A column that an earlier row has may be missing: it is empty there."""

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
        """Return the texts for the names in a template other than {prompt}; None where one is empty.

        Raise ValueError for a name that is no column, for one that shows the reference, and for a list or mapping.
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


def filled(template: str, question: Prompt, fields: Mapping[str, str]) -> Prompt:
    """Return the template with {prompt} and the names of `fields` in braces replaced; of a chat, its last message."""
    if not template:
        return question
    if isinstance(question, str):
        return _FIELD.sub(lambda match: {**fields, "prompt": question}[match[1]], template)
    last = str(filled(template, question[-1]["content"], fields))
    return [*question[:-1], {**question[-1], "content": last}]


def _check_template(template: str) -> None:
    if template and "{prompt}" not in template:
        raise ValueError(
            f"option template {template!r:.80} has no {{prompt}}; expected a text such as '{{prompt}} Answer:'"
        )


def _check_splits(split: str, test_split: str) -> None:
    if test_split and test_split == split:
        raise ValueError(
            f"task 'hub': split {split!r} and test_split {test_split!r} are the same problems; expected two splits, or "
            "no test_split, so that test_share is held out"
        )


def _converter(prompt: str, reference: str, template: str) -> Convert:
    cells = Cells()

    def convert(row: Row, where: str, default: str) -> Problem | str:
        question, answer = cells.get(row, prompt, where), cells.get(row, reference, where)
        blank = question is None or question == [] or (isinstance(question, str) and not question.strip())
        if blank or answer is None:
            return "without a prompt or a reference"
        fields = cells.fields(template, row, reference, where)
        if fields is None:
            return "without what the template names"
        return Problem(default, filled(template, to_prompt(question, where), fields), answer)

    return convert


def _check_local(data: Path, of_hub: Mapping[str, str], splits: tuple[str, str]) -> None:
    """Raise ValueError for options that a local file or folder does not read."""
    for name, wanted in of_hub.items():
        if wanted:
            raise ValueError(f"task 'hub', {name} {wanted!r}: it is of a data set on the hub; leave it out with data")
    if data.is_file() and (splits[1] or splits[0] not in ("train", "none")):
        raise ValueError(
            f"task 'hub', data {data}: one file has no splits; leave split and test_split out, or name a folder"
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
    _check_source(dataset, data, test_share)
    if data is not None:
        _check_local(Path(data), {"config": config, "revision": revision}, (split, test_split))
    for name, number in (("num_train", num_train), ("num_test", num_test)):
        first([], number, name)
    _check_splits(split, test_split)
    _check_template(template)
    options = VERIFIERS.check_options(verifier, parse_options(verifier_options))
    judge = make_verifier(verifier, **options)
    pack = dataset or (Path(data).stem if data is not None else "")
    convert = _converter(prompt, reference, template)

    def read(part: str, held_out: Sequence[Problem] = ()) -> list[Problem]:
        rows = stream_hub(dataset, config or None, part, revision or None) if data is None else _local(Path(data), part)
        return usable_problems("hub", part, convert_rows(pack, part, rows, convert), judge, held_out)

    test = read(test_split) if test_split else []
    train = read(split, test) if split != "none" else []
    notes: tuple[str, ...] = ()
    if not test_split:
        train, test, notes = hold_out("hub", train, test_share, seed)
    task = build_task(
        "hub",
        train=(train if include_weak else without_weak("hub", judge, train))[:num_train],
        test=test[:num_test],
        verifier=verifier,
        verifier_options=options,
        check_references=False,  # `usable` has read them
    )
    return replace(task, split_notes=notes)


def _check_source(dataset: str, data: Path | None, test_share: float) -> None:
    if bool(dataset) == (data is not None):
        both = "both are given" if dataset else "neither is given"
        raise ValueError(f"task 'hub': {both}; expected dataset=ORG/NAME, or a local file or folder as data")
    if not 0 <= test_share <= 1:
        raise ValueError(f"task 'hub', test_share {test_share}: expected a share in [0, 1]")


def _local(data: Path, split: str) -> Iterator[Row]:
    """Yield the rows of a file, or of the files of a split in a folder."""
    if data.is_file():
        yield from stream(data)
        return
    if not data.is_dir():
        raise FileNotFoundError(f"{data}: no such file or folder")
    found = find_split(data, split)
    if not found:
        raise FileNotFoundError(f"{data}: no {split} file; expected {split}.jsonl, .json or .parquet, or another split")
    for path in found:
        yield from stream(path)
