"""Files that cannot be used, each in its own way, and a few that can: what `tests/golden/bad_input.txt` names.

Those of plain text are in `tests/golden/bad_files.jsonl`; the others are made here.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import zipfile
from pathlib import Path

from tests.helpers.files import GOLDEN, lines

GOOD = b'{"id": "a", "prompt": "1+1", "reference": "2", "completion": "\\\\boxed{2}"}\n'
OTHER = GOOD.replace(b'"a"', b'"b"')
ANSWER = b'{"id": "a", "sample": 0, "score": 1.0, "correct": true, "status": "correct", "completion": "x"}\n'
OTHERS = {
    "data/latin.jsonl": GOOD + OTHER[:-3] + b'\xe9"}\n',
    "data/binary.jsonl": bytes(range(256)) * 4,
    "data/utf16.jsonl": GOOD.decode().encode("utf-16"),
    "data/gzipped.jsonl": gzip.compress(GOOD),
    "data/deep.jsonl": GOOD + b"[" * 100_000 + b"\n",
    "data/digits.jsonl": GOOD + b'{"prompt": "x", "reference": ' + b"9" * 5000 + b"}\n",
    "run_binary/metrics.jsonl": b"\xff\xfe\x00\n",
    "run_gz/rollouts-0000.jsonl.gz": gzip.compress(b'{"step": 1}\n' * 500)[:-12],
    "answers_latin/answers.jsonl": ANSWER[:-3] + b'\xe9"}\n',
}


def line(**changes: object) -> bytes:
    """Return the good line with other fields; a field that is ... is left out."""
    fields = {**json.loads(GOOD), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode() + b"\n"


def read_golden(name: str) -> list[tuple[str, str]]:
    """Return the rows of a table in tests/golden: command lines, each with the words that its error holds."""
    rows = (GOLDEN / name).read_text("utf-8").splitlines()
    return [text.partition(" => ")[::2] for text in rows if text and not text.startswith("#")]


def lay_out(folder: Path) -> None:
    """Write all of them into a folder, the data into `data`."""
    texts = {row["file"]: row["text"].encode() for row in lines(GOLDEN / "bad_files.jsonl")}
    for name, content in {**texts, **OTHERS}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.mkfifo(folder / "data" / "pipe.jsonl")
    (folder / "data" / "folder.jsonl").mkdir()
    with zipfile.ZipFile(folder / "data" / "zipped.jsonl", "w") as archive:
        archive.writestr("good.jsonl", GOOD)


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes, and whatever else is there by its kind."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path.relative_to(folder))] = path.read_bytes() if stat.S_ISREG(mode) else stat.filemode(mode)
    return found
