"""Rollouts with an environment: tokens, draws, limits, failures."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from rlvr.config import ModelConfig, RolloutConfig
from rlvr.model.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.episodes import Play
from rlvr.training.rollout import rollout
from rlvr.types import (
    Ask,
    Completion,
    Problem,
    Reply,
    RunError,
    Sampler,
    Sampling,
    Status,
    correct,
    error,
    incorrect,
)
from tests.helpers.played import digits, slow_digits

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=") for i in range(5)]
LIMITS = RolloutConfig(max_turns=4, turn_tokens=6)
BUDGET = Sampling(max_new_tokens=24)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)


class Says(Sampler):
    """Says the same texts in turn, one token for each character and an end token, and keeps what was asked."""

    def __init__(self, policy: Policy, *texts: str) -> None:
        self.policy, self.texts = policy, texts
        self.asked: list[Ask] = []

    def generate(self, prompts, sampling, seeds):
        made = []
        for prompt, row in zip(prompts, seeds, strict=True):
            text = self.texts[sum(ask.context[:1] == tuple(prompt[:1]) for ask in self.asked) % len(self.texts)]
            self.asked += [Ask(tuple(prompt), sampling, seed) for seed in row]
            ids = (*self.policy.encode(text), self.policy.eos_id)[: sampling.max_new_tokens]
            ended = ids[-1] == self.policy.eos_id
            made.append([Completion(text, ids, (-1.0,) * len(ids), "stop" if ended else "length") for _ in row])
        return made

    def load_weights(self, policy) -> None:
        return


def played(policy, environment, *, sampler=None, sampling=BUDGET, limits=LIMITS, context=None, **options):
    """The groups of PROBLEMS; by default of the torch sampler, two of each."""
    settings = {"problems": PROBLEMS, "group_size": 2, "seed": (0, "rollout", 3), **options}
    sampler = sampler or TorchSampler(policy)
    return rollout(policy, sampler, sampling=sampling, plan=Play(environment, limits, context), **settings)


def completions(groups) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def one(policy, environment, *texts: str, **options) -> Completion:
    """A rollout in which the model says these texts in turn."""
    sampler = Says(policy, *texts)
    (made,) = completions(played(policy, environment, sampler=sampler, problems=PROBLEMS[:1], group_size=1, **options))
    return made


def test_the_contexts_are_the_ids_so_far(policy):
    """Prompt, sampled ids with their end token, encoded replies: appended, and never encoded again."""
    sampler = Says(policy, "12", "3", "")
    (group,) = played(policy, digits, sampler=sampler, problems=PROBLEMS[:1], group_size=1)
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
    for alone, made in zip(plain, completions(played(policy, digits)), strict=True):
        count = made.turns[0].length
        assert made.token_ids[:count] == alone.token_ids
        assert made.logprobs[:count] == alone.logprobs


@pytest.mark.parametrize("environment", [digits, slow_digits])
def test_rollouts_are_a_function_of_seed_and_problem(policy, environment):
    """Not of when replies come: repeated they are equal to the last bit. Another seed gives others."""
    first = played(policy, environment)
    assert played(policy, environment) == first
    assert played(policy, digits) == first
    assert played(policy, environment, seed=(1, "rollout", 3)) != first
    others = played(policy, environment, problems=PROBLEMS[3:])  # shared out among processes, say
    assert [c.token_ids for c in completions(others)] == [c.token_ids for c in completions(first[3:])]


def test_a_group_is_handed_over_when_all_its_rollouts_have_ended(policy):
    """Once each, with what is returned in the end."""
    told = {}
    groups = played(policy, digits, on_group=lambda place, group: told.setdefault(place, []).append(group))
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


def forever(problem, rng):
    said = yield
    while True:
        said = yield Reply(f"{len(said)}?", reward=0.5, void=said == "0")


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
    own = made.trained()
    assert made.trained(mask_void=True) != own
    assert sum(made.trained(mask_void=True)) == 3 + 2


def test_a_long_reply_is_cut_and_says_so(policy):
    """At the tokens of rollout.reply_tokens."""

    def floods(problem, rng):
        yield
        yield Reply("7" * 100_000)

    made = one(policy, floods, "1", limits=replace(LIMITS, reply_tokens=5, max_turns=2))
    assert made.turns[1].text == "77777\n[99995 more characters]\n"
    assert made.turns[1].length == len(made.turns[1].text)


def test_of_a_long_reply_with_a_payload_only_that_is_cut(policy):
    """Here a token is a character; with the note it is within the limit."""

    def floods(problem, rng):
        yield
        yield Reply(f"<{'7' * 900}>", payload=((1, 901),))

    made = one(policy, floods, "1", limits=replace(LIMITS, reply_tokens=40, max_turns=2))
    assert made.turns[1].text == f"<{'7' * 15}\n[885 more characters]\n>"
    assert made.turns[1].length == 40


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


def raises(problem, rng):
    yield
    raise ZeroDivisionError("by zero\nand more")


def returns_error(problem, rng):
    yield
    return error("no sandbox")


def says_nothing(problem, rng):
    yield
    yield


def speaks_first(problem, rng):
    yield Reply("hello")


def speaks_for_the_model(problem, rng):
    yield
    yield Reply("42", role="assistant")


def pays_infinity(problem, rng):
    yield
    yield Reply("1", reward=float("inf"))


def cuts_elsewhere(problem, rng):
    yield
    yield Reply("12", payload=((1, 4),))


def cuts_twice(problem, rng):
    yield
    yield Reply("1234", payload=((0, 3), (2, 4)))


def is_no_generator(problem, rng):
    return "42"


def gives_up(problem, rng):
    yield
    raise SystemExit(1)


def returns_text(problem, rng):
    yield
    return "right"


@pytest.mark.parametrize(
    "environment, reason",
    [
        (raises, "the environment raised ZeroDivisionError: by zero"),
        (returns_error, "no sandbox"),
        (says_nothing, "it yielded None"),
        (speaks_first, "it began with"),
        (speaks_for_the_model, "role 'assistant'"),
        (pays_infinity, "reward inf"),
        (cuts_elsewhere, "payload ((1, 4),); expected parts of its text"),
        (cuts_twice, "payload ((0, 3), (2, 4)); expected"),
        (is_no_generator, "TypeError"),
        (gives_up, "SystemExit: 1"),
        (returns_text, "TypeError"),
    ],
)
def test_a_failure_of_the_environment_leaves_its_rollout_without_a_score(policy, environment, reason):
    """The others go on; never a score of 0."""

    def now_and_then(problem, rng):
        return environment(problem, rng) if problem.id == "p1" else digits(problem, rng)

    groups = played(policy, now_and_then)
    for made in groups[1].completions:
        assert made.verdict.status is Status.ERROR
        assert reason in made.verdict.reason
        assert "\n" not in made.verdict.reason
        assert made.finish_reason == "error"
    good = played(policy, digits)
    assert [g for g in groups if g.problem.id != "p1"] == [g for g in good if g.problem.id != "p1"]


def test_a_sandbox_that_cannot_work_at_all_ends_the_run(policy):
    """A RunError is passed on, as that of a verifier."""

    def lost(problem, rng):
        yield
        raise RunError("no namespaces here")

    with pytest.raises(RunError, match="no namespaces here"):
        played(policy, lost)


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
    groups = played(policy, hangs, limits=replace(LIMITS, reply_seconds=0.5), group_size=1)
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
    closed = threading.Event()

    def holds(problem, rng):
        try:
            yield from forever(problem, rng)
        finally:
            closed.set()

    one(policy, holds, "1")
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
    played(policy, waits, group_size=8)
    assert time.monotonic() - start < 40 * 3 * 0.2 / 2


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
    (made,) = completions(played(policy, environment, sampler=sampler, problems=PROBLEMS[:1], group_size=1))
    expected = ["<call>1</call>2", "<call>3"]
    for mark in {"<call>", "</call>"} - {*marks}:
        expected = [text.replace(mark, "") for text in expected]
    assert environment.said == expected
    assert [turn.text for turn in made.turns if turn.sampled] == expected
    assert made.text == "3"
