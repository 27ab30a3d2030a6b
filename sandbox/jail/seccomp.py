"""The seccomp filter: an allow-list as classic BPF (Linux Documentation/userspace-api/seccomp_filter.rst).

Calls of another architecture and of x32 kill the process. Calls that are not allowed fail with EPERM. Those that
are newer than Linux 5.0 fail with ENOSYS, so that libc falls back to an older one. setsid, setpgid and locks on
files return 0 without effect.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from functools import cache

from . import kernel
from .syscalls import Architecture, allowed_calls, filtered_calls, pretended_calls, sandbox_calls

_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN, _AND = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_SET_MODE_FILTER = 1

# CLONE_NEW*, CLONE_PARENT, CLONE_UNTRACED, CLONE_PTRACE, CLONE_PIDFD; CLONE_NEWTIME has the bit of an exit signal.
_CLONE_FORBIDDEN = 0x7E020000 | 0x8000 | 0x800000 | 0x2000 | 0x1000 | 0x80
_CLONE_THREAD = 0x10000
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS, PR_SET_VMA
_PRCTL = (3, 15, 16, 38, 39, 0x53564D41)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. TIOCSTI is the one to keep out.
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# Duplication and flags. Not F_SETOWN and F_SETSIG (signals to others), F_NOTIFY (watches directories), F_GETLK and
# F_OFD_GETLK (locks of other runs, on files that all can read).
_FCNTL = (0, 1, 2, 3, 4, 1030)
# F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW.
_LOCK = (6, 7, 37, 38)
_O_TRUNC, _O_ACCMODE = 0x200, 3
_MAP_SHARED, _MAP_ANONYMOUS = 0x1, 0x20
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF


def _statement(code: int, value: int) -> tuple[int, int, int, int]:
    return code, 0, 0, value & 0xFFFFFFFF


def _jump(code: int, value: int, then: int, otherwise: int) -> tuple[int, int, int, int]:
    return code, then, otherwise, value & 0xFFFFFFFF


def _argument(index: int, half: int = 0) -> tuple[int, int, int, int]:
    # Both architectures are little-endian: the low half of an argument comes first.
    return _statement(_LOAD, _ARGUMENTS + 8 * index + 4 * half)


_REFUSE = _statement(_RETURN, _ERRNO | errno.EPERM)
_PASS = _statement(_RETURN, _ALLOW)
_PRETEND = _statement(_RETURN, _ERRNO)
_MISSING = _statement(_RETURN, _ERRNO | errno.ENOSYS)
_Program = list[tuple[int, int, int, int]]


def _one_of(index: int, values: tuple[int, ...]) -> _Program:
    """Allow the call if the low half of an argument is in `values`; the kernel reads these arguments as 32-bit ints."""
    body = [_argument(index)]
    for value in values:
        body += [_jump(_JUMP_EQUAL, value, 0, 1), _PASS]
    return [*body, _REFUSE]


def _none_of_bits(index: int, bits: int) -> _Program:
    return [_argument(index), _jump(_JUMP_SET, bits, 0, 1), _REFUSE, _PASS]


def _fcntl() -> _Program:
    locks = [step for value in _LOCK for step in (_jump(_JUMP_EQUAL, value, 0, 1), _PRETEND)]
    return [_argument(1), *locks, *_one_of(1, _FCNTL)]


def _opening(index: int) -> _Program:
    """Allow the call unless its flags truncate a file, or open it for ioctl, without the right to write to it.

    Before version 3 Landlock does not know truncation, and asks for no right at all in the access mode 3.
    """
    return [
        _argument(index),
        _statement(_AND, _O_TRUNC | _O_ACCMODE),
        _jump(_JUMP_EQUAL, _O_TRUNC, 0, 1),
        _REFUSE,
        _statement(_AND, _O_ACCMODE),
        _jump(_JUMP_EQUAL, _O_ACCMODE, 0, 1),
        _REFUSE,
        _PASS,
    ]


def _mapping() -> _Program:
    # Shared memory without a file is counted for no process once it is unmapped there: see shared_memory.py.
    both = _MAP_SHARED | _MAP_ANONYMOUS
    return [_argument(3), _statement(_AND, both), _jump(_JUMP_EQUAL, both, 0, 1), _REFUSE, _PASS]


def _stream_socketpair() -> _Program:
    # A datagram socket could send to any local socket by path; a connected stream socket cannot.
    return [
        _argument(0),
        _jump(_JUMP_EQUAL, _AF_UNIX, 1, 0),
        _REFUSE,
        _argument(1),
        _statement(_AND, _SOCK_TYPE),
        _jump(_JUMP_EQUAL, _SOCK_STREAM, 0, 1),
        _PASS,
        _REFUSE,
    ]


@cache
def build(arch: Architecture, own_pid: int | None, *, one_process: bool = False) -> bytes:
    """Return the filter's instructions.

    `own_pid`: the only process that may be signalled, besides the own group (kill with 0), when neither a pid namespace
    nor Landlock's signal scope protects the others. None: signals are not filtered. `one_process`: threads may be
    started and no processes; execve is allowed, for files that Landlock lets run.
    """
    checked = {
        "clone": _none_of_bits(0, _CLONE_FORBIDDEN),
        "prctl": _one_of(0, _PRCTL),
        "ioctl": _one_of(1, _IOCTL),
        "fcntl": _fcntl(),
        "open": _opening(1),
        "openat": _opening(2),
        "mmap": _mapping(),
        # Space beyond the end of a file is not in its size.
        "fallocate": _one_of(1, (0,)),
        # RWF_NOWAIT tells what is in the page cache.
        "preadv2": _one_of(5, (0,)),
        "pwritev2": _one_of(5, (0,)),
        "prlimit64": _one_of(0, (0,)),
        "socketpair": _stream_socketpair(),
    }
    for name, targets in (("kill", (0, own_pid)), ("tkill", (own_pid,)), ("tgkill", (own_pid,))):
        # With own_pid, tkill reaches only the first thread: ids of others are not known in advance.
        checked[name] = [_PASS] if own_pid is None else _one_of(0, tuple(t for t in targets if t is not None))
    answers = {number: [_PASS] for number in allowed_calls(arch).values()}
    answers |= {number: [_PRETEND] for number in pretended_calls(arch).values()}
    if one_process:
        checked["clone"] = [
            _argument(0),
            _jump(_JUMP_SET, _CLONE_FORBIDDEN, 2, 0),
            _jump(_JUMP_SET, _CLONE_THREAD, 0, 1),
        ]
        checked["clone"] += [_PASS, _REFUSE]
    answers |= {number: checked[name] for name, number in filtered_calls(arch).items()}
    if one_process:
        answers |= {number: [_REFUSE] for name, number in allowed_calls(arch).items() if name in ("fork", "vfork")}
        answers[sandbox_calls(arch)["execve"]] = [_PASS]
    program = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_JUMP_EQUAL, arch.audit, 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD, _NUMBER),
        *_search(_ranges(answers, arch.newest_old)),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _ranges(answers: dict[int, _Program], newest_old: int) -> list[tuple[int, _Program]]:
    """Return (first number, answer) of each range of call numbers with the same answer, ascending; the last is open."""
    found: list[tuple[int, _Program]] = []
    for number in range(max(answers) + 2):
        answer = answers.get(number, [_REFUSE] if number <= newest_old else [_MISSING])
        if not found or found[-1][1] != answer:
            found.append((number, answer))
    # Calls of the x32 ABI carry this bit.
    return [*found, (0x40000000, [_statement(_RETURN, _KILL)])]


def _search(ranges: list[tuple[int, _Program]]) -> _Program:
    """Return a binary search for the range. The kernel evaluates a new filter for every call number: depth matters."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _search(ranges[:middle]), _search(ranges[middle:])
    if len(below) <= 255:
        return [_jump(_JUMP_AT_LEAST, ranges[middle][0], len(below), 0), *below, *above]
    # Conditional jumps reach 255 instructions, unconditional ones any number.
    return [_jump(_JUMP_AT_LEAST, ranges[middle][0], 0, 1), _statement(_JUMP, len(below)), *below, *above]


class _Header(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_ready(program: bytes) -> kernel.Call:
    """Return the call that installs the filter for a thread and all it starts, irrevocably. Needs no_new_privs."""
    header = _Header(len(program) // 8, program)
    return kernel.syscall_ready("seccomp", _SET_MODE_FILTER, 0, ctypes.byref(header))
