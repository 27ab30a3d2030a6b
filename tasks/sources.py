"""Published data sets: their rows from local files or the Hugging Face hub, and the problems that are made of them.

`Source` says where a data set is, its licence and its size. `published_task` builds a pack from it. `usable_problems`
leaves out rows that cannot be used, and logs in one line how many and why.
"""

from __future__ import annotations

import inspect
import logging
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlvr.core.files.hub import why_unreachable
from rlvr.core.files.jsonl import BOM, check_encodable, check_file, parse_json, read_objects
from rlvr.core.printable import kind_of
from rlvr.core.registry import make_verifier, register_task
from rlvr.core.types import Problem, Task
from rlvr.verifiers.runner.base import check_references

from .base import HeldPrompts, build_task, prompt_text, without_weak

logger = logging.getLogger("rlvr.tasks")

T = TypeVar("T", bound=Callable[..., Task])
Row = dict[str, Any]
Convert = Callable[[Row, str, str], Problem | str]  # (row, its place, a name for it) -> a problem, or why there is none
SUFFIXES = (".jsonl", ".json", ".parquet")


def numbered_rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the rows of one file, each with its place for messages. Only a .json file is held in memory.

    Raises ValueError for an unknown suffix, for a row that is not an object, and for a file without rows.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: unknown format {path.suffix!r}; expected {', '.join(SUFFIXES)}")
    if path.suffix == ".jsonl":
        rows: Iterable[tuple[int, Row]] = read_objects(path)
    else:
        rows = enumerate(_read_json(path) if path.suffix == ".json" else _read_parquet(path), 1)
    empty, unit = True, "line" if path.suffix == ".jsonl" else "row"
    for number, row in rows:
        empty = False
        yield f"{path}, {unit} {number}", row
    if empty:
        raise ValueError(f"{path} has no rows: the data set is empty")


def read_file(path: Path) -> list[Row]:
    return [row for _, row in numbered_rows(path)]


def _read_json(path: Path) -> list[Row]:
    """Return the objects of a JSON file that holds a list of them."""
    check_file(path)
    try:
        rows = parse_json(path.read_bytes().removeprefix(BOM), str(path))
    except ValueError as error:
        raise ValueError(f"{error}; a .json file holds one list of objects, a .jsonl file an object a line") from None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: {kind_of(rows)}; expected a list of objects")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: {kind_of(row)}; expected an object")
    check_encodable(rows, str(path))
    return rows


def _read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a parquet file. pyarrow comes with `datasets`, and plain files do not need it."""
    from pyarrow import ArrowException, parquet

    check_file(path)
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=4096):
            yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path}: no parquet file that can be read: {str(error).splitlines()[0]}") from None


def find_split(folder: Path, split: str) -> list[Path]:
    """Return the files of a split in a folder: test.jsonl or test-*.parquet, there or one folder below, or test/*."""
    for pattern in (f"{split}.*", f"{split}-*", f"*/{split}.*", f"*/{split}-*", f"{split}/*"):
        found = sorted(path for path in folder.glob(pattern) if path.suffix in SUFFIXES)
        if found:
            return found
    return []


def split_files(data: Path, split: str, *, alone: bool) -> list[Path]:
    """Return the files of one split of local data, none where `data` is one file of another split.

    data: a folder with files of that name; or one file, which is the train split if its name begins with "train" and
    else the test split. alone: the pack has no other split, so any file will do, also the only one of a folder.
    Raises FileNotFoundError.
    """
    if data.is_file():
        own = "train" if data.stem.startswith("train") else "test"
        return [data] if alone or own == split else []
    if not data.is_dir():
        raise FileNotFoundError(f"{data}: no such file or folder")
    found = find_split(data, split)
    if not found and alone:
        found = sorted(path for path in data.iterdir() if path.suffix in SUFFIXES)
        if len(found) > 1:
            raise ValueError(f"{data} holds {', '.join(path.name for path in found)}; name one of the files")
    if not found:
        raise FileNotFoundError(f"{data}: no {split} file; expected {split}.jsonl, .json or .parquet")
    return found


def stream_hub(
    name: str, config: str | None, split: str, revision: str | None = None, files: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the rows of one split of a data set on the hub, or of a local folder of that layout.

    revision: a commit, by default the newest. files: JSON Lines files of the data set to read in place of the split.
    Raises OSError with advice where the data set can be neither downloaded nor found in the cache.
    """
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
        found = f"it is not in the cache, and the hub cannot be reached: {reason}" if reason else found
        raise OSError(
            f"data set {name!r} could not be loaded ({found}); give a local copy: --run.data PATH to train, "
            "--data PATH for other commands"
        ) from error
    yield from (dict(row) for row in rows)


@contextmanager
def cache_only(wanted: bool) -> Iterator[None]:
    """If wanted, let the hub's libraries read only their caches within the block, as HF_HUB_OFFLINE does."""
    import datasets
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    try:
        if wanted:
            constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before


def column(row: Row, names: Sequence[str], where: str) -> Any:
    """Return the first of these columns that is not empty, else None. Raises ValueError where the row has none."""
    if not any(name in row for name in names):
        raise ValueError(f"{where}: no {' or '.join(names)}; its columns are {', '.join(row)}")
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set on the hub.

    splits: maps the pack's splits to those of the hub. configs: are read one after the other. revision: the commit
    whose columns the pack reads; None: the newest. files: maps the pack's splits to JSON Lines files of the data set,
    for one without splits or with a loading script, which is not run.
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
        """Yield the rows of one of the pack's splits, from local data (see `split_files`) or from the hub."""
        if data is None:
            for config in self.configs:
                yield from stream_hub(self.hub, config, self.splits[split], self.revision, self.files.get(split, ()))
            return
        for path in split_files(Path(data), split, alone=len(self.splits) == 1):
            yield from (row for _, row in numbered_rows(path))


_TABLE = tomllib.loads((Path(__file__).parent / "published" / "sources.toml").read_text("utf-8"))
SUMMARIES: dict[str, str] = {name: row.pop("summary") for name, row in _TABLE.items() if "summary" in row}
SOURCES = {name: Source(**row | {"configs": tuple(row.get("configs", [None]))}) for name, row in _TABLE.items()}
"""The published data sets, by pack."""


def register_published(name: str, *sources: str) -> Callable[[T], T]:
    """Decorator: register a pack of published data; without `sources`, they are the one of its name.

    Its docstring, which `rlvr list NAME` prints, also says where the data are, their licence and size.
    """

    def register(pack: T) -> T:
        pack.sources = tuple(SOURCES[source] for source in sources or (name,))  # type: ignore[attr-defined]
        pack.__doc__ = "\n\n".join([inspect.getdoc(pack) or "", "\n".join(map(str, pack.sources))])  # type: ignore[attr-defined]
        return register_task(name)(pack)

    return register


def convert_rows(name: str, split: str, rows: Iterable[Row], convert: Convert) -> Iterator[Problem | str]:
    """Yield the result of `convert` for each row."""
    for index, row in enumerate(rows):
        yield convert(row, f"{name} {split}, row {index + 1}", f"{name}/{split}/{index}")


def usable_problems(
    name: str, split: str, made: Iterable[Problem | str], verifier: Any, held_out: Iterable[Problem] = ()
) -> list[Problem]:
    """Return the problems that can be used, in order, and log how many rows are left out, by reason.

    Left out are rows that `convert` gave a reason for, references that the verifier cannot read, repeated prompts (all
    copies if their references differ), and prompts of `held_out`.
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
        # Only white space is normalised here: 3² and 32 would be equal after `normalize_prompt`.
        text = " ".join(prompt_text(problem.prompt).split())
        if text in contradicted:
            left["with contradictory references"] += 1
        elif text in kept and to_plain(kept[text].reference) == to_plain(problem.reference):
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


def to_plain(reference: Any) -> Any:
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
    data: Path | None,
    convert: Convert,
    *,
    source: Source | None = None,
    num_train: int | None = None,
    num_test: int | None = None,
    verifier: str = "math",
    verifier_options: Mapping[str, Any] | None = None,
    include_weak: bool = False,
) -> Task:
    """Build a pack of the source's splits. Prompts of its test split are left out of training.

    source: None is the one of this name. A single local file is one split; the other one is empty.
    """
    source = SOURCES[name] if source is None else source
    judge = make_verifier(verifier, **(verifier_options or {}))
    parts: dict[str, list[Problem]] = {"train": [], "test": []}
    for split in ("test", "train"):
        if split in source.splits:
            made = convert_rows(name, split, source.rows(data, split), convert)
            parts[split] = usable_problems(name, split, made, judge, parts["test"] if split == "train" else ())
    train = parts["train"] if include_weak else without_weak(name, judge, parts["train"])
    return build_task(
        name,
        train=train[:num_train],
        test=parts["test"][:num_test],
        verifier=verifier,
        verifier_options=verifier_options,
        check_references=False,  # `usable_problems` has read them
    )
