"""The scratch directory, and space that its listing does not show."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.sandbox import Pool, RunStatus, host
from tests.helpers.programs import available, outcome, read_programs

DELETED = read_programs("deleted_files")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system of 64 MB for scratch directories."""
    with tempfile.TemporaryDirectory(prefix="rlvr-small-") as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "none", folder]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("only root with the right to mount can try a file system of its own")
        os.chmod(folder, 0o1777)
        monkeypatch.setattr(host, "scratch_parent", lambda: folder)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("kind", DELETED)
def test_deleted_files_do_not_fill_the_file_system(small: Path, kind: str):
    """At level 2 a run ends when the file system is nearly full, and all its space is free again.

    On a busy machine it is full before: the program goes on.
    """
    available(2)
    program = f"""
import mmap, os, time
held = []
def fill(n):
    {DELETED[kind]}
for n in range(100):
    try: fill(n)
    except OSError: pass
    time.sleep(.08)
"""
    with Pool(1, level=2) as pool:
        result = outcome(pool, program, seconds=10)
        left = os.statvfs(small)
    assert (result.status, result.detail) == (RunStatus.OUTPUT_LIMIT, "too many or too large files"), result
    assert (left.f_blocks - left.f_bavail) * left.f_frsize < 1 << 20


@pytest.mark.parametrize("kind", DELETED)
def test_deleted_files_count_at_level_3(kind: str):
    """The scratch directory is a file system of limited size there: writing fails."""
    available(3)
    program = f"import mmap, os, time\nheld = []\nfor n in range(100):\n    {DELETED[kind]}\n"
    with Pool(1, level=3) as pool:
        result = outcome(pool, program, seconds=3, file_mb=4)
    assert result.status in (RunStatus.CRASH, RunStatus.TIMEOUT)
    assert result.status is RunStatus.TIMEOUT or "No space left" in result.stderr
