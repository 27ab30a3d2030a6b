"""Which server gets which requests, worked out by hand; GPUs, addresses and messages of servers."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
import torch

from rlvr.config import VLLMServerConfig
from rlvr.core.http import EventLoop, ServerLost
from rlvr.core.types import RunError
from rlvr.sampling.vllm import servers as routing
from rlvr.sampling.vllm.engine import Batch, Output, Request, start_failure
from rlvr.sampling.vllm.server import (
    Server,
    error_in,
    server_command,
    server_environment,
    share_gpus,
    visible_gpus,
)
from rlvr.sampling.vllm.servers import Router, Starter, group_by_prompt, place_servers
from rlvr.sampling.vllm.transfer import address_towards, meeting_address


def request(prompt: int, tokens: int, seed: int = 0) -> Request:
    """A request for so many tokens after a prompt of one."""
    return Request([prompt], seed, tokens, 1.0, 1.0, 0)


def answer(server: str, asked: Request) -> Output:
    return Output((asked.prompt[0], asked.seed), (0.0, 0.0), None)


def route(requests: list[Request], servers: list[str], ask: Callable = answer, on_loss: Callable | None = None):
    """The outputs, and who was asked for what, in the order of asking."""
    asked, lock = [], threading.Lock()

    def note_request(server: str, wanted: Request) -> Output:
        with lock:
            asked.append((server, wanted.prompt[0], wanted.seed))
        return ask(server, wanted)

    with ThreadPoolExecutor(64) as pool:
        lose = on_loss or (lambda server, error: servers.remove(server))
        router = Router(partial(pool.submit, note_request), lambda: servers, lose)
        batch = Batch(requests)
        router.sample(batch)
        return batch.in_order(), asked


def waiting_for(count: int) -> Callable:
    """Ask such that nobody answers before so many requests have been handed out."""
    barrier = threading.Barrier(count)

    def ask(server: str, wanted: Request) -> Output:
        barrier.wait(60)
        return answer(server, wanted)

    return ask


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([10, 10, 10, 10], "abab"),  # 11 tokens each: a b, then a (11, 11), then b (22, 11)
        ([30, 5, 5, 5], "abbb"),  # a has 31; b 6, 12, 18
        ([30, 20, 5, 10], "abbb"),  # a has 31; b 21, 27
        ([20, 5, 30, 5], "abba"),  # a has 21; b 6, 37
        ([5, 30, 5, 5, 5, 5], "abaaaa"),  # b has 31; a 6, 12, 18, 24, 30
    ],
)
def test_fewest_outstanding_tokens_decide(tokens, expected):
    """Each group goes to the server that has the fewest tokens to draw; of equal ones to the first."""
    _, asked = route([request(p, n) for p, n in enumerate(tokens)], ["a", "b"], waiting_for(len(tokens)))
    assert "".join(server for server, _, _ in sorted(asked, key=lambda row: row[1])) == expected


def test_a_group_stays_together():
    """Completions of one prompt share its prefix in one server's cache."""
    requests = [request(p, 10, seed) for p in range(5) for seed in range(4)]
    numbered = list(enumerate(requests))
    assert group_by_prompt(numbered) == [numbered[4 * p : 4 * p + 4] for p in range(5)]
    outputs, asked = route(requests, ["a", "b", "c"])
    assert [output.token_ids for output in outputs] == [(p, seed) for p in range(5) for seed in range(4)]
    assert all(len({server for server, prompt, _ in asked if prompt == p}) == 1 for p in range(5))


def test_full_servers_get_no_more_until_they_answer(monkeypatch):
    """At most CONNECTIONS requests at once, or one group that is larger; what is left goes to whoever is free."""
    monkeypatch.setattr(routing, "CONNECTIONS", 4)
    busy, most, lock = {"a": 0, "b": 0}, {"a": 0, "b": 0}, threading.Lock()

    def ask(server: str, wanted: Request) -> Output:
        with lock:
            busy[server] += 1
            most[server] = max(most[server], busy[server])
        threading.Event().wait(0.001)
        with lock:
            busy[server] -= 1
        return answer(server, wanted)

    requests = [request(p, 10, seed) for p in range(20) for seed in range(2)]
    outputs, _ = route(requests, ["a", "b"], ask)
    assert len(outputs) == 40
    assert max(most.values()) <= 4
    outputs, _ = route([request(0, 10, seed) for seed in range(9)], ["a", "b"], ask)
    assert len(outputs) == 9


def test_lost_requests_go_elsewhere_and_come_once():
    """In any order of answers each index is handed over once."""

    def ask(server: str, wanted: Request) -> Output:
        if server == "a" and wanted.seed % 2:
            raise ServerLost("gone")
        return answer(server, wanted)

    lost, servers, handed = [], ["a", "b"], []

    def lose(server: str, error: ServerLost) -> None:
        lost.append(server)
        if server in servers:
            servers.remove(server)

    requests = [request(p, 10, seed) for p in range(6) for seed in range(4)]
    with ThreadPoolExecutor(64) as pool:
        router = Router(partial(pool.submit, ask), lambda: servers, lose)
        batch = Batch(requests, lambda index, output: handed.append(index))
        router.sample(batch)
    assert [output.token_ids for output in batch.in_order()] == [(p, seed) for p in range(6) for seed in range(4)]
    assert sorted(handed) == list(range(24))
    assert set(lost) == {"a"}
    assert servers == ["b"]


def test_errors_of_others_end_the_sampling():
    """Of a server that is refused, of the consumer, and where no server is there."""

    def refuse(server: str, wanted: Request) -> Output:
        raise RunError("stale")

    with pytest.raises(RunError, match="stale"):
        route([request(0, 1)], ["a"], refuse)
    with pytest.raises(RunError, match="no vLLM server is left"):
        route([request(0, 1)], [])
    with ThreadPoolExecutor(4) as pool:
        router = Router(partial(pool.submit, answer), lambda: ["a"], lambda s, e: None)
        with pytest.raises(KeyError):
            router.sample(Batch([request(0, 1)], lambda i, o: {}[i]))
    assert route([], ["a"]) == ([], [])


@pytest.mark.parametrize(("tokens", "seconds"), [(16, 600.0), (8192, 600.0), (32768, 2400.0)])
def test_a_long_answer_has_more_time(tokens, seconds, monkeypatch):
    """An answer comes as a whole: one of 32k tokens takes longer than a server may be silent otherwise."""
    given = []
    server = Server("http://127.0.0.1:1", 600.0)

    async def post(path, body, *, timeout):
        given.append(timeout)
        raise ServerLost("no server")

    monkeypatch.setattr(server.client, "post_in_loop", post)
    with pytest.raises(ServerLost):
        asyncio.run(server.sample(request(0, tokens), "run-1"))
    assert given == [seconds]


AT_ONCE = 300


class AllTogether:
    """A server that answers when AT_ONCE requests are under way."""

    async def start(self) -> int:
        """Listen, and return the port."""
        self.all_there = asyncio.Barrier(AT_ONCE)
        self.listening = await asyncio.start_server(self.answer, "127.0.0.1", 0, backlog=512)
        return self.listening.sockets[0].getsockname()[1]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
        with suppress(asyncio.BrokenBarrierError):
            await self.all_there.wait()
            logprobs, spans = {"content": [{"logprob": -1.0}]}, [{"version": "run-1"}]
            choice = {"token_ids": [5], "logprobs": logprobs, "finish_reason": "length", "weight_versions": spans}
            body = json.dumps({"choices": [choice]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            await writer.drain()
        writer.close()

    async def end(self) -> None:
        await self.all_there.abort()
        self.listening.close()


def test_one_thread_has_hundreds_of_requests_at_a_server():
    """So many that a thread for each would be the larger part of the work; the client's end ends those under way."""
    serving, asking, together = EventLoop(), EventLoop(), AllTogether()
    server = Server(f"http://127.0.0.1:{serving.start(together.start()).result()}", 60.0)

    def send(to: Server, wanted: Request):
        return asking.start(to.sample(wanted, "run-1"))

    before, threads = threading.active_count(), []
    requests = [request(0, 1, seed) for seed in range(AT_ONCE)]
    router = Router(send, lambda: [server], lambda s, e: None)
    router.sample(Batch(requests, lambda i, output: threads.append(threading.active_count())))
    assert len(threads) == AT_ONCE
    assert max(threads) <= before
    alone = send(server, request(0, 1))
    threading.Timer(0.2, server.close).start()
    for future in (alone, send(server, request(0, 1))):
        with pytest.raises(ServerLost, match="the client was closed"):
            future.result(10)
    asking.close()
    serving.start(together.end()).result()
    serving.close()


@pytest.mark.parametrize(
    ("gpus", "servers", "each", "expected"),
    [
        (["1", "2"], 2, 1, [["1"], ["2"]]),
        (["0", "1", "2", "3"], 2, 2, [["0", "1"], ["2", "3"]]),
        (["GPU-a", "GPU-b", "GPU-c"], 1, 2, [["GPU-a", "GPU-b"]]),
        (["0"], 2, 1, "2 servers with 1 GPUs each need 2, and 1 are there"),
        (["0", "1", "2"], 2, 2, "2 servers with 2 GPUs each need 4, and 3 are there"),
        ([], 1, 1, "1 servers with 1 GPUs each need 1, and 0 are there"),
    ],
)
def test_gpus_are_shared_out(gpus, servers, each, expected):
    """Consecutive ones for each server; too few are refused in one line."""
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            share_gpus(gpus, servers, each)
    else:
        assert share_gpus(gpus, servers, each) == expected


@pytest.mark.parametrize(
    ("variable", "count", "expected"),
    [(None, 2, ["0", "1"]), ("3,5", 2, ["3", "5"]), ("GPU-a, GPU-b", 2, ["GPU-a", "GPU-b"]), ("4,5,6", 2, ["4", "5"])],
)
def test_gpus_have_the_names_that_servers_know_them_by(monkeypatch, variable, count, expected):
    """Those of CUDA_VISIBLE_DEVICES, where it is set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert visible_gpus(count) == expected


def test_servers_on_a_cpu_share_its_threads_and_do_not_spin(monkeypatch):
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("rlvr.sampling.vllm.server.count_cores", lambda: 8)
    for servers, threads in ((1, "8"), (3, "2"), (20, "1")):
        environment = server_environment(on_cpu=True, servers=servers)
        assert (environment["OMP_NUM_THREADS"], environment["OMP_WAIT_POLICY"]) == (threads, "passive")
        assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"  # no worker beside the engine
    assert "OMP_NUM_THREADS" not in server_environment(on_cpu=False)
    assert server_environment(on_cpu=False)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert server_environment(on_cpu=True, servers=2)["OMP_NUM_THREADS"] == "5"


def test_server_starts_without_weights_and_knows_nothing_of_torchrun(monkeypatch):
    """Its own GPUs, its own group; dummy weights, the worker extension, the way that weights come."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    environment = server_environment(on_cpu=False, gpus=["2", "3"])
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & set(environment)
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    options = {"tensor_parallel_size": 2, "enforce_eager": True, "enable_chunked_prefill": False}
    command = server_command("model", "0.0.0.0", 8001, "rlvr_nccl", options)
    told = " ".join(command)
    for part in ("--load-format dummy", "--port 8001", "--host 0.0.0.0", "--tensor-parallel-size 2"):
        assert part in told
    assert {"--enforce-eager", "--no-enable-chunked-prefill"} <= set(command)
    assert command[command.index("--weight-transfer-config") + 1] == '{"backend": "rlvr_nccl"}'
    assert command[command.index("--worker-extension-cls") + 1] == "rlvr.sampling.vllm.worker.WorkerExtension"


def test_servers_meet_the_trainer_where_they_reach_it():
    """Those on this machine at 127.0.0.1; for one elsewhere the address that leads there; an unknown host is named."""
    assert meeting_address(["http://127.0.0.1:1", "http://localhost:2"]) == "127.0.0.1"
    assert address_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(RunError, match=r"host no\.such\.host\.invalid has no address"):
        meeting_address(["http://localhost:1", "http://no.such.host.invalid:2"])


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ((), ()),
        (None, ()),
        ("http://a:1", ("http://a:1",)),
        (["http://a:1", "http://b:1"], ["http://a:1", "http://b:1"]),
    ],
)
def test_url_may_be_one_or_several(url, expected):
    """As earlier runs recorded it, and as the command line gives it."""
    assert VLLMServerConfig(url=url).url == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (("http://a:1", "http://a:1/"), "names a server twice"),
        (("",), "url is empty"),
        (("http://a:1", ""), "url is empty"),
    ],
)
def test_urls_that_cannot_be_are_refused(url, message):
    with pytest.raises(ValueError, match=message):
        VLLMServerConfig(url=url).check("sampler.")


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


@pytest.mark.parametrize(
    ("ranks", "index", "expected"),
    [
        (None, 0, (["1"], ["2"], ["3"])),
        (None, 2, (["0"], ["1"], ["3"])),
        ("2", 0, (["2"], ["3"])),
        ("2", 1, (["2"], ["3"])),
        ("4", 3, None),
    ],
)
def test_servers_are_on_gpus_of_no_rank(ranks, index, expected, monkeypatch):
    """Whichever rank starts them: torchrun's ranks train on the first GPUs of a machine."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    config = VLLMServerConfig(servers=1 if expected is None else len(expected))
    if expected is None:
        with pytest.raises(ValueError, match="1 servers with 1 GPUs each need 1, and 0 are there"):
            place_servers(torch.device("cuda", index), config)
    else:
        assert place_servers(torch.device("cuda", index), config) == (list(expected), "rlvr_nccl")


@pytest.mark.parametrize(("gpus", "told", "share"), [(1, None, 0.4), (4, None, 0.9), (1, 0.25, 0.25), (4, 0.25, 0.25)])
def test_a_server_fills_a_gpu_of_its_own(monkeypatch, policy, gpus, told, share):
    """Beside the trainer it has .4 of the memory; unless told otherwise."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr(type(policy), "device", torch.device("cuda", 0))
    with Starter(policy, VLLMServerConfig(gpu_memory_utilization=told)) as starter:
        assert starter.options["gpu_memory_utilization"] == share
