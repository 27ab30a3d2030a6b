"""What an evaluation of a served model holds while it runs: nothing that has ended, and few answers not yet taken."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from rlvr.config.shared import TurnSettings
from rlvr.core.endpoint import Generated
from rlvr.core.types import Ask, Problem, Reply, Sampling, Verdict, incorrect
from rlvr.served import evaluation as requests
from rlvr.served.evaluation import Requests, Served, evaluate_served
from rlvr.served.speakers import MessageSpeaker
from rlvr.training.rollout.episodes import Play

SAMPLING = Sampling(64, 1.0, 1.0, 0, ())
PROBLEMS = [Problem(f"p{i}", f"number {i}?", "1") for i in range(5)]


class Answering:
    """An endpoint that answers at once."""

    def complete(self, question: Any, sampling: Sampling, seed: int) -> Generated:
        return Generated(f"answer {seed % 7}", "", "stop", 3, None, "")


class Wrong:
    """A verifier to which every answer is wrong."""

    def verify(self, pairs: Any) -> list[Verdict]:
        return [incorrect("no") for _ in pairs]


def thrice(problem: Problem, rng: Any) -> Any:
    """Replies twice, then ends."""
    yield None
    yield Reply("again")
    yield Reply("and again, in a longer reply")
    return None


@pytest.mark.parametrize(
    ("chat", "plan"),
    [
        (False, None),
        (True, None),
        (True, Play(thrice, TurnSettings())),
        (True, Play(thrice, TurnSettings(max_turns=2))),
    ],
)
def test_messages_of_what_has_ended_are_dropped(tmp_path, chat, plan):
    """Of a single turn, of turns and replies, of rollouts that a limit ended; the prompts stay."""
    speaker = MessageSpeaker(chat=chat, system_prompt="be brief")
    result = evaluate_served(
        Served(Answering(), speaker, 2),  # type: ignore[arg-type]
        PROBLEMS,
        Wrong(),
        sampling=SAMPLING,
        samples=3,
        ks=(1,),
        threshold=None,
        seed=0,
        answers_file=tmp_path / "answers.jsonl",
        progress=lambda done: None,
        plan=plan,
    )
    assert result["num_samples"] == 15
    assert len(speaker._held) == len(PROBLEMS)
    # The prompts of a second evaluation can be asked.
    assert len(speaker.question(speaker.render("more?"))) > 0


@pytest.mark.parametrize("concurrency", [1, 2, 5])
def test_answers_that_nobody_takes_are_bounded(concurrency, monkeypatch):
    """A verifier that is slower than the server: requests wait until answers were taken, and all are answered."""
    monkeypatch.setattr(requests, "UNTAKEN", 3)
    made, most = [], max(3, concurrency)
    full = threading.Event()

    def complete(ask: Ask) -> Generated:
        made.append(ask.seed)
        if len(made) == most:
            full.set()
        return Generated("", "", "stop", 1, None, "")

    with Requests(complete, concurrency) as running:
        for row in range(20):
            running.put(row, Ask((), SAMPLING, row))
        assert full.wait(60)
        taken = []
        while len(taken) < 20:
            found = running.take(60)
            assert 0 < len(found) <= most
            taken += [row for row, _, _ in found]
        assert sorted(taken) == sorted(made) == list(range(20))


def test_threads_that_wait_for_room_end_with_the_requests(monkeypatch):
    """Closed while nothing was taken, they make no further request."""
    monkeypatch.setattr(requests, "UNTAKEN", 2)
    made = []

    def complete(ask: Ask) -> Generated:
        made.append(ask.seed)
        return Generated("", "", "stop", 1, None, "")

    with Requests(complete, 2) as running:
        for row in range(9):
            running.put(row, Ask((), SAMPLING, row))
    for thread in running._threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(made) <= 4
