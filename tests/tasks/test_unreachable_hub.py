"""A hub that cannot be reached is told in one line, after one short attempt."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from rlvr.core.files import hub
from rlvr.core.files.models import find_model
from rlvr.core.registry import make_task
from rlvr.tasks.sources import cache_only, stream_hub
from tests.helpers.files import ROOT

PROGRAM = """
import sys
from rlvr.commands.cli import main
code = main(sys.argv[1:])
print(code, "torch" in sys.modules)
"""


class Silent:
    """A server that takes connections and never answers; it counts them."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.connections.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Silent]:
    """The hub is such a server, and nothing is in its caches."""
    server = Silent()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(hub, "SECONDS", 0.3)
    monkeypatch.setattr(hub, "REMEMBERED", 1e9)
    hub._ask.cache_clear()
    yield server
    server.close()
    hub._ask.cache_clear()


def test_one_attempt_serves_a_whole_command(silent: Silent) -> None:
    """The model and each data set that are asked for after it; nothing else is tried."""
    with pytest.raises(ValueError, match=r"cannot be reached: .+"):
        find_model("no-such/model")
    told = r"data set 'no-such/rows' could not be loaded .* cannot be reached: .+\); give"
    for _ in range(2):
        with pytest.raises(OSError, match=told):
            list(stream_hub("no-such/rows", None, "train"))
    assert len(silent.connections) == 1


def test_the_libraries_may_ask_again_afterwards(silent: Silent) -> None:
    """They read their caches only while something is loaded, however that ends."""

    def fail() -> None:
        with cache_only(True):
            assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (True, True)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not constants.HF_HUB_OFFLINE
    with cache_only(False):
        assert not constants.HF_HUB_OFFLINE


def test_nothing_is_asked_in_offline_mode(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is the user's word that there is no network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE keeps it from being downloaded"):
        find_model("no-such/model")
    with pytest.raises(OSError, match="could not be loaded"):
        make_task("gsm8k")
    assert silent.connections == []


@pytest.mark.parametrize("command", ["train math_grpo --dry-run", "audit gsm8k", "eval --model tiny --task svamp"])
def test_a_command_without_a_network_ends_with_one_line(command: str, tmp_path: Path) -> None:
    """None of the lines in which the hub's client counts its tries, and torch is not imported for it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-1] == "2 False"
    assert done.stderr.count("\n") == 1, done.stderr
    assert "could not be loaded (it is not in the cache, and the hub cannot be reached" in done.stderr
    assert "--data PATH" in done.stderr
