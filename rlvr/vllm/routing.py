"""Which server samples what: a prompt's completions go together to the server with the fewest outstanding tokens."""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

from rlvr.http import ServerLost
from rlvr.types import RunError
from rlvr.vllm.engine import Output, Request

CONNECTIONS = 256  # requests that a server has at once; its own scheduler batches them
S = TypeVar("S")


def groups_of(requests: Sequence[Request]) -> list[list[int]]:
    """Return the indices of the requests, those of one prompt together where they follow one another."""
    grouped = itertools.groupby(range(len(requests)), key=lambda index: list(requests[index].prompt))
    return [list(indices) for _, indices in grouped]


def tokens_of(request: Request) -> int:
    """Return how many tokens a request may still cost: its prompt's, and all that it may draw."""
    return len(request.prompt) + request.max_new_tokens


class Router(Generic[S]):
    """Hands out requests to servers until each has an output.

    ask: `ask(server, request)` in a thread of `pool`; it raises ServerLost for a server that is lost. servers: returns
    those that are there. on_loss: `on_loss(server, error)` in the calling thread, once or more often; afterwards
    `servers()` has it no more, or is empty no more, or on_loss raises. A completion depends on its seed, so that a
    second answer, from another server, is the one that is missing.
    """

    def __init__(
        self,
        ask: Callable[[S, Request], Output],
        servers: Callable[[], Sequence[S]],
        on_loss: Callable[[S, ServerLost], None],
        pool: Executor,
    ) -> None:
        self.ask, self.servers, self.on_loss, self.pool = ask, servers, on_loss, pool
        self.requests: dict[S, int] = {}  # under way
        self.tokens: dict[S, int] = {}  # that they may cost

    def sample(self, requests: Sequence[Request], on_output: Callable[[int, Output], None]) -> list[Output]:
        """Return the outputs in the order of the requests; `on_output` gets each with its index when it is there.

        Raises RunError without servers, and what `ask` raises besides ServerLost, `on_loss` and `on_output`.
        """
        waiting = deque(groups_of(requests))
        outputs: dict[int, Output] = {}
        under_way: dict[Future[Output], tuple[S, int]] = {}
        finished: queue.SimpleQueue[Future[Output]] = queue.SimpleQueue()
        try:
            while waiting or under_way:
                while waiting and (server := self.free_server(len(waiting[0]))) is not None:
                    for index in waiting.popleft():
                        self._count(server, requests[index], 1)
                        future = self.pool.submit(self.ask, server, requests[index])
                        under_way[future] = (server, index)
                        future.add_done_callback(finished.put)
                if not under_way:
                    raise RunError("no vLLM server is left")
                future = finished.get()
                server, index = under_way.pop(future)
                self._count(server, requests[index], -1)
                try:
                    outputs[index] = future.result()
                except ServerLost as error:
                    waiting.appendleft([index])
                    self.on_loss(server, error)
                else:
                    on_output(index, outputs[index])
        finally:
            for future in under_way:
                future.cancel()
            self.requests.clear()
            self.tokens.clear()
        return [outputs[index] for index in range(len(requests))]

    def free_server(self, count: int) -> S | None:
        """Return the server with the fewest outstanding tokens among those with room for `count` requests more."""

        def has_room(server: S) -> bool:
            busy = self.requests.get(server, 0)
            return busy == 0 or busy + count <= CONNECTIONS

        free = [server for server in self.servers() if has_room(server)]
        return min(free, key=lambda server: self.tokens.get(server, 0), default=None)

    def _count(self, server: S, request: Request, sign: int) -> None:
        self.requests[server] = self.requests.get(server, 0) + sign
        self.tokens[server] = self.tokens.get(server, 0) + sign * tokens_of(request)
