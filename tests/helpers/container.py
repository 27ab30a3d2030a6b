"""The seccomp filter of a container without privileges, installed in this process; then a command, with `exec`.

    python container.py [--landlock] [--user N] COMMAND...

It refuses what Docker's default profile (github.com/moby/moby, profiles/seccomp/default.json) refuses without
CAP_SYS_ADMIN and that a sandbox might use: namespaces, mounts, keys, bpf, perf_event_open, userfaultfd; clone3 does not
exist. --landlock: Landlock too, as before Docker 23. --user: become this user, without capabilities; otherwise root
keeps Docker's default capabilities.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

ALLOW, REFUSE = 0x7FFF0000, 0x00050000
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
NAMESPACES = 2114060288  # the mask of clone's flags in the profile
# mount, umount2, pivot_root, chroot, unshare, setns, add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd
NUMBERS = {
    "x86_64": (165, 166, 155, 161, 272, 308, 248, 249, 250, 321, 298, 323),
    "aarch64": (40, 39, 41, 51, 97, 268, 217, 218, 219, 280, 241, 282),
}
CLONE = {"x86_64": 56, "aarch64": 220}
# open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr; the same everywhere
MOUNTS = (428, 429, 430, 431, 432, 433, 442)
CLONE3, LANDLOCK = 435, (444, 445, 446)
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
# audit_write, setfcap
DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP = 24, 38, 22


def build(machine: str, *, landlock: bool) -> bytes:
    """Return the filter's instructions; `landlock`: with its system calls refused."""
    refused = (*NUMBERS[machine], *MOUNTS, *(LANDLOCK if landlock else ()))
    steps = [(LOAD, 0, 0, 0)]
    for number in refused:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | errno.EPERM)]
    steps += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, REFUSE | errno.ENOSYS)]
    steps += [(EQUAL, 0, 3, CLONE[machine]), (LOAD, 0, 0, 16), (ANY_BIT, 0, 1, NAMESPACES)]
    steps += [(RETURN, 0, 0, REFUSE | errno.EPERM), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", code, then, otherwise, value) for code, then, otherwise, value in steps)


def contain(*, landlock: bool, user: int | None) -> None:
    """Give up what a container does not have, and install the filter for this process and all that it starts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getuid() == 0:
        for capability in range(64):
            if capability not in DOCKER_CAPABILITIES:
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
    program = build(platform.machine(), landlock=landlock)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    for option, first, second in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, 2, ctypes.create_string_buffer(head))):
        if libc.prctl(option, first, second, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    arguments = sys.argv[1:]
    without_landlock = arguments[:1] == ["--landlock"]
    arguments = arguments[without_landlock:]
    as_user = None
    if arguments[:1] == ["--user"]:
        as_user, arguments = int(arguments[1]), arguments[2:]
    contain(landlock=without_landlock, user=as_user)
    os.execvp(arguments[0], arguments)  # with the bounding set: root has no other capabilities afterwards
