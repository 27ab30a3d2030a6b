"""One client for servers that speak JSON over HTTP: vLLM, reward models, OpenAI-compatible endpoints."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import logging
import os
import re
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar, cast

import httpx2

from .printable import without_secrets

# Seconds. Servers close idle connections too (uvicorn, hence vLLM, after 5), and a request sent just then is lost.
KEEP_ALIVE = 2.0
CONNECT_SECONDS = 10.0
FIRST_DELAY, LONGEST_DELAY, LONGEST_RETRY_AFTER = 0.1, 5.0, 30.0
LONGEST_QUOTE = 300  # characters of a server's answer that a message quotes
READ_FOR_QUOTES = 100_000  # bytes of it that are read for them
T = TypeVar("T")
C = TypeVar("C", httpx2.Client, httpx2.AsyncClient)

for _name in ("httpx2", "httpcore2"):
    if logging.getLogger(_name).level == logging.NOTSET:  # a line for every request where the root logger shows INFO
        logging.getLogger(_name).setLevel(logging.WARNING)


class ServerLost(Exception):
    """The server is unreachable, timed out, closed the connection, or returned a 5xx or invalid JSON."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ServerSilent(ServerLost):
    """The server said nothing within the time limit."""


class RequestRefused(ValueError):
    """The server returned a status that is neither a success nor a 5xx, such as 400, 401, 404 or 429."""

    def __init__(self, message: str, status: int, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class UnexpectedResponse(ValueError):
    """The server's JSON does not follow the expected schema."""


class JSONClient:
    """JSON over HTTP to one server. Threads may share a client, and a forked process may keep using it.

    url: http or https, with a base path if any. A user and password in it become basic authentication and never appear
    in messages. name: the server's name in messages. timeout: a request fails after so many seconds without a byte of
    the response. retries: further attempts of idempotent calls if the server is lost or returns 429, after 0.1 s,
    0.2 s, 0.4 s, ..., or after its Retry-After (30 s at most). api_key: sent as a bearer token.

    Connections are reused for 2 seconds. The environment names proxies (HTTPS_PROXY, NO_PROXY; not for this machine)
    and certificates to trust (SSL_CERT_FILE).
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "server",
        timeout: float = 60.0,
        retries: int = 0,
        api_key: str | None = None,
    ) -> None:
        base = parse_url(url, name)
        sent = {"Content-Type": "application/json"}
        if api_key is not None:
            check_key(api_key, name)
            sent["Authorization"] = f"Bearer {api_key}"
        basic = base64.b64encode(f"{base.username}:{base.password}".encode()).decode()
        self._secrets = tuple(filter(None, (api_key, base.password, base.password and basic)))
        self.url = str(base.copy_with(userinfo=b"")).rstrip("/")
        self.name = name
        self.timeout = timeout
        self.retries = retries
        self._open = partial(open_client, base, sent)
        self._connections = Connections(self._open(httpx2.Client))
        self._in_loop: LoopConnections | None = None

    def get(self, path: str, *, timeout: float | None = None) -> Any:
        """Return the JSON of a GET, None for an empty body. Raises the same as `post`."""
        return self._call(Request("GET", path, None, timeout or self.timeout, idempotent=True))

    def post(self, path: str, body: Any, *, idempotent: bool = False, timeout: float | None = None) -> Any:
        """Return the JSON of a POST, None for an empty body. Only an `idempotent` call is ever sent twice.

        Raises ServerLost, also after `close`, and RequestRefused for any status from 300 to 499.
        """
        content = json.dumps(body).encode()
        return self._call(Request("POST", path, content, timeout or self.timeout, idempotent))

    async def post_in_loop(self, path: str, body: Any, *, timeout: float | None = None) -> Any:
        """Do as an idempotent `post` without retries: one event loop has any number of them under way in its thread."""
        request = Request("POST", path, json.dumps(body).encode(), timeout or self.timeout, idempotent=True)
        self._in_loop = self._in_loop or LoopConnections(self._open(httpx2.AsyncClient))
        with self._raise_lost(request) as limits:
            response = await self._in_loop.send(request, self.url, limits, self._connections.closed)
        return decode(response, self._locate(path), self._secrets)

    def read(self, path: str, answer: Any, take: Callable[[Any], T], schema: str = "the expected schema") -> T:
        """Return `take(answer)`, which reads values from the response to `path`.

        Raises UnexpectedResponse, which names the schema and quotes the answer, if they are missing.
        """
        try:
            return take(answer)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            found = one_line(without_secrets(json.dumps(answer, default=repr)[:READ_FOR_QUOTES], self._secrets))
            raise UnexpectedResponse(f"{self._locate(path)}: response does not follow {schema}: {found}") from error

    def close(self) -> None:
        """End requests in other threads and refuse later ones. All of them raise ServerLost."""
        self._connections.close()
        if self._in_loop is not None:
            self._in_loop.close()

    def _call(self, request: Request) -> Any:
        for left in range(self.retries if request.idempotent else 0, -1, -1):
            try:
                return self._attempt(request)
            except (ServerLost, RequestRefused) as error:
                lost = isinstance(error, ServerLost) or error.status == 429
                backoff = min(FIRST_DELAY * 2 ** min(self.retries - left, 10), LONGEST_DELAY)
                if not left or not lost or self._own_connections().closed.wait(max(backoff, error.retry_after)):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _attempt(self, request: Request) -> Any:
        connections = self._own_connections()
        with self._raise_lost(request) as limits:
            response = connections.send(request, self.url, limits)
        return decode(response, self._locate(request.path), self._secrets)

    @contextmanager
    def _raise_lost(self, request: Request) -> Iterator[httpx2.Timeout]:
        """Give a request's time limits, and raise ServerLost for the errors of a connection."""
        where = self._locate(request.path)
        limits = httpx2.Timeout(request.timeout, connect=min(CONNECT_SECONDS, request.timeout), pool=None)
        try:
            yield limits
        except httpx2.ConnectTimeout as error:
            raise ServerLost(f"{where} is unreachable: no connection within {limits.connect:g} s") from error
        except httpx2.TimeoutException as error:
            raise ServerSilent(f"{where} timed out after {request.timeout:g} s") from error
        except (httpx2.RequestError, OSError) as error:
            if self._connections.closed.is_set():
                raise ServerLost(f"{where}: the client was closed") from error
            problem = "is unreachable" if isinstance(error, httpx2.ConnectError) else "failed"
            raise ServerLost(f"{where} {problem}: {one_line(str(error)) or type(error).__name__}") from error

    def _locate(self, path: str) -> str:
        return f"the {self.name} {self.url}{path}"

    def _own_connections(self) -> Connections:
        """Return this process's connections. On inherited ones a forked process would read its parent's responses."""
        inherited = self._connections
        if inherited.pid != os.getpid():
            self._connections = Connections(self._open(httpx2.Client))
            inherited.abandon()
            if inherited.closed.is_set():
                self._connections.close()
        return self._connections


@dataclass(frozen=True, slots=True)
class Request:
    """One call; `content` is None for a GET."""

    method: str
    path: str
    content: bytes | None
    timeout: float
    idempotent: bool

    def arguments(
        self, base: str, timeout: httpx2.Timeout, trace: Callable[[str, dict[str, Any]], Any]
    ) -> Mapping[str, Any]:
        """Return the arguments of a client's `request`. trace: httpx's extension, called at each event."""
        return {
            "method": self.method,
            "url": base + self.path,
            "content": self.content,
            "timeout": timeout,
            "extensions": {"trace": trace},
        }


class Connections:
    """An httpx client of one process whose requests another thread can end."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client
        self.pid = os.getpid()
        self.closed = threading.Event()
        self._lock = threading.Lock()
        self._under_way = 0
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._finalizer = weakref.finalize(self, client.close)  # or idle sockets are reported as leaked

    def send(self, request: Request, base: str, timeout: httpx2.Timeout) -> httpx2.Response:
        """Return the response, read to its end. Raises httpx2.RequestError, ConnectionError after `close`."""
        with self._lock:
            if self.closed.is_set():
                raise ConnectionError("the client was closed")
            self._under_way += 1
        connected: list[socket.socket] = []

        def trace(event: str, info: dict[str, Any]) -> None:
            if event.endswith(("connect_tcp.complete", "start_tls.complete")):
                connected.append(info["return_value"].get_extra_info("socket"))
                self._watch(connected[-1])

        ask = partial(self.client.request, **request.arguments(base, timeout, trace))
        try:
            try:
                return ask()
            except (httpx2.RemoteProtocolError, httpx2.NetworkError):
                if connected or not request.idempotent or self.closed.is_set():
                    raise
                # A server may close an idle connection at the moment it is used again: that spends no attempt.
                return ask()
        finally:
            with self._lock:
                self._under_way -= 1
            self._close_idle()

    def close(self) -> None:
        """End the requests under way and refuse later ones."""
        with self._lock:
            self.closed.set()
            for opened in self._sockets:
                shut_down(opened)
        self._close_idle()

    def abandon(self) -> None:
        """Free the sockets in a forked process, without the locks, which threads of the parent may hold."""
        self._finalizer.detach()
        for opened in list(self._sockets):
            opened.close()

    def _watch(self, opened: socket.socket) -> None:
        """Remember a new connection for `close`, or end it if `close` was called meanwhile."""
        with self._lock:
            self._sockets.add(opened)
            if self.closed.is_set():
                shut_down(opened)

    def _close_idle(self) -> None:
        """Free the sockets once all requests have ended, since another thread may still read from one."""
        with self._lock:
            idle = self.closed.is_set() and not self._under_way
        if idle:
            self.client.close()


class LoopConnections:
    """An httpx client of the running event loop whose requests another thread can end."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client, self.loop = client, asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def send(
        self, request: Request, base: str, timeout: httpx2.Timeout, closed: threading.Event
    ) -> httpx2.Response:
        """Return the response, read to its end. Raises httpx2.RequestError, ConnectionError once `closed` is set."""
        if closed.is_set():
            raise ConnectionError("the client was closed")
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._under_way.add(task)
        connected: list[str] = []

        async def trace(event: str, info: dict[str, Any]) -> None:
            if event.endswith("connect_tcp.complete"):
                connected.append(event)

        ask = partial(self.client.request, **request.arguments(base, timeout, trace))
        try:
            try:
                return await ask()
            except (httpx2.RemoteProtocolError, httpx2.NetworkError):
                if connected or closed.is_set():
                    raise
                return await ask()  # an idle connection was closed as it was used again
        except asyncio.CancelledError:
            if closed.is_set():
                raise ConnectionError("the client was closed") from None
            raise
        finally:
            self._under_way.discard(task)

    def close(self) -> None:
        """End the requests under way, and free the sockets."""
        with suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for task in self._under_way:
            task.cancel()
        self._ending = self.loop.create_task(self.client.aclose())


class EventLoop:
    """An event loop in a daemon thread, which other threads give coroutines to."""

    def __init__(self, name: str = "rlvr-http") -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop; return its future, whose `cancel` ends it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the thread, once the coroutines that are left have ended."""

        async def wait_for_all() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if left:
                await asyncio.wait(left, timeout=CONNECT_SECONDS)

        self.start(wait_for_all()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def shut_down(opened: socket.socket) -> None:
    """Wake up whoever waits for this socket: it reads an end of file."""
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # not SSLSocket's, which changes the object being read


def open_client(base: httpx2.URL, headers: Mapping[str, str], kind: type[C]) -> C:
    """Return an httpx client of a kind, without a limit on connections.

    Raises ValueError if the environment names certificates that cannot be read or a proxy that cannot be used.
    """
    try:
        verify = httpx2.create_ssl_context() if base.scheme == "https" else False  # 0.1 s; no redirect is followed
    except OSError as error:  # ssl.SSLError is one
        named = [f"{name}={os.environ[name]}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if name in os.environ]
        raise ValueError(
            f"the certificates to trust ({', '.join(named) or 'the default ones'}) cannot be read: "
            f"{one_line(str(error))}; expected a file in PEM format"
        ) from error
    try:
        return kind(
            headers=dict(headers),
            auth=(base.username, base.password) if base.userinfo else None,
            verify=verify,
            limits=httpx2.Limits(keepalive_expiry=KEEP_ALIVE),
            trust_env=not is_local(base.host),
        )
    except (ImportError, httpx2.InvalidURL, ValueError) as error:
        raise ValueError(f"the proxy that the environment names cannot be used: {one_line(str(error))}") from error


def is_local(host: str) -> bool:
    """Return whether a host is this machine, judged by its name or address alone."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def parse_url(url: str, name: str) -> httpx2.URL:
    """Return the URL of a server. Raises ValueError unless it is `http(s)://HOST[:PORT][/PATH]`."""
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL:
        parsed = httpx2.URL("")
    is_port = parsed.port is None or 0 < parsed.port < 2**16
    if parsed.scheme not in ("http", "https") or not parsed.host or not is_port or parsed.query or parsed.fragment:
        shown = re.sub(r"//[^/@]*@", "//", url)
        raise ValueError(f"the {name}'s url {shown!r}: expected http://HOST:PORT, or https, and a base path if any")
    return parsed


def check_key(key: str, name: str) -> None:
    """Raise ValueError for a key that cannot be sent in a header. It is not shown."""
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise ValueError(f"the key for the {name}: expected printable ASCII without spaces around it")


def decode(response: httpx2.Response, where: str, secrets: Sequence[str] = ()) -> Any:
    """Return the JSON of a response, None for an empty one. Raises ServerLost or RequestRefused by its status.

    secrets: left out of quotes in messages.
    """
    status, content = response.status_code, response.content
    quoted = one_line(without_secrets(content[:READ_FOR_QUOTES].decode(errors="replace"), secrets))
    if status >= 500:
        raise ServerLost(f"{where} returned {status}: {quoted}", retry_after(response))
    if 300 <= status < 400:
        target = one_line(without_secrets(response.headers.get("location", "nowhere"), secrets))
        raise RequestRefused(f"{where} redirects ({status}) to {target}; use that URL", status)
    if status >= 400:
        raise RequestRefused(f"{where} refused the request ({status}): {quoted}", status, retry_after(response))
    try:
        return json.loads(content) if content else None
    except (ValueError, RecursionError) as error:
        raise ServerLost(f"{where} returned invalid JSON: {quoted}") from error


def retry_after(response: httpx2.Response) -> float:
    """Return the seconds that a Retry-After header asks for, from 0 to 30; 0 without a readable one."""
    value = response.headers.get("retry-after", "")
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        return min(float(value), LONGEST_RETRY_AFTER)
    try:
        seconds = parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, min(seconds, LONGEST_RETRY_AFTER))


def one_line(text: str) -> str:
    """Return the start of a text with runs of white space as one space."""
    return " ".join(text.split())[:LONGEST_QUOTE]
