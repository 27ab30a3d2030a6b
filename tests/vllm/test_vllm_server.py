"""vLLM servers that the trainer starts, and running ones; the doctor's table. Minutes, with the real engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rlvr.config import ModelConfig, VLLMServerConfig
from rlvr.core.http import JSONClient, ServerLost
from rlvr.core.types import RunError, Sampling
from rlvr.model.load.policy import load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm.doctor import check_engine
from rlvr.sampling.vllm.engine import start_options
from rlvr.sampling.vllm.sampler import VLLMSampler
from rlvr.sampling.vllm.server import (
    EXTENSION,
    REQUIRED_FLAGS,
    free_port,
    server_command,
    server_environment,
)
from rlvr.sampling.vllm.weights import write_config
from tests.helpers import sabotaged_worker
from tests.helpers.files import ROOT
from tests.helpers.models import shake

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
pytest.importorskip("vllm", exc_type=ImportError)

START_SECONDS = 600  # beside other work a start takes minutes


@pytest.fixture
def foreign_server(tmp_path):
    """Starts servers that are not the sampler's, without weights."""
    started = []

    def start(*, flags: bool = True, extension: str = EXTENSION, **environment: str) -> tuple[str, subprocess.Popen]:
        model = ModelConfig(name="tiny", device="cpu", dtype="float32")
        policy = load_policy(model, corpus=["0123456789+= "], seed=1)
        folder, port = tmp_path / "model", free_port()
        folder.mkdir(exist_ok=True)
        write_config(policy, folder)
        options = start_options(policy, VLLMServerConfig())
        command = server_command(str(folder), "127.0.0.1", port, "rlvr_gloo", options)
        if not flags:
            without = {*REQUIRED_FLAGS.split(), "--weight-transfer-config", '{"backend": "rlvr_gloo"}'}
            command = [part for part in command if part not in without]
        command = [extension if part == EXTENSION else part for part in command]
        log = (tmp_path / "log").open("wb")
        process = subprocess.Popen(command, env=server_environment(on_cpu=True) | environment, stdout=log, stderr=log)
        started.append(process)
        client, deadline = JSONClient(f"http://127.0.0.1:{port}", timeout=5.0), time.monotonic() + START_SECONDS
        while True:
            try:
                client.get("/health")
                break
            except ServerLost:
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.3)
        client.close()
        return f"http://127.0.0.1:{port}", process

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:  # it does not take signals while it starts
            process.kill()
            process.wait(60)


def test_server_of_somebody_else(foreign_server):
    """By its URL: the trainer's weights are pushed at the start and checked, pushed again, sampled from; `close` leaves
    the server alone; once it is gone the run ends with a line that names it."""
    url, process = foreign_server()
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "], seed=0)
    config = VLLMServerConfig(url=(url,), sync_check_every=1)
    sampling, seeds = Sampling(max_new_tokens=16, temperature=0), [[0]]
    for _ in range(2):
        sampler = VLLMSampler(policy, config)
        for _ in range(2):
            drawn, own = (s.generate([policy.encode("1+2=")], sampling, seeds) for s in (sampler, TorchSampler(policy)))
            assert drawn[0][0].token_ids == own[0][0].token_ids
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.add_(torch.randn_like(weight) * 0.05)
            sampler.load_weights(policy)
        sampler.close()
        assert process.poll() is None
    sampler = VLLMSampler(policy, config)
    process.terminate()
    process.wait(60)
    with pytest.raises(
        RunError,
        match=rf"lost the vLLM server: the vLLM server {url}/.* is unreachable: .*; the same command resumes",
    ):
        sampler.load_weights(policy)
    sampler.close()


@pytest.mark.parametrize("kind", ["nothing", "half"])
def test_push_that_is_taken_and_not_loaded_is_refused(foreign_server, tmp_path, kind):
    """The server reports the new version, and has the weights of the push before, or one layer of them."""
    what = tmp_path / "what"
    what.write_text("")
    environment = {sabotaged_worker.FILE: str(what), "PYTHONPATH": str(ROOT)}
    url, _ = foreign_server(extension="tests.helpers.sabotaged_worker.Sabotaged", **environment)
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "], seed=0)
    sampler = VLLMSampler(policy, VLLMServerConfig(url=(url,), sync_check_every=0))
    for seed in range(3):
        shake(policy, 1e-3, seed)
        sampler.load_weights(policy)
    what.write_text(kind)
    shake(policy, 1e-3, 3)
    with pytest.raises(
        RunError, match=rf"lost the vLLM server: the vLLM server {url} does not have the weights of push 5"
    ):
        sampler.load_weights(policy)
    sampler.close()


def test_server_without_the_flags_is_refused(foreign_server):
    """In a line that says how it must be started; so is an address where nobody listens."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    url, _ = foreign_server(flags=False)
    for address in (url, f"http://127.0.0.1:{free_port()}"):
        with pytest.raises(ValueError, match=rf"the vLLM server {address}/.*started by `rlvr serve MODEL`"):
            VLLMSampler(policy, VLLMServerConfig(url=(address,), timeout=20.0))
    with pytest.raises(ValueError, match="expected http://HOST:PORT"):
        VLLMSampler(policy, VLLMServerConfig(url=("localhost:8000",)))


@pytest.mark.parametrize("staleness", ["0", "1"])
def test_interrupted_command_leaves_no_process(tmp_path, staleness):
    """Ctrl-C at `rlvr train` with a server, that samples meanwhile or not: a checkpoint, exit code 130, no server."""
    command = [sys.executable, "-m", "rlvr", "train", "tiny_math", "--sampler", "vllm-server"]
    command += ["--sampler.max-staleness", staleness]
    command += ["--sft.steps", "0", "--run.steps", "1000", "--eval.every", "-1", "--run.out-dir", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 600
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.5)
    started = children(process.pid)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert len(list((tmp_path / "run" / "checkpoints").rglob("ahead.jsonl"))) == int(staleness)
    assert started
    for pid in started:
        assert not Path(f"/proc/{pid}").exists(), output


TRAINER = """
import time
from rlvr.config import ModelConfig, VLLMServerConfig
from rlvr.model.load.policy import load_policy
from rlvr.sampling.vllm.sampler import VLLMSampler
policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
engine = VLLMSampler(policy, VLLMServerConfig()).engine
print(*(process.pid for process, _ in engine.starter.processes.values()), flush=True)
time.sleep(600)
"""


def test_killed_trainer_leaves_no_server():
    """After SIGKILL its server ends by itself."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while group_lives(pid) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not group_lives(pid)


def group_lives(group: int) -> bool:
    """Whether a process of this group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def children(pid: int) -> list[int]:
    """The direct children of a process that run vLLM's server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and "api_server" in (folder / "cmdline").read_text():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def test_doctor_finds_all_well():
    """Every check of the table holds for the tiny model."""
    checks = list(check_engine(ModelConfig(name="tiny", device="cpu", dtype="float32")))
    assert [check.name for check in checks if not check.holds] == []
    assert len(checks) == 3
