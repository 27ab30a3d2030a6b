"""Secrets are left out of what servers are quoted with."""

from __future__ import annotations

import base64
import html
import json
from contextlib import closing
from urllib.parse import quote

import pytest

from rlvr.core.files.secrets import without_secrets
from rlvr.core.http import JSONClient, RequestRefused, UnexpectedResponse
from tests.helpers.servers import reply, serving

WRITTEN = {
    "as it is": str,
    "in JSON": lambda key: json.dumps(key)[1:-1],
    "in JSON with slashes escaped": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "in JSON in JSON": lambda key: json.dumps(json.dumps(key)[1:-1])[1:-1],
    "as code points": lambda key: "".join(f"\\u{ord(c):04X}" for c in key),
    "in HTML": html.escape,
    "in HTML as numbers": lambda key: "".join(f"&#x{ord(c):x};" for c in key),
    "in a URL": lambda key: quote(key, safe=""),
    "in a URL in a URL": lambda key: quote(quote(key, safe=""), safe=""),
}
AROUND = ["{}", "Bearer {}.", "a{}b{}", "<b>{}</b>"]
SECRETS = ["sk-1a2b3c4d5e6f", "Ab+/9xY0==", "p&ss\"w\\rd<1'"]


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("form", WRITTEN)
def test_secrets_are_left_out_however_they_are_written(form: str, around: str) -> None:
    """Whole ones anywhere; other text stays."""
    for key in SECRETS:
        shown = without_secrets(around.replace("{}", WRITTEN[form](key)), (key,))
        assert shown == around.replace("{}", "[key]")


@pytest.mark.parametrize("text", ["cut off: {key:.9}", "cut off: {key:.5}", "wrong key {key:.8}...", "{key:.8}{key}"])
def test_parts_of_secrets_are_left_out(text: str) -> None:
    """Its beginning at the end of a text, and half of it anywhere; what is no secret stays."""
    key = SECRETS[0]
    shown = without_secrets(text.format(key=key), (key,))
    assert "sk-1a" not in shown
    assert "[key]" in shown
    assert without_secrets("sk is no key, sk-1 neither", (key,)) == "sk is no key, sk-1 neither"
    assert without_secrets("text", ()) == without_secrets("text", ("",)) == "text"


@pytest.mark.parametrize(
    "echoed", ["secret-pass-7", base64.b64encode(b"me:secret-pass-7").decode(), "own-header-value"]
)
def test_every_secret_of_a_client_is_left_out(echoed: str) -> None:
    """The password of a URL, as it travels too, and values of headers; in refusals, failures and odd answers."""
    for answer, said in ((reply(f"no: {echoed}", 403), "refused"), (reply([f"no: {echoed}"]), "schema")):
        with serving() as server, closing(own_client(server.port)) as client:
            server.script = [answer]
            with pytest.raises((RequestRefused, UnexpectedResponse), match=r"no: \[key\]") as caught:
                client.read("/a", client.get("/a"), lambda found: found["n"])
        assert said in str(caught.value)


def own_client(port: int) -> JSONClient:
    return JSONClient(f"http://me:secret-pass-7@127.0.0.1:{port}", headers={"X-Own": "own-header-value"})
