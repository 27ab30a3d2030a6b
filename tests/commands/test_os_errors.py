"""Errors of the operating system: each is one line that names the file, and says what to do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.errors import error_line
from rlvr.core.files.write import name_in_errors, write_whole
from rlvr.core.types import RunError
from tests.helpers.files import limit_file_size

FREE_SOME = "No space left on device; free some space there, and run the same command again\n"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A file of three hundred lines to grade."""
    path = tmp_path / "rows.jsonl"
    row = {"prompt": "1 + 1 = ?", "completion": "2", "answer": "2"}
    path.write_text(300 * (json.dumps(row) + "\n"))
    return path


def test_a_file_that_becomes_full_is_named(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the error comes with the last write, or only with one of many."""
    assert main(["grade", "--verifier", "math", str(rows), "--output", "/dev/full"]) == 2
    assert capsys.readouterr().err == f"error: cannot write /dev/full: {FREE_SOME}"
    for size in (0, 3000):
        out = tmp_path / f"{size}.jsonl"
        with limit_file_size(size):
            assert main(["grade", "--verifier", "math", str(rows), "--output", str(out)]) == 2
        assert capsys.readouterr().err.startswith(f"error: cannot write {out}: File too large; ")


def test_a_name_in_the_error_is_shown_with_what_to_do() -> None:
    """What can be done is added where the reason does not say it."""
    assert error_line(OSError(errno.EROFS, "Read-only file system", "/x/y")) == (
        "error: /x/y: Read-only file system; nothing can be written there; name another place"
    )
    assert error_line(FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")) == (
        "error: /x: No such file or directory"
    )
    assert error_line(OSError("cannot be read")) == "error: cannot be read"


def test_without_a_name_the_disks_that_are_full_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that a command may write to, each once."""
    real = os.statvfs

    def nothing_free(path: str) -> os.statvfs_result:
        found = list(real(path))
        found[4] = 0  # f_bavail
        return os.statvfs_result(found)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "statvfs", nothing_free)
    line = error_line(OSError(errno.ENOSPC, "No space left on device"))
    assert line.startswith(f"error: {tmp_path}")
    assert line.endswith(FREE_SOME.rstrip("\n"))


def test_writing_names_its_file_and_no_other(tmp_path: Path) -> None:
    """An error about a file elsewhere, such as an input that is missing, keeps its own name."""
    with (
        pytest.raises(RunError, match=r"cannot write .*/out: No space left on device; free some space"),
        name_in_errors(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(RunError, match=r"cannot write .*/out: Is a directory"), name_in_errors(tmp_path / "out"):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(tmp_path / "out" / "within"))
    with pytest.raises(FileNotFoundError, match="input"), name_in_errors(tmp_path / "out"):
        (tmp_path / "input").read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*/file/out: Not a directory"):
        write_whole(tmp_path / "file" / "out", "x")
