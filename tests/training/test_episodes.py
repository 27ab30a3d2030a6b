"""Rollouts with an environment: tokens, draws, limits of turns and replies, the marks that are heard."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlvr.config import ModelConfig
from rlvr.core.types import (
    Ask,
    Reply,
    Sampler,
    Sampling,
)
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.rollout.rollout import rollout
from tests.helpers.turns import (
    BUDGET,
    LIMITS,
    PROBLEMS,
    Says,
    completions,
    digits,
    forever,
    one,
    played,
    slow_digits,
    talking_policy,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return talking_policy()


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
