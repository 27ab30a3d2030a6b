"""What an evaluation of a served model holds while it runs: nothing that has ended."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.config.shared import TurnSettings
from rlvr.core.endpoint import Generated
from rlvr.core.types import Problem, Reply, Sampling, Verdict, incorrect
from rlvr.served.evaluation import Served, evaluate_served
from rlvr.served.speakers import MessageSpeaker
from rlvr.training.rollout.episodes import TurnPlan

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
        (True, TurnPlan(thrice, TurnSettings())),
        (True, TurnPlan(thrice, TurnSettings(max_turns=2))),
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
