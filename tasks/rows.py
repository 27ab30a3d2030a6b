"""Reading the rows of a data set from local files or from the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlvr.core.files.hub import why_unreachable
from rlvr.core.files.jsonl import BOM, check_encodable, check_file, parse_json, read_objects
from rlvr.core.printable import kind_of

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
