"""The JSON client against servers with certificates."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rlvr.core.http import JSONClient
from tests.helpers.servers import hang, refused, serving


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
    with serving(context) as server:
        url = f"https://127.0.0.1:{server.port}"
        message = refused(JSONClient(url, retries=0))
        assert "is unreachable: " in message
        assert "certificate" in message.lower()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        client = JSONClient(url)
        assert client.get("/") == client.get("/") == {"n": 1}
        server.script = [hang]
        messages = []
        thread = threading.Thread(target=lambda: messages.append(refused(client)))
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
