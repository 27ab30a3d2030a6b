"""The answers of an evaluation: one line of a file for each, and in memory what the numbers are made of."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.core.files.write import name_in_errors, write_whole

from .passk import vote

Answer = dict[str, Any]
Key = tuple[str, int]

TEXTS = ("reason", "turns")  # of an answer: no number of an evaluation depends on them
VERDICT = ("status", "score", "correct", "finish_reason", "tokens", "completion")
LONGEST = 31  # characters of a text that is held as it is; of longer ones their hash is, of 32
RESUME = "what it holds is safe; run the same command to resume"


class Answers:
    """The answers of an evaluation: their short forms by (problem, sample), and their lines in a file.

    Texts are in the file alone, so that many long answers need little memory. Without a path nothing is written.
    Raises ValueError for a file with a line that is not an answer.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.held: dict[Key, Answer] = {}
        for row, _ in scan_answers(path):
            if lacking := [name for name in VERDICT if name not in row]:
                raise ValueError(f"{path}: sample {row['sample']} of {row['id']!r} has no field {lacking[0]!r}")
            self.held[row["id"], row["sample"]] = shorten_answer(row)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append answers to the file, and hold their short forms. Raises RunError where it cannot be written."""
        if self.path is not None and rows:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with name_in_errors(self.path, RESUME), self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        self.held.update(((row["id"], row["sample"]), shorten_answer(row)) for row in rows)

    def order(self, keys: Sequence[Key]) -> None:
        """Write the file anew, atomically: the answers of `keys` in their order, then others, once each.

        Raises RunError where it cannot be written.
        """
        if self.path is None:
            return
        places = {(row["id"], row["sample"]): place for row, place in scan_answers(self.path)}
        wanted = set(keys)
        with self.path.open("rb") as lines:

            def line(key: Key) -> bytes:
                start, length = places[key]
                lines.seek(start)
                return lines.read(length)

            write_whole(self.path, map(line, [*keys, *(key for key in places if key not in wanted)]))


def shorten_answer(row: Mapping[str, Any]) -> Answer:
    """Return what the numbers of an evaluation are made of: long texts as hashes, names and words held once."""
    texts = {"completion": row["completion"], "extracted": vote(row)}
    rest = {name: value for name, value in row.items() if name not in TEXTS and name not in texts}
    found = {sys.intern(name): sys.intern(held) if isinstance(held, str) else held for name, held in rest.items()}
    return found | {name: _hash_long(text) for name, text in texts.items()}


def _hash_long(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def read_answers(path: Path | None) -> dict[Key, Answer]:
    """Return the answers of a file by (problem, sample). Raises as `scan_answers`."""
    return {(row["id"], row["sample"]): row for row, _ in scan_answers(path)}


def scan_answers(path: Path | None) -> Iterator[tuple[Answer, tuple[int, int]]]:
    """Yield the answers of a file one by one, each with the place and length of its line in bytes. No file: none.

    A last line cut off by a crash is removed from the file. Raises ValueError naming a line that is not an answer.
    """
    if path is None or not path.exists():
        return
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                os.truncate(path, start)
                return
            try:
                row = json.loads(line.decode())
                if not isinstance(row["id"], str) or not isinstance(row["sample"], int):
                    raise TypeError
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not an answer of an evaluation") from error
            yield row, (start, len(line))
            start += len(line)
