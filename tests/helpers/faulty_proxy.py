"""A proxy on 127.0.0.1 in front of a real server, which fails every so many requests in place of passing them on."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

KINDS = ("429", "500", "timeout")
_SILENT_SECONDS = 60  # of a request that gets no answer, unless its client hangs up before


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to `url`; one POST of `every` fails, by each of KINDS in turn.

    delay: seconds before each POST. bodies: of the POSTs that came in; failed: faults, by kind.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, url: str, every: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.upstream = (parts.hostname, parts.port)
        self.path, self.every, self.delay = parts.path, every, 0.0
        self.bodies: list[dict[str, Any]] = []
        self.failed: Counter[str] = Counter()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.path}"

    def next_fault(self, body: bytes) -> str | None:
        """Note a POST; return how it fails, if it does."""
        with self.lock:
            self.bodies.append(json.loads(body))
            turn, left = divmod(len(self.bodies), self.every)
            if left:
                return None
            kind = KINDS[(turn - 1) % len(KINDS)]
            self.failed[kind] += 1
            return kind

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients go away in these tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyProxy

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.server.next_fault(body)
        time.sleep(self.server.delay)
        if kind == "429":
            self._answer(429, b'{"error": "slow down"}', {"Retry-After": "0.1"})
        elif kind == "500":
            self._answer(500, b'{"error": "oops"}', {})
        elif kind == "timeout":
            self._stay_silent()
        else:
            self._pass_on(body)

    def _pass_on(self, body: bytes | None) -> None:
        connection = http.client.HTTPConnection(*self.server.upstream, timeout=300)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            kept = {"Content-Type": answer.getheader("Content-Type", "application/json")}
            self._answer(answer.status, answer.read(), kept)
        finally:
            connection.close()

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stay_silent(self) -> None:
        """Answer nothing until the client hangs up."""
        self.close_connection = True
        self.connection.settimeout(_SILENT_SECONDS)
        with suppress(OSError):
            self.connection.recv(1)


@contextmanager
def faulty_proxy(url: str, every: int = 20) -> Iterator[FaultyProxy]:
    """A proxy of this module; ended afterwards."""
    proxy = FaultyProxy(url, every)
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
