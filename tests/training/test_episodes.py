"""Rollouts of several turns: contexts, limits, replies beside the sampling, failures, rows that go on alone."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from rlvr.config import ModelConfig
from rlvr.core.types import Ask, Reply, RunError, Sampler, Sampling, Status, correct, error, incorrect
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.rollout.episodes import Background, Overdue, TurnPlan
from rlvr.training.rollout.rollout import rollout
from tests.helpers.environments import BAD_REPLIES, FAILING
from tests.helpers.models import OwnWeights
from tests.helpers.overlap import logs, make_run, threads
from tests.helpers.runs import weights_of
from tests.helpers.turns import (
    BUDGET,
    LIMITS,
    PROBLEMS,
    LastOfAll,
    Says,
    completions,
    digits,
    find_unscored,
    forever,
    in_rounds,
    one,
    play,
    play_rows,
    slow_digits,
    talking_policy,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return talking_policy()


def test_the_contexts_are_the_ids_so_far(policy):
    """Prompt, sampled ids with their end token, encoded replies: appended, and never encoded again."""
    sampler = Says(policy, "12", "3", "")
    (group,) = play(policy, digits, sampler=sampler, problems=PROBLEMS[:1], group_size=1)
    (made,) = group.completions
    assert [turn.role for turn in made.turns] == ["assistant", "user"] * 2 + ["assistant"]
    assert sum(turn.length for turn in made.turns) == len(made.token_ids) == len(made.logprobs)
    whole, start = (*group.prompt_ids, *made.token_ids), len(group.prompt_ids)
    contexts = []
    for turn in made.turns:
        if turn.sampled:
            contexts.append(whole[:start])
        else:
            assert policy.decode(whole[start : start + turn.length]) == turn.text
            assert set(made.logprobs[start - len(group.prompt_ids) :][: turn.length]) == {0.0}
        start += turn.length
    assert [ask.context for ask in sampler.asked] == contexts
    assert made.text == ""
    assert made.verdict is None
    assert made.sampled_ids == tuple(
        i for ask, text in zip(contexts, ("12", "3", "")) for i in (*policy.encode(text), policy.eos_id)
    )


def test_the_first_turn_is_drawn_as_without_an_environment(policy):
    """Bit for bit, where its limit of tokens is the same."""
    plain = completions(
        rollout(policy, TorchSampler(policy), PROBLEMS, Sampling(6), group_size=2, seed=(0, "rollout", 3))
    )
    for alone, made in zip(plain, completions(play(policy, digits)), strict=True):
        count = made.turns[0].length
        assert made.token_ids[:count] == alone.token_ids
        assert made.logprobs[:count] == alone.logprobs


@pytest.mark.parametrize("environment", [digits, slow_digits])
def test_rollouts_are_a_function_of_seed_and_problem(policy, environment):
    """Not of when replies come: repeated they are equal to the last bit. Another seed gives others."""
    first = play(policy, environment)
    assert play(policy, environment) == first
    assert play(policy, digits) == first
    assert play(policy, environment, seed=(1, "rollout", 3)) != first
    others = play(policy, environment, problems=PROBLEMS[3:])  # shared out among processes, say
    assert [c.token_ids for c in completions(others)] == [c.token_ids for c in completions(first[3:])]


def test_a_group_is_handed_over_when_all_its_rollouts_have_ended(policy):
    """Once each, with what is returned in the end."""
    told = {}
    groups = play(policy, digits, on_group=lambda place, group: told.setdefault(place, []).append(group))
    assert told == {place: [group] for place, group in enumerate(groups)}


def test_rows_that_differ_in_length_only_are_sampled_as_alone(policy):
    """The torch sampler's asks of one call, and the same one by one."""
    prompt = tuple(policy.render("1+1="))
    asks = [Ask(prompt, Sampling(length), seed) for seed in range(4) for length in (1, 3, 9)]
    together, alone = {}, {}
    sampler = TorchSampler(policy)
    sampler.sample_rows(asks, together.__setitem__)
    Sampler.sample_rows(sampler, asks, alone.__setitem__)
    assert together.keys() == alone.keys() == set(range(len(asks)))
    for place, ask in enumerate(asks):
        assert together[place].token_ids == alone[place].token_ids
        assert together[place].finish_reason == alone[place].finish_reason
        assert len(together[place].token_ids) <= ask.sampling.max_new_tokens


@pytest.mark.parametrize(
    "options, reason, turns",
    [
        ({}, "turns", 4),
        ({"limits": replace(LIMITS, max_turns=1)}, "turns", 1),
        ({"sampling": Sampling(max_new_tokens=6)}, "length", 2),
        ({"sampling": Sampling(max_new_tokens=7)}, "length", 3),
        ({"context": 4 + 3 + 2 + 3 + 1}, "context", 2),
        ({"context": 4 + 3 + 2 + 1}, "context", 2),
        ({"context": 4 + 3 + 2}, "context", 1),
        ({"context": 4 + 2}, "context", 1),
    ],
)
def test_each_limit_has_a_reason_of_its_own(policy, options, reason, turns):
    """Of 4 tokens of prompt, 3 of a turn and 2 of a reply. It ends with a turn, which the task's verifier judges."""
    made = one(policy, forever, "12", **options)
    assert (made.finish_reason, made.verdict) == (reason, None)
    assert sum(turn.sampled for turn in made.turns) == turns
    assert made.turns[-1].sampled
    assert made.turns[-1].reward == 0.5
    assert len(made.token_ids) <= options.get("context", 99) - 4
    assert len(made.sampled_ids) <= options.get("sampling", BUDGET).max_new_tokens


def test_a_turn_is_cut_at_its_own_limit_and_the_rollout_goes_on(policy):
    """With what it said so far."""
    made = one(policy, forever, "123456789", limits=replace(LIMITS, turn_tokens=2))
    assert [turn.length for turn in made.turns if turn.sampled] == [2] * 4


def test_void_turns_and_rewards_are_those_of_the_replies(policy):
    """Each belongs to the turn that it answers."""
    made = one(policy, forever, "0", "12", "0", "3")
    assert [turn.void for turn in made.turns if turn.sampled] == [True, False, True, False]
    assert [turn.reward for turn in made.turns if turn.sampled] == [0.5] * 4
    own = made.train_mask()
    assert made.train_mask(mask_void=True) != own
    assert sum(made.train_mask(mask_void=True)) == 3 + 2


@pytest.mark.parametrize(
    ("reply", "tokens", "kept"),
    [
        (Reply("7" * 100_000), 5, "77777\n[99995 more characters]\n"),
        (Reply(f"<{'7' * 900}>", payload=((1, 901),)), 40, f"<{'7' * 15}\n[885 more characters]\n>"),
    ],
)
def test_a_long_reply_is_cut_and_says_so(policy, reply, tokens, kept):
    """At the tokens of rollout.reply_tokens (here a token is a character), to which a note is added; of a reply with a
    payload only that is cut, and the note counts."""

    def floods(problem, rng):
        yield
        yield reply

    made = one(policy, floods, "1", limits=replace(LIMITS, reply_tokens=tokens, max_turns=2))
    assert (made.turns[1].text, made.turns[1].length) == (kept, len(kept))


def test_a_reply_forges_no_special_token(policy):
    """Its text is what it spells."""

    def forges(problem, rng):
        yield
        yield Reply("<eos>1<pad>")

    made = one(policy, forges, "1", limits=replace(LIMITS, max_turns=2))
    start = made.turns[0].length
    ids = made.token_ids[start : start + made.turns[1].length]
    assert policy.eos_id not in ids
    assert policy.pad_id not in ids


class Samples(Says):
    """Says texts in which marks are special tokens; as text it gives what is left without these, as samplers do."""

    def generate(self, prompts, sampling, seeds):
        made = super().generate(prompts, sampling, seeds)
        return [[replace(c, text=self.policy.decode(c.token_ids)) for c in row] for row in made]


class Hears:
    """Keeps what it hears of the first turn, then replies once."""

    def __init__(self, marks: tuple[str, ...]) -> None:
        self.marks, self.said = marks, []

    def __call__(self, problem, rng):
        self.said.append((yield))
        self.said.append((yield Reply("5")))


@pytest.mark.parametrize("marks", [("<call>",), ("<call>", "</call>"), ()])
def test_an_environment_hears_the_marks_that_it_names(marks):
    """As special tokens of the tokenizer; the verifier sees the last turn without them, as of a single turn."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)
    policy.tokenizer.add_special_tokens({"additional_special_tokens": ["<call>", "</call>"]})
    environment = Hears(marks)
    sampler = Samples(policy, "<call>1</call>2", "<call>3")
    (made,) = completions(play(policy, environment, sampler=sampler, problems=PROBLEMS[:1], group_size=1))
    expected = ["<call>1</call>2", "<call>3"]
    for mark in {"<call>", "</call>"} - {*marks}:
        expected = [text.replace(mark, "") for text in expected]
    assert environment.said == expected
    assert [turn.text for turn in made.turns if turn.sampled] == expected
    assert made.text == "3"


OPENED: list[Background] = []


@pytest.fixture(autouse=True)
def closed():
    """No thread outlives its test."""
    yield
    while OPENED:
        OPENED.pop().close()


def open_conversations(seconds: float, at_once: int = 128) -> Background:
    OPENED.append(Background(seconds, at_once))
    return OPENED[-1]


def collect_turns(background: Background, count: int) -> dict:
    found: dict = {}
    while len(found) < count:
        found.update(background.collect(60))
    return found


def test_no_more_run_than_may():
    """Three at once: the most that were ever under way."""
    under_way, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1

    background = open_conversations(5.0, at_once=3)
    for number in range(12):
        background.submit(number, work)
    collect_turns(background, 12)
    assert most == 3


def test_outcomes_that_nobody_takes_are_bounded():
    """With three of them no other call begins; once they are taken the rest follow, the lowest key first."""
    begun: list[int] = []
    background = open_conversations(math.inf, at_once=1)
    background.untaken = 3
    all_submitted = threading.Event()

    def begin(number: int) -> None:
        begun.append(number)
        assert all_submitted.wait(60)

    for number in reversed(range(8)):
        background.submit(number, lambda number=number: begin(number))
    all_submitted.set()
    deadline = time.monotonic() + 60
    while len(begun) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(begun) == 3
    assert collect_turns(background, 8).keys() == set(range(8))
    assert begun == [7, *range(7)]


def test_a_call_that_hangs_is_given_up_and_its_place_goes_to_others():
    """Its answer, when it comes, is dropped, and `late` is told."""
    release, told = threading.Event(), threading.Event()
    background = open_conversations(0.2, at_once=1)
    background.submit(0, lambda: release.wait(30) and "late", told.set)
    background.submit(1, lambda: "next")
    found = collect_turns(background, 2)
    assert isinstance(found[0], Overdue)
    assert found[1] == "next"
    assert not told.is_set()
    release.set()
    assert told.wait(60)
    assert background.collect(0) == []


def test_an_answer_after_the_limit_is_late_even_if_nobody_has_looked():
    """What counts is when it came, not when it was collected."""
    background, told = open_conversations(0.05), threading.Event()
    background.submit(0, lambda: time.sleep(0.2) or "late", told.set)
    assert told.wait(60)
    ((_, outcome),) = background.collect(60)
    assert isinstance(outcome, Overdue)


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_call_raises_is_its_outcome(raised: BaseException):
    """Nothing ends a thread of the pool."""

    def work() -> None:
        raise raised

    background = open_conversations(5.0, at_once=1)
    background.submit(0, work)
    background.submit(1, lambda: "next")
    assert collect_turns(background, 2) == {0: raised, 1: "next"}


def test_what_is_under_way_when_it_is_closed_is_dropped():
    """And what waits is never begun."""
    begun, under_way, release = [], threading.Event(), threading.Event()
    background = open_conversations(60.0, at_once=1)
    background.submit(0, lambda: (under_way.set(), release.wait(60)))
    background.submit(1, lambda: begun.append(1))
    assert under_way.wait(60)
    background.close()
    release.set()
    time.sleep(0.3)
    assert begun == []
    assert background.collect(0) == []


@pytest.mark.parametrize("environment, reason", (FAILING | BAD_REPLIES).values(), ids=FAILING | BAD_REPLIES)
def test_a_failure_of_the_environment_leaves_its_rollout_without_a_score(policy, environment, reason):
    """The others go on; never a score of 0."""

    def now_and_then(problem, rng):
        return environment(problem, rng) if problem.id == "p1" else digits(problem, rng)

    groups = play(policy, now_and_then)
    for made in groups[1].completions:
        assert made.verdict.status is Status.ERROR
        assert reason in made.verdict.reason
        assert "\n" not in made.verdict.reason
        assert made.finish_reason == "error"
    good = play(policy, digits)
    for group, wanted in zip(groups, good, strict=True):
        if group.problem.id == "p1":
            continue
        # Logprobs are rounded otherwise in a batch of another size, and nothing else may differ.
        for made, whole in zip(group.completions, wanted.completions, strict=True):
            assert made.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
            assert replace(made, logprobs=()) == replace(whole, logprobs=())


def test_a_sandbox_that_cannot_work_at_all_ends_the_run(policy):
    """A RunError is passed on, as that of a verifier."""

    def lose_reply(problem, rng):
        yield
        raise RunError("no namespaces here")

    with pytest.raises(RunError, match="no namespaces here"):
        play(policy, lose_reply)


def test_a_reply_that_never_comes_costs_one_rollout(policy):
    """It is counted as an error; what comes after the end is dropped, and the environment closed."""
    release, closed = threading.Event(), threading.Event()

    def hangs(problem, rng):
        if problem.id != "p2":
            yield from digits(problem, rng)
            return None
        try:
            yield
            release.wait(30)
            yield Reply("too late")
        finally:
            closed.set()

    start = time.monotonic()
    groups = play(policy, hangs, limits=replace(LIMITS, reply_seconds=0.5), group_size=1)
    assert time.monotonic() - start < 28  # the reply itself comes after 30
    statuses = [made.verdict and made.verdict.status for made in completions(groups)]
    assert statuses == [None, None, Status.ERROR, None, None]
    assert "within 0.5 s" in groups[2].completions[0].verdict.reason
    release.set()
    assert closed.wait(10)


@pytest.mark.parametrize("verdict", [correct("12"), incorrect("no")])
def test_an_environment_may_judge(policy, verdict):
    """Its verdict is the completion's."""

    def judges(problem, rng):
        yield
        return verdict

    made = one(policy, judges, "12")
    assert (made.verdict, made.finish_reason, len(made.turns)) == (verdict, "stop", 1)


def test_environments_are_closed_when_a_limit_ends_the_rollout(policy):
    """So that what they hold is freed."""
    closed, kept = threading.Event(), []

    def holds(problem, rng):
        try:
            yield from forever(problem, rng)
        finally:
            closed.set()

    def hold_reply(problem, rng):
        kept.append(holds(problem, rng))  # a generator that nobody refers to would be closed by the interpreter
        return kept[-1]

    one(policy, hold_reply, "1")
    assert closed.wait(10)


def test_replies_are_made_beside_the_sampling_and_each_other(policy):
    """Tools of 0.2 s for 40 rollouts of three turns take far less than one after the other."""

    def waits(problem, rng):
        inner = digits(problem, rng)
        found = next(inner)
        while True:
            said = yield found
            time.sleep(0.2)
            try:
                found = inner.send(said)
            except StopIteration:
                return None

    start = time.monotonic()
    play(policy, waits, group_size=8)
    assert time.monotonic() - start < 40 * 3 * 0.2 / 2


@pytest.fixture(scope="module")
def digits_policy() -> Policy:
    return load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)


class OneAtATime(Sampler):
    """Samples one turn after the other, the newest first or the oldest, and keeps which rows it took when."""

    def __init__(self, policy: Policy, *, newest: bool = False) -> None:
        self.inner, self.newest = OwnWeights(policy), newest
        self.taken: list[int] = []

    def generate(self, prompts, sampling, seeds):
        return [
            [self.inner.generate([prompt], sampling, [[seed]])[0][0] for seed in row]
            for prompt, row in zip(prompts, seeds, strict=True)
        ]

    def load_weights(self, policy) -> None:
        self.inner.load_weights(policy)

    def converse(self, rollouts) -> None:
        more, waiting = threading.Event(), deque[tuple[int, Ask]]()
        rollouts.on_reply(more.set)
        while True:
            more.clear()
            asks = rollouts.asks(every=False)
            waiting.extend(asks or ())
            if waiting:
                row, ask = waiting.pop() if self.newest else waiting.popleft()
                self.taken.append(row)
                rollouts.add_turn(row, self.generate([ask.context], ask.sampling, [[ask.seed]])[0][0])
            elif asks is None:
                return
            else:
                more.wait(0.5)


def raises_at_times(problem, rng):
    said = yield
    while True:
        if problem.id == "p1":
            raise ZeroDivisionError("by zero")
        if problem.id == "p3" and rng.random() < 0.5:
            return error("no sandbox")
        said = yield Reply(f"{len(said)}?", reward=0.5, void="1" in said)


@pytest.mark.parametrize(
    "environment, options",
    [
        (digits, {}),
        (slow_digits, {}),
        (raises_at_times, {}),
        (raises_at_times, {"limits": replace(LIMITS, max_turns=2)}),
        (raises_at_times, {"context": 16}),
        (slow_digits, {"sampling": Sampling(max_new_tokens=9)}),
        (digits, {"sampling": Sampling(max_new_tokens=24, temperature=0.0)}),
    ],
)
@pytest.mark.parametrize("newest", [False, True])
def test_rollouts_are_those_of_rounds(digits_policy, environment, options, newest):
    """Tokens, logprobs, turns, ends and verdicts, in whatever order rows are sampled."""
    sampler = OneAtATime(digits_policy, newest=newest)
    told = []
    streamed = play_rows(
        digits_policy, sampler, environment, on_group=lambda place, group: told.append(place), **options
    )
    with in_rounds(sampler):
        assert play_rows(digits_policy, sampler, environment, **options) == streamed
    assert sorted(told) == list(range(len(PROBLEMS)))
    assert max(len(made.turns) for made in completions(streamed)) > 1


def test_a_row_goes_on_while_the_reply_to_another_is_made(digits_policy):
    """The first reply to p0 comes when all others have ended; in rounds it is overdue before that."""
    sampler = OneAtATime(digits_policy)
    groups = play_rows(digits_policy, sampler, LastOfAll(8))
    assert find_unscored(groups) == set()
    first = sampler.taken.index(0)
    others = [place for place, row in enumerate(sampler.taken) if row > 1]
    assert first < min(others) < max(others) < sampler.taken.index(0, first + 1)
    with in_rounds(sampler):
        groups = play_rows(digits_policy, sampler, LastOfAll(8), limits=replace(LIMITS, reply_seconds=2.0))
    assert find_unscored(groups) == {"p0"}


def test_turns_sampled_ahead_are_those_of_rounds(tmp_path):
    """Beside the training, one step ahead: the same rollouts, metrics and weights."""
    runs = []
    for name, environment, rounds in (("streamed", slow_digits, False), ("rounds", digits, True)):
        run = make_run(tmp_path / name, sampler=OneAtATime, max_staleness=1, max_turns=3, turn_tokens=4)
        run.worker.plan = TurnPlan(environment, run.worker.config.rollout)
        with in_rounds(run.worker.sampler) if rounds else nullcontext():
            train(run)
        runs.append(run)
    assert logs(runs[0]) == logs(runs[1])
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))
    assert [row["staleness"] for row in runs[0].reporter.log.read("metrics")] == [0, 1, 1]
    assert threads("rlvr-sampling") == []
