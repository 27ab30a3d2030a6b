"""Which server samples what: a prompt's completions go together to the server with the fewest outstanding tokens.

A request under a number that was used before is a further turn of a rollout: the server that sampled the turn before it
has its context in the prefix cache; at another one the whole context counts as tokens more.
"""

from __future__ import annotations

import itertools
import queue
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Generic, TypeVar

from rlvr.core.http import ServerLost
from rlvr.core.types import RunError
from rlvr.sampling.vllm.engine import LOOK_AGAIN, Output, Request, Requests

CONNECTIONS = 256  # requests that a server has at once; its own scheduler batches them
S = TypeVar("S")
T = TypeVar("T")
Numbered = tuple[int, Request]


def groups_of(requests: Sequence[Numbered]) -> list[list[Numbered]]:
    """Return the requests in lists, those of one prompt together where they follow one another."""
    return [list(group) for _, group in itertools.groupby(requests, key=lambda numbered: list(numbered[1].prompt))]


def next_of(finished: queue.SimpleQueue[T]) -> T | None:
    """Return the next item of a queue; None where none came for a while."""
    try:
        return finished.get(timeout=LOOK_AGAIN)
    except queue.Empty:
        return None


def tokens_of(request: Request) -> int:
    """Return how many tokens a request may still cost: its prompt's, and all that it may draw."""
    return len(request.prompt) + request.max_new_tokens


class Router(Generic[S]):
    """Hands out requests to servers until each has an output.

    ask: `ask(server, request)` in a thread of `pool`; it raises ServerLost for a server that is lost. servers: returns
    those that are there. on_loss: `on_loss(server, error)` in the calling thread, once or more often; afterwards
    `servers()` has it no more, or is empty no more, or on_loss raises. A completion depends on its seed, so that a
    second answer, from another server, is the one that is missing. check: called now and then; ends all by raising.
    """

    def __init__(
        self,
        ask: Callable[[S, Request], Output],
        servers: Callable[[], Sequence[S]],
        on_loss: Callable[[S, ServerLost], None],
        pool: Executor,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.ask, self.servers, self.on_loss, self.pool, self.check = ask, servers, on_loss, pool, check
        self.requests: dict[S, int] = {}  # under way
        self.tokens: dict[S, int] = {}  # that they may cost
        self.homes: dict[int, S] = {}  # who sampled last under a number

    def sample(self, requests: Requests) -> None:
        """Sample requests as they come; see rlvr.sampling.vllm.engine.Engine.

        Raises RunError without servers, and what `ask` raises besides ServerLost, `on_loss`, and `requests`.
        """
        waiting: deque[list[Numbered]] = deque()
        under_way: dict[Future[Output], tuple[S, int, Request]] = {}
        finished: queue.SimpleQueue[Future[Output] | None] = queue.SimpleQueue()  # None: there may be more to take
        requests.on_more(partial(finished.put, None))
        try:
            while True:
                self.check()
                taken = requests.take()
                waiting.extend(groups_of(taken or ()))
                for future in self._hand_out(waiting, under_way):
                    future.add_done_callback(finished.put)
                if waiting and not under_way:
                    raise RunError("no vLLM server is left")
                if taken is None and not under_way:
                    return
                if (done := next_of(finished)) is not None:
                    self._receive(done, *under_way.pop(done), requests, waiting)
        finally:
            for future in under_way:
                future.cancel()
            self.requests.clear()
            self.tokens.clear()
            self.homes.clear()

    def _hand_out(
        self, waiting: deque[list[Numbered]], under_way: dict[Future[Output], tuple[S, int, Request]]
    ) -> list[Future[Output]]:
        """Send the first waiting requests, as far as servers have room; return what will have their outputs."""
        sent = []
        while waiting and (server := self.free_server(waiting[0])) is not None:
            for number, request in waiting.popleft():
                self._count(server, request, 1)
                self.homes[number] = server
                future = self.pool.submit(self.ask, server, request)
                under_way[future] = (server, number, request)
                sent.append(future)
        return sent

    def _receive(
        self,
        done: Future[Output],
        server: S,
        number: int,
        request: Request,
        requests: Requests,
        waiting: deque[list[Numbered]],
    ) -> None:
        """Pass on the output of a request; where its server is lost, let the request wait for another one."""
        self._count(server, request, -1)
        try:
            output = done.result()
        except ServerLost as error:
            waiting.appendleft([(number, request)])
            self.on_loss(server, error)
        else:
            requests.done(number, output)

    def free_server(self, group: Sequence[Numbered]) -> S | None:
        """Return the server that would have the fewest outstanding tokens among those with room for requests more."""

        def has_room(server: S) -> bool:
            busy = self.requests.get(server, 0)
            return busy == 0 or busy + len(group) <= CONNECTIONS

        def cost(server: S) -> int:
            elsewhere = sum(len(request.prompt) for number, request in group if self.homes.get(number) != server)
            return self.tokens.get(server, 0) + elsewhere

        return min((server for server in self.servers() if has_room(server)), key=cost, default=None)

    def _count(self, server: S, request: Request, sign: int) -> None:
        self.requests[server] = self.requests.get(server, 0) + sign
        self.tokens[server] = self.tokens.get(server, 0) + sign * tokens_of(request)
