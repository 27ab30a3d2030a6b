"""vLLM on one server or several: started here, or running ones by their URLs, on this machine or others.

Weights go to all of them at once (rlvr.sampling.vllm.transfer), and each proves that it has them (rlvr.sampling.vllm.proof); requests go
to the one with the fewest outstanding tokens (rlvr.sampling.vllm.routing). Of a run's processes each samples its share, and the
first one pushes.
"""

from __future__ import annotations

import atexit
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from rlvr.config import VLLMServerConfig
from rlvr.core.http import ServerLost
from rlvr.core.types import RunError
from rlvr.model.load.policy import Policy
from rlvr.sampling.vllm.engine import Interrupted, Output, Report, Request, Requests
from rlvr.sampling.vllm.proof import Proof, own_logprobs, proof_text, shorten_names
from rlvr.sampling.vllm.ranks import count_processes, from_all, is_first, on_first
from rlvr.sampling.vllm.routing import CONNECTIONS, Router
from rlvr.sampling.vllm.server import Server, StaleWeights, check_alike
from rlvr.sampling.vllm.starter import Starter
from rlvr.sampling.vllm.transfer import Transfer, TransferBroken
from rlvr.sampling.vllm.weights import engine_weights

Source = Callable[[], Iterable[tuple[str, Tensor]]]
LOST, REPLACED = "server-lost", "server-replaced"  # kinds of events
Act = Callable[[Transfer, Iterable[tuple[str, Tensor]]], None]


@dataclass
class Outcome:
    """What the first process tells the others after a push: the servers' URLs, or that it is to be done again."""

    urls: list[str] = field(default_factory=list)
    again: bool = False


class ServersEngine:
    """vLLM servers; implements rlvr.sampling.vllm.engine.Engine.

    A server that dies, does not answer for `timeout` seconds, or does not have the weights that were pushed is lost:
    what it had not finished is sampled by the others, which have them. One that was started here is replaced at the
    next push, at once where no other is left; `max_restarts` bounds how often. Of the servers at sampler.url the run
    goes on with those that are left.
    """

    def __init__(self, policy: Policy, config: VLLMServerConfig) -> None:
        self.config, self.dtype, self.device = config, policy.dtype, policy.device
        self.deaths = 0
        self.servers: list[Server] = []
        self.lost: set[str] = set()  # URLs since the last push
        self.report: Report = warn_of_lost
        self.kept: dict[str, Tensor] = {}  # the last push's weights, for servers started here that must be replaced
        self.proof = Proof(policy.dtype)
        self.unreadable: set[str] | None = None  # tensors that servers do not give back; known after a first comparison
        self.transfer: Transfer | None = None
        self.starter: Starter | None = None
        self._interrupted = threading.Event()
        self._stack = ExitStack()
        self._stack.callback(self._close_clients)
        self._pool = ThreadPoolExecutor(CONNECTIONS * max(len(config.url), config.servers))
        self._stack.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        self._router = Router(self._ask, lambda: self.servers, self._lose, self._pool, self._check_interrupted)
        atexit.register(self.close)
        try:
            urls, run, self.max_model_len = on_first(lambda: self._open(policy))
            self._adopt(urls)
            self.run, self.pushes = run, 0
            self.text = proof_text(policy, self.max_model_len)
            self.load(policy)
        except BaseException:
            self.close()
            raise

    @property
    def version(self) -> str:
        """Return the version of the weights that were pushed last; no other run's are called the same."""
        return f"{self.run}-{self.pushes}"

    def sample(self, requests: Requests) -> None:
        """Sample requests as they come; see rlvr.sampling.vllm.engine.Engine. Those of a lost server are sent to the others."""
        self._router.sample(requests)

    def sample_everywhere(self, request: Request) -> list[Output]:
        """Return one output of each server."""

        def ask_all() -> list[Output]:
            outputs = []
            for server in list(self.servers):
                try:
                    outputs.append(self._ask(server, request))
                except ServerLost as error:
                    self._lose(server, error)
            # A server that took the place of a lost one is asked too.
            return outputs or [self._ask(server, request) for server in self.servers]

        return on_first(ask_all)

    def interrupt(self) -> None:
        """End the sampling under way in another thread, and refuse to sample from then on."""
        self._interrupted.set()
        self._close_clients()

    def report_to(self, report: Report) -> None:
        """Tell `report` from now on which servers are lost and replaced, in place of Python's warnings."""
        self.report = report

    def load(self, policy: Policy) -> None:
        """Sample from the policy's weights, adapters merged, from now on. Every process of a run calls it.

        A server that does not sample from them is lost before it samples.
        """
        own = own_logprobs(policy, self.text)
        self.push(lambda: engine_weights(policy), own)
        while doubtful := on_first(lambda: list(self.proof.doubtful)):
            found = self._compare(lambda: engine_weights(policy))
            if not on_first(partial(self._settle, doubtful, found)):
                return
            self.push(lambda: engine_weights(policy), own)

    def push(self, source: Source, own: Sequence[float]) -> None:
        """Load the weights that `source` yields, each time anew, in place on all servers; reset the prefix caches.

        Every process takes them from its `source`: gathering a tensor of a sharded model needs all. own: the trainer's
        logprobs of `text` under them.
        """
        lost = {url for urls in from_all(sorted(self.lost)) for url in urls}
        if is_first():
            for server in [server for server in self.servers if server.url in lost]:
                self.report(f"{server.name} is given up, since another process has lost it", LOST)
                self._give_up(server)
        self.pushes += 1
        self.proof.begin(self.pushes, own)
        if is_first() and self.starter is not None:
            self.kept = {name: value.detach().to("cpu", self.dtype, copy=True) for name, value in source()}
            urls = on_first(self._push_kept).urls
        elif self.config.url:
            urls = self._with_all(source, lambda t, weights: t.push(weights, self.version), proves=True).urls
        else:  # the first process has servers of its own, and the weights that this one helps to gather
            for _ in source():
                pass
            urls = on_first(Outcome).urls
        self._adopt(urls)
        self.lost = set()

    def differing(self, policy: Policy) -> list[str]:
        """Return the names of the policy's tensors whose values differ on a server, or are missing there."""
        found = self._compare(lambda: engine_weights(policy))
        names = list(dict.fromkeys(name for of_server in found.values() for name in of_server))
        if self.unreadable is None:
            self.unreadable = set(names)
        if self.unreadable.issuperset(names):
            self.proof.trust()
        return names

    def _compare(self, source: Source) -> dict[str, list[str]]:
        """Return by server's URL the names of the weights that differ there, to all processes."""
        found: dict[str, list[str]] = {}

        def compare(transfer: Transfer, weights: Iterable[tuple[str, Tensor]]) -> None:
            found.clear()
            found.update(transfer.differing(weights))

        self._with_all(source, compare)
        return on_first(lambda: found)

    def _settle(self, doubtful: Sequence[str], found: dict[str, list[str]]) -> bool:
        """Lose the doubtful servers of which tensors differ, and return whether there is one."""
        lost = False
        for server in [server for server in self.servers if server.url in doubtful]:
            names = [name for name in found.get(server.url, ()) if name not in (self.unreadable or ())]
            if names:
                reason = f"tensors that differ: {shorten_names(names)}"
                self._lose(server, ServerLost(self._has_others(server, reason)), replaces=False)
                lost = True
        if not lost and all(server.workers == 1 for server in self.servers):  # one of several compares nothing
            self.proof.trust()
        return lost

    def _has_others(self, server: Server, reason: str) -> str:
        return f"{server.name} does not have the weights of push {self.pushes}: {reason}"

    def measures(self) -> dict[str, float]:
        """Return metrics of the last push's proof; none on processes that do not push."""
        return self.proof.measures() if is_first() else {}

    def sleep(self, level: int) -> None:
        """Raise ValueError: a server keeps its memory."""
        raise ValueError(f"sampler.sleep {level} needs the sampler vllm, in this process")

    def close(self) -> None:
        """End servers that were started here, with the processes that they started."""
        atexit.unregister(self.close)
        if self.transfer is not None:
            self.transfer.close()
            self.transfer = None
        self._stack.close()

    def _open(self, policy: Policy) -> tuple[list[str], str, int]:
        """Return the servers' URLs, a name for this run, and the shortest max_model_len, after a look at each.

        Raises ValueError for servers that cannot be used, or not together.
        """
        urls = list(self.config.url)
        if not urls:
            self.starter = self._stack.enter_context(Starter(policy, self.config))
            urls = self.starter.start(self._check_interrupted)
        self._adopt(urls)
        for server in self.servers:
            server.look()
        check_alike(self.servers, self.dtype, self.device)
        return [s.url for s in self.servers], secrets.token_hex(4), min(s.max_model_len for s in self.servers)

    def _adopt(self, urls: Sequence[str]) -> None:
        """Use the servers at these URLs, in this order; those that are known stay open."""
        known = {server.url: server for server in self.servers}
        self.servers[:] = [known.get(url) or Server(url, self.config.timeout) for url in dict.fromkeys(urls)]

    def _ask(self, server: Server, request: Request) -> Output:
        return server.sample(request, self.version)

    def _with_all(self, source: Source, act: Act, *, proves: bool = False) -> Outcome:
        """Have the first process act with a transfer to all servers, until none is lost meanwhile.

        Every process takes each weight from its `source`.
        """
        while True:
            weights = iter(source())
            outcome, error = self._tried(act, weights, proves=proves) if is_first() else (Outcome(), None)
            for _ in weights:  # what is left: the other processes gather it too
                pass
            outcome = on_first(partial(told, outcome, error))
            if not outcome.again:
                return outcome

    def _tried(
        self, act: Act, weights: Iterator[tuple[str, Tensor]], *, proves: bool
    ) -> tuple[Outcome, Exception | None]:
        """Return the outcome of an attempt, or the error that ends the run: other processes are to hear of it."""
        try:
            if not self.servers:
                self._push_kept()
            return self._attempt(lambda transfer: act(transfer, weights), proves=proves), None
        except (ValueError, RunError) as error:
            return Outcome(), error

    def _attempt(self, act: Callable[[Transfer], object], *, proves: bool) -> Outcome:
        """Act once with a transfer to all servers that are there. Where one is lost it is to be done again.

        proves: each is to prove afterwards that it has the weights. Raises RunError where none is left.
        """
        try:
            if self.transfer is None:
                for server in self.servers:
                    if not server.workers:
                        server.look()
                self.transfer = Transfer(self.servers, self.dtype, self.device)
            act(self.transfer)
            failed = self._reset_caches() | (self._disproved() if proves else {})
        except TransferBroken as broken:
            self.transfer = None
            for server, reason in broken.lost.items():
                self._lose(server, ServerLost(reason), replaces=False)
            return Outcome(again=True)
        for server, error in failed.items():
            self._lose(server, error, replaces=False)
        return Outcome([server.url for server in self.servers], again=bool(failed))

    def _reset_caches(self) -> dict[Server, ServerLost]:
        """Reset the prefix caches; return the servers that are lost by then."""
        failed: dict[Server, ServerLost] = {}
        for server in self.servers:
            try:
                server.reset_cache()
            except ServerLost as error:
                failed[server] = error
        return failed

    def _disproved(self) -> dict[Server, ServerLost]:
        """Ask each server for its logprobs of the text; return those that do not have the weights, or are lost."""
        request = Request(self.text, seed=0, max_new_tokens=1, temperature=0.0, top_p=1.0, top_k=0, scores_prompt=True)

        def ask(server: Server) -> Output | ServerLost:
            try:
                return self._ask(server, request)
            except StaleWeights as error:
                return ServerLost(str(error))
            except ServerLost as error:
                return error

        failed: dict[Server, ServerLost] = {}
        for server, answer in zip(self.servers, list(self._pool.map(ask, self.servers)), strict=True):
            if isinstance(answer, ServerLost):
                failed[server] = answer
            elif reason := self.proof.judge(server.url, answer.prompt_logprobs):
                failed[server] = ServerLost(self._has_others(server, reason))
        return failed

    def _push_kept(self) -> Outcome:
        """Replace servers of this process's own that are lost, and push the weights that are kept."""
        assert self.starter is not None
        while True:
            missing = self.config.servers - len(self.servers)
            for _ in range(missing if self.deaths <= self.config.max_restarts else 0):
                url = self.starter.replace(self._check_interrupted)
                self.report(f"a vLLM server was started at {url}, in place of a lost one", REPLACED)
                self._leave_group()
                self._adopt([*(server.url for server in self.servers), url])
            outcome = self._attempt(lambda transfer: transfer.push(self.kept.items(), self.version), proves=True)
            if not outcome.again:
                return outcome

    def _lose(self, server: Server, error: ServerLost, *, replaces: bool = True) -> None:
        """Give up a server; with `replaces` start another at once where none is left.

        Raises Interrupted after `interrupt`, RunError where no server is left and none may be started.
        """
        if self._interrupted.is_set():
            raise Interrupted("sampling was interrupted") from error
        if server not in self.servers:
            return  # several requests find out
        self._give_up(server)
        left, total = len(self.servers), max(len(self.config.url), self.config.servers)
        if not left and self.starter is not None and self.deaths > self.config.max_restarts:
            raise RunError(f"vLLM servers were lost {self.deaths} times; last: {error}") from error
        if not left and (self.starter is None or (replaces and count_processes() > 1)):
            what = f"all {total} vLLM servers; last" if total > 1 else "the vLLM server"
            raise RunError(f"lost {what}: {error}; the same command resumes, with servers that run") from error
        goes_on = f"{left} of {total} are left" if left else "another one is started"
        self.report(f"a vLLM server is lost ({error}); {goes_on}", LOST)
        if not left and replaces:
            self._push_kept()

    def _give_up(self, server: Server) -> None:
        """Use a server no more: its requests under way end, the transfer's group is left, its process ends."""
        self.servers.remove(server)
        self.lost.add(server.url)
        server.close()
        self._leave_group()
        if self.starter is not None:
            self.deaths += 1
            self.starter.end(server.url)

    def _leave_group(self) -> None:
        """Leave the transfer's group: the next push meets the servers that are there then."""
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


def warn_of_lost(text: str, kind: str) -> None:
    """Warn by way of Python's warnings where a server is lost."""
    if kind == LOST:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def told(outcome: Outcome, error: Exception | None) -> Outcome:
    """Return an outcome, or raise the error."""
    if error is not None:
        raise error
    return outcome
