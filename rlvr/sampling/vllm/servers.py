"""vLLM on one server or several: started here, or running ones by their URLs, on this machine or others.

`ServersEngine` pushes weights to all of them at once (transfer.py), and checks that each has them (proof.py). `Router`
sends a prompt's completions together to the server with the fewest outstanding tokens. `Starter` starts the servers of
a run and ends them. Each rank samples its share of the prompts; the first rank pushes the weights.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import resource
import secrets
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, distributed

from rlvr.config import VLLMServerConfig
from rlvr.core.http import EventLoop, ServerLost
from rlvr.core.types import RunError
from rlvr.distributed import count_ranks
from rlvr.model.load.policy import Policy

from .engine import LOOK_AGAIN, Engine, Interrupted, Output, Report, Request, Requests, cache_salt, start_options
from .proof import Proof, own_logprobs, proof_text
from .server import (
    HOW_TO_START,
    Server,
    ServerProcess,
    StaleWeights,
    share_gpus,
    start_server,
    stop_all,
    visible_gpus,
)
from .transfer import CHANNELS, Transfer, TransferBroken
from .weights import engine_folder, engine_weights

Source = Callable[[], Iterable[tuple[str, Tensor]]]
LOST, REPLACED = "server-lost", "server-replaced"  # kinds of events
CONNECTIONS = 1024  # requests under way at one server, as many as vLLM batches on a large GPU
OTHER_FILES = 1024  # open files of a run besides its connections
S = TypeVar("S")
R = TypeVar("R")
Numbered = tuple[int, Request]


def is_first() -> bool:
    """Return whether this is the rank that starts the servers and pushes weights for all ranks."""
    return count_ranks() == 1 or distributed.get_rank() == 0


def on_first(action: Callable[[], R]) -> R:
    """Run `action` on the first rank; return its result on every rank, or raise its error on every rank.

    Other ranks raise a ValueError, or the same kind of RunError. All ranks must make the same calls in the same order,
    in one thread at a time.
    """
    if count_ranks() == 1:
        return action()
    shared: list[Any] = [None, None, None]
    failed: Exception | None = None
    if is_first():
        try:
            shared[0] = action()
        except (ValueError, RunError) as error:
            shared[1:] = [ValueError if isinstance(error, ValueError) else type(error), str(error)]
            failed = error
    distributed.broadcast_object_list(shared)
    result, kind, message = shared
    if kind is not None:
        raise failed or kind(message)
    return result


def from_all(value: R) -> list[R]:
    """Return the values of all ranks, in their order."""
    if count_ranks() == 1:
        return [value]
    values: list[Any] = [None] * count_ranks()
    distributed.all_gather_object(values, value)
    return values


class Router(Generic[S]):
    """Hands out requests to servers until each has an output.

    A prompt's completions go together to the server with the fewest outstanding tokens. A request whose number was used
    before is a further turn of a rollout. The server of the last turn has its context in the prefix cache; for any
    other server the whole context is counted in addition.

    send: `send(server, request)` returns the future of the output, which raises ServerLost for a server that is lost.
    servers: returns the servers in use. on_loss: `on_loss(server, error)` is called in the calling thread, once or
    more; afterwards `servers()` lacks the server, or on_loss has raised. Lost requests go to other servers, which
    return the same completions, since these depend on the seed alone. check: called now and then; it may raise to end.
    """

    def __init__(
        self,
        send: Callable[[S, Request], Future[Output]],
        servers: Callable[[], Sequence[S]],
        on_loss: Callable[[S, ServerLost], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.send, self.servers, self.on_loss, self.check = send, servers, on_loss, check
        self.requests: dict[S, int] = {}  # under way
        self.tokens: dict[S, int] = {}  # outstanding: prompts and new tokens of the requests under way
        self.homes: dict[int, S] = {}  # the server that last sampled for a number

    def sample(self, requests: Requests) -> None:
        """Sample requests as they come; see Engine.

        Raises RunError without servers, and what `on_loss`, `requests` or `send`'s futures raise (except ServerLost).
        """
        waiting: deque[list[Numbered]] = deque()
        under_way: dict[Future[Output], tuple[S, int, Request]] = {}
        finished: queue.SimpleQueue[Future[Output] | None] = queue.SimpleQueue()  # None: there may be more to take
        requests.on_more(partial(finished.put, None))
        try:
            while True:
                self.check()
                taken = requests.take()
                waiting.extend(group_by_prompt(taken or ()))
                for future in self._hand_out(waiting, under_way):
                    future.add_done_callback(finished.put)
                if waiting and not under_way:
                    raise RunError("no vLLM server is left")
                if taken is None and not under_way:
                    return
                try:
                    done = finished.get(timeout=LOOK_AGAIN)
                except queue.Empty:
                    continue
                if done is None:
                    continue
                server, number, request = under_way.pop(done)
                self._count(server, request, -1)
                try:
                    output = done.result()
                except ServerLost as error:
                    waiting.appendleft([(number, request)])
                    self.on_loss(server, error)
                else:
                    requests.take_output(number, output)
        finally:
            for future in under_way:
                future.cancel()
            for counts in (self.requests, self.tokens, self.homes):
                counts.clear()

    def _hand_out(
        self, waiting: deque[list[Numbered]], under_way: dict[Future[Output], tuple[S, int, Request]]
    ) -> list[Future[Output]]:
        """Send the first waiting requests, as far as servers have room; return the futures of their outputs."""
        sent = []
        while waiting and (server := self.free_server(waiting[0])) is not None:
            for number, request in waiting.popleft():
                self._count(server, request, 1)
                self.homes[number] = server
                future = self.send(server, request)
                under_way[future] = (server, number, request)
                sent.append(future)
        return sent

    def free_server(self, group: Sequence[Numbered]) -> S | None:
        """Return the server with room for a group that would have the fewest outstanding tokens; None if none has."""

        def has_room(server: S) -> bool:
            busy = self.requests.get(server, 0)
            return busy == 0 or busy + len(group) <= CONNECTIONS

        def cost(server: S) -> int:
            elsewhere = sum(len(request.prompt) for number, request in group if self.homes.get(number) != server)
            return self.tokens.get(server, 0) + elsewhere

        return min((server for server in self.servers() if has_room(server)), key=cost, default=None)

    def _count(self, server: S, request: Request, sign: int) -> None:
        tokens = len(request.prompt) + request.max_new_tokens
        self.requests[server] = self.requests.get(server, 0) + sign
        self.tokens[server] = self.tokens.get(server, 0) + sign * tokens


def group_by_prompt(requests: Sequence[Numbered]) -> list[list[Numbered]]:
    """Return the requests in lists: successive ones with the same prompt together."""
    return [list(group) for _, group in itertools.groupby(requests, key=lambda numbered: list(numbered[1].prompt))]


class Starter:
    """Starts `sampler.servers` servers of a policy's model without weights, replaces lost ones, and ends all."""

    def __init__(self, policy: Policy, config: VLLMServerConfig) -> None:
        self.config = config
        self.gpus, self.backend = place_servers(policy.device, config)
        self.options = start_options(policy, config, apart=self.backend == "rlvr_nccl")
        self.processes: dict[str, tuple[ServerProcess, list[str]]] = {}  # by URL, with its GPUs
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self.logs = Path(self._stack.enter_context(TemporaryDirectory(prefix="rlvr-vllm-")))
        self.model = engine_folder(policy)

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        stop_all([process for process, _ in self.processes.values()])
        self.processes.clear()
        self._stack.close()

    def start(self, check: Callable[[], None]) -> list[str]:
        """Start all servers, and return their URLs once they answer. `check` is called while it waits."""
        urls = [self._begin(gpus) for gpus in self.gpus]
        for url in urls:
            self.processes[url][0].wait_until_up(self.config.timeout, check)
        return urls

    def replace(self, check: Callable[[], None]) -> str:
        """Start a server on GPUs that none uses, and return its URL once it answers."""
        used = [gpus for _, gpus in self.processes.values()]
        url = self._begin(next((gpus for gpus in self.gpus if gpus not in used), self.gpus[0]))
        self.processes[url][0].wait_until_up(self.config.timeout, check)
        return url

    def end(self, url: str) -> None:
        """End a server, if it was started here and has not been ended."""
        process, _ = self.processes.pop(url, (None, []))
        if process is not None:
            process.stop()

    def _begin(self, gpus: list[str]) -> str:
        log = self.logs / f"server-{next(self._numbers)}.log"
        started = start_server(
            str(self.model),
            backend=self.backend,
            options=self.options,
            log=log,
            gpus=gpus,
            servers=self.config.servers,
        )
        self.processes[started.url] = (started, gpus)
        return started.url


def place_servers(device: torch.device, config: VLLMServerConfig) -> tuple[list[list[str]], str]:
    """Return the GPUs of each server, and the transfer engine for their weights.

    On a CPU: no GPUs, TCP. With one GPU and one server: the trainer's GPU, to which NCCL cannot send, so TCP. Else the
    GPUs of this machine on which no rank trains, NCCL. Raises ValueError if there are too few.
    """
    if device.type != "cuda":
        return [[] for _ in range(config.servers)], "rlvr_gloo"
    names = visible_gpus(torch.cuda.device_count())
    # The ranks that torchrun starts on a machine train on its first GPUs.
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    trained_on = range(ranks) if ranks > 1 else (device.index or 0,)
    others = [name for i, name in enumerate(names) if i not in trained_on]
    if len(names) == config.servers == config.tensor_parallel == 1:
        return [names], "rlvr_gloo"
    return share_gpus(others, config.servers, config.tensor_parallel), "rlvr_nccl"


class ServersEngine(Engine):
    """vLLM servers.

    A server is lost if it dies, does not answer for `timeout` seconds, or does not have the weights that were pushed.
    The others, which have the same weights, sample what it had not finished; if none is left the run ends. A lost
    server that was started here is replaced at the next push, as long as no more than `max_restarts` have been lost.
    """

    def __init__(self, policy: Policy, config: VLLMServerConfig) -> None:
        self.config, self.dtype, self.device = config, policy.dtype, policy.device
        self.deaths = 0
        self.servers: list[Server] = []
        self.lost: set[str] = set()  # URLs since the last push
        self.report: Report = warn_of_lost
        self.proof = Proof(policy.dtype)
        self.transfer: Transfer | None = None
        self.starter: Starter | None = None
        self._interrupted = threading.Event()
        self._stack = ExitStack()
        self._loop = EventLoop()
        self._stack.callback(self._loop.close)
        self._stack.callback(self._close_clients)
        allow_open_files(OTHER_FILES + CONNECTIONS * max(len(config.url), config.servers))
        self._router = Router(self._send, lambda: self.servers, self._lose, self._check_interrupted)
        atexit.register(self.close)
        try:
            urls, run, self.max_model_len = on_first(lambda: self._open_servers(policy))
            self._adopt(urls)
            self.run, self.pushes = run, 0
            self.text = proof_text(policy, self.max_model_len)
            self.load(policy)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """The version of the last push; no two runs share a version."""
        return f"{self.run}-{self.pushes}"

    def sample(self, requests: Requests) -> None:
        self._router.sample(requests)

    def sample_everywhere(self, request: Request) -> list[Output]:
        def ask_all() -> list[Output]:
            outputs = []
            for server in list(self.servers):
                try:
                    outputs.append(self._send(server, request).result())
                except ServerLost as error:
                    self._lose(server, error)
            return outputs

        return on_first(ask_all)

    def interrupt(self) -> None:
        self._interrupted.set()
        self._close_clients()

    def report_to(self, report: Report) -> None:
        self.report = report

    def load(self, policy: Policy) -> None:
        """See Engine. A server that does not sample from the weights is lost before it samples."""
        self.push(lambda: engine_weights(policy), own_logprobs(policy, self.text))

    def push(self, source: Source, own: Sequence[float]) -> None:
        """Load the weights that `source()` yields in place on all servers, and reset the prefix caches, unless kept.

        Every rank must run through its own `source()`, since all ranks gather a sharded tensor together. It is called
        again if a server is lost during the push. own: the trainer's logprobs of `text` under these weights.
        """
        lost = {url for urls in from_all(sorted(self.lost)) for url in urls}
        if is_first():
            for server in [server for server in self.servers if server.url in lost]:
                self.report(f"{server.name} is given up, since another process has lost it", LOST)
                self._give_up(server)
        self.pushes += 1
        self.proof.begin(self.pushes, own)
        on_first(self._replace_lost)
        self._adopt(self._push_from(source))
        self.lost = set()

    def measures(self) -> dict[str, float]:
        return self.proof.measures() if is_first() else {}

    def sleep(self, level: int) -> None:
        raise ValueError(f"sampler.sleep {level} needs the sampler vllm, in this process")

    def close(self) -> None:
        """End servers that were started here, with the processes that they started."""
        atexit.unregister(self.close)
        if self.transfer is not None:
            self.transfer.close()
            self.transfer = None
        self._stack.close()

    def _open_servers(self, policy: Policy) -> tuple[list[str], str, int]:
        """Return the servers' URLs, a name for this run, and the shortest max_model_len, after a look at each.

        Raises ValueError for servers that cannot be used, or not together.
        """
        urls = list(self.config.url)
        if not urls:
            self.starter = self._stack.enter_context(Starter(policy, self.config))
            urls = self.starter.start(self._check_interrupted)
        self._adopt(urls)
        for server in self.servers:
            server.inspect()
        check_alike(self.servers, self.dtype, self.device)
        return [s.url for s in self.servers], secrets.token_hex(4), min(s.max_model_len for s in self.servers)

    def _adopt(self, urls: Sequence[str]) -> None:
        """Use the servers at these URLs, in this order; those that are known stay open."""
        known = {server.url: server for server in self.servers}
        self.servers[:] = [known.get(url) or Server(url, self.config.timeout) for url in dict.fromkeys(urls)]

    def _send(self, server: Server, request: Request) -> Future[Output]:
        return self._loop.start(server.sample(request, self.version, cache_salt(self.config, request, self.pushes)))

    def _push_from(self, source: Source) -> list[str]:
        """Let the first rank push what its `source` yields; repeat it if a server is lost. Return the URLs."""
        while True:
            weights = iter(source())
            # An error that ends the run is raised on all ranks, once they have gathered the rest of the weights.
            urls: list[str] | None = None
            error: Exception | None = None
            if is_first():
                try:
                    urls = self._attempt(weights)
                except (ValueError, RunError) as caught:
                    error = caught
            for _ in weights:
                pass
            urls = on_first(partial(return_or_raise, urls, error))
            if urls is not None:
                return urls

    def _attempt(self, weights: Iterable[tuple[str, Tensor]]) -> list[str] | None:
        """Push once to all servers that are left, and ask each for its proof.

        Returns their URLs, or None if one was lost meanwhile. Raises RunError if none is left.
        """
        if not self.servers:
            raise RunError("no vLLM server is left; the same command resumes, with servers that run")
        try:
            if self.transfer is None:
                for server in self.servers:
                    if not server.workers:
                        server.inspect()
                self.transfer = Transfer(self.servers, self.dtype, self.device)
            self.transfer.push(weights, self.version)
            failed = self._reset_caches() if self.config.in_flight == "rebuild" else {}
            failed |= self._ask_for_proof()
        except TransferBroken as broken:
            self.transfer = None
            for server, reason in broken.lost.items():
                self._lose(server, ServerLost(reason))
            return None
        for server, error in failed.items():
            self._lose(server, error)
        return None if failed else [server.url for server in self.servers]

    def _reset_caches(self) -> dict[Server, ServerLost]:
        """Reset the prefix caches; return the servers that are lost by then."""
        failed: dict[Server, ServerLost] = {}
        for server in self.servers:
            try:
                server.reset_cache()
            except ServerLost as error:
                failed[server] = error
        return failed

    def _ask_for_proof(self) -> dict[Server, ServerLost]:
        """Ask each server for its logprobs of the text; return the servers that lack the weights or are lost."""
        request = Request(self.text, seed=0, max_new_tokens=1, temperature=0.0, top_p=1.0, top_k=0, scores_prompt=True)

        failed: dict[Server, ServerLost] = {}
        for server, future in [(server, self._send(server, request)) for server in self.servers]:
            try:
                reason = self.proof.judge(server.url, future.result().prompt_logprobs)
            except (StaleWeights, ServerLost) as error:
                failed[server] = ServerLost(str(error))
                continue
            if reason:
                failed[server] = ServerLost(f"{server.name} does not have the weights of push {self.pushes}: {reason}")
        return failed

    def _replace_lost(self) -> None:
        """Start servers in place of lost ones that were started here; the push that follows brings their weights."""
        if self.starter is None or self.deaths > self.config.max_restarts:
            return
        for _ in range(self.config.servers - len(self.servers)):
            url = self.starter.replace(self._check_interrupted)
            self.report(f"a vLLM server was started at {url}, in place of a lost one", REPLACED)
            self._leave_group()
            self._adopt([*(server.url for server in self.servers), url])

    def _lose(self, server: Server, error: ServerLost) -> None:
        """Give up a server. Raises Interrupted after `interrupt`, RunError where no server is left."""
        if self._interrupted.is_set():
            raise Interrupted("sampling was interrupted") from error
        if server not in self.servers:
            return  # another request has found it out before
        self._give_up(server)
        left, total = len(self.servers), max(len(self.config.url), self.config.servers)
        if not left:
            what = f"all {total} vLLM servers; last" if total > 1 else "the vLLM server"
            others = "" if self.starter is not None else ", with servers that run"
            raise RunError(f"lost {what}: {error}; the same command resumes{others}") from error
        self.report(f"a vLLM server is lost ({error}); {left} of {total} are left", LOST)

    def _give_up(self, server: Server) -> None:
        """Stop using a server: end its requests and its process, and leave the transfer's group."""
        self.servers.remove(server)
        self.lost.add(server.url)
        server.close()
        self._leave_group()
        if self.starter is not None:
            self.deaths += 1
            self.starter.end(server.url)

    def _leave_group(self) -> None:
        """Leave the transfer's group; the next push makes a new one with the servers that are left."""
        if self.transfer is not None:
            transfer, self.transfer = self.transfer, None
            transfer.servers = tuple(server for server in transfer.servers if server in self.servers)
            transfer.close()

    def _close_clients(self) -> None:
        for server in self.servers:
            server.close()

    def _check_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted("sampling was interrupted")


def allow_open_files(count: int) -> None:
    """Raise this process's limit on open files to `count`, or to what the system allows it: connections are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def warn_of_lost(text: str, kind: str) -> None:
    """Give a Python warning if a server is lost."""
    if kind == LOST:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def return_or_raise(value: R, error: Exception | None) -> R:
    """Return a value, or raise the error."""
    if error is not None:
        raise error
    return value


def check_alike(servers: Sequence[Server], dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError if servers use different transfer engines or dtypes, or NCCL on the trainer's GPU."""
    first, computes = servers[0], str(dtype).removeprefix("torch.")
    own_gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    for server in servers:
        by, nccl = server.backend, server.backend == "rlvr_nccl"
        if by not in CHANNELS:
            raise ValueError(f"{server.name} gets weights by {by}; {HOW_TO_START}")
        if by != first.backend:
            ways = f"{first.name} gets weights by {first.backend}, {server.name} by {by}"
            raise ValueError(f"{ways}; start all with the same --transfer")
        if server.dtype != computes:
            raise ValueError(f"{server.name} computes in {server.dtype}, the trainer in {computes}; set --dtype there")
        reason = f"gets weights by NCCL, and the trainer is on {device}" if device.type != "cuda" else ""
        if own_gpu and own_gpu in server.gpus:
            reason = "is on the trainer's GPU, where NCCL cannot send"
        if nccl and reason:
            raise ValueError(f"{server.name} {reason}; serve it with --transfer gloo")
