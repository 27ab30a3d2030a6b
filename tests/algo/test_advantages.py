"""Advantages against hand-worked numbers and TRL 1.16's own."""

from __future__ import annotations

import json

import pytest

from rlvr.algo.advantages import (
    by_batch_std,
    compute_advantages,
    cost_advantages,
    dpo,
    dr_grpo,
    gdpo,
    grpo,
    maxrl,
    raft,
    reinforce,
    reinforce_pp,
    rloo,
    whiten,
)
from rlvr.algo.algorithms import ALGORITHMS
from rlvr.config import AlgoConfig
from rlvr.core.types import Completion, Group, Problem, Status, Verdict
from rlvr.training.step.rewards import group_advantages, has_signal


def rule_of(name):
    """The advantage rule of an algorithm."""
    return ALGORITHMS[name].advantages


def close(values, abs=1e-4):
    return pytest.approx(values, abs=abs)


def test_equal_rewards_give_zero_advantage():
    """A group whose completions all score the same teaches nothing."""
    for rule in (grpo, dr_grpo, rloo, maxrl):
        assert rule([1.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]
        assert rule([0.1] * 7) == [0.0] * 7
    assert not has_signal(grpo([0.1] * 7))


def test_one_right_of_four_by_hand():
    """mean 1/4, sample std 1/2: the numbers of the papers' formulas."""
    assert grpo([1, 0, 0, 0]) == close([1.4997, -0.4999, -0.4999, -0.4999])
    assert rloo([1, 0, 0, 0]) == close([1, -1 / 3, -1 / 3, -1 / 3])
    assert maxrl([1, 0, 0, 0]) == close([3, -1, -1, -1])
    assert dr_grpo([1, 0, 0, 0]) == close([0.75, -0.25, -0.25, -0.25])


def test_two_right_of_four_by_hand():
    """mean 1/2, sample std .57735."""
    assert grpo([1, 0, 0, 1]) == close([0.865875, -0.865875, -0.865875, 0.865875])
    assert rloo([0.9, 0.1, 0.5, 0.5]) == close([0.533333, -0.533333, 0, 0])
    assert grpo([0.9, 0.1, 0.5, 0.5]) == close([1.224370, -1.224370, 0, 0], 1e-3)


def test_rewards_that_do_not_exist_take_no_part():
    """None gets advantage 0 and leaves the baseline to the others; a lone reward has nothing to be compared with."""
    assert rloo([1, None, 0, 0]) == close([1.0, 0.0, -0.5, -0.5])
    assert grpo([1, None, None]) == [0.0, 0.0, 0.0]
    assert reinforce([[1, None], [0, 0]]) == [close([2 / 3, 0]), close([-1 / 3, -1 / 3])]


def test_maxrl_of_a_group_without_reward_is_zero():
    """A mean of zero would divide by zero."""
    assert maxrl([1.0, -1.0]) == [0.0, 0.0]


def test_reinforce_uses_one_baseline_for_the_batch():
    """Equal groups still teach when the baseline is the batch's."""
    assert reinforce([[1, 1], [0, 0]]) == [[0.5, 0.5], [-0.5, -0.5]]


def test_reinforce_pp_has_mean_zero_and_unit_std():
    """Group means are taken out, then everything is divided by the batch's std: sqrt(4 * .25 / 3) here."""
    expected = 0.5 / ((4 * 0.25 / 3) ** 0.5 + 1e-4)
    assert reinforce_pp([[1, 0], [0, 1]]) == [close([expected, -expected], 1e-9), close([-expected, expected], 1e-9)]


def advantages_like(case, rewards, parts):
    """Our advantages for a configuration of TRL's."""
    if case["trainer"] == "grpo" and isinstance(case["rewards"], list):
        names, weights = case["rewards"], dict(zip(case["rewards"], case["reward_weights"]))
        if case["multi_objective_aggregation"] == "normalize_then_sum":
            return gdpo([{name: parts[name][i] for name in names} for i in range(2)], weights)
        summed = [[sum(weights[n] * parts[n][i][j] for n in names) for j in range(4)] for i in range(2)]
        return compute_advantages(summed, rule_of("grpo"))
    if case["trainer"] == "grpo":
        if case["scale_rewards"] == "group":
            return compute_advantages(rewards, rule_of("grpo"))
        return compute_advantages(
            rewards, rule_of("dr_grpo"), {"batch": "batch_std", "none": "none"}[case["scale_rewards"]]
        )
    return compute_advantages(rewards, rule_of("rloo"), "whiten" if case["normalize_advantages"] else "none")


def test_all_cases_of_trl_agree(rlvr_data):
    """37 configurations of TRL 1.16's GRPO and RLOO trainers, to 1e-5."""
    reference = json.loads(rlvr_data("trl_reference.json").read_text())
    tensors = reference["tensors"]
    in_groups = {name: [values[:4], values[4:]] for name, values in tensors["rewards"].items()}
    in_groups["rewards2"] = [tensors["rewards2"][:4], tensors["rewards2"][4:]]
    rows = zip(tensors["old_logps"], tensors["ref_logps"], tensors["mask"])
    divergence = [sum((o - r) * m for o, r, m in zip(old, ref, mask)) for old, ref, mask in rows]
    assert len(reference["advantages"]) == (37 if rlvr_data.is_complete("trl_reference.json") else 10)
    for case in reference["advantages"]:
        rewards = in_groups[case["rewards"]] if isinstance(case["rewards"], str) else []
        beta = case.get("beta", 0.0)
        with_kl = [
            [None if r is None else r - beta * divergence[4 * i + j] for j, r in enumerate(row)]
            for i, row in enumerate(rewards)
        ]
        ours = [a for row in advantages_like(case, with_kl, in_groups) for a in row]
        assert ours == pytest.approx(case["advantages"], abs=1e-5), case


def test_batch_std_is_that_of_the_raw_rewards():
    """TRL's batch scale over [1,0,0,1], [1,0,0,0], [.9,.1,.5,.5], [1,1,1,1]: std .466011."""
    groups = [[1, 0, 0, 1], [1, 0, 0, 0], [0.9, 0.1, 0.5, 0.5], [1, 1, 1, 1]]
    scaled = by_batch_std([dr_grpo(g) for g in groups], groups)
    assert scaled[0] == close([1.072705, -1.072705, -1.072705, 1.072705])
    assert scaled[1] == close([1.609057, -0.536352, -0.536352, -0.536352])


def test_whitening_an_empty_batch_gives_an_empty_batch():
    """All rewards missing: nothing to whiten."""
    assert whiten([[0.0, 0.0]], [[None, None]]) == [[0.0, 0.0]]


def plain_groups(rewards):
    """Groups whose completions are of no interest here."""
    return [
        Group(
            Problem("p", "?"), (1,), tuple(Completion("x", (2,), (0.0,)) for _ in row), (Verdict(Status.CORRECT, 1.0),)
        )
        for row in rewards
    ]


REWARDS = [[1.0, 0.0, 0.0, None], [1.0, 1.0, 1.0, 1.0], [0.9, 0.1, 0.5, 0.5]]
COSTS = [[0.3, 0.1, -0.2, 0.0], [0.5, 0.4, 0.0, 0.1], [-0.1, 0.2, 0.2, 0.6]]
RULES = ("grpo", "dr_grpo", "rloo", "reinforce", "reinforce_pp", "maxrl")


@pytest.mark.parametrize("scale", ["none", "batch_std", "whiten"])
@pytest.mark.parametrize("rule", RULES)
def test_the_kl_term_weighs_as_much_as_its_coefficient_says(rule, scale):
    """Under every rule and scale a cost ten times as large adds ten times as much, the same to any task reward."""
    algo = AlgoConfig(name=rule, advantage_scale=scale)

    def advantages(rewards, factor):
        costs = [[factor * c for c in row] for row in COSTS]
        return sum(group_advantages(plain_groups(rewards), rewards, algo, costs if factor else None), [])

    added = {
        factor: [a - b for a, b in zip(advantages(REWARDS, factor), advantages(REWARDS, 0))]
        for factor in (1e-3, 0.1, 1)
    }
    assert max(map(abs, added[1])) > 0.1
    for factor in (1e-3, 0.1):
        assert added[factor] == pytest.approx([factor * a for a in added[1]], abs=1e-12)
    nothing = [[r and 0.0 for r in row] for row in REWARDS]
    assert advantages(nothing, 1) == pytest.approx(added[1], abs=1e-12)
    assert added[1][3] == 0  # a rollout without score


@pytest.mark.parametrize("rule", ["dr_grpo", "rloo", "reinforce"])
def test_a_linear_rule_may_take_the_kl_term_before_or_after(rule):
    """The advantages of reward minus cost, as TRL's RLOO computes them."""
    groups = plain_groups(REWARDS)
    shaped = [[None if r is None else r - c for r, c in zip(row, costs)] for row, costs in zip(REWARDS, COSTS)]
    after = group_advantages(groups, REWARDS, AlgoConfig(name=rule), COSTS)
    before = compute_advantages(shaped, rule_of(rule))
    for row, other in zip(after, before, strict=True):
        assert row == close(other, 1e-12)


def test_costs_have_baselines_of_their_own_by_hand():
    """Costs .3, .1, -.2 have mean .0667; of the others of the first -.05; of all eleven of the batch .1909."""
    assert cost_advantages(REWARDS, COSTS, ALGORITHMS["grpo"].kl_baseline)[0] == close([-0.2333, -0.0333, 0.2667, 0.0])
    assert cost_advantages(REWARDS, COSTS, ALGORITHMS["rloo"].kl_baseline)[0] == close([-0.35, -0.05, 0.4, 0.0])
    assert cost_advantages(REWARDS, COSTS, ALGORITHMS["reinforce"].kl_baseline)[0] == close(
        [-0.1091, 0.0909, 0.3909, 0.0]
    )


def test_raft_chooses_by_reward_minus_cost():
    """Among the right ones that which is nearest to the reference; a cost may outweigh the reward."""
    groups = plain_groups(REWARDS)
    chosen = group_advantages(groups, REWARDS, AlgoConfig("raft"), COSTS)
    assert chosen == [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    dear = [[2.0, 0.1, -0.2, 0.0], *COSTS[1:]]
    assert group_advantages(groups, REWARDS, AlgoConfig("raft"), dear)[0] == [0.0, 0.0, 1.0, 0.0]


def group_with_parts(parts):
    verdicts = tuple(Verdict(Status.PARTIAL, sum(p.values()), parts=p) for p in parts)
    return Group(Problem("p", "?"), (1,), tuple(Completion("x", (2,), (0.0,)) for _ in parts), verdicts)


def test_gdpo_reads_the_named_parts_and_weights():
    """The configured weights multiply each part's own normalised advantage."""
    groups = [group_with_parts([{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}])]
    algo = AlgoConfig("gdpo", reward_weights=("b=3",))
    first, second = group_advantages(groups, [[1.0, 1.0]], algo)[0]
    assert first < 0 < second


def test_gdpo_without_parts_is_refused():
    """A verifier without named parts has nothing to normalise apart."""
    group = Group(Problem("p", "?"), (1,), (Completion("x"),), (Verdict(Status.CORRECT, 1.0),))
    with pytest.raises(ValueError, match="named parts"):
        group_advantages([group], [[1.0]], AlgoConfig("gdpo"))


def test_raft_chooses_the_first_best():
    """One of a group, the first where several are best; none where all are equal; a missing reward is never chosen."""
    assert raft([0.5, 2.0, 1.0, 2.0]) == [0, 1, 0, 0]
    assert raft([None, -1.0, 0.0]) == [0, 0, 1]
    assert raft([1.0, 1.0, None]) == raft([None, 1.0, None]) == [0, 0, 0]


def test_dpo_pairs_the_first_best_with_the_first_worst():
    """+1 and -1; no pair where all are equal; a missing reward is in none."""
    assert dpo([0.5, 2.0, 0.0, 2.0, 0.0]) == [0, 1, -1, 0, 0]
    assert dpo([None, 0.0, 1.0]) == [0, -1, 1]
    assert dpo([1.0, None, 1.0]) == [0, 0, 0]


def test_gae_starts_from_the_rewards():
    """The critic makes advantages of them later."""
    assert compute_advantages([[1.0, None], [0.5, 0.0]], rule_of("ppo")) == [[1.0, 0.0], [0.5, 0.0]]
