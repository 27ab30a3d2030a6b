"""Published data sets: where each is, under which licence, how large; its rows from the hub or from local files.

`usable` turns rows into problems, and says in one line how many are left out and why.
"""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlvr.core.files.hub import why_unreachable
from rlvr.core.files.jsonl import BOM, check_encodable, check_file, parse_json, read_objects
from rlvr.core.printable import kind_of
from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import HeldPrompts, build_task, prompt_text, without_weak
from rlvr.verifiers.runner.base import check_references

# Reading the rows of a data set from local files or from the Hugging Face hub.

Row = dict[str, Any]


def read_jsonl(path: Path) -> list[Row]:
    """Return the objects of a JSON Lines file; blank lines are skipped.

    Raise ValueError naming the line where one is not a JSON object, and for a file without any.
    """
    return [row for _, row in located(path)]


def read_json(path: Path) -> list[Row]:
    """Return the objects of a JSON file that holds a list of them."""
    check_file(path)
    content = path.read_bytes()
    try:
        rows = parse_json(content.removeprefix(BOM), str(path))
    except ValueError as error:
        raise ValueError(f"{error}; a .json file holds one list of objects, a .jsonl file an object a line") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: {kind_of(rows)}; expected a list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: {kind_of(row)}; expected an object")
    check_encodable(rows, str(path))
    return rows


def read_parquet(path: Path) -> list[Row]:
    """Return the rows of a parquet file (pyarrow comes with `datasets`)."""
    return list(stream_parquet(path))


def stream_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file, a batch in memory at a time. Raise ValueError for what cannot be read."""
    from pyarrow import ArrowException, parquet  # not needed for plain files

    check_file(path)
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=4096):
            yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: no parquet file that can be read: {str(error).splitlines()[0]}") from None


READERS = {".jsonl": read_jsonl, ".json": read_json, ".parquet": read_parquet}


def read_file(path: Path) -> list[Row]:
    """Return the rows of one file, read by its suffix."""
    return [row for _, row in located(path)]


def located(path: Path) -> list[tuple[str, Row]]:
    """Return the rows of one file, each with its place for messages: the file, and the line or row from 1.

    Raise ValueError for an unknown suffix, for rows that are not objects, and for a file without rows.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path}: unknown format {path.suffix!r}; expected {', '.join(READERS)}")
    if path.suffix == ".jsonl":
        rows = [(f"{path}, line {number}", row) for number, row in read_objects(path)]
    else:
        rows = [(f"{path}, row {number}", row) for number, row in enumerate(READERS[path.suffix](path), 1)]
    if not rows:
        raise ValueError(f"{path} has no rows: the data set is empty")
    return rows


def stream(path: Path) -> Iterator[Row]:
    """Yield the rows of one file as `read_file`, JSON Lines and parquet without holding all of them."""
    if path.suffix == ".parquet":
        rows = stream_parquet(path)
    elif path.suffix == ".jsonl":
        rows = (row for _, row in read_objects(path))
    else:
        rows = iter(read_file(path))
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise ValueError(f"{path} has no rows: the data set is empty")


def find_split(folder: Path, split: str) -> list[Path]:
    """Return the files of one split in a folder: `test.jsonl`, or `test-*.parquet`, there or one folder below; or all
    files of a folder `test` in it."""
    for pattern in (f"{split}.*", f"{split}-*", f"*/{split}.*", f"*/{split}-*", f"{split}/*"):
        found = sorted(path for path in folder.glob(pattern) if path.suffix in READERS)
        if found:
            return found
    return []


def split_files(data: Path, split: str, *, alone: bool) -> list[Path]:
    """Return the files of one split of local data; see `read_split`."""
    if data.is_file():
        whole = "train" if data.stem.startswith("train") else "test"
        return [data] if alone or whole == split else []
    if not data.is_dir():
        raise FileNotFoundError(f"{data}: no such file or folder")
    found = find_split(data, split)
    if not found and alone:
        found = sorted(path for path in data.iterdir() if path.suffix in READERS)
        if len(found) > 1:
            raise ValueError(f"{data} holds {', '.join(path.name for path in found)}; name one of the files")
    if not found:
        raise FileNotFoundError(f"{data}: no {split} file; expected {split}.jsonl, .json or .parquet")
    return found


def read_split(data: Path, split: str, *, alone: bool) -> list[Row]:
    """Return the rows of one split of local data.

    data: a folder with a file of that name, or one file. A single file is the train split where its name begins with
    "train", else the test split; the other split is empty. `alone`: the pack has this split only, so that any file is
    it, and the only data file of a folder too. Raise FileNotFoundError where there is none.
    """
    return [row for path in split_files(data, split, alone=alone) for row in read_file(path)]


def read_hub(name: str, config: str | None, split: str, revision: str | None = None) -> list[Row]:
    """Return the rows of one split of a data set on the hub (or of a local folder of that layout).

    revision: a commit; None: the newest. Raise OSError with advice where it can be neither downloaded nor found in the
    cache.
    """
    return list(stream_hub(name, config, split, revision))


def stream_hub(
    name: str, config: str | None, split: str, revision: str | None = None, files: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the rows of a data set on the hub as `read_hub`; with `files` those of these JSON Lines files in it."""
    from datasets import load_dataset  # seconds to import, and not needed for local files

    reason = why_unreachable()
    try:
        with cache_only(bool(reason)):
            if files:
                at = f"hf://datasets/{name}@{revision or 'main'}"
                rows = load_dataset("json", data_files=[f"{at}/{file}" for file in files], split="train")
            else:
                rows = load_dataset(name, config, split=split, revision=revision)
    except (OSError, ValueError) as error:
        found = str(error).split("\n")[0]
        first = f"it is not in the cache, and the hub cannot be reached: {reason}" if reason else found
        raise OSError(
            f"data set {name!r} could not be loaded ({first}); give a local copy: --run.data PATH to train, "
            "--data PATH for other commands"
        ) from error
    yield from (dict(row) for row in rows)


@contextmanager
def cache_only(wanted: bool) -> Iterator[None]:
    """Let the hub's libraries read nothing but their caches within, if that is wanted, as HF_HUB_OFFLINE does."""
    import datasets
    from huggingface_hub import constants

    held = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if wanted:
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = held


def first(rows: list[Row], number: int | None, option: str) -> list[Row]:
    """Return the first `number` rows, or all. Raise ValueError for a negative number."""
    if number is not None and number < 0:
        raise ValueError(f"option {option} {number}: expected 0 or more rows")
    return rows[:number]


def column(row: Row, names: Sequence[str], where: str) -> Any:
    """Return the first of these columns that the row has. Raise ValueError where it has none."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise ValueError(f"{where}: no {' or '.join(names)}; its columns are {', '.join(row)}")


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


def describe_sources(*sources: Source) -> Callable[[T], T]:
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


def convert_rows(name: str, split: str, rows: Iterable[Row], convert: Convert) -> Iterator[Problem | str]:
    """Yield what `convert` makes of each row; its errors name the row by its number from 1."""
    for index, row in enumerate(rows):
        yield convert(row, f"{name} {split}, row {index + 1}", f"{name}/{split}/{index}")


def usable_problems(
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
            made = convert_rows(name, split, source.rows(data, split), convert)
            parts[split] = usable_problems(name, split, made, judge, parts["test"] if split == "train" else ())
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
