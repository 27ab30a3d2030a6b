"""Rollouts of several turns on servers: no row waits for another, and what a lost server changes. Without vLLM."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from rlvr.config import VLLMServerConfig
from rlvr.core.types import RunError, Sampling
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm import servers as routing
from rlvr.sampling.vllm.engine import Output, Request
from rlvr.sampling.vllm.sampler import VLLMSampler
from rlvr.sampling.vllm.server import StaleWeights
from rlvr.sampling.vllm.servers import Router
from tests.helpers.turns import (
    LIMITS,
    PROBLEMS,
    LastOfAll,
    completions,
    digits,
    find_unscored,
    in_rounds,
    interrupt_without_replies,
    play_rows,
    slow_digits,
)
from tests.helpers.vllm_servers import (
    GENERATE,
    LOSES,
    after,
    babbles,
    dies,
    fails,
    is_silent,
    misshapes,
)

# The vocabulary of its toy model lacks some digits.
pytestmark = pytest.mark.filterwarnings("ignore:the tokenizer has no token:RuntimeWarning")


@pytest.fixture
def sampler(policy, servers, open_sampler) -> VLLMSampler:
    sampler = open_sampler(policy, servers, timeout=10.0, sync_check_every=VLLMServerConfig().sync_check_every)
    for server in servers:
        server.answered.clear()
    return sampler


@pytest.mark.parametrize(
    "environment, options",
    [
        (digits, {}),
        (slow_digits, {}),
        (digits, {"sampling": Sampling(max_new_tokens=24, temperature=0.0)}),
        (slow_digits, {"context": 20}),
    ],
)
def test_rollouts_are_those_of_rounds_and_of_the_torch_sampler(policy, servers, sampler, environment, options):
    """Rounds give the same to the last bit, the torch sampler the same tokens, turns and ends; both servers sample."""
    streamed = play_rows(policy, sampler, environment, **options)
    asked = [len(server.answered) for server in servers]
    assert all(asked)
    assert sum(asked) == sum(turn.sampled for made in completions(streamed) for turn in made.turns) > 10
    with in_rounds(sampler):
        assert play_rows(policy, sampler, environment, **options) == streamed
    own = play_rows(policy, TorchSampler(policy), environment, **options)
    for a, b in zip(completions(streamed), completions(own), strict=True):
        assert (a.token_ids, a.turns, a.finish_reason) == (b.token_ids, b.turns, b.finish_reason)
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_a_row_goes_on_while_the_reply_to_another_is_made(policy, sampler):
    """The first reply to p0 comes when all others have ended; in rounds it is overdue before that."""
    assert find_unscored(play_rows(policy, sampler, LastOfAll(8))) == set()
    with in_rounds(sampler):
        groups = play_rows(policy, sampler, LastOfAll(8), limits=replace(LIMITS, reply_seconds=2.0))
    assert find_unscored(groups) == {"p0"}


def test_a_row_goes_on_while_another_is_sampled(policy, servers, sampler):
    """The first turn of p0 is answered when all turns of the others have been."""
    prompt, answered, others_done = tuple(policy.render(PROBLEMS[0].prompt)), [], threading.Event()

    def held_up(complete):
        def answer(body):
            if (asked := tuple(body["token_ids"])) == prompt:
                assert others_done.wait(30)
            made = complete(body)
            answered.append(asked[: len(prompt)] == prompt)
            if answered.count(False) == 3 * 8:
                others_done.set()
            return made

        return answer

    for server in servers:
        server.complete = held_up(server.complete)
    assert find_unscored(play_rows(policy, sampler, digits)) == set()
    assert others_done.is_set()
    assert answered[:24] == [False] * 24


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize("fault", [dies, fails, babbles, misshapes, is_silent], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("count", [0, 4, 9])
def test_server_lost_in_the_middle_of_rollouts_changes_no_token(policy, servers, sampler, fault, count):
    """The turns that it had not answered are sent to the other, with the contexts so far."""
    expected = play_rows(policy, sampler, slow_digits)
    servers[0].faults[GENERATE] = after(count, fault)
    assert play_rows(policy, sampler, slow_digits) == expected
    assert [server.url for server in sampler.engine.servers] == [servers[1].url]


@pytest.mark.parametrize("count", [0, 12])
def test_turn_of_other_weights_is_refused(policy, servers, sampler, count):
    """Of a first turn and of a later one: the run ends in one line."""
    left = [count]
    for server in servers:

        def complete(body, complete=server.complete):
            left[0] -= 1
            made = complete(body)
            return made if left[0] >= 0 else made | {"weight_versions": [{"version": "other"}]}

        server.complete = complete
    with pytest.raises(StaleWeights, match="answered with weights 'other'"):
        play_rows(policy, sampler, digits)


def test_interrupted_while_only_replies_are_missing(policy, sampler):
    """Sampling ends within a second or so, and not when a reply comes."""
    with pytest.raises(RunError, match="interrupted"):
        interrupt_without_replies(policy, sampler)


class Rows:
    """Requests of which the output of each leads to the next: `turns` turns of each row, of a longer context each."""

    def __init__(self, rows: int, turns: int) -> None:
        self.ready = [(row, self.request(row, 0)) for row in range(rows)]
        self.number, self.open, self.turns = [0] * rows, rows, turns

    def request(self, row: int, turn: int) -> Request:
        return Request([row] * (10 + 10 * turn), turn, 5, 1.0, 1.0, 0)

    def take(self):
        ready, self.ready = self.ready, []
        return ready if self.open else None

    def take_output(self, number: int, output: Output) -> None:
        self.number[number] += 1
        if self.number[number] < self.turns:
            self.ready.append((number, self.request(number, self.number[number])))
        else:
            self.open -= 1

    def on_more(self, wake) -> None:
        return


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_rollout_stays_with_the_server_that_knows_its_context(rows):
    """All its turns go there, unless another server has less to do than that context is long."""
    asked: dict[int, list[str]] = {}

    def ask(server: str, request: Request) -> Output:
        asked.setdefault(request.prompt[0], []).append(server)
        return Output((1,), (0.0,), None)

    with ThreadPoolExecutor(8) as pool:
        Router(partial(pool.submit, ask), lambda: ["a", "b", "c"], lambda server, error: None).sample(Rows(rows, 4))
    assert [len(set(servers)) for servers in asked.values()] == [1] * rows
    assert len({servers[0] for servers in asked.values()}) == min(rows, 3)


def test_a_context_moves_where_waiting_would_cost_more(monkeypatch):
    """Worked out by hand: a context of 20 tokens, at its server 0, 19, 21 or 60 tokens under way, elsewhere none."""
    router = Router(lambda server, request: None, lambda: ["a", "b"], lambda server, error: None)
    router.homes[7] = "a"
    turn = [(7, Request([1] * 20, 0, 5, 1.0, 1.0, 0))]
    chosen = []
    for tokens in (0, 19, 21, 60):
        router.tokens = {"a": tokens, "b": 0}
        chosen.append(router.free_server(turn))
    assert chosen == ["a", "a", "b", "b"]
    monkeypatch.setattr(routing, "CONNECTIONS", 2)
    router.tokens, router.requests = {"a": 0, "b": 40}, {"a": 2}
    assert router.free_server(turn) == "b"
