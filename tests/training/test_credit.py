"""From completions and verdicts to what their tokens are credited with."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from rlvr.algo.batch import collate
from rlvr.algo.credit import Steps
from rlvr.algo.losses import loss_denominator
from rlvr.config import AlgoConfig, Config, RolloutConfig
from rlvr.core.registry import make_task
from rlvr.core.types import Completion, Group, Problem, Turn, Verdict, correct, error, incorrect
from rlvr.launch import check_turn_credit
from rlvr.training.step.rewards import (
    check_credit,
    credit_metrics,
    credited_advantages,
    credited_rewards,
    group_advantages,
    group_rewards,
    has_signal,
    informative_groups,
    is_uninformative,
    keep_informative,
    measure_turns,
    shuffle_verdicts,
    split_at_steps,
    step_rewards,
)
from tests.helpers.batches import loss_of
from tests.helpers.turns_toy import LOGITS, OUTCOMES, TURN_REWARDS, action_logprob, episodes, make_theta, true_gradient

TURN = Config(algo=AlgoConfig("rloo", credit="turn"))
STEP = Config(algo=AlgoConfig("rloo", credit="step"))
OUTCOME = Config(algo=AlgoConfig("rloo"))


def decode(ids):
    """A token of n is n characters: the text of ids 2, 1 is "aab"."""
    return "".join(chr(ord("a") + i) * n for i, n in enumerate(ids))


def conversation(*rewards: float, own: int = 2, reply: int = 3) -> Completion:
    """Return a completion with a turn for each reward, and a reply between two of them."""
    turns = []
    for k, reward in enumerate(rewards):
        turns += [Turn("tool", "r", reply)] if k else []
        turns.append(Turn("assistant", "s", own, reward=reward))
    ids = (1,) * sum(turn.length for turn in turns)
    return Completion("s", ids, (0.0,) * len(ids), turns=tuple(turns))


def group(completions, verdicts, **kwargs) -> Group:
    return Group(Problem("p", "?"), (7,), tuple(completions), tuple(verdicts), **kwargs)


def plain_completion(length: int) -> Completion:
    return Completion("x" * length, (1,) * length, (0.0,) * length)


def test_turns_and_the_replies_to_them():
    """A reply belongs to the turn before it, and the outcome to the last turn."""
    completion = conversation(0.5, 0.0, 0.25)
    assert measure_turns(completion) == ([5, 5, 2], [0.5, 0.0, 0.25])
    assert step_rewards(completion, correct(), 1.0, None) == Steps((0.5, 0.0, 1.25), (5, 5, 2))
    assert step_rewards(plain_completion(4), correct(), 1.0, None) == Steps((1.0,), (4,))
    assert step_rewards(completion, error("x"), None, None) is None


@pytest.mark.parametrize("config", [OUTCOME, TURN, STEP], ids=["outcome", "turn", "step"])
def test_every_credit_adds_up_to_the_same_reward(config):
    """Turns, steps and score: what is credited differs, and never the reward of the whole rollout."""
    verdict = replace(correct(), steps=((1, 0.5), (3, -0.25)))
    found = credited_rewards(
        [group([conversation(0.5, 0.25), plain_completion(4)], [verdict, verdict])], config, decode
    )[0]
    totals = [sum(r.values) if isinstance(r, Steps) else r for r in found]
    assert totals == pytest.approx([2.0, 1.25])
    assert totals == pytest.approx(
        group_rewards([group([conversation(0.5, 0.25), plain_completion(4)], [verdict] * 2)], RolloutConfig())[0]
    )


@pytest.mark.parametrize(
    ("ids", "steps", "parts"),
    [
        ((1, 1, 1, 1), ((2, 0.5), (4, 0.25)), [(2, 0.5), (2, 0.25)]),
        ((1, 1, 1, 1), ((2, 0.5),), [(2, 0.5), (2, 0.0)]),  # what follows the last end is a step too
        ((3, 3, 1), ((2, 0.5), (4, 0.25)), [(1, 0.5), (1, 0.25), (1, 0.0)]),  # a token is where it begins
        ((4, 1), ((2, 0.5), (4, 0.25)), [(1, 0.75), (1, 0.0)]),  # no token begins in the second step
        ((1, 1), ((9, 0.5), (12, 1.0)), [(2, 1.5)]),  # ends behind the text
        ((1, 1), ((0, 0.5), (2, 1.0)), [(2, 1.5)]),  # nothing is before the first end
        ((1, 1, 0), ((2, 1.0),), [(2, 1.0), (1, 0.0)]),  # an end token has no text
        ((), ((1, 1.0),), [(0, 1.0)]),
    ],
)
def test_steps_of_a_text_on_its_tokens(ids, steps, parts):
    """By the number of ends that the text before a token has reached."""
    assert split_at_steps(ids, steps, decode) == parts
    assert sum(length for length, _ in parts) == len(ids)


def test_an_end_is_settled_when_a_token_is_sampled():
    """Other tokens after it do not change a token's step: a baseline may depend on the step's number."""
    for after in itertools.product((1, 2, 3), repeat=2):
        parts = split_at_steps((2, 2, *after), ((3, 0.5), (5, 0.25), (7, 0.1)), decode)
        assert parts[0] == (2, 0.5)


def test_bytes_of_an_incomplete_character_are_no_text():
    """A decoder shows them as a replacement character until the last of them is there."""
    whole = {0: "", 1: "a", 2: "a�", 3: "aé", 4: "aéb"}
    assert split_at_steps((0, 0, 0, 0), ((1, 1.0), (2, 2.0), (3, 3.0)), lambda ids: whole[len(ids)]) == [
        (1, 1.0),
        (2, 2.0),
        (1, 3.0),
    ]


def test_steps_cut_the_last_turn_only():
    """Verifiers see its text; the turns before are steps by themselves. A reply behind it stays with the last part."""
    completion = conversation(0.5, 0.25)
    verdict = replace(correct(), steps=((1, 0.1),))
    assert step_rewards(completion, verdict, 1.0, decode) == Steps((0.5, 0.1, 1.25), (5, 1, 1))
    tail = replace(completion, token_ids=(*completion.token_ids, 1), turns=(*completion.turns, Turn("tool", "r", 1)))
    assert step_rewards(tail, verdict, 1.0, decode).lengths == (5, 1, 2)


def test_penalties_and_costs():
    """A penalty is part of the outcome; a KL cost adds the same in all steps, with the rule's own baseline."""
    rollout = RolloutConfig(max_new_tokens=5, truncated="penalize", overlong_buffer=2)
    config = Config(rollout=rollout, algo=AlgoConfig("rloo", credit="turn"))
    rows = [group([conversation(0.5, 0.0), conversation(0.0, 0.0)], [correct(), incorrect()])]
    rewards = credited_rewards(rows, config, decode)
    assert [r.values for r in rewards[0]] == [(0.5, 0.5), (0.0, -0.5)]  # four sampled tokens, one of two in the buffer
    plainly = credited_advantages(rows, rewards, config.algo)[0]
    costed = credited_advantages(rows, rewards, config.algo, [[0.25, 0.0]])[0]
    assert plainly[0].values == pytest.approx((1.5, 1.0))
    assert costed[0].values == pytest.approx((1.25, 0.75))
    assert costed[1].values == pytest.approx((-1.25, -0.75))


def test_shuffled_rewards_hold_those_of_turns_and_steps():
    """A rollout gets another's whole reward as its outcome; its own turns' rewards, which mean something, are gone."""
    completions = [conversation(0.5, 0.0), conversation(0.0, 0.0, 2.0), conversation(0.125)]
    verdicts = [replace(correct(), steps=((1, 0.25),)), incorrect(), error("x")]
    shuffled = shuffle_verdicts([group(completions, verdicts)], RolloutConfig(), seed=1)
    assert sorted(v.score for v in shuffled[0].verdicts if v.score is not None) == [1.75, 2.0]
    for config in (TURN, STEP):
        for found, verdict in zip(credited_rewards(shuffled, config, decode)[0], shuffled[0].verdicts):
            assert (found is None) is (verdict.score is None)
            if found is not None:
                assert found.values == (*([0.0] * (len(found.values) - 1)), verdict.score)


def test_gdpo_reads_the_rewards_of_turns_as_parts():
    """Normalised like the others, with a weight by name; a verifier without parts is refused all the same."""
    parts = [
        Verdict(v.status, v.score, parts={"right": v.score}) for v in (correct(), incorrect(), correct(), incorrect())
    ]
    rows = [group([conversation(r) for r in (1.0, 1.0, 0.0, 0.0)], parts)]
    both = group_advantages(rows, group_rewards(rows, RolloutConfig()), AlgoConfig("gdpo"))[0]
    assert both[0] > 0 > both[3]
    assert both[1] == pytest.approx(both[2], abs=1e-6)
    alone = group_advantages(
        rows, group_rewards(rows, RolloutConfig()), AlgoConfig("gdpo", reward_weights=("turn_rewards=0",))
    )[0]
    assert alone[0] == pytest.approx(alone[2])
    with pytest.raises(ValueError, match="named parts"):
        group_advantages([group([conversation(1.0)], [correct()])], [[2.0]], AlgoConfig("gdpo"))


def test_dynamic_sampling_sees_where_rewards_were_earned():
    """Two rollouts of equal reward carry signal with credit per turn, and none with that of whole rollouts."""
    rows = [group([conversation(1.0, 0.0), conversation(0.0, 1.0)], [incorrect(), incorrect()])]
    assert informative_groups(rows, TURN, decode) == rows
    assert informative_groups(rows, OUTCOME, decode) == []
    flat = [group([conversation(1.0, 0.0)] * 2, [incorrect(), incorrect()])]
    assert informative_groups(flat, TURN, decode) == []
    assert is_uninformative([None, None])


def test_credit_without_turns_or_steps_is_refused():
    """Turns before the run starts; steps where no verdict has any, unless no verdict has a score."""
    with pytest.raises(ValueError, match="has no environment"):
        check_turn_credit(TURN, make_task("arithmetic", num_train=4, num_test=4, num_demonstrations=4))
    check_turn_credit(TURN, make_task("hops", num_train=4, num_test=4, num_demonstrations=4))
    rows = [group([plain_completion(2)] * 2, [correct(), incorrect()])]
    check_credit(rows, TURN)
    with pytest.raises(ValueError, match="needs a verifier whose verdicts have steps"):
        check_credit(rows, STEP)
    check_credit(rows, OUTCOME)
    check_credit([group([plain_completion(2)] * 2, [error("x")] * 2)], STEP)


def test_metrics():
    """Mean number of steps, and mean return to go of those that have the step."""
    rows = [group([conversation(0.5, 0.0), conversation(1.0)], [correct(), incorrect()])]
    assert credit_metrics(credited_rewards(rows, TURN, decode)) == {
        "credit/steps": 1.5,
        "credit/return_1": 1.25,
        "credit/return_2": 1.0,
    }
    assert credit_metrics(group_rewards(rows, RolloutConfig())) == {}


def test_a_critic_gets_rewards_on_the_last_tokens():
    """What its rule would make of them is left to GAE."""
    config = Config(algo=AlgoConfig("ppo", credit="turn"))
    rows = [group([conversation(0.5, 0.25)], [correct()])]
    found = credited_advantages(rows, credited_rewards(rows, config, decode), config.algo)[0][0]
    assert found.per_token() == [0, 0, 0, 0, 0.5, 0, 1.25]


def toy_rollout(episode) -> tuple[Completion, Verdict]:
    """Return an episode of the toy as a completion: an action is a turn of two tokens, a reply has three."""
    rewards = [TURN_REWARDS.get(episode.actions[: k + 1], 0.0) for k in range(len(episode.actions))]
    return conversation(*rewards), Verdict("partial", OUTCOMES[episode.actions])


@pytest.mark.parametrize("algo", ["rloo", "dr_grpo"])
def test_the_losses_mean_gradient_is_that_of_the_expected_return(algo):
    """Through rewards, batch, mask and loss as a run has them, over all groups of two of the toy."""
    config, theta = Config(algo=AlgoConfig(algo, credit="turn", normalize="constant")), make_theta()
    mean, size, limit = torch.zeros(len(LOGITS), dtype=torch.float64), 2, 16
    for pair in itertools.product(episodes(), repeat=size):
        completions, verdicts = zip(*map(toy_rollout, pair), strict=True)
        rows = [group(completions, verdicts)]
        advantages = credited_advantages(rows, credited_rewards(rows, config, decode), config.algo)
        if not has_signal(advantages[0]):
            continue
        batch = collate(rows, advantages, pad_id=0)
        assert batch.num_completion_tokens == sum(2 * len(episode.actions) for episode in pair)
        logprobs = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        for row, episode in enumerate(pair):
            for k, action in enumerate(episode.actions):  # the prompt is one token
                logprobs[row, 1 + 5 * k] = action_logprob(theta, episode.actions[:k], action)
        loss, _ = loss_of(logprobs, batch, config.algo, loss_denominator(batch, "constant", limit))
        weight = pair[0].probability * pair[1].probability
        mean -= weight * limit * torch.autograd.grad(loss, theta)[0]
    factor = 1.0 if algo == "rloo" else (size - 1) / size
    assert torch.allclose(mean, factor * true_gradient(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("steps", [((3, 1.0), (2, 1.0)), ((-1, 1.0),), ((1, float("nan")),), ((1,),)])
def test_steps_of_a_verdict_are_checked(steps):
    """Ends in order, scores finite."""
    with pytest.raises(ValueError, match="expected \\(end, finite score\\)"):
        replace(correct(), steps=steps)


def test_steps_of_a_verdict_are_plain_numbers():
    """As JSON gives them back."""
    assert replace(correct(), steps=[[1, 1], (2, torch.tensor(0.5))]).steps == ((1, 1.0), (2, 0.5))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_outcomes_only_are_credited_alike(length):
    """Without rewards of turns both settings are RLOO: every turn has the advantage of its whole rollout."""
    verdicts = [correct(), incorrect(), correct()]
    rows = [group([conversation(*[0.0] * length), conversation(0.0, 0.0), conversation(0.0)], verdicts)]
    whole, turns = (
        credited_advantages(rows, credited_rewards(rows, config, decode), config.algo)[0] for config in (OUTCOME, TURN)
    )
    for a, b in zip(whole, turns, strict=True):
        assert b.values == pytest.approx([a] * len(b.values))


MASKED = RolloutConfig(truncated="mask")
# Right, wrong, right; then cut off: right and wrong.
ENDED, CUT = ["stop"] * 3, ["length", "context"]
RIGHT = [correct(), incorrect(), correct(), correct(), incorrect()]
MEANS_OF_THREE = {
    "dr_grpo": [1 / 3, -2 / 3, 1 / 3],
    "rloo": [1 / 2, -1, 1 / 2],
    "grpo": [x / (1 / math.sqrt(3) + 1e-4) for x in (1 / 3, -2 / 3, 1 / 3)],
    "maxrl": [1 / 2, -1, 1 / 2],
    "reinforce": [1 / 3, -2 / 3, 1 / 3],
    "raft": [1.0, 0.0, 0.0],
    "dpo": [1.0, -1.0, 0.0],
    "kto": [1.0, -1.0, 1.0],
    "ppo": [1.0, 0.0, 1.0],
}


def ended_and_cut(*marks: str, verdicts=RIGHT, **kwargs) -> Group:
    return group([replace(plain_completion(2), finish_reason=mark) for mark in marks], verdicts, **kwargs)


@pytest.mark.parametrize("name", MEANS_OF_THREE)
def test_masked_completions_are_in_no_baseline(name):
    """Three that ended and two that were cut have the advantages of the three alone; kept, the two count."""
    rows = [ended_and_cut(*ENDED, *CUT)]
    for rollout, expected in ((MASKED, [*MEANS_OF_THREE[name], 0.0, 0.0]), (RolloutConfig(), None)):
        config = Config(algo=AlgoConfig(name=name), rollout=rollout)
        found = credited_advantages(rows, credited_rewards(rows, config, decode), config.algo)[0]
        if expected is not None:
            assert found == pytest.approx(expected)
        elif name not in ("raft", "dpo"):
            assert any(found[3:])
    assert group_rewards(rows, MASKED) == [[1.0, 0.0, 1.0, 1.0, 0.0]]  # what is logged


def test_masked_completions_are_in_no_baseline_of_named_rewards():
    """GDPO normalizes each part within the group: of those that ended."""
    parts = [replace(verdict, parts={"right": verdict.score}) for verdict in RIGHT]
    config = Config(algo=AlgoConfig("gdpo"), rollout=MASKED)
    whole, ended = [ended_and_cut(*ENDED, *CUT, verdicts=parts)], [ended_and_cut(*ENDED, verdicts=parts[:3])]
    found, expected = (
        credited_advantages(g, credited_rewards(g, config, decode), config.algo)[0] for g in (whole, ended)
    )
    assert found == pytest.approx([*expected, 0.0, 0.0])


@pytest.mark.parametrize("credit", ["turn", "step"])
def test_masked_rollouts_are_in_no_baseline_of_steps(credit):
    """The returns to go of the two that ended are compared with each other alone."""
    made = [replace(conversation(0.5), finish_reason=mark) for mark in ("stop", "stop", "length")]
    verdicts = [correct(), incorrect(), correct()]
    config = Config(algo=AlgoConfig("rloo", credit=credit), rollout=MASKED)
    rows = [group(made, verdicts)]
    rewards = credited_rewards(rows, config, decode)
    assert rewards[0][2] is None
    found = credited_advantages(rows, rewards, config.algo)[0]
    alone = [group(made[:2], verdicts[:2])]
    assert found[:2] == credited_advantages(alone, credited_rewards(alone, config, decode), config.algo)[0]


def test_masked_completions_teach_nothing_about_ending():
    """The sum of the advantages of what ended, which is what moves the probability of ending, is 0 in each group; with
    the scores of the others in the mean it is above 0."""
    for pattern in itertools.product(("stop", "length"), (correct(), incorrect("")), repeat=4):
        marks, verdicts = (
            pattern[::2],
            [v if m == "stop" else incorrect("") for m, v in zip(pattern[::2], pattern[1::2])],
        )
        rows = [ended_and_cut(*marks, verdicts=verdicts)]
        sums = {}
        for rollout in (MASKED, RolloutConfig()):
            config = Config(algo=AlgoConfig("dr_grpo"), rollout=rollout)
            row = credited_advantages(rows, credited_rewards(rows, config, decode), config.algo)[0]
            sums[rollout.truncated] = sum(a for a, mark in zip(row, marks) if mark == "stop")
        assert sums["mask"] == pytest.approx(0)
        assert sums["keep"] >= -1e-9


def test_a_group_that_differs_only_in_what_is_masked_has_no_signal():
    """Nothing of it is trained on, or all that is scores alike: dynamic sampling draws another."""
    config = Config(algo=AlgoConfig("grpo"), rollout=MASKED)
    same, masked = (
        ended_and_cut("stop", "stop", "length", verdicts=RIGHT[2:3] * 2 + [incorrect()]),
        ended_and_cut(*CUT, verdicts=RIGHT[:2]),
    )
    differs = ended_and_cut(*ENDED, *CUT)
    assert informative_groups([same, masked, differs], config, decode) == [differs]
    assert [g.kept for g in keep_informative([same, masked, differs], 2, config, decode)] == [False, False, True]
