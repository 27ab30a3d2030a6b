"""Published data sets: where each is, under which licence, how large; its rows from the hub or from local files.

`usable` turns rows into problems, and says in one line how many are left out and why.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import HeldPrompts, build_task, prompt_text, without_weak
from rlvr.tasks.rows import Row, first, split_files, stream, stream_hub
from rlvr.verifiers.runner.base import check_references

logger = logging.getLogger("rlvr.tasks")

T = TypeVar("T", bound=Callable[..., Task])
Convert = Callable[[Row, str, str], Problem | str]  # row, its place, a name for it: a problem, or why it is left out


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set on the hub.

    splits: by the pack's split, that of the hub; configs: read one after the other. revision: the commit whose columns
    the pack reads, None where none is pinned. files: by the pack's split, JSON Lines files of the data set to read as
    they are, where it has a loading script, which is not run, or no splits.
    """

    hub: str
    licence: str
    size: str
    splits: Mapping[str, str] = field(default_factory=lambda: {"test": "test"})
    configs: tuple[str | None, ...] = (None,)
    revision: str | None = None
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        at = f"at {self.revision}" if self.revision else "newest revision, none is pinned"
        parts = f" ({self.configs[0]})" if len(self.configs) == 1 and self.configs[0] else ""
        return f"Hub: {self.hub}{parts}, {at}. Licence: {self.licence}. Size: {self.size}."

    def rows(self, data: Path | None, split: str) -> Iterator[Row]:
        """Yield the rows of one of the pack's splits: of local data, else of the hub.

        data: a folder with train and test files, or one file; any file will do where the set has one split only.
        """
        if data is None:
            for config in self.configs:
                yield from stream_hub(self.hub, config, self.splits[split], self.revision, self.files.get(split, ()))
            return
        for path in split_files(Path(data), split, alone=len(self.splits) == 1):
            yield from stream(path)


def published(*sources: Source) -> Callable[[T], T]:
    """Decorator of a pack: its docstring, which `rlvr list NAME` prints, tells where its data are, licence and size."""

    def add(pack: T) -> T:
        pack.__doc__ = "\n\n".join([inspect.getdoc(pack) or "", "\n".join(map(str, sources))])
        pack.sources = sources  # type: ignore[attr-defined]
        return pack

    return add


def value(row: Row, names: Sequence[str], where: str) -> Any:
    """Return the first of these columns that is not empty, else None. Raise ValueError where the row has none."""
    if not any(name in row for name in names):
        raise ValueError(f"{where}: no {' or '.join(names)}; its columns are {', '.join(row)}")
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def converted(name: str, split: str, rows: Iterable[Row], convert: Convert) -> Iterator[Problem | str]:
    """Yield what `convert` makes of each row; its errors name the row by its number from 1."""
    for index, row in enumerate(rows):
        yield convert(row, f"{name} {split}, row {index + 1}", f"{name}/{split}/{index}")


def usable(
    name: str, split: str, made: Iterable[Problem | str], verifier: Any, held_out: Iterable[Problem] = ()
) -> list[Problem]:
    """Return the problems that can be used, in order; the log says how many rows are left out, by reason.

    Left out are rows that say why themselves, references that the verifier cannot read, repeated prompts (all of them
    where their references differ), and prompts of `held_out`.
    """
    left: Counter[str] = Counter()
    held = HeldPrompts(held_out)
    kept: dict[str, Problem] = {}
    contradicted: set[str] = set()
    total = 0
    for problem in made:
        total += 1
        if isinstance(problem, str):
            left[problem] += 1
            continue
        # Without white space, but not normalised: 3² and 32 are the same after normalisation.
        text = " ".join(prompt_text(problem.prompt).split())
        if text in contradicted:
            left["with contradictory references"] += 1
        elif text in kept and _plain(kept[text].reference) == _plain(problem.reference):
            left["repeated"] += 1
        elif text in kept:
            contradicted.add(text)
            left["with contradictory references"] += 2
        elif problem in held:
            left["held out"] += 1
        elif not _readable(verifier, problem):
            left["with unreadable references"] += 1
        else:
            kept[text] = problem
    found = [problem for text, problem in kept.items() if text not in contradicted]
    reasons = ", ".join(f"{count:,} {why}" for why, count in left.most_common())
    if total and not found:
        raise ValueError(f"task {name!r}: none of {total:,} rows can be used for {split}: {reasons}")
    if left:
        logger.warning(f"task {name!r}: {len(found):,} of {total:,} rows are used for {split}; left out: {reasons}")
    return found


def _plain(reference: Any) -> Any:
    """Return a reference as it is compared: 5 and "5 " are the same."""
    return str(reference).strip() if isinstance(reference, str | int | float) else reference


def _readable(verifier: Any, problem: Problem) -> bool:
    try:
        check_references(verifier, [problem])
    except ValueError:
        return False
    return True


def published_task(
    name: str,
    source: Source,
    data: Path | None,
    convert: Convert,
    *,
    num_train: int | None = None,
    num_test: int | None = None,
    verifier: str = "math",
    verifier_options: Mapping[str, Any] | None = None,
    include_weak: bool = False,
) -> Task:
    """Build a pack of the source's splits; prompts of its test split are left out of training.

    A single local file is one split: the other is empty. Raise ValueError for negative numbers.
    """
    judge = make_verifier(verifier, **(verifier_options or {}))
    parts: dict[str, list[Problem]] = {"train": [], "test": []}
    for split, number in (("test", num_test), ("train", num_train)):
        first([], number, f"num_{split}")
        if split in source.splits and _given(source, data, split):
            made = converted(name, split, source.rows(data, split), convert)
            parts[split] = usable(name, split, made, judge, parts["test"] if split == "train" else ())
    train = parts["train"] if include_weak else without_weak(name, judge, parts["train"])
    return build_task(
        name,
        train=train[:num_train],
        test=parts["test"][:num_test],
        verifier=verifier,
        verifier_options=verifier_options,
        check_references=False,  # `usable` has read them
    )


def _given(source: Source, data: Path | None, split: str) -> bool:
    """Whether local data hold this split: a single file is one of several."""
    if data is None or len(source.splits) == 1:
        return True
    return bool(split_files(Path(data), split, alone=False))
