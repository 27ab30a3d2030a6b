"""Training processes that share servers: one pushes, each samples its share. Without vLLM."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlvr.config import ModelConfig
from rlvr.model.load.policy import load_policy
from tests.helpers import warm
from tests.helpers.files import lines, read_program
from tests.helpers.models import small_policy
from tests.helpers.vllm_servers import (
    GENERATE,
    VLLMLike,
    after,
    dies,
    loads_half,
    loads_nothing,
    vllm_servers,
)

PACK = "--run.task-option num_train=64 num_test=8 num_demonstrations=256 --model.device cpu".split()
FLAGS = (
    "--rollout.problems-per-step 5 --rollout.group-size 4 --rollout.max-new-tokens 24 --run.steps 3 --run.save-every 1 "
    "--run.sample-every 0 --eval.every 3 --eval.num-problems 8 --eval.samples 2 --eval.k 1 --sft.steps 40 "
    "--optim.lr 1e-5 --optim.warmup-steps 0 --optim.tokens-per-microbatch 300 --sampler.sync-check-every 1 "
    "--algo.importance none "
    "--run.verifier regex --run.verifier-option pattern=7 match=search"
).split()


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory) -> Path:
    """The folder of a run that has been fine-tuned and no more."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    done = warm.run(["sft", "tiny_math", *PACK, "--sft.steps", "40", "--run.out-dir", str(folder)])
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def serve(folder: Path, count: int) -> Iterator[list[VLLMLike]]:
    """Servers of a run's model."""
    with vllm_servers(load_policy(ModelConfig(name=str(folder / "start"), device="cpu")), count) as servers:
        yield servers


def train(folder: Path, processes: int, servers: list[VLLMLike], *flags: str) -> list[subprocess.CompletedProcess[str]]:
    urls = [server.url for server in servers]
    command = ["train", "tiny_math", *PACK, *FLAGS, "--sampler", "vllm-server", "--sampler.url", *urls, *flags]
    return warm.run_together(processes, [*command, "--run.out-dir", str(folder)], timeout=200)


def outcome(folder: Path) -> tuple[list, list]:
    """Rollouts, and pass@1 by step."""
    rollouts = [
        (row["step"], row["problem"], row["sample"], row["completion"]) for row in lines(folder / "rollouts.jsonl")
    ]
    return rollouts, [(row["step"], row["pass@1"], row["status"]) for row in lines(folder / "eval.jsonl")]


@pytest.fixture(scope="module")
def one_process(fine_tuned, tmp_path_factory) -> Path:
    """The run of one process with one server."""
    folder = Path(shutil.copytree(fine_tuned, tmp_path_factory.mktemp("one") / "run"))
    with serve(folder, 1) as servers:
        for done in train(folder, 1, servers):
            assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requests", "shards"), [(7, 1), (50, 2)], ids=["while it evaluates", "while it trains, in shards"]
)
def test_two_trainers_lose_one_of_two_servers(fine_tuned, one_process, tmp_path, requests, shards):
    """Rollouts and pass@1 are those of one process with one server, and each answer was of the weights pushed last."""
    folder = Path(shutil.copytree(fine_tuned, tmp_path / "run"))
    with serve(folder, 2) as servers:
        servers[1].faults[GENERATE] = after(requests, dies)
        for done in train(folder, 2, servers, "--model.shard", str(shards)):
            assert done.returncode == 0, done.stderr
            assert "Traceback" not in done.stderr
    assert outcome(folder) == outcome(one_process)
    assert {row["reward"] for row in lines(folder / "rollouts.jsonl")} == {0.0, 1.0}
    run, pushes = set(), []
    for version, _ in servers[0].answered:
        run.add(version.split("-")[0])
        pushes.append(int(version.split("-")[1]))
    assert len(run) == 1
    assert pushes == sorted(pushes)
    assert set(pushes) == {1, 2, 3, 4}
    assert 0 < len(servers[1].answered) <= requests


@pytest.mark.slow
def test_run_that_lost_all_servers_resumes_with_others(fine_tuned, one_process, tmp_path):
    """Exit code 2 and one line on each process; the same command with the new URLs ends as a run that lost none."""
    folder = Path(shutil.copytree(fine_tuned, tmp_path / "run"))
    with serve(folder, 2) as servers:
        for server in servers:
            server.faults[GENERATE] = after(35, dies)
        for done in train(folder, 2, servers):
            assert done.returncode == 2, done.stderr
            [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
            assert "vLLM servers" in error
            assert "Traceback" not in done.stderr
    with serve(folder, 2) as servers:
        for done in train(folder, 2, servers):
            assert done.returncode == 0, done.stderr
    assert outcome(folder) == outcome(one_process)


SHARDED = read_program("push_shards")


def in_processes(count: int, program: str, folder: Path, *arguments: str) -> list:
    """What each of some processes of one group writes into RANK.json."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(warm.ROOT), *sys.path])}
    done = subprocess.run(
        [*command, "program.py", ".", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def test_sharded_weights_are_gathered_one_after_the_other(tmp_path):
    """On every process the source yields the whole tensors of the model that is sharded over all."""
    assert in_processes(2, SHARDED, tmp_path) == [True] * 2


PUSHES = read_program("push_to_servers")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> list:
    """What two processes get that lose no server, and what is true of the servers."""
    with vllm_servers(small_policy()) as servers:
        found = in_processes(2, PUSHES, tmp_path_factory.mktemp("whole"), *(server.url for server in servers))
        assert servers[0].has_weights_of(servers[1].policy)
        assert servers[0].log.count("/init_weight_transfer_engine") == 1
    return found


def test_first_process_pushes_for_all(whole):
    """Both know the version and the servers; those meet once, and hold the same weights afterwards."""
    first, second = whole
    assert first["error"] == second["error"] == ""
    assert first["versions"] == second["versions"]
    assert len(set(first["versions"])) == 3
    assert first["tokens"] != second["tokens"]


@pytest.mark.parametrize("path", [GENERATE, "/update_weights", "/reset_prefix_cache"])
def test_server_that_one_process_loses_is_lost_for_all(whole, tmp_path, path):
    """After the next push none of them asks it; the answers are those of two servers."""
    with vllm_servers(small_policy()) as servers:
        servers[0].faults[path] = after(4 if path == GENERATE else 1, dies)
        broken = in_processes(2, PUSHES, tmp_path, *(server.url for server in servers))
    for process, other in zip(broken, whole, strict=True):
        assert process["error"] == ""
        assert process["tokens"] == other["tokens"]
        assert process["servers"] == [servers[1].url]


@pytest.mark.parametrize("sabotage", [loads_nothing, loads_half], ids=lambda sabotage: sabotage.__name__)
def test_server_without_the_pushed_weights_is_lost_for_all(whole, tmp_path, sabotage):
    """The first process refuses it before any of them samples; the answers are those of two servers."""
    with vllm_servers(small_policy()) as servers:
        begin = servers[0].load

        def at_the_first(received):
            begin(received)
            servers[0].load = begin
            sabotage(servers[0])

        servers[0].load = at_the_first
        broken = in_processes(2, PUSHES, tmp_path, *(server.url for server in servers))
    for process, other in zip(broken, whole, strict=True):
        assert process["error"] == ""
        assert process["tokens"] == other["tokens"]
        assert process["servers"] == [servers[1].url]


def test_push_that_reaches_nobody_ends_all_processes_with_the_same_line(tmp_path):
    """The others hear of it, and do not wait."""
    with vllm_servers(small_policy()) as servers:
        for server in servers:
            server.faults["/update_weights"] = after(1, dies)
        first, second = in_processes(2, PUSHES, tmp_path, *(server.url for server in servers))
    assert first["error"] == second["error"]
    assert "lost all 2 vLLM servers" in first["error"]
