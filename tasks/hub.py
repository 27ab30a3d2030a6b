"""Any data set of the hub, or local files of the same form, with columns named on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.core.registry import VERIFIERS, key_values, make_verifier, register_task
from rlvr.core.types import Problem, Prompt, Task

from .base import build_task, check_probabilities, hold_out, without_weak
from .jsonl import to_prompt
from .sources import Convert, Row, convert_rows, find_split, numbered_rows, stream_hub, usable_problems

_FIELD = re.compile(r"\{(\w+(?:\.\w+)*)\}")


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


def _local_rows(data: Path, split: str) -> Iterator[Row]:
    """Yield the rows of a file, or of the files of a split in a folder."""
    files = [data] if data.is_file() else find_split(data, split)
    if not files:
        wanted = f"no {split} file; expected {split}.jsonl, .json or .parquet, or another split"
        raise FileNotFoundError(f"{data}: {wanted if data.is_dir() else 'no such file or folder'}")
    for path in files:
        yield from (row for _, row in numbered_rows(path))


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
        rows = stream_hub(dataset, config or None, part, revision or None) if data is None else _local_rows(data, part)
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
        check_references=False,  # `usable_problems` has read them
    )
    return replace(task, split_notes=notes)
