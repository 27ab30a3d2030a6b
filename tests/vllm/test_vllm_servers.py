"""Several vLLM servers of `rlvr serve` and several training processes, with the real engine on a CPU. Minutes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.files import read_program
from tests.helpers.served import ENVIRONMENT, rlvr, serve_command, torchrun

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]
pytest.importorskip("vllm", exc_type=ImportError)

PACK = "--run.task-option num_train=64 num_test=16 num_demonstrations=1024 --model.device cpu --sft.steps 300".split()


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory) -> Path:
    """The folder of a run that has been fine-tuned and no more."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    command = rlvr("sft", "tiny_math", *PACK, "--eval.every", "-1", "--run.out-dir", str(folder))
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def two_servers(fine_tuned, tmp_path_factory) -> Iterator[tuple[list[str], subprocess.Popen]]:
    logs = tmp_path_factory.mktemp("logs")
    with serve_command(fine_tuned / "start", logs, "--servers", "2", "--port", "18300") as started:
        yield started


LOGPROBS = read_program("logprobs_of_servers")


def test_two_trainers_push_to_two_servers(fine_tuned, two_servers, tmp_path):
    """The logprobs of both servers are the trainer's after each push, and not before."""
    urls, _ = two_servers
    (tmp_path / "program.py").write_text(LOGPROBS)
    command = torchrun(2, "program.py", ".", str(fine_tuned / "start"), *urls)
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert results[0] == results[1]
    for pushed, stale in zip(results[0][::2], results[0][1::2], strict=True):
        assert len(pushed) == len(stale) == 2
        assert max(pushed) <= 2e-3 < min(stale)


def test_server_with_two_workers(fine_tuned, tmp_path):
    """Each worker holds a part of the weights and is a process of the transfer's group; the greedy check holds."""
    program = """
import sys, warnings
from rlvr.config import ModelConfig, VLLMServerConfig
from rlvr.model.load.policy import load_policy
from rlvr.sampling.vllm.sampler import VLLMSampler
from tests.helpers.models import shake

policy = load_policy(ModelConfig(name=sys.argv[1], device="cpu"))
sampler = VLLMSampler(policy, VLLMServerConfig(url=tuple(sys.argv[2:]), sync_check_every=1))
for step in range(2):
    shake(policy, 0.1, step)
    sampler.load_weights(policy)
print("workers", [server.workers for server in sampler.engine.servers])
sampler.close()
"""
    flags = ("--tensor-parallel", "2", "--port", "18310")
    with serve_command(fine_tuned / "start", tmp_path / "logs", *flags) as (urls, _):
        command = [sys.executable, "-c", program, str(fine_tuned / "start"), *urls]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert "workers [2]" in done.stdout, done.stderr[-3000:]
