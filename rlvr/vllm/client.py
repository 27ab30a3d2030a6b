"""Requests to a vLLM server."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit


class EngineLost(Exception):
    """The server does not answer any more."""


class Client:
    """Requests to a server, each on a connection of its own: the server ends idle ones, which looks like its death."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"sampler.url {url!r}: expected http://HOST:PORT")
        self.address = (parts.hostname, parts.port or 80)
        self.timeout = timeout
        self._open: set[socket.socket] = set()
        self._ended = False
        self._lock = threading.Lock()

    def end(self) -> None:
        """Cuts off the requests under way in other threads, and refuses later ones: they raise EngineLost."""
        with self._lock:
            self._ended = True
            for connected in self._open:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def call(self, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """The answer to a POST of `body` as JSON, to a GET where there is none.

        Raises EngineLost where the server is gone, silent or broken, ValueError where it refuses the request.
        """
        connection = http.client.HTTPConnection(*self.address, timeout=timeout or self.timeout)
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body))
        try:
            with self._connected(connection):
                connection.request(method, path, content, {"Content-Type": "application/json", "Connection": "close"})
                answer = connection.getresponse()
                text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise EngineLost(f"{path}: {type(error).__name__} {error}") from error
        if answer.status >= 500:
            raise EngineLost(f"{path} answers {answer.status}: {text[:300]}")
        if answer.status >= 400:
            raise ValueError(f"vLLM refuses {path} ({answer.status}): {text[:300]}")
        return json.loads(text) if text else None

    @contextmanager
    def _connected(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Opens a connection where `end` finds it, and closes it afterwards."""
        try:
            connection.connect()
            connected: socket.socket = connection.sock
            with self._lock:
                if self._ended:
                    raise ConnectionError("the client was ended")
                self._open.add(connected)
            try:
                yield
            finally:
                with self._lock:
                    self._open.discard(connected)
        finally:
            connection.close()
