"""JSON Lines read strictly, with errors that name file and line."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from ..printable import kind_of

Object = dict[str, Any]

BOM = b"\xef\xbb\xbf"
# First bytes of formats other than text, with the message for the user.
FORMATS = {
    b"\x1f\x8b": "compressed by gzip; unpack it first (gunzip -k)",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it first (zstd -dk)",
    b"BZh": "compressed by bzip2; unpack it first (bunzip2 -k)",
    b"\xfd7zXZ": "compressed by xz; unpack it first (xz -dk)",
    b"PAR1": "a parquet file; expected text, an object on each line",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
}
LONGEST = 64 * 2**20  # bytes in a line


def check_file(path: Path) -> None:
    """Raise OSError unless `path` is a regular file or an open stream (/dev/stdin, a shell's <(...)).

    Nothing is read: a pipe without a writer would block.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a folder; expected a file")
    is_open_stream = str(path).startswith(("/dev/stdin", "/dev/fd/", "/proc/self/fd/"))
    if not stat.S_ISREG(mode) and not is_open_stream:
        raise OSError(f"{path} is no regular file (a pipe, a socket or a device); expected a file")


def read_objects(path: Path, *, surrogates: bool = False) -> Iterator[tuple[int, Object]]:
    """Yield (line number from 1, object) for each line of a JSON Lines file, without blank lines and a UTF-8 BOM.

    Raises OSError for a path that is not a readable file, and ValueError with file and line for a line that is not a
    JSON object in UTF-8 or, unless `surrogates` are allowed, holds a lone surrogate.
    """
    check_file(path)
    with path.open("rb") as lines:
        number = 0
        while line := lines.readline(LONGEST + 1):
            number += 1
            where = f"{path}, line {number}"
            if number == 1:
                _check_format(line, path)
                line = line.removeprefix(BOM)
            if len(line) > LONGEST:
                raise ValueError(f"{where}: longer than {LONGEST >> 20} MiB; expected one object on each line")
            if line.strip():
                row = parse_object(line, where)
                if not surrogates and b"\\ud" in line.lower():
                    check_encodable(row, where)
                yield number, row


def parse_object(line: bytes | str, where: str, *, finite: bool = True) -> Object:
    """Return one line as an object. Raises ValueError, which begins with `where`, for anything else."""
    value = parse_json(line, where, finite=finite)
    if not isinstance(value, dict):
        hint = " (JSON Lines have an object on each line, and no list around them)" if isinstance(value, list) else ""
        raise ValueError(f"{where}: {kind_of(value)}; expected an object{hint}")
    return value


def parse_json(text: bytes | str, where: str, *, finite: bool = True) -> Any:
    """Return the value of a JSON text. With `finite`, stricter than json.loads: finite numbers only, no repeated keys.

    Raises ValueError, which begins with `where`, for anything else.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        text = text.rstrip("\n")  # so that an error at its end has a column of this line
        if not finite:
            return json.loads(text)
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys)
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise ValueError(
            f"{where}: not text in UTF-8 (byte 0x{found:02x} at column {error.start + 1}); save the file as that"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON: {_reason(error)}") from None
    except RecursionError:
        raise ValueError(f"{where}: not JSON that can be read: brackets are nested too deeply") from None
    except ValueError as error:  # from the hooks above, or from an integer of thousands of digits
        raise ValueError(f"{where}: {str(error).partition('; use')[0]}") from None


def check_encodable(value: Any, where: str) -> None:
    """Raise ValueError for text with a lone surrogate, which neither files nor tokenizers can hold."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise ValueError(f"{where}: not text in UTF-8: it holds the lone surrogate \\u{ord(found):04x}") from None


def _check_format(start: bytes, path: Path) -> None:
    for magic, what in FORMATS.items():
        if start.startswith(magic):
            raise ValueError(f"{path} is {what}")
    if b"\0" in start[:4096]:
        raise ValueError(f"{path}, line 1: a NUL byte; expected text, an object on each line")


def _reason(error: json.JSONDecodeError) -> str:
    place = f"{error.msg} at column {error.colno}"
    if "\0" in error.doc:
        return f"{place} (the line holds a NUL byte)"
    return place


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"not JSON: {name} is not a JSON number; expected a finite number, or null")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large for a number")
    return number


def _unique_keys(pairs: list[tuple[str, Any]]) -> Object:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} is there twice; expected it once")
    return value


def is_same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except FileNotFoundError:
        return False
