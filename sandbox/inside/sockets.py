"""Memory that the kernel keeps for what local sockets hold: no process is charged for it."""

from __future__ import annotations

import _socket
import struct
from collections.abc import Iterator

_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_AF_UNIX = 1
# Types of what is told of each socket: its peer, what can be read, memory, user. 0x74 asks for these four.
_PEER, _QUEUE, _MEMORY, _USER = 2, 4, 5, 7
_SENT = 2  # index of the bytes sent and not read, in the answer about memory
_HEADER, _ABOUT = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST = struct.pack("=BBHIIIII", _AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x74, 0xFFFFFFFF, 0xFFFFFFFF)
# What is left of a closed socket is charged to nobody: at most this, with the largest buffer that can be asked for.
_LEFT_BEHIND = 2 * 212_992


class Sockets:
    """The local sockets of this network namespace, or those of one user in it. Raises OSError where nothing is told."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._link = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._link.settimeout(1.0)
        self.memory()

    def memory(self) -> int:
        """Return the bytes that are kept for what was sent and not read."""
        return sum(_kept(about) for about in self._all() if self.uid is None or about.get(_USER, (0,))[0] == self.uid)

    def _all(self) -> Iterator[dict[int, tuple[int, ...]]]:
        self._link.send(_HEADER.pack(_HEADER.size + len(_REQUEST), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + _REQUEST)
        while True:
            data = self._link.recv(1 << 16)
            start = 0
            while start < len(data):
                size, kind, *_ = _HEADER.unpack_from(data, start)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel tells nothing of sockets")
                # A struct of 16 bytes comes before what is told.
                yield dict(_told(data, start + _HEADER.size + 16, start + size))
                start += (size + 3) & ~3


def _told(data: bytes, start: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    while start < end:
        size, kind = _ABOUT.unpack_from(data, start)
        numbers = (size - _ABOUT.size) // 4
        yield kind, struct.unpack_from(f"={numbers}I", data, start + _ABOUT.size)
        start += (size + 3) & ~3


def _kept(about: dict[int, tuple[int, ...]]) -> int:
    orphaned = not about.get(_PEER, (0,))[0] and about.get(_QUEUE, (0,))[0] > 0
    return about.get(_MEMORY, (0,) * 9)[_SENT] + (_LEFT_BEHIND if orphaned else 0)
