"""Files outside the scratch directory, under old and new versions of Landlock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.programs import read_programs
from tests.helpers.users import PLACES, place

NEWEST = 1 << 30
# Ways to change a file that can be read: `p` is its path. Those by an open file have no right to write to it.
CHANGES = read_programs("changes")
PROGRAM = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
def syscall(*arguments):
    if libc.syscall(*arguments) < 0: raise OSError(ctypes.get_errno(), "")
p = {path!r}
for name, change in {changes!r}.items():
    try: exec(change)
    except (OSError, ValueError): continue
    print(name)
with open("own", "w") as file: file.write("long text")
with open("own", "w") as file: file.write("text")
with open("own", "r+") as file: file.truncate(2)
os.close(os.open("own", os.O_RDWR | os.O_CREAT | os.O_TRUNC))
print("end", os.path.getsize("own"))
"""


@pytest.fixture
def canary() -> Iterator[Path]:
    """A file that everyone may write to: what protects it is the sandbox."""
    with tempfile.TemporaryDirectory(prefix="canary-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "file"
        path.write_text("canary")
        path.chmod(0o666)
        os.utime(path, (1, 1))
        yield path


@pytest.mark.parametrize("landlock", [1, 2, 3, NEWEST])
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_file_outside_the_scratch_directory_changes(user: str, number: int, landlock: int, canary: Path):
    """Landlock governs truncation from version 3 on; before, the filter of system calls refuses it."""
    for read in ([], [str(canary.parent)]):
        with place(user, number, read=read, landlock_at_most=landlock) as pool:
            # The changes that do not need the file's right to be read come first.
            answer = pool.run(PROGRAM.format(path=str(canary), changes=CHANGES))
        assert (answer.stdout, answer.status) == ("end 0\n", "ok"), answer.stderr
        assert canary.read_text() == "canary"
        assert canary.stat().st_mtime == 1


def test_the_canary_would_tell(canary: Path):
    """Outside the sandbox the first change does empty the file."""
    os.close(os.open(canary, os.O_RDONLY | os.O_TRUNC))
    assert canary.read_text() == ""


def test_honest_files_work_under_old_landlock():
    """Opening for writing truncates in the scratch directory, whatever the version."""
    program = """
import os, pathlib, shutil, tempfile
pathlib.Path("a").write_text("x" * 10)
pathlib.Path("a").write_text("y")
os.mkdir("d"); os.replace("a", "b"); print(open("b").read(), sorted(os.listdir(".")))
with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "f"), "w+") as file:
    print("z", file=file); file.seek(0); print(file.read().strip())
with tempfile.TemporaryFile() as file: print(file.write(b"123"))
shutil.rmtree("d"); os.remove("b"); print(os.listdir("."))
"""
    for user, number in PLACES[:2]:
        with place(user, number, landlock_at_most=1) as pool:
            answer = pool.run(program)
        assert answer.stdout == "y ['b', 'd']\nz\n3\n[]\n", answer.stderr
