"""Files outside the scratch directory, under old and new versions of Landlock."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.users import PLACES, place

NEWEST = 1 << 30
# Ways to change a file that can be read: `p` is its path. Those by an open file have no right to write to it.
CHANGES = {
    "truncate while reading": "os.open(p, os.O_RDONLY | os.O_TRUNC)",
    "truncate with the access mode of ioctl": "os.open(p, 3 | os.O_TRUNC)",
    "truncate relative to a directory": "os.open('file', os.O_TRUNC, dir_fd=os.open(os.path.dirname(p), os.O_RDONLY))",
    "truncate and create": "os.open(p, os.O_CREAT | os.O_TRUNC)",
    "truncate in a raw call": "syscall(257, -100, p.encode(), 0o1000, 0)",
    "truncate by the old call": "syscall(2, p.encode(), 0o1000, 0)",
    "truncate by openat2": "syscall(437, -100, p.encode(), (ctypes.c_uint64 * 3)(0o1000, 0, 0), 24)",
    "truncate without follow": "os.open(p, os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK)",
    "creat": "syscall(85, p.encode(), 0o600)",
    "truncate by path": "os.truncate(p, 0)",
    "truncate an open file": "os.ftruncate(os.open(p, os.O_RDONLY), 0)",
    "open for writing": "open(p, 'w')",
    "append": "open(p, 'a').write('x')",
    "allocate": "os.posix_fallocate(os.open(p, os.O_RDONLY), 0, 1 << 16)",
    "write through a map": "mmap.mmap(os.open(p, os.O_RDONLY), 6, access=mmap.ACCESS_WRITE)",
    "rename over": "(open('new', 'w').close(), os.rename('new', p))",
    "exchange": "(open('new', 'w').close(), syscall(316, -100, b'new', -100, p.encode(), 2))",
    "remove": "os.unlink(p)",
    "change times": "os.utime(p)",
    "change the mode": "os.chmod(p, 0)",
}
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
