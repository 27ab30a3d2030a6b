"""System call numbers, and the calls a sandboxed program may make.

Sources: Linux arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64). An entry is
`name x86-64 aarch64`; "-": no such call on that architecture.
"""

from __future__ import annotations

import os
from typing import NamedTuple

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


def sandbox_calls(arch: Architecture) -> dict[str, int]:
    """Return the calls that the sandbox makes itself, by name."""
    return _numbers(_OWN, arch.column)
