"""Servers that a run or `rlvr serve` starts, loses and replaces. Stand-ins are started, without vLLM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.commands import serve
from rlvr.config import VLLMServerConfig
from rlvr.core.types import RunError
from rlvr.sampling.vllm import server
from rlvr.sampling.vllm.sampler import VLLMSampler
from rlvr.sampling.vllm.weights import write_config
from tests.helpers.files import ROOT
from tests.helpers.models import small_policy
from tests.helpers.vllm_servers import LOSES, draw, stand_in


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    monkeypatch.setattr(server, "server_command", stand_in)
    monkeypatch.setattr(server, "require_vllm", lambda: None)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def kill(sampler: VLLMSampler, place: int) -> None:
    started, _ = sampler.engine.starter.processes[sampler.engine.servers[place].url]
    os.kill(started.pid, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.filterwarnings(LOSES)
def test_lost_server_is_replaced_at_the_next_push():
    """Its requests go to the other one; afterwards there are two again, the second one new, and the tokens are those of
    before; one more loss is one too many to be replaced, and after the last server the run ends."""
    policy = small_policy()
    sampler = VLLMSampler(policy, VLLMServerConfig(servers=2, sync_check_every=1, timeout=60, max_restarts=1))
    expected, engine = draw(sampler), sampler.engine
    first = [server.url for server in engine.servers]
    kill(sampler, 0)
    assert draw(sampler) == expected
    assert [server.url for server in engine.servers] == first[1:]
    sampler.load_weights(policy)
    assert len(engine.servers) == 2
    assert engine.servers[0].url == first[1]
    assert engine.servers[1].url not in first
    assert draw(sampler) == expected
    kill(sampler, 0)
    assert draw(sampler) == expected
    sampler.load_weights(policy)
    assert len(engine.servers) == 1
    pids = [started.pid for started, _ in engine.starter.processes.values()]
    kill(sampler, 0)
    with pytest.raises(RunError, match=r"lost all 2 vLLM servers; last: .*; the same command resumes$"):
        draw(sampler)
    sampler.close()
    assert all(map(has_ended, pids))


def test_server_that_does_not_start_is_told_with_its_reason(monkeypatch):
    """In one line; the other one is ended too."""
    failing = [sys.executable, "-c", "raise ValueError('no such architecture')"]
    commands = iter([stand_in, lambda *_: failing])
    monkeypatch.setattr(server, "server_command", lambda *arguments: next(commands)(*arguments))
    with pytest.raises(ValueError, match="vLLM did not start: ValueError: no such architecture"):
        VLLMSampler(small_policy(), VLLMServerConfig(servers=2, timeout=60))


SERVE = """
import sys
from rlvr.commands import cli, serve
from rlvr.sampling.vllm import server
from tests.helpers.vllm_servers import stand_in
server.server_command, server.require_vllm, serve.require_vllm = stand_in, lambda: None, lambda: None
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


def test_serve_prints_urls_and_the_line_to_type_next(tmp_path):
    """A run samples from them; one that ends is told, and Ctrl-C ends the other."""
    policy = small_policy()
    write_config(policy, tmp_path / "model")
    policy.causal.save_pretrained(tmp_path / "model")
    ports = ["--servers", "2", "--port", str(server.free_port())]
    command = [sys.executable, "-c", SERVE, str(tmp_path / "model"), *ports, "--device", "cpu"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    try:
        first, _, line = (served.stdout.readline() for _ in range(3))
        urls = re.findall(r"http://\S+", first)
        assert len(urls) == 2
        assert line.rstrip().endswith(f"--sampler vllm-server --sampler.url {' '.join(urls)}")
        sampler = VLLMSampler(policy, VLLMServerConfig(url=tuple(urls), timeout=60))
        draw(sampler)
        sampler.close()
        children = Path(f"/proc/{served.pid}/task/{served.pid}/children").read_text().split()
        servers = [int(pid) for pid in children] or started_by(served.pid)
        victim = next(pid for pid in servers if urls[0].rpartition(":")[2] in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(victim, signal.SIGKILL)
        assert f"the server {urls[0]} ended: killed by signal 9; 1 of 2 are left" in served.stdout.readline()
        served.send_signal(signal.SIGINT)
        printed, _ = served.communicate(timeout=60)
        assert served.returncode == 130
        assert "Traceback" not in printed
    finally:
        served.kill()
        served.communicate()
    deadline = time.monotonic() + 60
    while not all(map(has_ended, servers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(map(has_ended, servers))


def started_by(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("tiny", "tiny is made anew by each run; serve a folder"),
        ("x --servers 0", "--servers 0"),
        ("x --port 65535 --servers 2", "2 servers need as many ports"),
        ("x --port 70000", "--port 70000"),
        ("x --gpu-memory-utilization 0", "--gpu-memory-utilization 0"),
        ("/no/such/folder", "/no/such/folder"),
    ],
)
def test_serve_refuses_what_cannot_be(flags, message):
    """Before anything is started."""
    with pytest.raises(ValueError, match=message):
        serve.main(flags.split())


def test_serve_refuses_an_adapter(tmp_path):
    """The trainer pushes merged weights."""
    policy = small_policy()
    policy.causal.save_pretrained(tmp_path / "base")
    policy.tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(
        f'{{"base_model_name_or_path": "{tmp_path / "base"}", "peft_type": "LORA", "r": 4}}'
    )
    with pytest.raises(ValueError, match="is an adapter; serve its base model"):
        serve.serve(serve.ServeArgs(str(tmp_path / "adapter")))


def test_nccl_without_a_gpu_is_refused(tmp_path, monkeypatch):
    policy = small_policy()
    policy.causal.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(serve, "require_vllm", lambda: None)
    with pytest.raises(ValueError, match="--transfer nccl needs GPUs, and the device is cpu; use gloo"):
        serve.serve(serve.ServeArgs(str(tmp_path), transfer="nccl", device="cpu"))


def test_other_machines_reach_a_server_by_the_machines_name():
    assert serve.reachable_host("127.0.0.1") == "127.0.0.1"
    assert serve.reachable_host("10.0.0.7") == "10.0.0.7"
    assert serve.reachable_host("0.0.0.0") == serve.reachable_host("::") not in ("", "0.0.0.0")
