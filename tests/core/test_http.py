"""The client for JSON over HTTP: answers, failures, retries, connections, certificates; secrets in messages."""

from __future__ import annotations

import base64
import html
import json
import logging
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from rlvr.core.http import JSONClient, RequestRefused, ServerLost, UnexpectedResponse, is_local, retry_after
from rlvr.core.printable import without_secrets
from tests.helpers.servers import Server, hang, refusal_of, reply, run_server

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def server() -> Iterator[Server]:
    with run_server() as started:
        yield started


@pytest.fixture
def connect(server: Server) -> Iterator[Callable[..., JSONClient]]:
    """Makes clients of the server, closed at the end."""
    made: list[JSONClient] = []

    def make(path: str = "", **options) -> JSONClient:
        made.append(JSONClient(f"http://127.0.0.1:{server.port}{path}", **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_requests_carry_path_body_and_key(server, connect):
    """The base path goes before the path; a user in the URL becomes basic authentication; the body is JSON."""
    server.script = [reply({"n": [1, None, "ü"]})]
    client = connect("/v1/", api_key="secret")
    assert client.post("/chat", {"text": "\ud800ü"}) == {"n": [1, None, "ü"]}
    assert client.get("/models") == {"n": [1, None, "ü"]}
    (post, sent, body), (get, _, nothing) = server.requests
    assert (post, get, nothing) == ("POST /v1/chat HTTP/1.1", "GET /v1/models HTTP/1.1", b"")
    assert json.loads(body) == {"text": "\ud800ü"}
    assert (sent["authorization"], sent["content-type"]) == ("Bearer secret", "application/json")
    named = JSONClient(f"http://me:pass@127.0.0.1:{server.port}")
    named.get("/")
    named.close()
    assert server.requests[-1][1]["authorization"] == "Basic bWU6cGFzcw=="
    assert "pass" not in named.url


def test_connection_is_used_again(server, connect):
    """Many calls, one connection; an empty body is None."""
    client = connect()
    for _ in range(5):
        assert client.get("/") == {"n": 1}
    server.script = [reply(b"")]
    assert client.post("/empty", {}) is None
    assert server.connections == 1


@pytest.mark.parametrize("idempotent", [True, False])
def test_idle_connection_that_the_server_closed(server, connect, idempotent):
    """Closed at the moment of the next request, it is replaced without counting as an attempt, if a repetition may be
    sent."""
    server.script = [reply({"n": 1}), b"", reply({"n": 2})]
    client = connect()
    client.get("/")
    if idempotent:
        assert client.post("/x", {}, idempotent=True) == {"n": 2}
    else:
        assert "failed: Server disconnected" in refusal_of(client, idempotent=False)
    assert len(server.requests) == 2 + idempotent


@pytest.mark.parametrize(
    "failures",
    [[reply({}, 500), reply({}, 503)], [b"", b""], [b"junk\r\n\r\n", reply(b"", 429)], [hang, reply(b"{", 200)]],
)
def test_idempotent_calls_are_repeated(server, connect, failures):
    """Two failures of any kind, then success; a third attempt is not made without a second retry."""
    timeout = 1.0 if hang in failures else 30.0
    server.script = [*failures, reply({"n": 3})]
    assert connect(retries=2, timeout=timeout).post("/x", {}, idempotent=True) == {"n": 3}
    assert len(server.requests) == 3
    server.script = [*failures, reply({"n": 3})]
    with pytest.raises((ServerLost, RequestRefused)):
        connect(retries=1, timeout=timeout).post("/x", {}, idempotent=True)


def test_other_calls_are_sent_once(server, connect):
    """A POST that is not declared idempotent, and any refusal."""
    server.script = [reply({"error": "dead"}, 500)]
    assert "returned 500" in refusal_of(connect(retries=3), idempotent=False)
    server.script = [reply({"error": "no such model"}, 404)]
    with pytest.raises(RequestRefused, match=r"/x refused the request \(404\): .*no such model") as caught:
        connect(retries=3).post("/x", {}, idempotent=True)
    assert caught.value.status == 404
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("7", 7, 7),
        ("1.5", 1.5, 1.5),
        ("3600", 30, 30),
        ("0", 0, 0),
        ("-3", 0, 0),
        ("soon", 0, 0),
        ("", 0, 0),
        (lambda: formatdate(time.time() + 25, usegmt=True), 5, 25),
        (lambda: formatdate(time.time() + 3600, usegmt=True), 30, 30),
        (lambda: formatdate(time.time() - 3600, usegmt=True), 0, 0),
        ("Wed, 99 Nov 2026 99:00:00 GMT", 0, 0),
    ],
)
def test_times_of_retry_after(value, least, most):
    """Seconds or a date, at most 30 seconds; 0 for what cannot be read."""
    text = value() if callable(value) else value
    found = retry_after(httpx2.Response(429, headers={"Retry-After": text}))
    assert least <= found <= most


def test_retry_after_is_respected(server, connect):
    """A second, where the client's own delay would be a tenth of one."""
    server.script = [reply(b"slow down", 429, headers="Retry-After: 1\r\n"), reply({"n": 1})]
    start = time.monotonic()
    assert connect(retries=1).get("/") == {"n": 1}
    assert 0.9 < time.monotonic() - start < 30


FAILURES = [
    (hang, r"/x timed out after 0\.3 s$"),
    (reply({"error": "engine\n is dead"}, 500), r'/x returned 500: {"error": "engine\\n is dead"}$'),
    (reply(b"<html>\n<b>hello</b>"), r"/x returned invalid JSON: <html> <b>hello</b>$"),
    (reply(b"\xff\xfe\x00"), r"/x returned invalid JSON: "),
    (reply(b"[" * 10**5), r"/x returned invalid JSON: \[\["),
    (reply(b"{}", headers="Content-Encoding: gzip\r\n"), r"/x failed: "),
    (b"", r"/x failed: Server disconnected without sending a response"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", r"/x failed: "),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", r"/x timed out after 0\.3 s$"),
]


@pytest.mark.parametrize("answer, message", FAILURES)
def test_failures_are_one_line(server, connect, answer, message):
    """Each names the server, the URL and what happened."""
    server.script = [answer]
    found = refusal_of(connect(name="reward server", timeout=0.3 if "timed out" in message else 30.0))
    assert found.startswith(f"the reward server http://127.0.0.1:{server.port}/x ")
    assert re.search(message, found), found


def test_unreachable_server_is_one_line(server):
    """Nothing listens there, and a name that does not exist."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert "is unreachable: " in refusal_of(JSONClient(f"http://127.0.0.1:{port}"))
    assert "is unreachable: " in refusal_of(JSONClient("http://nowhere.invalid"))


def test_redirect_is_not_followed(server, connect):
    """The key would go to another server."""
    server.script = [reply(b"", 307, headers="Location: http://elsewhere/\r\n")]
    with pytest.raises(RequestRefused, match=r"redirects \(307\) to http://elsewhere/; use that URL"):
        connect(api_key="k").post("/x", {})


def test_missing_fields_are_one_line(connect):
    """`read` tells what its function stumbled over as the server's fault."""
    client = connect()
    answer = client.get("/x")
    assert client.read("/x", answer, lambda found: found["n"]) == 1
    for take in (lambda found: found["m"], lambda found: found["n"]["m"], float):
        with pytest.raises(UnexpectedResponse, match=r"/x: response does not follow vLLM's schema: "):
            client.read("/x", answer, take, "vLLM's schema")


@pytest.mark.parametrize("answer", [hang, b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf"])
def test_close_ends_waiting_requests(server, connect, answer):
    """Eight threads wait, for the headers or for the rest of a body; all end at once, and later calls are refused."""
    server.script = [answer]
    client, messages = connect(timeout=60, retries=3), []
    waiting = [threading.Thread(target=lambda: messages.append(refusal_of(client))) for _ in range(8)]
    for thread in waiting:
        thread.start()
    deadline = time.monotonic() + 10
    while len(server.requests) < 8 and time.monotonic() < deadline:
        time.sleep(0.01)
    start = time.monotonic()
    client.close()
    for thread in waiting:
        thread.join(30)
    assert time.monotonic() - start < 25  # their answers never come
    assert messages == [f"the server http://127.0.0.1:{server.port}/x: the client was closed"] * 8
    assert "the client was closed" in refusal_of(client)
    client.close()


def test_close_ends_a_delay_between_attempts(server, connect):
    """The server asks for half a minute; the thread ends with the failure that it met."""
    server.script = [reply(b"", 503, headers="Retry-After: 30\r\n")]
    client, messages = connect(retries=1), []
    thread = threading.Thread(target=lambda: messages.append(refusal_of(client)))
    thread.start()
    while not server.requests:
        time.sleep(0.01)
    time.sleep(0.1)
    client.close()
    thread.join(10)
    assert len(messages) == 1
    assert "returned 503" in messages[0]


def test_threads_share_a_client(server, connect):
    """Forty calls from each of twenty threads get their own answers, over at most twenty connections."""

    def echo(connection: socket.socket) -> None:
        connection.sendall(reply({"n": 1}))

    server.script = [echo]
    client, found = connect(), []

    def ask() -> None:
        found.extend(client.get("/")["n"] for _ in range(40))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 800
    assert server.connections <= 20


FORKED = """
import os, sys
from rlvr.core.http import JSONClient, ServerLost
client = JSONClient(sys.argv[1])
assert client.get("/parent")["n"] == 1
child = os.fork()
for _ in range(3):
    assert client.get("/child" if not child else "/parent")["n"] == 1
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
client.close()
child = os.fork()
if not child:
    try:
        client.get("/closed")
    except ServerLost as error:
        os._exit(0 if "the client was closed" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_process_has_connections_of_its_own(server):
    """Used before a fork and after it on both sides: two connections in all; a closed client stays closed."""
    url = f"http://127.0.0.1:{server.port}"
    subprocess.run([sys.executable, "-W", "error", "-c", FORKED, url], check=True, cwd=ROOT, timeout=60)
    assert [line.split()[1] for line, _, _ in server.requests].count("/child") == 3
    assert "/closed" not in [line.split()[1] for line, _, _ in server.requests]
    assert server.connections == 2


def test_proxies_are_not_used_for_this_machine(server, connect, monkeypatch):
    """A proxy that is down, or cannot be used at all, stops calls to other machines only."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for proxy in ("http://127.0.0.1:1", "socks9://nothing"):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        assert connect().get("/") == {"n": 1}
        local = JSONClient(f"http://localhost:{server.port}")
        assert local.get("/") == {"n": 1}
        local.close()
    with pytest.raises(ValueError, match="proxy that the environment names cannot be used") as caught:
        JSONClient("http://example.invalid")
    assert "\n" not in str(caught.value)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.port}")
    remote = JSONClient("http://example.invalid")
    assert remote.get("/through") == {"n": 1}
    remote.close()
    assert server.requests[-1][0] == "GET http://example.invalid/through HTTP/1.1"


def test_is_local_knows_the_names_of_this_machine():
    """Loopback and unspecified addresses, localhost and what is below it."""
    assert all(map(is_local, ("127.0.0.1", "127.8.8.8", "::1", "0.0.0.0", "localhost", "a.localhost")))
    assert not any(map(is_local, ("10.0.0.1", "example.org", "localhost.example.org")))


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "http://",
        "ftp://a",
        "http://a:99999",
        "http://a:0",
        "http://a/?q=1",
        "",
        " http://a",
        "x://u:pw@h",
    ],
)
def test_bad_urls_are_refused(url):
    """In one line that shows what was expected, and no password."""
    with pytest.raises(ValueError, match=r"the vLLM server's url .* expected http://HOST:PORT") as caught:
        JSONClient(url, name="vLLM server")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("key", ["a\nb", "ü", "a ", "a\x00"])
def test_bad_keys_are_refused_without_being_shown(key):
    """A line break would end the header, and the message must not hold the secret."""
    with pytest.raises(ValueError, match="the key for the server: expected printable ASCII") as caught:
        JSONClient("http://a", api_key=key)
    assert key not in str(caught.value)


def test_requests_are_not_logged(server, connect, caplog):
    """Not at INFO, where an application may have set its root logger."""
    with caplog.at_level(logging.INFO):
        connect().get("/")
    assert [record.name for record in caplog.records if record.name.startswith(("httpx", "httpcore"))] == []


def test_client_that_is_dropped_leaves_no_socket(server):
    """Without `close` too; a leaked socket would be a ResourceWarning, which is an error here."""
    client = JSONClient(f"http://127.0.0.1:{server.port}")
    client.get("/")
    opened = [sock.fileno() for sock in client._connections._sockets]
    assert len(opened) == 1
    del client
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


@pytest.fixture
def certificate(tmp_path) -> Path:
    """A self-signed certificate for 127.0.0.1, its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    path = tmp_path / "both.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    key = tmp_path / "key.pem"
    subprocess.run([*command.split(), "-keyout", key, "-out", path], check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path


def test_self_signed_certificate_is_refused_in_one_line(certificate, monkeypatch):
    """Unless SSL_CERT_FILE says to trust it; then `close` ends an encrypted request too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with run_server(context) as server:
        url = f"https://127.0.0.1:{server.port}"
        message = refusal_of(JSONClient(url, retries=0))
        assert "is unreachable: " in message
        assert "certificate" in message.lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = JSONClient(url)
        assert client.get("/") == client.get("/") == {"n": 1}
        server.script = [hang]
        messages = []
        thread = threading.Thread(target=lambda: messages.append(refusal_of(client)))
        thread.start()
        while len(server.requests) < 3:
            time.sleep(0.01)
        client.close()
        thread.join(10)
        assert len(messages) == 1
        assert "the client was closed" in messages[0]


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_certificates_that_cannot_be_read(tmp_path, monkeypatch, content):
    """The error names SSL_CERT_FILE and the file, in one line; the proxy is not blamed."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(ValueError, match=r"certificates to trust .* cannot be read: ") as caught:
        JSONClient("https://127.0.0.1:1")
    message = str(caught.value)
    assert f"SSL_CERT_FILE={path}" in message
    assert "proxy" not in message
    assert "\n" not in message


@pytest.mark.parametrize("key", ["sk-1a2b3c4d5e6f", "Ab+/9xY0==", "p&ss\"w\\rd<1'"])
@pytest.mark.parametrize(
    "write", [str, lambda key: json.dumps(key)[1:-1], html.escape, lambda key: quote(key, safe="")]
)
def test_secrets_are_left_out_however_they_are_written(write: Callable[[str], str], key: str) -> None:
    """As they are, in JSON, HTML and URLs; other text stays."""
    for around in ("{}", "Bearer {}.", "a{}b{}", "<b>{}</b>"):
        assert without_secrets(around.replace("{}", write(key)), (key, "")) == around.replace("{}", "[key]")


@pytest.mark.parametrize("echoed", ["secret-pass-7", base64.b64encode(b"me:secret-pass-7").decode()])
def test_every_secret_of_a_client_is_left_out(echoed: str) -> None:
    """The password of a URL, as it travels too; in refusals, failures and odd answers."""
    for answer, said in ((reply(f"no: {echoed}", 403), "refused"), (reply([f"no: {echoed}"]), "schema")):
        with run_server() as server, closing(own_client(server.port)) as client:
            server.script = [answer]
            with pytest.raises((RequestRefused, UnexpectedResponse), match=r"no: \[key\]") as caught:
                client.read("/a", client.get("/a"), lambda found: found["n"])
        assert said in str(caught.value)


def own_client(port: int) -> JSONClient:
    return JSONClient(f"http://me:secret-pass-7@127.0.0.1:{port}")
