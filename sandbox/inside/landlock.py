"""Restrict file access with Landlock, without privileges (Linux Documentation/userspace-api/landlock.rst)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

from rlvr.sandbox.inside import kernel

_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = 1, 2, 4, 8, 16, 32
_MAKE_DIR, _MAKE_REG = 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_ALL_OF_ABI_1 = (1 << 13) - 1
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _READ_FILE | _READ_DIR
# No symbolic links, sockets, pipes or devices: they lead out of the directory or outlive the run.
_SCRATCH = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1, 2
# ABI version of each: 2 refer, 3 truncate, 4 TCP, 5 device ioctl, 6 scopes.


def abi() -> int:
    """Return the kernel's Landlock ABI version, 0 without Landlock."""
    try:
        return kernel.syscall("landlock_create_ruleset", 0, 0, 1)
    except OSError:
        return 0


def _handled(version: int) -> int:
    newer = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
    return _ALL_OF_ABI_1 | sum(right for since, right in newer if version >= since)


def create(version: int, read: Iterable[str], write: Iterable[str], devices: Iterable[str]) -> int:
    """Return the descriptor of a ruleset that permits reading `read`, writing `write` and both for `devices`.

    `read` and `write` are files or directories. Nothing else can be opened. Paths that do not exist are skipped.
    """
    handled = _handled(version)
    network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
    scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if version >= 6 else 0
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", handled, network, scopes)[:size], size)
    ruleset = kernel.syscall("landlock_create_ruleset", ctypes.byref(attributes), size, 0)
    grants = [(path, _READ) for path in read] + [(path, _SCRATCH) for path in write]
    grants += [(path, _READ_FILE | _WRITE_FILE) for path in devices]
    for path, rights in grants:
        _allow(ruleset, path, rights & handled)
    return ruleset


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _FILE_ONLY
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, handle), 12)
        kernel.syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(handle)


def restrict(ruleset: int) -> None:
    """Apply the ruleset to this thread and everything it starts, irrevocably. Needs no_new_privs."""
    kernel.syscall("landlock_restrict_self", ruleset, 0)
