"""The folder of a run: whose it is, who may write there, and what may be deleted.

Only what a run wrote is deleted: the folder must hold the run's record (config.json or settings.json with its keys),
and the file must have one of the names that such a run writes. Everything else stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.core.files.write import PARTIAL, check_place, name_in_errors, write_whole
from rlvr.core.printable import kind_of

LOCK = "lock"
SECONDS_TO_WAIT = 1.0  # a check whether the folder is free holds the lock for an instant

# Descriptors of this process's locks. A forked child closes its copies: an open copy would keep the lock
# after the process that took it has ended.
LOCK_DESCRIPTORS: set[int] = set()


def _close_copies() -> None:
    for descriptor in LOCK_DESCRIPTORS:
        os.close(descriptor)
    LOCK_DESCRIPTORS.clear()


os.register_at_fork(after_in_child=_close_copies)


@contextmanager
def hold_lock(folder: Path) -> Iterator[str | None]:
    """Create the folder and hold its lock, which the kernel releases when this process dies.

    Yields a line to show where the file system has no locks. At the end, folders that it created are removed if they
    hold nothing but the lock. Raises ValueError, naming the holder, where another run has the lock.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor, warning = _take(folder)
    LOCK_DESCRIPTORS.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield warning
    finally:
        if descriptor in LOCK_DESCRIPTORS:  # a forked child has closed its copy
            LOCK_DESCRIPTORS.discard(descriptor)
            if made and os.listdir(folder) == [LOCK]:
                os.unlink(folder / LOCK)
                with suppress(OSError):  # another run has started there
                    for path in made:
                        path.rmdir()
            os.close(descriptor)


def _take(folder: Path) -> tuple[int, str | None]:
    """Return the descriptor of the locked file, and a warning where the file system has no locks."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file between our opening and locking it.
            if os.fstat(descriptor).st_nlink:
                return descriptor, None
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise ValueError(describe_holder(folder)) from None
        except OSError as error:  # a network file system mounted without locks
            return descriptor, f"{folder} cannot be locked ({error.strerror}): no other run may write there meanwhile"
        os.close(descriptor)
        time.sleep(0.05)


def is_locked(folder: Path) -> bool:
    """Return whether a run holds the lock of the folder. Writes nothing."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:  # missing or unreadable: taking the lock will say more
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)
    return False


def describe_holder(folder: Path) -> str:
    who = holder(folder) or "its process is not known"
    return f"another run is writing in {folder} ({who}); choose another folder, or wait until it has ended"


def holder(folder: Path) -> str:
    """Return the process that took the lock of a folder last; "" where it is not known."""
    try:
        held = json.loads((folder / LOCK).read_text())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # between taking the lock and writing into it
        return ""


Record = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of run: its record's file and some of the record's keys, and the names of all files that it writes.

    names: regular expressions of paths within the folder. begun: words for a run that has produced nothing yet.
    """

    name: str
    record: str
    keys: frozenset[str]
    names: tuple[str, ...]
    begun: str

    def wrote(self, path: str) -> bool:
        """Return whether a path within the folder has the name of something that such a run writes."""
        return any(re.fullmatch(f"(?:{name})(?:{re.escape(PARTIAL)})?", path) for name in self.names)


LOGS = (r"(metrics|eval)\.jsonl", r"report\.html")
TRAINING = Kind(
    "a training run",
    "config.json",
    frozenset({"run", "rollout", "algo", "fingerprint", "versions"}),
    (
        *LOGS,
        r"(rollouts|alarms|events)\.jsonl",
        r"rollouts-\d{4,}\.jsonl(\.gz)?",
        r"answers-\d{6,}\.jsonl\.gz",
        r"trackers\.json",
        r"checkpoints/step-\d{6,}(\.damaged)?",
        r"start(\.damaged|\.training)?",
        r"teacher/step-\d{6,}\.jsonl",
        r"rlvr/(.*/)?events\.out\.tfevents\..*",  # Accelerate's tracker tensorboard
        r"rlvr/.*/hparams\.yml",
    ),
    "a run without a checkpoint",
)
REWARD_MODEL = Kind(
    "the training of a reward model",
    "config.json",
    frozenset({"run", "pairs", "train", "versions"}),
    (*LOGS, r"(pairs|held_out)\.jsonl", r"model-\d+(\.training)?"),
    "a run without a model",
)
EVALUATION = Kind(
    "an evaluation",
    "settings.json",
    frozenset({"model", "task", "samples", "fingerprint"}),
    (r"answers\.jsonl", r"result\.json", r"profile\.jsonl"),
    "an evaluation without an answer",
)
REGRADING = Kind(
    "a regrading",
    "settings.json",
    frozenset({"run", "verifier", "verifier_option", "fingerprint"}),
    (r"(verdicts|disagreements)\.jsonl", r"result\.json"),
    "a regrading without a verdict",
)
KINDS = (TRAINING, REWARD_MODEL, EVALUATION, REGRADING)
# Files that shells, schedulers and file managers leave in a folder.
HARMLESS = re.compile(r"\.gitkeep|\.gitignore|\.DS_Store|lost\+found|.*\.(log|out|err|txt)")


class RunFolder:
    """The folder of one run, and how the run may use what it holds.

    Four functions take `held`, the record that lies in the folder:

    - `record(held)` returns the record that the run writes (held is None where there is none).
    - `difference(held)` says why the run cannot be resumed from there; None where it can.
    - `loses(held)`: whether starting again would lose something. Otherwise a run that cannot be resumed starts again.
    - `stays(held)`: paths within the folder that stay then.

    overwrite None: the command has no such option. inputs: texts among the settings, which may be paths that are read.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        *,
        flag: str,
        record: Callable[[Record | None], Mapping[str, Any]],
        difference: Callable[[Record], str | None],
        loses: Callable[[Record], bool],
        stays: Callable[[Record], Iterable[str]] = lambda held: (),
        overwrite: bool | None = None,
        inputs: Iterable[str] = (),
    ) -> None:
        self.path, self.kind, self.flag, self.overwrite = path, kind, flag, overwrite
        self._record, self._difference, self._loses, self._stays = record, difference, loses, stays
        self._inputs = tuple(inputs)

    def check(self) -> None:
        """Raise ValueError where the run may not use the folder, or another run writes there. Writes nothing."""
        check_place(self.path, self.flag)
        held = self.read_held()
        if self.path.is_dir() and is_locked(self.path):
            raise ValueError(describe_holder(self.path))
        self._starts_again(held)

    @contextmanager
    def lock(self) -> Iterator[list[str]]:
        """Check and create the folder, and hold its lock. Yields lines to show."""
        self.check()
        with ExitStack() as stack:
            with name_in_errors(self.path):
                warning = stack.enter_context(hold_lock(self.path))
            yield [warning] if warning else []

    def resumes(self) -> bool:
        """Return whether this run resumes the one in the folder. ValueError where the folder may not be used."""
        held = self.read_held()
        return held is not None and not self._starts_again(held)

    def claim(self) -> list[str]:
        """Delete what a new start replaces, and write the run's record. Needs the lock. Returns lines to show."""
        held = self.read_held()  # again: another run may have written since the first look
        lines = []
        if self._starts_again(held):
            assert held is not None
            stays = set() if self.overwrite else set(self._stays(held))
            deleted = ", ".join(self.delete(stays))
            said = "starts again" if self.overwrite else f"held {self.kind.begun}, which is replaced"
            lines.append(f"{self.path} {said}{f': {deleted} deleted' if deleted else ''}")
            others = sorted(p.name for p in self.path.iterdir() if not self._ours(p.name) and p.name not in stays)
            if others and self.overwrite:
                lines.append(f"{self.path}: no run wrote {', '.join(others)}, which stay")
            held = None
        write_whole(self.path / self.kind.record, json.dumps(dict(self._record(held)), indent=2) + "\n")
        return lines

    def read_held(self) -> Record | None:
        """Return the record in the folder; None for a folder that is missing or empty.

        Raises ValueError where the folder holds another kind of run, or files that no run wrote.
        """
        choose = f"choose another {self.flag}"
        if not self.path.is_dir():
            return None
        for kind in (self.kind, *KINDS):
            record = read_record(self.path / kind.record)
            if record is not None and kind.keys <= record.keys():
                if kind is not self.kind:
                    raise ValueError(f"{self.flag} {self.path} holds {kind.name}; {choose}")
                return record
        ours = (LOCK, self.kind.record + PARTIAL)
        others = sorted(p.name for p in self.path.iterdir() if not is_harmless(p) and p.name not in ours)
        if others:
            shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            raise ValueError(f"{self.flag} {self.path} holds files that no run of this kind wrote ({shown}); {choose}")
        return None

    def delete(self, stays: set[str]) -> list[str]:
        """Delete all that runs of this kind write, except lock, record and `stays`. Return the names."""
        folders = (self.path, self.path / "checkpoints", *sorted((self.path / "rlvr").glob("**/")))
        paths = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
        names = [str(path.relative_to(self.path)) for path in paths]
        names = [name for name in names if self.kind.wrote(name) and name not in stays]
        for name in names:
            path = self.path / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        for folder in reversed(folders[1:]):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()
        return names

    def _starts_again(self, held: Record | None) -> bool:
        """Return whether a new start deletes what is in the folder; ValueError where it may not."""
        if held is None:
            return False
        if not self.overwrite:
            difference = self._difference(held)
            if difference is None:
                return False
            if self._loses(held):
                hint = "" if self.overwrite is None else ", or --run.overwrite to delete it"
                raise ValueError(f"{self.path} holds {difference}; choose another {self.flag}{hint}")
        real = Path(os.path.realpath(self.path))
        for text in self._inputs:
            if text and "\0" not in text and real in Path(os.path.realpath(text)).parents and os.path.exists(text):
                raise ValueError(
                    f"{text} lies in {self.flag} {self.path}, whose files would be deleted; choose another {self.flag}"
                )
        return True

    def _ours(self, name: str) -> bool:
        return name in (LOCK, self.kind.record) or self.kind.wrote(name)


def settings_folder(
    path: Path,
    kind: Kind,
    settings: Record,
    *,
    resumable: Container[str],
    results: str,
    simplify: Callable[[str, Any], Any] = lambda name, value: value,
    inputs: Iterable[str] = (),
) -> RunFolder:
    """Return the folder of a command whose record is its settings. One with the same settings is resumed.

    resumable: settings that may change. results: the file that a new start must not lose. simplify(name, value): what
    counts of a setting.
    """
    settings = json.loads(json.dumps(settings, default=str))
    file = path / results

    def difference(held: Record) -> str | None:
        for name, value in settings.items():
            there, here = simplify(name, held.get(name)), simplify(name, value)
            if name not in resumable and there != here:
                return f"{kind.name} with other settings: {name} is {there!r} there and {here!r} here"
        return None

    return RunFolder(
        path,
        kind,
        flag="--out-dir",
        record=lambda held: settings,
        difference=difference,
        loses=lambda held: file.exists() and file.stat().st_size > 0,
        inputs=inputs,
    )


def is_harmless(path: Path) -> bool:
    """Return whether a new run may ignore this: an empty folder, or what shells and schedulers write."""
    return bool(HARMLESS.fullmatch(path.name)) or (path.is_dir() and not any(path.iterdir()))


def read_record(path: Path) -> Record | None:
    """Return a record as it was written; None without the file. ValueError where it is not a JSON object."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it, or choose another folder") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path} holds {kind_of(record)}; expected the settings of a run")
    return record


def texts(settings: Any) -> Iterator[str]:
    """Yield every text among settings, and the values of key=value options. Any of them may be a path."""
    if isinstance(settings, Mapping):
        for value in settings.values():
            yield from texts(value)
    elif isinstance(settings, (list, tuple)):
        for value in settings:
            yield from texts(value)
    elif isinstance(settings, (str, Path)):
        text = str(settings)
        yield text
        if "=" in text:
            yield text.partition("=")[2]
