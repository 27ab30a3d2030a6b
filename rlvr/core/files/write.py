"""Where commands may write, and atomic writes."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..types import RunError

# System folders: results may only go into folders within them ...
SHARED_PLACES = (
    "/dev/shm /home /media /mnt /opt /private /private/tmp /private/var /root /run /srv /tmp /usr /usr/local /usr/src "
    "/var /var/log /var/tmp /Applications /Users /Volumes"
).split()
# ... and not even there for these.
SYSTEM_TREES = (
    "/bin /boot /dev /etc /lib /lib64 /proc /sbin /sys /usr/bin /usr/include /usr/lib /usr/sbin /usr/share /System"
).split()
CHECKPOINT = re.compile(r"start|step-\d+")
PARTIAL = ".partial"


def is_utf8(path: Path) -> bool:
    """Return whether a path can be passed to libraries that are not written in Python."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_place(folder: Path, flag: str) -> None:
    """Raise ValueError for a folder that must not be used for results.

    Refused are the current folder, the home folder and their parents; system folders; folders inside a checkpoint,
    which are deleted with it; paths that begin with ~ or are not UTF-8. Links are followed.
    """
    real, here, home = (Path(os.path.realpath(path)) for path in (folder, Path.cwd(), os.path.expanduser("~")))
    shared = {os.path.realpath(place) for place in (*SHARED_PLACES, tempfile.gettempdir())}
    sealed = {Path(os.path.realpath(place)) for place in SYSTEM_TREES}
    memory = Path("/dev/shm") in real.parents
    checkpoint = next((p for p in real.parents if CHECKPOINT.fullmatch(p.name) and (p / "state.json").exists()), None)
    rules = [
        (not is_utf8(real), "is no UTF-8 text, which model files need"),
        (str(folder).startswith("~"), "begins with ~, which the shell has not expanded"),
        (real == here, "is the current folder"),
        (real in here.parents, "holds the current folder"),
        (real == home, "is the home folder"),
        (real in home.parents, "holds the home folder"),
        (real == real.parent or str(real) in shared, f"is the folder {real} of the system"),
        (not memory and bool(sealed & {real, *real.parents}), f"is the folder {real} of the system"),
        (checkpoint is not None, f"lies in the checkpoint {checkpoint}, and would be deleted with it"),
    ]
    for refused, reason in rules:
        if refused:
            raise ValueError(f"{flag} {str(folder)!r} {reason}; name a new folder, such as runs/mine")
    there = next(path for path in (real, *real.parents) if os.path.exists(path))
    if not there.is_dir():
        raise ValueError(f"{flag} {str(folder)!r}: {there} is a file; expected a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{flag} {str(folder)!r}: no permission to write there")


def check_replaceable(path: Path, flag: str, marks: Sequence[bytes]) -> None:
    """Raise ValueError for a file without any of `marks`: this command did not write it and must not replace it.

    Missing, empty and special files (/dev/null, a pipe) pass; folders do not.
    """
    if path.is_dir():
        raise ValueError(f"{flag} {str(path)!r} is a folder; expected a file")
    if not path.is_file() or path.stat().st_size == 0:
        return
    content = path.read_bytes()
    if not any(mark in content for mark in marks):
        raise ValueError(
            f"{flag} {str(path)!r} exists, and nothing in it says that this command wrote it; name another file, or "
            "delete it"
        )


# What to do where the system refuses to write, or to open anything.
ADVICE = {
    errno.ENOSPC: "free some space there, and run the same command again",
    errno.EDQUOT: "free some space there, or raise the quota, and run the same command again",
    errno.EFBIG: "files may not become so large there (see `ulimit -f`); name another place",
    errno.EROFS: "nothing can be written there; name another place",
    errno.EACCES: "change its permissions, or name another place",
    errno.EPERM: "change its permissions, or name another place",
    errno.EIO: "the disk may be failing; look into the system's log, or name another place",
    errno.EMFILE: "close files, use fewer workers, or raise the limit (`ulimit -n`)",
    errno.ENFILE: "the whole machine has too many files open; use fewer workers",
    errno.ENOMEM: "the machine is out of memory; use fewer workers or smaller batches",
    errno.EAGAIN: "no more processes may be started; use fewer workers, or raise the limit (`ulimit -u`)",
}


def advise(error: BaseException) -> str:
    """Return what to do about an error of the system, or ""."""
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := re.search(r"os error (\d+)", str(error))):  # of libraries written in Rust
        number = int(match[1])
    return ADVICE.get(number or 0, "")


@contextmanager
def name_in_errors(path: Path, then: str = "") -> Iterator[None]:
    """Turn an OSError into a RunError that names the file and what to do: `then`, else by `advise`.

    An error about another file passes.
    """
    try:
        yield
    except OSError as error:
        if is_about_another(error, path):
            raise
        text = "; ".join(filter(None, (f"cannot write {path}: {error.strerror or error}", then or advise(error))))
        raise RunError(text) from error


def is_about_another(error: OSError, path: Path) -> bool:
    """Return whether an error names a file that is not `path`, in it, a file whose name begins so, or a parent."""
    if not isinstance(error.filename, str | os.PathLike):
        return False
    named = os.path.abspath(error.filename)
    return not named.startswith(os.path.abspath(path)) and Path(named) not in Path(os.path.abspath(path)).parents


def write_whole(path: Path, content: str | bytes | Iterable[bytes], then: str = "") -> None:
    """Write a file atomically: beside its target, then renamed. Raises RunError; `then` says what to do."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        with name_in_errors(path, then):
            with partial.open("wb") as file:
                whole = content.encode() if isinstance(content, str) else content
                file.writelines([whole] if isinstance(whole, bytes) else whole)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
