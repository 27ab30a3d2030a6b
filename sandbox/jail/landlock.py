"""Restrict file access with Landlock, without privileges (Linux Documentation/userspace-api/landlock.rst)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from . import kernel

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


def _handled_rights(version: int) -> int:
    newer = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEV))
    return _ALL_OF_ABI_1 | sum(right for since, right in newer if version >= since)


class _Attributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("rights", ctypes.c_uint64), ("handle", ctypes.c_int32))


class Grants:
    """What a ruleset permits: reading `read`, writing `write`, both for `devices`, and running the files of `execute`.

    Nothing else can be opened. Paths that do not exist are skipped. All is made ready here, so that a forked process
    has little left to do.
    """

    def __init__(
        self,
        version: int,
        read: Iterable[str],
        write: Iterable[str],
        devices: Iterable[str],
        execute: Iterable[str] = (),
    ) -> None:
        handled = _handled_rights(version)
        network = _BIND_TCP | _CONNECT_TCP if version >= 4 else 0
        scopes = _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL if version >= 6 else 0
        attributes = ctypes.byref(_Attributes(handled, network, scopes))
        size = 24 if version >= 6 else 16 if version >= 4 else 8
        self._create = kernel.syscall_ready("landlock_create_ruleset", attributes, size, 0)
        # Of the ruleset, set before the calls below are made.
        self._ruleset = ctypes.c_long()
        self._restrict = kernel.syscall_ready("landlock_restrict_self", self._ruleset, 0)
        grants = [(path, _READ) for path in read] + [(path, _SCRATCH) for path in write]
        grants += [(path, _READ_FILE | _WRITE_FILE) for path in devices]
        grants += [(path, _READ_FILE | _EXECUTE) for path in execute]
        self._rules = []
        for path, rights in grants:
            rule = _Rule(rights & handled & (-1 if os.path.isdir(path) else _FILE_ONLY))
            arguments = (self._ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            self._rules.append((path, rule, kernel.syscall_ready("landlock_add_rule", *arguments)))

    def create(self) -> int:
        """Return the descriptor of a new ruleset, for the files that the paths name now."""
        ruleset = self._ruleset.value = self._create()
        for path, rule, add in self._rules:
            try:
                rule.handle = handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                add()
            finally:
                os.close(handle)
        return ruleset

    def restrict(self) -> None:
        """Make a ruleset and apply it, as the function `restrict`."""
        ruleset = self.create()
        self._restrict()
        os.close(ruleset)


def restrict(ruleset: int) -> None:
    """Apply the ruleset to this thread and everything it starts, irrevocably, and close it. Needs no_new_privs."""
    kernel.syscall("landlock_restrict_self", ruleset, 0)
    os.close(ruleset)
