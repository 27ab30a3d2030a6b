"""A vLLM server that the trainer starts, loses and starts again; the doctor's table. Minutes, with the real engine."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, VLLMConfig
from rlvr.optim import make_optimizer
from rlvr.policy import load_policy
from rlvr.run import Run
from rlvr.runlog import RunLog
from rlvr.train import train
from rlvr.types import Problem, Sampling, Verdict, correct, incorrect

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]
try:
    importlib.import_module("vllm")
    from rlvr.vllm_doctor import check_engine
    from rlvr.vllm_engine import start_failure
    from rlvr.vllm_sampler import VLLMSampler
    from rlvr.vllm_server import EngineLost, error_in
except ImportError as why:
    pytest.skip(f"vLLM cannot be imported: {why}", allow_module_level=True)

PROBLEMS = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(40)]
STEPS, KILLED_AFTER = 10, 5


class OddDigits:
    """Right where the completion has an odd number of digits: about half of random text."""

    def verify(self, pairs) -> list[Verdict]:
        return [correct() if sum(c.isdigit() for c in text) % 2 else incorrect() for _, text in pairs]


def train_for(tmp_path: Path, sampler_of, on_step=None) -> Run:
    """Ten steps of a tiny model, sampled from a server; the run, its weights in the last checkpoint."""
    config = Config(
        run=RunConfig(out_dir=tmp_path, steps=STEPS, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(sampler="vllm-server", problems_per_step=6, group_size=4, max_new_tokens=12),
        # the weights are then a function of the tokens and the rewards alone
        algo=AlgoConfig(importance="none"),
        optim=OptimConfig(lr=1e-3),
    )
    policy = load_policy(config.model, corpus=["0123456789+= "], seed=0)
    sampler = sampler_of(policy)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    run = Run(config, policy, optimizer, sampler, PROBLEMS, OddDigits(), RunLog(tmp_path), Accelerator(cpu=True))
    run.on_step = on_step and (lambda step, metrics, rollouts: on_step(step, sampler))
    train(run)
    return run


def test_killed_server_changes_nothing(tmp_path):
    """A server killed with SIGKILL in the middle of ten steps is replaced, and the run ends with the weights of a run
    that lost none; every step has its rollouts once; afterwards no process of theirs is left."""
    processes = []

    def open_server(policy):
        return VLLMSampler(policy, VLLMConfig(sync_check_every=1, restarts=1), server=True)

    def kill(step, sampler):
        processes.append(sampler.engine.process.pid)
        if step == KILLED_AFTER:
            os.kill(sampler.engine.process.pid, signal.SIGKILL)

    whole = train_for(tmp_path / "whole", open_server)
    whole.sampler.close()
    broken = train_for(tmp_path / "broken", open_server, kill)
    assert broken.sampler.engine.deaths == 1
    broken.sampler.close()
    weights = [load_file(run.log.out_dir / "checkpoints/step-000010/model.safetensors") for run in (whole, broken)]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=0)
    texts = [
        [(r["step"], r["problem"], r["sample"], r["completion"]) for r in run.log.read("rollouts")]
        for run in (whole, broken)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == STEPS * 24
    assert len(set(processes)) == 2
    for pid in set(processes):
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_lost_too_often_ends_the_run(tmp_path):
    """Without a restart left the loss is an error that says how often."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    sampler = VLLMSampler(policy, VLLMConfig(restarts=0), server=True)
    os.kill(sampler.engine.process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="lost 1 times"):
        sampler.load_weights(policy)
    sampler.close()
    with pytest.raises(EngineLost):
        sampler.engine.client.call("/health")


def test_silent_server_is_replaced(tmp_path):
    """A server that is stopped and answers nothing counts as lost after the timeout; the draws are those of before."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    sampler = VLLMSampler(policy, VLLMConfig(restarts=1), server=True)
    prompts, seeds, sampling = [policy.encode("1+2=")], [[1, 2, 3]], Sampling(max_new_tokens=8)
    before = sampler.generate(prompts, sampling, seeds)
    sampler.engine.client.timeout = 5.0
    os.kill(sampler.engine.process.pid, signal.SIGSTOP)
    after = sampler.generate(prompts, sampling, seeds)
    assert sampler.engine.deaths == 1
    sampler.close()
    assert [c.token_ids for c in after[0]] == [c.token_ids for c in before[0]]


def test_interrupted_command_leaves_no_process(tmp_path):
    """Ctrl-C at `rlvr train` with a server: a checkpoint, exit code 130, and no server."""
    command = [sys.executable, "-m", "rlvr", "train", "tiny_math", "--rollout.sampler", "vllm-server"]
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
    assert started
    for pid in started:
        assert not Path(f"/proc/{pid}").exists(), output


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
    assert len(checks) == 6


def test_error_of_a_log_is_the_cause():
    """The cause is named, and not the last line, which only says that there was one."""
    log = (
        "INFO starting\n(EngineCore pid=3) ERROR 11-21 ValueError: No available memory for the cache blocks.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert error_in(log) == "ValueError: No available memory for the cache blocks."


def test_start_without_memory_names_the_settings():
    """Too little memory: vLLM's reason and the settings that change it; any other reason stands alone."""
    message = start_failure("No available memory for the cache blocks.\nmore")
    assert "No available memory" in message
    assert "--vllm.memory-share" in message
    assert "--vllm.max-model-len" in message
    assert "memory-share" not in start_failure("unknown architecture")
