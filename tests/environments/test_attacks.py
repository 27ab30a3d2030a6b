"""Attacks on rollouts with tools: none is rewarded, and nothing but its own rollout is touched."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from rlvr.config.shared import TurnSettings
from rlvr.core.types import Completion, Problem, Reply, Sampler, Sampling, Status, Verdict
from rlvr.environments.tools import tools
from rlvr.model.text.rendering import Rendering
from rlvr.training.records import turn_metrics
from rlvr.training.rollout.episodes import TurnPlan, play
from tests.helpers.attacks import SECRET, Attack, misbehaving_attacks, programs
from tests.helpers.chat_templates import chat_tokenizer
from tests.helpers.environments import fence
from tests.helpers.programs import runs_programs

pytestmark = runs_programs
HONEST = [fence("calculator", "47*386"), "The answer is 18142."]
LIMITS = TurnSettings(max_turns=6, reply_tokens=4000, reply_seconds=10.0)
SHORT = TurnSettings(max_turns=6, reply_tokens=4000, reply_seconds=1.0)


class Speaker(Rendering):
    """A tokenizer with a chat template, as a policy has one."""

    def __init__(self, family: str) -> None:
        super().__init__(chat_tokenizer(family))
        self.eos_ids = frozenset({self.tokenizer.eos_token_id})


class Script(Sampler):
    """Says what is written, by the problem that a context ends with; after that it repeats the last reply."""

    def __init__(self, speaker: Speaker, turns: Sequence[str]) -> None:
        self.speaker, self.turns, self.said = speaker, turns, 0
        self.heard: list[int] = []

    def generate(self, prompts, sampling, seeds):
        [context] = prompts
        said = self.turns[self.said] if self.said < len(self.turns) else self._reply(context)
        self.said += 1
        self.heard = [*context]
        ids = (*self.speaker.encode_literally(said), self.speaker.tokenizer.eos_token_id)
        self.heard += ids
        return [[Completion(said, ids, (-1.0,) * len(ids))]]

    def _reply(self, context: Sequence[int]) -> str:
        return self.speaker.decode(context[len(self.heard) :])

    def load_weights(self, policy):
        """Do nothing."""


def rollout(attack: Attack, family: str = "qwen3_kept") -> Completion:
    """Play an attack with the driver."""
    speaker = Speaker(family)
    problem = Problem("p", "What is it?", SECRET)
    limits = SHORT if "hangs" in attack.name else LIMITS
    plan = TurnPlan(attack.target(), limits, None)
    sampler = Script(speaker, attack.turns())
    [[made]] = play(
        speaker, sampler, [problem], [speaker.render("?")], [[(0, 0)]], Sampling(max_new_tokens=20_000), plan
    )
    return made


def check(attack: Attack, made: Completion, speaker: Speaker) -> None:
    """Assert what an attack must not bring about, and what it must show."""
    control = set(speaker.tokenizer.added_tokens_decoder)
    verdict = made.verdict or Verdict.of(SECRET in made.text)
    assert not verdict.correct
    assert (verdict.status is Status.ERROR) == (attack.expected == "unscored")
    assert (verdict.score is None) == (attack.expected == "unscored")
    assert len(made.token_ids) == len(made.logprobs) == sum(turn.length for turn in made.turns)
    replies = [turn for turn in made.turns if not turn.sampled]
    if attack.expected == "judged":
        assert replies
        assert attack.shows in replies[-1].text
        assert all(SECRET not in turn.text for turn in replies)
    # Of the tokens of replies only the frame's are control tokens.
    place = 0
    for turn in made.turns:
        ids = made.token_ids[place : place + turn.length]
        place += turn.length
        if not turn.sampled:
            texts = [speaker.tokenizer.convert_ids_to_tokens(i) for i in ids if i in control]
            assert texts == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
            assert turn.text.count("```") in (0, 2)


@pytest.fixture
def canary(tmp_path):
    """A file of the caller's that anybody may write to, and that no program may."""
    file = tmp_path / "canary"
    file.write_text(f"canary {SECRET}")
    file.chmod(0o666)
    yield file
    assert file.read_text() == f"canary {SECRET}"
    assert [path.name for path in tmp_path.iterdir()] == ["canary"]


NAMES = [attack.name for attack in programs("")]


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_programs_gain_nothing(number, canary):
    """Their failures are text for the model; the reference is never there; what they print is escaped."""
    attack = programs(str(canary))[number]
    check(attack, rollout(attack), Speaker("qwen3_kept"))


@pytest.mark.parametrize("attack", misbehaving_attacks(), ids=lambda attack: attack.name)
def test_tools_and_environments_that_misbehave_give_no_score(attack):
    """The rollout is unscored, with a reason in one line; other rollouts go on."""
    made = rollout(attack)
    check(attack, made, Speaker("qwen3_kept"))
    if attack.expected == "unscored":
        assert made.finish_reason == "error"
        assert made.verdict.reason
        assert "\n" not in made.verdict.reason
        assert SECRET not in made.text


def test_there_are_forty_attacks():
    """And each has a name of its own."""
    names = [*NAMES, *(attack.name for attack in misbehaving_attacks())]
    assert len({*names}) == len(names) >= 40


def test_honest_rollouts_are_rewarded_and_the_checks_can_fail():
    """With the same tools and limits; a program that knows the reference is repeated, and would be found."""
    honest = Attack("honest", HONEST, environment=tools("python", "calculator"))
    made = rollout(honest)
    assert (made.text, made.verdict, made.finish_reason) == (HONEST[1], None, "stop")
    assert "18142" in made.turns[1].text
    metrics = turn_metrics([made, rollout(Attack("fails", ("1 / 0",))), rollout(Attack("answers", ("The end.",)))])
    assert (metrics["tools/calls"], metrics["tools/failed"]) == (pytest.approx(2 / 3), 0.5)
    told = Attack("told", (f"print({SECRET!r})",))
    with pytest.raises(AssertionError):
        check(told, rollout(told), Speaker("qwen3_kept"))


def test_environments_are_closed_when_a_limit_ends_their_rollouts():
    """All of them, by the time that the last thread of replies has ended; not by the garbage collector alone."""
    closed: list[str] = []

    def holds(problem, rng):
        try:
            said = yield
            while True:
                said = yield Reply(said, role="user")
        finally:
            closed.append(threading.current_thread().name)

    for _ in range(20):
        rollout(Attack("holds", ("`",), environment=holds))
    until = time.monotonic() + 20
    while len(closed) < 20 and time.monotonic() < until:
        time.sleep(0.01)
    assert closed == ["rlvr-replies"] * 20
