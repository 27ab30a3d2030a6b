"""Completions that make a judge's replies unreadable: they score 0 where the judge reads other answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers.llm_judge import PLAIN_ANSWER
from tests.helpers.judges import PROBLEM, UNREADABLE, answer, honest, judge, question, seal
from tests.helpers.openai_like import Body, Handler, OpenAILike, chat_answer, openai_like


@pytest.fixture
def server() -> Iterator[OpenAILike]:
    with openai_like(honest, model="judge", owner="openai") as running:
        yield running


def garbles(part: str, reply: Callable[[Body], Body]) -> Callable[[Body], Body]:
    """A judge that is honest, but for questions that hold a text."""
    return lambda body: reply(body) if part in question(body) else honest(body)


WAYS: dict[str, Callable[[Body], Body]] = {
    **{name: lambda body, name=name: chat_answer(UNREADABLE[name](body)) for name in UNREADABLE},
    "cut off": lambda body: chat_answer(f"verdict {seal(body)}: 1", "length"),
    "withheld": lambda body: chat_answer(f"verdict {seal(body)}: 1", "content_filter"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("grades", [1, 5])
def test_a_completion_that_makes_the_judge_unreadable_scores_zero(server: OpenAILike, way: str, grades: int) -> None:
    """The lowest of the scale, since the judge reads a plain answer to the problem; other completions keep theirs."""
    server.answer = garbles("no poem", WAYS[way])
    verifier = judge(server, grades=grades)
    pairs = [(PROBLEM, text) for text in ("no poem 42", "It is 42", "no poem 41")]
    bad, good, other = verifier.verify_batch(pairs)
    assert (bad.status, bad.score) == (other.status, other.score) == (Status.UNPARSEABLE, 0.0)
    assert bad.reason.endswith("though it reads another answer to this problem")
    assert good.score == 1 / grades
    asked = len(server.bodies)
    assert [v.score for v in verifier.verify_batch(pairs)] == [0.0, 1 / grades, 0.0]
    assert len(server.bodies) == asked


def test_a_completion_that_the_server_refuses_scores_zero(server: OpenAILike) -> None:
    """As one that is too long for the judge; a server that refuses everything gives errors, as above."""

    def too_long(number: int, handler: Handler) -> bool:
        long = len(answer(server.bodies[number - 1])) > 100
        return long and (handler.send_json({"error": "the context has 4096 tokens"}, 400), True)[1]

    server.fault = too_long
    long, short = judge(server).verify_batch([(PROBLEM, "42 " * 50), (PROBLEM, "42")])
    assert (long.status, long.score, short.score) == (Status.UNPARSEABLE, 0.0, 1.0)
    assert "refused" in long.reason


def test_a_problem_that_the_judge_cannot_read_is_not_the_completions_doing(server: OpenAILike) -> None:
    """Whatever is answered to it; other problems are graded."""
    server.answer = garbles("What is nothing?", lambda body: chat_answer("I cannot say."))
    other = Problem("q", "What is nothing?", "42")
    found = judge(server).verify_batch([(other, "42"), (PROBLEM, "42"), (other, "41")])
    assert [verdict.score for verdict in found] == [None, 1.0, None]


def test_a_judge_that_is_often_unreadable_blames_no_completion(server: OpenAILike) -> None:
    """It must read the plain answer each time that it is asked; and a completion is asked for four times in all."""
    plain = ["", "verdict {seal}: 0"]

    def every_other(body: Body) -> Body:
        return chat_answer(plain.pop().format(seal=seal(body)) if answer(body) == PLAIN_ANSWER else "hm")

    server.answer = every_other
    assert judge(server, concurrency=1)(PROBLEM, "42").status == Status.ERROR
    tries = ["verdict {seal}: 1", "", "", ""]

    def at_last(body: Body) -> Body:
        return honest(body) if answer(body) == PLAIN_ANSWER else chat_answer(tries.pop().format(seal=seal(body)))

    server.answer = at_last
    assert judge(server)(PROBLEM, "It is 42").score == 1.0
    assert not tries


def test_a_lost_request_is_not_the_completions_doing(server: OpenAILike) -> None:
    """Though the judge reads other answers: whether it was reached is not up to the completion."""
    server.fault = lambda number, handler: "odd" in answer(server.bodies[number - 1]) and (handler.drop(), True)[1]
    odd, even = judge(server, retry_seconds=0.1).verify_batch([(PROBLEM, "odd 42"), (PROBLEM, "even 42")])
    assert (odd.status, even.score) == (Status.ERROR, 1.0)
