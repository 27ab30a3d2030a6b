"""vLLM servers that the trainer starts, loses and starts again; the doctor's table. Minutes, with the real engine."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlvr.config import (
    AlgoConfig,
    Config,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    VLLMServerConfig,
)
from rlvr.core.http import JSONClient, ServerLost
from rlvr.core.types import RunError, Sampling
from rlvr.model.load.policy import load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.run import Run
from tests.helpers.files import ROOT
from tests.helpers.models import shake
from tests.helpers.runs import AfterStep, build_run
from tests.helpers.turns import LastOfAll, completions, digits, find_unscored, play_rows
from tests.helpers.verifiers import PROBLEMS
from tests.helpers.vllm_policies import make_policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
try:
    importlib.import_module("vllm")
    from rlvr.sampling.vllm.doctor import check_engine
    from rlvr.sampling.vllm.engine import start_failure, start_options
    from rlvr.sampling.vllm.sampler import VLLMSampler
    from rlvr.sampling.vllm.server import (
        EXTENSION,
        REQUIRED_FLAGS,
        error_in,
        free_port,
        server_command,
        server_environment,
    )
    from rlvr.sampling.vllm.weights import shared_folder, write_config
    from tests.helpers import sabotaged_worker
except ImportError as error:
    pytest.skip(f"vLLM cannot be imported: {error}", allow_module_level=True)

STEPS, KILLED_AFTER = 10, 5
START_SECONDS = 600  # beside other work a start takes minutes


def pids_of(sampler: VLLMSampler) -> list[int]:
    """The servers' processes."""
    return [process.pid for process, _ in sampler.engine.starter.processes.values()]


def train_for(tmp_path: Path, sampler_of, on_step=None, max_staleness: int = 0) -> Run:
    """Ten steps of a tiny model, sampled from a server; the run, its weights in the last checkpoint."""
    sampling = {"problems_per_step": 6, "group_size": 4, "max_new_tokens": 12}
    config = Config(
        run=RunConfig(out_dir=tmp_path, steps=STEPS, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(**sampling),
        sampler=VLLMServerConfig(max_staleness=max_staleness),
        # without it the weights are a function of the tokens and the rewards alone
        algo=AlgoConfig(importance="token" if max_staleness else "none"),
        optim=OptimConfig(lr=1e-3),
    )
    run = build_run(config, sampler=sampler_of)
    if on_step is not None:
        run.reporter.callbacks.append(AfterStep(lambda step: on_step(step, run.worker.sampler)))
    train(run)
    return run


def test_killed_server_changes_nothing(tmp_path):
    """A server killed with SIGKILL in the middle of ten steps is replaced, and the run ends with the weights of a run
    that lost none; every step has its rollouts once; afterwards no process of theirs is left."""
    processes = []

    def open_server(policy):
        return VLLMSampler(policy, VLLMServerConfig(sync_check_every=1, max_restarts=1))

    def kill(step, sampler):
        processes.extend(pids_of(sampler))
        if step == KILLED_AFTER:
            os.kill(*pids_of(sampler), signal.SIGKILL)

    whole = train_for(tmp_path / "whole", open_server)
    whole.worker.sampler.close()
    broken = train_for(tmp_path / "broken", open_server, kill)
    assert broken.worker.sampler.engine.deaths == 1
    broken.worker.sampler.close()
    folders = [run.reporter.log.out_dir / "checkpoints" / "step-000010" for run in (whole, broken)]
    weights = [load_file(folder / "model.safetensors") for folder in folders]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=0)
    texts = [
        [(r["step"], r["problem"], r["sample"], r["completion"]) for r in run.reporter.log.read("rollouts")]
        for run in (whole, broken)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == STEPS * 24
    assert len(set(processes)) == 2
    for pid in set(processes):
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_server_killed_beside_the_training_changes_nothing(tmp_path):
    """Sampled one step ahead, a server killed while it samples is replaced with the weights that it had; the run ends
    as one that lost none. Importance weights carry the last bits of logprobs, which vary with the batch."""

    def open_server(policy):
        return VLLMSampler(policy, VLLMServerConfig(sync_check_every=1, max_restarts=1))

    def kill(step, sampler):
        if step == KILLED_AFTER:  # before the push that ends the step: the next batch is being drawn
            os.kill(*pids_of(sampler), signal.SIGKILL)

    ends = []
    for name, on_step in (("whole", None), ("broken", kill)):
        run = train_for(tmp_path / name, open_server, on_step, max_staleness=1)
        run.worker.sampler.close()
        lines = [(r["step"], r["problem"], r["sample"], r["completion"]) for r in run.reporter.log.read("rollouts")]
        assert len(set(lines)) == STEPS * 24
        ends.append((lines, load_file(run.reporter.log.out_dir / "checkpoints/step-000010/model.safetensors")))
    assert run.worker.sampler.engine.deaths == 1
    assert ends[0][0] == ends[1][0]
    for name, value in ends[0][1].items():
        torch.testing.assert_close(ends[1][1][name], value, rtol=0, atol=1e-5)


def test_killed_server_changes_no_turn():
    """Killed before the 13th reply, it is replaced, and gets the contexts so far; no row waits for another before."""
    policy, lock, left = make_policy(), threading.Lock(), [12]
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=1))
    (pid,) = [process.pid for process, _ in sampler.engine.starter.processes.values()]

    def kills(problem, rng):
        inner = digits(problem, rng)
        found = next(inner)
        while True:
            said = yield found
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(pid, signal.SIGKILL)
            try:
                found = inner.send(said)
            except StopIteration:
                return None

    greedy = Sampling(max_new_tokens=24, temperature=0.0)
    try:
        assert find_unscored(play_rows(policy, sampler, LastOfAll(8))) == set()
        whole = play_rows(policy, sampler, digits)
        assert [c.token_ids for c in completions(play_rows(policy, sampler, kills))] == [
            c.token_ids for c in completions(whole)
        ]
        assert sampler.engine.deaths == 1
        torch_rows = completions(play_rows(policy, TorchSampler(policy), digits, sampling=greedy))
        ours = completions(play_rows(policy, sampler, digits, sampling=greedy))
        assert [(c.token_ids, c.turns) for c in ours] == [(c.token_ids, c.turns) for c in torch_rows]
    finally:
        sampler.close()


def test_groups_of_a_lost_server_are_handed_over_once(tmp_path):
    """Killed when the first group has come, it is replaced for the rest; no group comes twice, and none is missing."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=1))
    prompts, sampling = [policy.encode(problem.prompt) for problem in PROBLEMS[:8]], Sampling(max_new_tokens=24)
    seeds = [[10 * p + g for g in range(4)] for p in range(8)]
    expected = sampler.generate(prompts, sampling, seeds)
    handed = []

    def keep(place, group):
        if not handed:
            os.kill(*pids_of(sampler), signal.SIGKILL)
        handed.append(place)

    drawn = sampler.stream(prompts, sampling, seeds, keep)
    assert sampler.engine.deaths == 1
    sampler.close()
    assert sorted(handed) == list(range(8))
    assert [[c.token_ids for c in group] for group in drawn] == [[c.token_ids for c in group] for group in expected]


def test_interrupted_sampling_ends_at_once(tmp_path):
    """A long draw in another thread ends with a RunError of one line, and the server is not started again."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    policy.eos_ids = frozenset()
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=2))
    sampling = Sampling(max_new_tokens=sampler.engine.max_model_len - 8)
    prompts, seeds = [policy.encode("1+2=")], [list(range(200))]
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(sampler.generate, prompts, sampling, seeds)
        time.sleep(1.0)
        assert not drawing.done()
        sampler.interrupt()
        start = time.monotonic()
        with pytest.raises(RunError, match="sampling was interrupted"):
            drawing.result()
    assert time.monotonic() - start < 10
    assert sampler.engine.deaths == 0
    sampler.close()


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


def test_lost_too_often_ends_the_run(tmp_path):
    """Without a restart left the loss is an error that says how often."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=0))
    os.kill(*pids_of(sampler), signal.SIGKILL)
    with pytest.raises(RuntimeError, match="lost 1 times"):
        sampler.load_weights(policy)
    sampler.close()
    assert sampler.engine.starter.processes == {}


def test_silent_server_is_replaced(tmp_path):
    """A server that is stopped and answers nothing counts as lost after the timeout; the draws are those of before."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=1))
    prompts, seeds, sampling = [policy.encode("1+2=")], [[1, 2, 3]], Sampling(max_new_tokens=8)
    before = sampler.generate(prompts, sampling, seeds)
    sampler.engine.servers[0].client.timeout = 5.0
    os.kill(*pids_of(sampler), signal.SIGSTOP)
    after = sampler.generate(prompts, sampling, seeds)
    assert sampler.engine.deaths == 1
    sampler.close()
    assert [c.token_ids for c in after[0]] == [c.token_ids for c in before[0]]


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
print(*(process.pid for process, _ in engine.starter.processes.values()), engine.starter.folder, flush=True)
time.sleep(600)
"""


def test_killed_trainer_leaves_no_server():
    """After SIGKILL its server ends by itself, and its folder in memory goes with the next start."""
    process = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True)
    pid, folder = process.stdout.readline().split()
    assert (Path(folder) / "config.json").exists()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while group_lives(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not group_lives(int(pid))
    with shared_folder():
        assert not Path(folder).exists()


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
    assert "--sampler.gpu-memory-utilization" in message
    assert "--sampler.max-model-len" in message
    assert "gpu-memory-utilization" not in start_failure("unknown architecture")
