"""Draws in epochs, rewards, shuffled rewards and dynamic sampling."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from rlvr.commands.console import Display, describe_step
from rlvr.config import AlgoConfig, Config, ModelConfig, MonitorConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.core.types import Completion, Group, Problem, Sampler, Sampling, Status, Verdict, correct, error, incorrect
from rlvr.model.logprobs.critic import Critic
from rlvr.runs.log import rollout_records
from rlvr.runs.records import verdict_line
from rlvr.train import train
from rlvr.training.monitor.monitor import Monitor
from rlvr.training.problems.draws import _permutation, further_problems, items_of_step, known_orders
from rlvr.training.records import rollout_metrics
from rlvr.training.rollout.rollout import collect, occurrences, rollout
from rlvr.training.run import Run
from rlvr.training.step.rewards import group_rewards, informative_groups, shuffle_verdicts, soft_overlong
from rlvr.verifiers.runner import Runner
from tests.helpers.machine import processor_time
from tests.helpers.runs import build_run
from tests.helpers.verifiers import has_seven, odd_digits_or_easy

PROBLEMS = [Problem(str(i), f"{i}?") for i in range(10)]


def group(scores, tokens=3):
    verdicts = [error("broken") if s is None else correct() if s == 1 else incorrect() for s in scores]
    completions = [Completion("x", tuple(range(tokens)), (0.0,) * tokens) for _ in scores]
    return Group(PROBLEMS[0], (1,), tuple(completions), tuple(verdicts))


def test_a_step_may_be_larger_than_the_data():
    """25 of 10: two epochs and a half."""
    assert len(items_of_step(PROBLEMS, 25, seed=0, step=0)) == 25


@pytest.mark.parametrize(("size", "count"), [(10, 3), (10, 7), (10, 9), (11, 10), (12, 8), (100, 48), (50, 16), (7, 7)])
def test_a_step_never_has_a_problem_twice(size, count):
    """Also where an epoch ends within a step; each epoch still has every problem once."""
    items = range(size)
    for seed in range(5):
        steps = [items_of_step(items, count, seed=seed, step=step) for step in range(6 * size)]
        assert all(len(set(chosen)) == count for chosen in steps)
        everything = [item for chosen in steps for item in chosen]
        epochs = [everything[start : start + size] for start in range(0, len(everything) - size + 1, size)]
        assert all(sorted(epoch) == list(items) for epoch in epochs)


@pytest.mark.parametrize(("size", "count"), [(10, 7), (11, 10), (100, 48)])
def test_a_step_over_the_end_of_an_epoch_is_a_function_of_seed_and_step(size, count):
    """Drawn alone, and in any order, it is what it is after all the steps before."""
    in_order = [items_of_step(range(size), count, seed=3, step=step) for step in range(40)]
    known_orders.cache_clear()
    assert [items_of_step(range(size), count, seed=3, step=step) for step in reversed(range(40))] == in_order[::-1]
    known_orders.cache_clear()
    assert items_of_step(range(size), count, seed=3, step=29) == in_order[29]


# The first 16 hex digits of sha256 over the steps as JSON, by size, count and number of steps; seed 3.
STEPS = {
    (10, 7, 30): "d6e71d9f972b368e",
    (11, 10, 40): "350001e9dc66a618",
    (12, 8, 20): "7815b97ed52f2a3a",
    (100, 48, 20): "3ecebc3525d21cbe",
    (100, 99, 250): "abd30acbcbbafa1c",
    (1000, 16, 130): "b06607f13bf2e67d",
}


@pytest.mark.parametrize(("size", "count", "steps"), STEPS)
def test_the_items_of_steps_are_the_stored_ones(size, count, steps):
    """A run that is resumed by a later version goes through its problems in the same order."""
    rows = [items_of_step(range(size), count, seed=3, step=step) for step in range(steps)]
    assert hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16] == STEPS[size, count, steps]


def test_steps_of_nearly_all_items_are_quick():
    """7,472 of 7,473 items: a step takes milliseconds, though its order depends on all epochs before."""
    with processor_time() as taken:
        for step in range(40):
            items_of_step(range(7473), 7472, seed=0, step=step)
    assert taken.seconds < 10


def test_an_epoch_is_its_permutation_but_for_what_would_repeat():
    """Of a thousand in steps of 16: only what is in the step that the epoch begins in changes, and what takes it up."""
    differing = 0
    for step in range(1000):
        plain = [int(_permutation(1000, 5, p // 1000)[p % 1000]) for p in range(step * 16, step * 16 + 16)]
        drawn = items_of_step(range(1000), 16, seed=5, step=step)
        differing += drawn != plain
        if len(set(plain)) < 16:
            assert drawn != plain
        if step * 16 % 1000 > 16 and step * 16 % 1000 <= 984:  # neither at an epoch's beginning nor over its end
            assert drawn == plain
    assert differing <= 10


def test_a_problem_that_comes_twice_gets_other_completions():
    """The second occurrence of an id in a step has seeds of its own; the first has those that it would have alone."""
    problems = [PROBLEMS[0], PROBLEMS[1], PROBLEMS[0]]
    assert occurrences(problems) == [0, 0, 1]
    assert occurrences(problems[1:], before=problems[:1]) == [0, 1]
    whole = rollout(Plain(), Seeds(), problems, Sampling(), group_size=2, seed=(0,))
    alone = rollout(Plain(), Seeds(), problems[:1], Sampling(), group_size=2, seed=(0,))
    assert whole[0] == alone[0]
    assert len({completion.text for group in whole for completion in group.completions}) == 6
    # a process that has the last of them alone draws what a single process draws
    assert rollout(Plain(), Seeds(), problems[2:], Sampling(), group_size=2, seed=(0,), numbers=[1]) == whole[2:]


def test_further_problems_leave_out_those_in_use():
    """Dynamic sampling does not ask the same question twice in a step."""
    more = further_problems(PROBLEMS, 5, seed=0, step=3, round_number=0, used={"0", "1", "2", "3", "4", "5", "6"})
    assert sorted(p.id for p in more) == ["7", "8", "9"]


def test_soft_overlong_punishment_by_hand():
    """100 tokens, buffer 20: 80 cost nothing, 81 cost .05, 90 .5, 100 and more 1."""
    cost = {n: soft_overlong(n, max_new_tokens=100, buffer=20) for n in (0, 80, 81, 90, 100, 120)}
    assert cost == pytest.approx({0: 0, 80: 0, 81: -0.05, 90: -0.5, 100: -1, 120: -1})


def test_rewards_are_scores_and_missing_ones_stay_missing():
    """An error is never a 0; the overlong punishment is added to what exists."""
    config = RolloutConfig(max_new_tokens=3, truncated="penalize", overlong_buffer=2)
    assert group_rewards([group([1, None, 0])], RolloutConfig()) == [[1.0, None, 0.0]]
    assert group_rewards([group([1, None, 0])], config) == [[0.0, None, -1.0]]


def test_the_overlong_punishment_is_logged():
    """Its mean over the rollouts; nothing where it is off."""
    config = RolloutConfig(max_new_tokens=10, truncated="penalize", overlong_buffer=4)
    eight, four = group([1, 0], tokens=8), group([1, 0], tokens=4)
    logged = rollout_metrics([eight, four], [[1.0, -1.0], [1.0, -1.0]], config)
    assert logged["parts/overlong"] == pytest.approx(-0.25)
    assert not {name for name in rollout_metrics([eight], [[1.0, -1.0]], RolloutConfig()) if name.startswith("parts/")}


def test_informative_groups_have_different_rewards():
    """All right, all wrong, or one reward among errors: nothing to learn from."""
    groups = [group([1, 1]), group([0, 0]), group([1, None]), group([1, 0])]
    assert informative_groups(groups, Config(), str) == [groups[3]]


def test_shuffled_verdicts_are_the_same_verdicts():
    """The control keeps every verdict and moves it elsewhere; what the verifier said of a completion stays with it."""
    groups = [group([1] * 8), group([0] * 8)]
    shuffled = shuffle_verdicts(groups, RolloutConfig(), seed=3)
    flat = [v.status for g in shuffled for v in g.verdicts]
    assert sorted(flat) == [Status.CORRECT] * 8 + [Status.INCORRECT] * 8
    assert 0 < sum(v is Status.CORRECT for v in flat[:8]) < 8
    assert [g.completions for g in shuffled] == [g.completions for g in groups]
    assert (
        [g.unshuffled_verdicts for g in shuffled]
        == [g.verdicts for g in groups]
        == [g.unshuffled_verdicts for g in groups]
    )


def test_shuffled_rewards_say_nothing_of_lengths_either():
    """A length's cost moves with the verdict: over many shuffles long and short completions earn the same."""
    config = RolloutConfig(max_new_tokens=10, truncated="penalize", overlong_buffer=5)
    groups = [group([1, 0], tokens=10), group([1, 0], tokens=5)]
    assert group_rewards(groups, config) == [pytest.approx([0.0, -1.0]), pytest.approx([1.0, 0.0])]
    means = [0.0, 0.0]
    for seed in range(400):
        rewards = group_rewards(shuffle_verdicts(groups, config, seed=seed), config)
        assert sorted(rewards[0] + rewards[1]) == pytest.approx([-1.0, 0.0, 0.0, 1.0])
        means = [mean + sum(row) / 2 / 400 for mean, row in zip(means, rewards)]
    assert means == pytest.approx([0.0, 0.0], abs=0.06)


def test_metrics_of_shuffled_rewards_are_of_the_true_verdicts():
    """Three right of four are .75 correct, whatever they are rewarded with; an unscored one stays unscored."""
    groups = [group([1, 1, 1, 0]), group([0, 0, None, 0])]
    shuffled = shuffle_verdicts(groups, RolloutConfig(), seed=1)
    assert rollout_metrics(shuffled, [[0.0] * 4] * 2) == rollout_metrics(groups, [[0.0] * 4] * 2)
    assert rollout_metrics(shuffled[:1], [[0.0] * 4])["correct"] == 0.75


def test_a_shuffled_rollout_is_marked():
    """Its line has the verifier's own verdict, the reward that it was given, and the status of that one's verdict."""
    groups = shuffle_verdicts([group([1, 1, 1, 0, 0, 0])], RolloutConfig(), seed=0)
    rewards = group_rewards(groups, RolloutConfig())
    records = rollout_records(1, groups, rewards, rewards)
    assert [row["status"] for row in records] == ["correct"] * 3 + ["incorrect"] * 3
    assert [row["score"] for row in records] == [1, 1, 1, 0, 0, 0]
    assert sorted(rewards[0]) == [0, 0, 0, 1, 1, 1] != rewards[0][::-1]
    assert [row["reward"] for row in records] == rewards[0]
    assert [row["shuffled_status"] for row in records] == ["correct" if r else "incorrect" for r in rewards[0]]
    plain = [group([1, 0])]
    assert "shuffled_status" not in rollout_records(1, plain, group_rewards(plain, RolloutConfig()), [[0, 0]])[0]


class Seeds(Sampler):
    """A completion is its seed."""

    def generate(self, prompts, sampling, seeds):
        return [[Completion(str(seed)) for seed in row] for row in seeds]

    def load_weights(self, policy):
        pass


class ShortSampler(Sampler):
    """Returns one completion too few."""

    def generate(self, prompts, sampling, seeds):
        return [[Completion("x")] * (len(row) - 1) for row in seeds]

    def load_weights(self, policy):
        pass


class Plain:
    """Renders a prompt as its characters."""

    def render(self, prompt):
        return [ord(c) for c in prompt]


def test_a_sampler_that_returns_part_of_a_group_is_an_error():
    """Found and expected counts are named."""
    with pytest.raises(ValueError, match=r"groups of \[3, 3\]; expected 2 groups of 4"):
        rollout(Plain(), ShortSampler(), PROBLEMS[:2], Sampling(), group_size=4, seed=(0,))


def test_a_verdict_without_score_needs_the_right_status():
    """correct without score, or error with one, cannot be made."""
    with pytest.raises(ValueError, match="only bad_reference and error"):
        Verdict(Status.CORRECT, None)
    with pytest.raises(ValueError, match="only bad_reference and error"):
        Verdict(Status.ERROR, 0.0)
    with pytest.raises(ValueError, match="finite"):
        Verdict(Status.PARTIAL, float("nan"))


def make_run(out_dir: Path, *, verifier=odd_digits_or_easy, steps: int = 2, monitor: bool = False, **rollout) -> Run:
    """A run of a random tiny model in float32 on the CPU, with two rounds of dynamic sampling."""
    settings = {"problems_per_step": 6, "group_size": 4, "max_new_tokens": 12, "resample_rounds": 2, **rollout}
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(**settings),
        optim=OptimConfig(lr=1e-3),
        monitor=MonitorConfig("has_seven", window=2),
    )
    run = build_run(config, Runner(verifier))
    if monitor:
        run.monitor = Monitor(Runner(has_seven), config.monitor)
    return run


def test_all_that_was_sampled_is_handed_on(tmp_path):
    """The groups of every round are there; kept are the first P whose rewards differ."""
    groups = collect(make_run(tmp_path).worker, 0)
    informative = [len({verdict.score for verdict in group.verdicts}) > 1 for group in groups]
    assert sum(informative) >= 6
    assert len(groups) > 6
    first = [place for place, holds in enumerate(informative) if holds][:6]
    assert [place for place, group in enumerate(groups) if group.kept] == first
    assert [group.round for group in groups] == sorted(group.round for group in groups)
    assert [group.round for group in groups[:7]] == [0] * 6 + [1]


def test_without_a_group_that_teaches_the_first_are_kept(tmp_path):
    """Nothing is right: all rounds are drawn, and the step has its P groups all the same."""
    groups = collect(make_run(tmp_path, verifier=lambda problem, text: False).worker, 0)
    assert [group.kept for group in groups] == [True] * 6 + [False] * 12


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory) -> Run:
    """A run of two steps with dynamic sampling and a monitor."""
    run = make_run(tmp_path_factory.mktemp("dynamic"), monitor=True)
    train(run)
    return run


def test_metrics_describe_all_that_was_sampled(dynamic):
    """Reward, right ones, lengths, statuses, groups without signal and the monitor's means are those of every rollout
    in rollouts.jsonl; trained tokens are those of the kept groups."""
    rows = dynamic.reporter.log.read("rollouts")
    for metrics in dynamic.reporter.log.read("metrics"):
        here = [row for row in rows if row["step"] == metrics["step"]]
        kept = [row for row in here if row["kept"]]
        assert len(kept) == 24 < len(here)
        assert metrics["trained_tokens"] == sum(row["tokens"] for row in kept)
        assert metrics["reward"] == metrics["correct"] == pytest.approx(mean(row["score"] for row in here))
        assert metrics["reward"] != pytest.approx(mean(row["score"] for row in kept))
        assert metrics["completion_tokens"] == pytest.approx(mean(row["tokens"] for row in here))
        assert metrics["rollout_tokens"] == sum(row["tokens"] for row in here)
        assert metrics["status/correct"] == pytest.approx(mean(row["status"] == "correct" for row in here))
        assert metrics["truncated"] == pytest.approx(mean(row["finish_reason"] == "length" for row in here))
        scores = {row["problem"]: {r["score"] for r in here if r["problem"] == row["problem"]} for row in here}
        assert metrics["no_signal"] == pytest.approx(mean(len(values) == 1 for values in scores.values()))
        assert metrics["groups_sampled"] == len(scores) == len(here) / 4
        assert metrics["groups_kept"] == 6
        assert metrics["resample_rounds"] == max(row["round"] for row in here) > 0
        assert metrics["monitor/score"] == pytest.approx(mean(row["monitor_score"] for row in here))
        assert metrics["monitor/proxy"] == pytest.approx(mean(row["score"] for row in here))


def test_what_is_dropped_is_marked_and_has_no_advantage(dynamic, capsys):
    """Its verdicts and its reward are there; report and console name it, and the line of a step counts the groups."""
    rows = dynamic.reporter.log.read("rollouts")
    assert {row["kept"] for row in rows} == {True, False}
    for row in rows:
        assert (row["advantage"] is None) == (not row["kept"])
        assert row["status"]
        assert row["reward"] == row["score"]
        assert row["monitor_score"] == ("7" in row["completion"])
    dropped = next(row for row in rows if not row["kept"])
    assert "not trained on (dropped by dynamic sampling)" in verdict_line(dropped)
    display = Display()
    display.sample(dropped)
    assert "not trained on" in capsys.readouterr().out
    display.sample(next(row for row in rows if row["kept"]))
    assert ", advantage " in capsys.readouterr().out
    first = dynamic.reporter.log.read("metrics")[0]
    assert f"kept 6/{int(first['groups_sampled'])}  " in describe_step(first)


def test_with_a_critic_every_kept_group_teaches(tmp_path):
    """Without signal are the dropped groups whose rewards do not differ, and none of the kept ones."""
    run = make_run(tmp_path, steps=1)
    run.config = dataclasses.replace(run.config, algo=AlgoConfig("ppo"))
    run.learner.critic = Critic(run.learner.policy, run.config.critic, run.config.optim)
    train(run)
    rows, (metrics,) = run.reporter.log.read("rollouts"), run.reporter.log.read("metrics")
    dropped = [{r["score"] for r in rows[i : i + 4]} for i in range(0, len(rows), 4) if not rows[i]["kept"]]
    assert metrics["no_signal"] == sum(len(scores) == 1 for scores in dropped) / (len(rows) / 4) > 0


def test_without_dynamic_sampling_no_line_changes(tmp_path):
    """Neither mark nor round, and no count of groups."""
    run = make_run(tmp_path, resample_rounds=0)
    train(run)
    assert all({"kept", "round"}.isdisjoint(row) for row in run.reporter.log.read("rollouts"))
    names = {"groups_sampled", "groups_kept", "resample_rounds"}
    assert all(names.isdisjoint(row) for row in run.reporter.log.read("metrics"))


def test_the_error_budget_and_the_control_see_all(tmp_path):
    """The shuffled control permutes verdicts over what was sampled, and only informative groups are kept of it."""
    run = make_run(tmp_path)
    run.config = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, shuffle_rewards=True))
    groups = collect(run.worker, 0)
    kept = [group for group in groups if group.kept]
    assert 0 < len(kept) <= 6
    assert all(len({verdict.score for verdict in group.verdicts}) > 1 for group in kept)


def test_the_cost_of_the_kl_divergence_is_logged_beside_the_reward(tmp_path):
    """The reward of a line is that of the task, so that the metrics' mean is theirs; the KL cost has a field."""
    run = make_run(tmp_path)
    run.config = dataclasses.replace(run.config, algo=AlgoConfig(kl_coef=0.1, kl_in="reward"))
    run.learner.reference = run.learner.policy.reference()
    train(run)
    rows = run.reporter.log.read("rollouts")
    assert all((row["kl_cost"] is None) != row["kept"] for row in rows)
    for metrics in run.reporter.log.read("metrics"):
        here = [row for row in rows if row["step"] == metrics["step"]]
        assert metrics["reward"] == pytest.approx(mean(row["reward"] for row in here))
    later = [row for row in rows if row["step"] > 1 and row["kept"]]
    assert any(row["kl_cost"] for row in later)
