"""System call numbers, and the calls a sandboxed program may make.

Sources: Linux arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64). An entry is
`name x86-64 aarch64`; "-": no such call on that architecture.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache
from typing import NamedTuple

from rlvr.sandbox.jail import kernel

# Left out on purpose (what they would permit): socket, connect (network, local services); execve (other programs);
# symlink, link, chmod, chown, utime, xattr, truncate by path (Landlock does not govern all of these); ptrace,
# process_vm_*, pidfd_getfd (memory of other processes); mount, unshare, setns (namespaces); memfd_create, SysV shm
# (memory that RLIMIT_AS does not count); keyctl, bpf, io_uring, userfaultfd, perf_event_open (kernel attack surface);
# inotify, fanotify (watching other runs); mincore, cachestat (what other runs have read); timer_create (its timers
# count against a limit that all processes of a user share); openat2 (its flags lie in memory: no filter can read them).
_ALLOWED = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; preadv 295 69; pwritev 296 70;
close 3 57; close_range 436 436; lseek 8 62; creat 85 -;
stat 4 -; fstat 5 80; lstat 6 -; newfstatat 262 79; statx 332 291; access 21 -;
faccessat 269 48; faccessat2 439 439; readlink 89 -; readlinkat 267 78; getcwd 79 17; chdir 80 49;
fchdir 81 50; getdents 78 -; getdents64 217 61; statfs 137 43; fstatfs 138 44; mkdir 83 -; mkdirat 258 34;
rmdir 84 -; unlink 87 -; unlinkat 263 35; rename 82 -; renameat 264 38; renameat2 316 276; ftruncate 77 46;
fsync 74 82; fdatasync 75 83; umask 95 166; dup 32 23;
dup2 33 -; dup3 292 24; pipe 22 -; pipe2 293 59; poll 7 -; ppoll 271 73; select 23 -; pselect6 270 72;
epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21; epoll_wait 232 -; epoll_pwait 281 22;
epoll_pwait2 441 441; eventfd 284 -; eventfd2 290 19; timerfd_create 283 85; timerfd_settime 286 86;
timerfd_gettime 287 87; signalfd4 289 74; sendfile 40 71; copy_file_range 326 285; mprotect 10 226;
munmap 11 215; mremap 25 216; madvise 28 233; brk 12 214; msync 26 227; membarrier 324 283;
rt_sigaction 13 134; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigpending 127 136;
rt_sigtimedwait 128 137; rt_sigsuspend 130 133; sigaltstack 131 132; pause 34 -; alarm 37 -; getitimer 36 102;
setitimer 38 103; nanosleep 35 101; clock_nanosleep 230 115; clock_gettime 228 113; clock_getres 229 114;
gettimeofday 96 169; time 201 -; times 100 153; getrusage 98 165; sysinfo 99 179; uname 63 160;
getrandom 318 278; futex 202 98; futex_waitv 449 449; get_robust_list 274 100; set_robust_list 273 99;
set_tid_address 218 96; rseq 334 293; restart_syscall 219 128; arch_prctl 158 -; getpid 39 172;
getppid 110 173; gettid 186 178; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177;
getresuid 118 148; getresgid 120 150; getgroups 115 158; getpgid 121 155; getpgrp 111 -; getsid 124 156;
getpriority 140 141; getrlimit 97 163; setrlimit 160 164; sched_yield 24 124; sched_getaffinity 204 123;
sched_getparam 143 121; sched_getscheduler 145 120; sched_get_priority_max 146 125;
sched_get_priority_min 147 126; getcpu 309 168; capget 125 90; exit 60 93; exit_group 231 94; wait4 61 260;
waitid 247 95; fork 57 -; vfork 58 -; shutdown 48 210; getsockname 51 204; getpeername 52 205;
getsockopt 55 209; sendto 44 206; recvfrom 45 207; recvmsg 47 212;
"""

# Allowed with some arguments only; see seccomp.py.
_FILTERED = """
open 2 -; openat 257 56; mmap 9 222; fallocate 285 47; preadv2 327 286; pwritev2 328 287;
clone 56 220; kill 62 129; tkill 200 130; tgkill 234 131; prctl 157 167; ioctl 16 29; fcntl 72 25;
socketpair 53 199; prlimit64 302 261;
"""

# Return success without effect: a program that tries to become a daemon stays in the process group of its run, and a
# lock or an advice to the page cache on a file that all runs can read would tell another run something.
_PRETENDED = """
setsid 112 157; setpgid 109 154; flock 73 32; fadvise64 221 223;
"""

# Used by the sandbox itself before it installs the filter.
_OWN = """
execve 59 221; seccomp 317 277;
landlock_create_ruleset 444 444; landlock_add_rule 445 445; landlock_restrict_self 446 446;
mount_setattr 442 442; capset 126 91; pivot_root 155 41; pidfd_open 434 434;
"""


class Architecture(NamedTuple):
    """`audit`: AUDIT_ARCH value that seccomp sees. Refused calls fail with ENOSYS above `newest_old`, else EPERM."""

    name: str
    audit: int
    column: int
    newest_old: int


# Since Linux 5.0 new calls have the same number everywhere, from 424 on; libc falls back only on ENOSYS.
ARCHITECTURES = {
    "x86_64": Architecture("x86_64", 0xC000003E, 1, 334),
    "aarch64": Architecture("aarch64", 0xC00000B7, 2, 293),
}


def architecture() -> Architecture:
    """Return this machine's architecture. Raises LookupError for any but x86-64 and aarch64."""
    machine = os.uname().machine.replace("arm64", "aarch64").replace("amd64", "x86_64")
    if machine not in ARCHITECTURES:
        raise LookupError(f"no system call table for {machine}; known: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[machine]


def _numbers(table: str, column: int) -> dict[str, int]:
    rows = (row.split() for row in table.replace("\n", " ").split(";") if row.strip())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def allowed_calls(arch: Architecture) -> dict[str, int]:
    """Return the calls a program may make with any arguments, by name."""
    return _numbers(_ALLOWED, arch.column)


def filtered_calls(arch: Architecture) -> dict[str, int]:
    """Return the calls a program may make with some arguments, by name."""
    return _numbers(_FILTERED, arch.column)


def pretended_calls(arch: Architecture) -> dict[str, int]:
    """Return the calls that return 0 without effect, by name."""
    return _numbers(_PRETENDED, arch.column)


def own(arch: Architecture) -> dict[str, int]:
    """Return the calls that the sandbox makes itself, by name."""
    return _numbers(_OWN, arch.column)


# The seccomp filter: an allow-list as classic BPF (Linux Documentation/userspace-api/seccomp_filter.rst).
#
# Calls of another architecture and of x32 kill the process. Calls that are not allowed fail with EPERM. Those that
# are newer than Linux 5.0 fail with ENOSYS, so that libc falls back to an older one. setsid, setpgid and locks on
# files return 0 without effect.

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
        answers[own(arch)["execve"]] = [_PASS]
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
