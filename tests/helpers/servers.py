"""A server on 127.0.0.1 that answers as a script tells it, and what its clients raise."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rlvr.core.http import JSONClient, ServerLost

Answer = bytes | Callable[[socket.socket], None]


def reply(content, status: int = 200, *, headers: str = "") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return f"HTTP/1.1 {status} Told\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Server:
    """Answers each request with the next of `script`, its last again and again; b"" closes the connection instead."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.context = context
        self.script: list[Answer] = [reply({"n": 1})]
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.threads = [threading.Thread(target=self.accept)]
        self.ended = threading.Event()
        self.threads[0].start()

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    def accept(self) -> None:
        while not self.ended.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.threads.append(threading.Thread(target=self.serve, args=(connection,)))
            self.threads[-1].start()

    def serve(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(20)
            try:
                if self.context:
                    connection = self.context.wrap_socket(connection, server_side=True)
                with connection, connection.makefile("rb") as lines:
                    while start := lines.readline().decode():
                        headers = dict(line.split(": ", 1) for line in iter(lambda: lines.readline().decode(), "\r\n"))
                        headers = {name.lower(): value.strip() for name, value in headers.items()}
                        body = lines.read(int(headers.get("content-length", 0)))
                        self.requests.append((start.strip(), headers, body))
                        answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                        if callable(answer):
                            answer(connection)
                        elif answer:
                            connection.sendall(answer)
                        else:
                            return
            except (OSError, ValueError):
                return

    def stop(self) -> None:
        self.ended.set()
        with socket.create_connection(("127.0.0.1", self.port)):  # wakes up `accept`
            pass
        self.listener.close()
        for thread in self.threads:
            thread.join(25)


@contextmanager
def run_server(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(context)
    try:
        yield server
    finally:
        server.stop()


def hang(connection: socket.socket) -> None:
    """No answer until the client goes away."""
    connection.recv(1)


def refusal_of(client: JSONClient, *, idempotent: bool = True) -> str:
    """The message of a POST that loses the server; one line."""
    with pytest.raises(ServerLost) as caught:
        client.post("/x", {}, idempotent=idempotent)
    assert "\n" not in str(caught.value)
    return str(caught.value)
