"""Several servers: who samples what, what a lost one changes, and which answers are refused. Without vLLM."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rlvr.config import Config, OptimConfig, RolloutConfig, RunConfig, VLLMServerConfig
from rlvr.core.types import RunError, Sampling
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm import transfer
from rlvr.sampling.vllm.server import StaleWeights
from rlvr.train import train
from rlvr.verifiers.runner import Runner
from tests.helpers.models import shake, small_policy
from tests.helpers.runs import build_run
from tests.helpers.verifiers import odd_digits
from tests.helpers.vllm_servers import (
    GENERATE,
    LOSES,
    SEEDS,
    Fault,
    VLLMLike,
    after,
    babbles,
    dies,
    draw,
    fails,
    is_silent,
    misshapes,
    vllm_servers,
)

SAMPLING = Sampling(max_new_tokens=12)


def test_answers_do_not_depend_on_the_number_of_servers(policy, open_sampler):
    """One, two or three; all of them sample, and a prompt's completions come from one."""
    drawn = []
    for count in (1, 2, 3):
        with vllm_servers(policy, count) as servers:
            sampler = open_sampler(policy, servers)
            for server in servers:
                server.answered.clear()
            drawn.append(draw(sampler))
            sampler.close()
            asked = [sorted(seed for _, seed in server.answered) for server in servers]
            assert sorted(seed for seeds in asked for seed in seeds) == sorted(seed for row in SEEDS for seed in row)
            assert all(asked)
            for row in SEEDS:
                assert sum(row[0] in seeds for seeds in asked) == sum(set(row) <= set(seeds) for seeds in asked) == 1
    assert drawn[0] == drawn[1] == drawn[2]
    own = TorchSampler(policy).generate([policy.encode("0+1=")], SAMPLING, SEEDS[:1])
    assert drawn[0][0] == [completion.token_ids for completion in own[0]]


def test_every_push_reaches_all_servers_and_names_its_version(policy, servers, open_sampler):
    """Weights are random before the first push and the trainer's after each; every answer is of the last version."""
    assert not any(server.has_weights_of(policy) for server in servers)
    sampler = open_sampler(policy, servers)
    for number in (1, 2, 3):
        assert all(server.has_weights_of(policy) for server in servers)
        assert {server.version for server in servers} == {f"{sampler.engine.run}-{number}"}
        for server in servers:
            server.answered.clear()
        draw(sampler)
        assert {version for server in servers for version, _ in server.answered} == {sampler.engine.version}
        shake(policy, 0.05, number)
        sampler.load_weights(policy)


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize("fault", [dies, fails, babbles, misshapes, is_silent], ids=lambda fault: fault.__name__)
def test_server_lost_while_it_samples_changes_no_token(policy, servers, fault, open_sampler):
    """What it had not answered comes from the other, the next push reaches that one, and its weights are right."""
    sampler = open_sampler(policy, servers, timeout=10.0 if fault is is_silent else 60.0)
    expected = draw(sampler)
    servers[0].faults[GENERATE] = after(3, fault)
    start = time.monotonic()
    assert draw(sampler) == expected
    assert time.monotonic() - start < 50  # the silent one answers after 60
    assert [server.url for server in sampler.engine.servers] == [servers[1].url]
    shake(policy, 0.05, 0)
    sampler.load_weights(policy)
    assert servers[1].has_weights_of(policy)
    assert servers[1].version == sampler.engine.version
    assert draw(sampler) != expected


PUSH = ("/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache")


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize(
    ("path", "fault"),
    [
        *((path, dies) for path in ("/init_weight_transfer_engine", *PUSH)),
        *((path, fails) for path in PUSH),
        ("/update_weights", is_silent),
        ("/finish_weight_update", babbles),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
@pytest.mark.parametrize("place", [0, 1])  # the first has rank 1 in the group, and passes on what the second gets
def test_server_lost_in_a_push_leaves_the_other_with_its_weights(policy, servers, open_sampler, place, path, fault):
    """The transfer meets the rest anew; the version is theirs, and no answer comes from the lost one."""
    seconds = 10.0 if fault is is_silent else 60.0
    if path != "/init_weight_transfer_engine":
        sampler = open_sampler(policy, servers, timeout=seconds)
        shake(policy, 0.05, 0)
        servers[place].faults[path] = fault
        sampler.load_weights(policy)
    else:
        servers[place].faults[path] = fault
        sampler = open_sampler(policy, servers, timeout=seconds)
    other = servers[1 - place]
    assert [server.url for server in sampler.engine.servers] == [other.url]
    assert other.has_weights_of(policy)
    assert other.version == sampler.engine.version
    other.answered.clear()
    servers[place].answered.clear()
    draw(sampler)
    assert servers[place].answered == []
    shake(policy, 0.05, 1)
    sampler.load_weights(policy)
    assert other.has_weights_of(policy)


@pytest.mark.parametrize("fault", [dies, fails, is_silent], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("path", [GENERATE, "/update_weights"])
@pytest.mark.filterwarnings(LOSES)
def test_without_a_server_left_the_run_ends_with_one_line(policy, servers, path, fault, open_sampler):
    """It says so, and why; asked again it does not wait for anybody."""
    sampler = open_sampler(policy, servers, timeout=10.0 if fault is is_silent else 60.0)
    for server in servers:
        server.faults[path] = fault
    with pytest.raises(
        RunError, match=r"lost all 2 vLLM servers; last: the vLLM server http://\S+ .*resumes"
    ) as caught:
        sampler.load_weights(policy) if path != GENERATE else draw(sampler)
    assert "\n" not in str(caught.value)
    with pytest.raises(RunError, match="no vLLM server is left"):
        draw(sampler)


@pytest.mark.parametrize("version", ["default", "0a1b2c3d-1", ""])
def test_answer_of_other_weights_is_refused(policy, servers, version, open_sampler):
    """A server that was started anew, one that another run pushes to, and one that says nothing."""
    sampler = open_sampler(policy, servers)
    servers[1].version = version
    with pytest.raises(StaleWeights, match="another run uses it, or it was started anew"):
        draw(sampler)


def test_two_runs_do_not_share_servers(policy, servers, open_sampler):
    """The second takes the servers over, and the first is told at its next answer."""
    first = open_sampler(policy, servers)
    second = open_sampler(policy, servers)
    draw(second)
    with pytest.raises(StaleWeights, match="another run uses it"):
        draw(first)
    second.close()


def refuses(server: VLLMLike, handler) -> bool:
    handler.reply({"detail": "Not Found"}, 404)
    return True


def says(content) -> Fault:
    def answer(server: VLLMLike, handler) -> bool:
        handler.reply(content)
        return True

    return answer


@pytest.mark.parametrize(
    ("path", "fault", "message"),
    [
        ("/collective_rpc", refuses, r"/collective_rpc refused the request \(404\).*started by `rlvr serve MODEL`"),
        ("/get_world_size", refuses, r"/get_world_size refused the request \(404\).*started by `rlvr serve MODEL`"),
        ("/collective_rpc", says({"results": []}), "does not follow vLLM's schema.*started by `rlvr serve MODEL`"),
        ("/v1/models", says({"data": []}), "does not follow vLLM's schema"),
        ("/version", says({"version": "0.31.1"}), r"vLLM 0\.31\.1 is installed; expected 0\.32"),
        ("/health", fails, "returned 500.*started by `rlvr serve MODEL`"),
    ],
)
def test_server_that_cannot_be_used_is_refused_at_the_start(policy, servers, path, fault, message, open_sampler):
    """In one line that says how it must be started."""
    servers[1].faults[path] = fault
    with pytest.raises(ValueError, match=message) as caught:
        open_sampler(policy, servers)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"dtype": "bfloat16"}, "computes in bfloat16, the trainer in float32; set --dtype there"),
        ({"backend": "rlvr_nccl"}, "gets weights by rlvr_gloo, .* by rlvr_nccl; start all with the same --transfer"),
        ({"backend": "ipc"}, "gets weights by ipc; the servers are started by"),
    ],
)
def test_servers_that_do_not_fit_together_are_refused(policy, servers, about, message, open_sampler):
    """Another dtype than the trainer's, and several ways of getting weights."""
    servers[1].about |= about
    with pytest.raises(ValueError, match=message):
        open_sampler(policy, servers)


@pytest.mark.parametrize("backend", ["rlvr_nccl", "ipc", "nccl"])
def test_transfer_that_the_trainer_cannot_make_is_refused(policy, servers, backend, open_sampler):
    """NCCL without a GPU here, and vLLM's own engines, which lack what this trainer needs."""
    for server in servers:
        server.about["backend"] = backend
    with pytest.raises(ValueError, match=r"--transfer gloo|started by `rlvr serve MODEL`"):
        open_sampler(policy, servers)


def test_shortest_context_of_the_servers_holds(policy, servers, open_sampler):
    servers[1].length = 40
    sampler = open_sampler(policy, servers)
    with pytest.raises(ValueError, match="started for 40 together"):
        sampler.generate([[5] * 30], SAMPLING, [[1]])


def test_interrupted_sampling_ends_at_once(policy, servers, open_sampler):
    """Requests under way on all servers end; later ones are refused."""
    sampler = open_sampler(policy, servers)
    for server in servers:
        server.delay = 30.0
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(draw, sampler)
        while not all(GENERATE in server.log for server in servers):
            assert not drawing.done()
            time.sleep(0.01)
        sampler.interrupt()
        start = time.monotonic()
        with pytest.raises(RunError, match="sampling was interrupted"):
            drawing.result()
    assert time.monotonic() - start < 25  # the answers come after 30


def test_closing_leaves_running_servers_usable(policy, servers, open_sampler):
    """They leave the group, and the next run meets them."""
    for _ in range(2):
        sampler = open_sampler(policy, servers)
        draw(sampler)
        sampler.close()
        assert all(server.group is None for server in servers)


def test_bfloat16_weights_arrive_rounded_as_the_trainer_computes(policy, servers, open_sampler):
    """They travel in the dtype of the computation."""
    policy.dtype = torch.bfloat16
    seen = []
    for server in servers:
        server.about["dtype"] = "bfloat16"
        receive = server.receive
        server.receive = lambda info, receive=receive: seen.append(info["dtype_names"]) or receive(info)
    open_sampler(policy, servers, sync_check_every=0)
    assert {name for names in seen for name in names} == {"bfloat16"}


@pytest.mark.filterwarnings(LOSES)
def test_a_server_that_dies_in_a_slice_loses_no_row_and_trains_none_twice(tmp_path, open_sampler, monkeypatch):
    """A run in slices with rows cut and others under way: the same rollouts as with two servers to the end."""
    monkeypatch.setattr(transfer, "STALLED", 5.0)
    monkeypatch.setattr(transfer, "GRACE", 0.2)
    runs = []
    for name in ("whole", "lost"):
        trained = small_policy()
        with vllm_servers(trained) as servers:
            settings = {"slice_tokens": 3, "max_staleness": 3, "mismatch_alarm": 10.0}
            config = Config(
                run=RunConfig(out_dir=tmp_path / name, steps=4, sample_every=0),
                rollout=RolloutConfig(problems_per_step=3, group_size=4, max_new_tokens=12),
                optim=OptimConfig(lr=1e-3),
                sampler=VLLMServerConfig(url=tuple(server.url for server in servers), **settings),
            )
            config.check()
            sampler = open_sampler(trained, servers, **settings)
            if name == "lost":
                servers[0].faults[GENERATE] = after(40, dies)
            run = build_run(config, Runner(odd_digits), policy=trained, sampler=lambda _, made=sampler: made)
            train(run)
            runs.append(run.reporter.log.read("rollouts"))
            assert len(sampler.engine.servers) == (1 if name == "lost" else 2)
            sampler.close()
    rows = [[(row["problem"], row["sample"], row["completion"], row["versions"]) for row in rows] for rows in runs]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4 * 3 * 4
    assert max(len(versions) for *_, versions in rows[0]) > 1
