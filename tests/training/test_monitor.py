"""The monitor: its numbers by hand, the alarm on simulated and recorded runs, and runs that it ends."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlvr.config import (
    AlgoConfig,
    Config,
    EvalConfig,
    ModelConfig,
    MonitorConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
)
from rlvr.core.types import Completion, Group, Problem, Status, Task, Verdict, correct, error, incorrect
from rlvr.launch import launch
from rlvr.runs.log import read_events
from rlvr.training.checkpoint.folders import list_checkpoints
from rlvr.training.monitor.alarm import AlarmStop, GuardStop, alarm_record, find_fast_signs, find_signs, is_alarming
from rlvr.training.monitor.monitor import monitor_metrics, repeated_ngrams, spearman
from tests.helpers.files import GOLDEN, lines
from tests.helpers.runs import with_settings
from tests.helpers.verifiers import registered_share_of_sevens, share_of_ones

STEPS = 60
WORTH = ("worth", "score_within", "score_range", "proxy_range")


def group(scores, *, binary=False, tokens=((1, 2),)) -> Group:
    verdicts = [
        error("broken") if s is None else Verdict(Status.PARTIAL, s) if not binary else correct() if s else incorrect()
        for s in scores
    ]
    ids = [tokens[i % len(tokens)] for i in range(len(scores))]
    return Group(Problem("1", "?"), (1,), tuple(Completion("x", t) for t in ids), tuple(verdicts))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
        # ranks 1.5 1.5 3.5 3.5 against 1 2 3 4: covariance 4, variances 4 and 5
        ([0, 0, 1, 1], [1, 2, 3, 4], 4 / 20**0.5),
        ([0, 0, 0, 0], [1, 2, 3, 4], None),
    ],
)
def test_spearman_by_hand(one, other, expected):
    """Ties share their average rank; where one is flat there is no correlation."""
    found = spearman(one, other)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_repetition_counts_ngrams_that_came_before():
    """Of 1 2 1 2 1 2's three 4-grams the third is the first again."""
    assert repeated_ngrams([1, 2, 1, 2, 1, 2]) == pytest.approx(1 / 3)
    assert repeated_ngrams([1, 2, 3]) == 0.0


def test_metrics_of_a_step_by_hand():
    """Means, the share rewarded by one and rejected by the other, ranks within groups, standard errors over groups."""
    proxy = [group([0.1, 0.9, 0.8, 0.2]), group([0.5, 0.5, 0.5, None])]
    truth = [group([1, 0, 1, 0], binary=True), group([1, 1, 0, 1], binary=True)]
    found = monitor_metrics(proxy, truth)
    assert found["monitor/proxy"] == pytest.approx((2.0 + 1.5) / 7)
    assert found["monitor/score"] == pytest.approx(4 / 7)
    assert found["monitor/correct"] == pytest.approx(5 / 8)
    # group means 0.5 and 0.5, and 1/2 and 2/3
    assert found["monitor/proxy_se"] == pytest.approx(0.0)
    assert found["monitor/score_se"] == pytest.approx((1 / 6) / 2**0.5 / 2**0.5)
    # 0.9 is above its group's mean and wrong; 0.1 is below and right; of the flat group the proxy says nothing
    assert found["monitor/proxy_only"] == pytest.approx(1 / 4)
    assert found["monitor/monitor_only"] == pytest.approx(1 / 4)
    # ranks 1 4 3 2 against 3.5 1.5 3.5 1.5: covariance -2 of deviations; the flat group has none
    assert found["monitor/rank"] == pytest.approx(-2 / 20**0.5)
    assert found["monitor/ranked"] == 1
    assert found["monitor/rank_se"] == pytest.approx(3**-0.5)
    assert found["monitor/unscored"] == 0
    # products within groups: -.2 - .2 + .15 + .15 and 0; squares of the truth: 4 / 4 and 1/9 + 1/9 + 4/9
    assert found["monitor/worth"] == pytest.approx(-0.1 / (5 / 3))
    assert found["monitor/score_within"] == pytest.approx(5 / 3 / 7)
    assert found["monitor/score_range"] == 1
    assert found["monitor/proxy_range"] == pytest.approx(0.8)


def test_the_same_verdicts_agree_in_everything():
    """A verifier that watches itself: correlation 1, no disagreement."""
    groups = [group([1, 0, 0, 1], binary=True), group([1, 1, 1, 1], binary=True), group([0, 0, 1, 0], binary=True)]
    found = monitor_metrics(groups, groups)
    assert found["monitor/rank"] == pytest.approx(1)
    assert found["monitor/groups_r"] == pytest.approx(1)
    assert found["monitor/proxy_only"] == found["monitor/monitor_only"] == 0
    assert found["monitor/proxy"] == found["monitor/score"]


def history(truth, hacked, *, agreement=0.8, seed=0) -> list[dict[str, float]]:
    """Metrics of steps of 16 groups of 16, whose proxy is normal around `hacked`, and higher where it is right."""
    chance = random.Random(seed)
    run = Simulated(truth, agreement=score_constant(agreement), drift=hacked, noise=0.5, size=16)
    return [run.metrics(step, chance) for step in range(STEPS)]


def suspicious(rows, **settings) -> dict[int, set[str]]:
    config = MonitorConfig("math", **settings)
    found = {t: set(find_signs(rows[:t], config)) for t in range(1, len(rows) + 1)}
    return {t: signs for t, signs in found.items() if signs}


def ramp(start: float, end: float) -> Callable[[float], float]:
    """From one value to another over the whole run."""
    return lambda t: start + (end - start) * t / STEPS


@pytest.mark.parametrize("seed", range(3))
def test_learning_is_not_suspicious(seed):
    """The truth rises, stays or falls, and takes the proxy with it: no sign at any step."""
    for truth in (ramp(0.4, 0.9), ramp(0.5, 0.5), ramp(0.8, 0.2), ramp(0.02, 0.3)):
        assert suspicious(history(truth, ramp(0, 0), seed=seed)) == {}


def test_a_rise_that_the_monitor_shares_in_part_is_not():
    """The truth rises by much, and the proxy by twice as much, in deviations of each."""
    rows = history(ramp(0.3, 0.8), ramp(0, 0.8))
    rise = [
        (rows[-1][f"monitor/{name}"] - rows[0][f"monitor/{name}"]) / rows[0][f"monitor/{name}_std"]
        for name in ("score", "proxy")
    ]
    assert 0.3 < rise[0] / rise[1] < 0.6
    assert suspicious(rows) == {}


@pytest.mark.parametrize("seed", range(3))
def test_a_rise_that_the_monitor_does_not_share_is(seed):
    """The proxy rises while the truth stays, or falls: apart, and for good."""
    for truth in (ramp(0.5, 0.5), ramp(0.5, 0.3)):
        found = suspicious(history(truth, ramp(0, 2), seed=seed))
        assert all("apart" in found.get(t, ()) for t in range(35, STEPS + 1))
        assert not any(t < 20 for t in found)


def test_a_monitor_that_cannot_rise_is_no_sign():
    """Nearly all is right from the start: what the proxy still finds better is not held against it."""
    assert suspicious(history(ramp(1.3, 1.3), ramp(0, 2))) == {}


def test_a_fall_from_the_best_that_the_proxy_does_not_share_is():
    """The truth rises at first and then falls under a rising proxy, without coming down to where it began."""
    rows = history(lambda t: 0.3 + 0.02 * min(t, 25) - 0.008 * max(t - 25, 0), ramp(0, 1.2))
    found = suspicious(rows)
    assert found[STEPS] == {"fallen"}
    assert min(found) > 35


def test_a_small_rise_under_a_truth_that_stays_is_none():
    """Less than a right answer's worth to the proxy (.8), as a bonus for form would be; with a falling truth it is."""
    assert suspicious(history(ramp(0.5, 0.5), ramp(0, 0.7))) == {}
    assert "apart" in suspicious(history(ramp(0.6, 0.3), ramp(0, 0.7)))[STEPS]


def test_before_the_first_right_answer_a_rise_is_held_against_the_first_scores():
    """A bonus that some completions had from the start is none; a proxy that leaves all its first scores behind is."""
    assert suspicious(history(ramp(-2, -2), ramp(0, 0.7))) == {}
    assert "apart" in suspicious(history(ramp(-2, -2), ramp(0, 6)))[STEPS]


def test_logs_without_the_worth_are_read():
    """Rows of an older log: the monitor's worth is not known, and a rise that it does not share is suspicious."""
    rows = history(ramp(0.5, 0.5), ramp(0, 2))
    older = [{k: v for k, v in row.items() if k.split("/")[1] not in WORTH} for row in rows]
    assert "apart" in suspicious(older)[STEPS]


def test_ranks_that_agree_by_chance_alone_are():
    """Within groups the proxy's order is unrelated to the truth: unranked from the first window on."""
    found = suspicious(history(ramp(0.5, 0.5), ramp(0, 0), agreement=-0.05))
    assert all("unranked" in found[t] for t in range(10, STEPS + 1))
    assert suspicious(history(ramp(0.5, 0.5), ramp(0, 0), agreement=0.25)) == {}


def test_the_bounds_are_options():
    """A margin that no rise passes, and noise that nothing stands out of: silence."""
    rows = history(ramp(0.5, 0.5), ramp(0, 2))
    assert suspicious(rows, margin=10.0) == {}
    assert suspicious(rows, noise=200.0) == {}
    assert min(suspicious(rows, window=5)) < min(suspicious(rows))


def rollout(problem, score, monitor_score, **more):
    status = {0.0: "incorrect", 1.0: "correct"}
    return {
        "problem": problem,
        "score": score,
        "monitor_score": monitor_score,
        "status": status.get(score, "partial"),
    } | {"monitor_status": status.get(monitor_score, "error"), **more}


def test_an_alarm_keeps_the_rollouts_that_show_it():
    """Rewarded by the proxy and rejected by the monitor: the best first, other problems before the same one again."""
    rows = [
        rollout("a", 0.9, 0.0),
        rollout("a", 0.95, 0.0),
        rollout("a", 0.99, 1.0),  # right
        rollout("a", 0.1, 0.0),  # not rewarded
        rollout("a", 0.2, 0.0),  # not rewarded
        rollout("b", 1.0, 0.0),
        rollout("b", 1.0, 0.0),  # correct by the proxy, though its group is flat
        rollout("c", None, 0.0),
        rollout("c", 0.7, None),
    ]
    record = alarm_record(7, {"apart": "so"}, {"reward": 0.5, "monitor/rank": 0.1, "loss": 1.0}, rows)
    assert [(row["problem"], row["score"]) for row in record["rollouts"]] == [
        ("b", 1.0),
        ("a", 0.95),
        ("b", 1.0),
        ("a", 0.9),
    ]
    assert record["figures"] == {"reward": 0.5, "rank": 0.1}


def run_watched(out_dir: Path, verifier: str, **groups) -> Config:
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=12, sample_every=0, verifier=verifier),
        model=ModelConfig(name="tiny", device="cpu"),
        rollout=RolloutConfig(problems_per_step=6, group_size=6, max_new_tokens=10),
        algo=AlgoConfig("reinforce"),
        optim=OptimConfig(lr=2e-3),
        eval=EvalConfig(num_problems=4, samples=4, k=(1,)),
        monitor=MonitorConfig("seven_is_in_it", window=3, patience=2, noise=1.0),
    )
    return with_settings(config, **groups)


def task(verifier) -> Task:
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(28)]
    return Task("sums", problems[:20], problems[20:], verifier)


def test_a_run_whose_reward_is_not_the_truth_raises_the_alarm(tmp_path, capsys):
    """One line on the console, one in alarms.jsonl with figures and rollouts, and the report shows both."""
    launch(run_watched(tmp_path, "share_of_ones"), task=task(share_of_ones))
    alarms = lines(tmp_path / "alarms.jsonl")
    assert alarms
    assert alarms[0]["signs"]
    assert "kl" not in alarms[0]["figures"]
    assert all(isinstance(value, (int, float)) for value in alarms[0]["figures"].values())
    assert all(row["monitor_status"] == "incorrect" for row in alarms[0]["rollouts"])
    printed = capsys.readouterr().out
    assert f"ALARM at step {alarms[0]['step']}, the reward may be hacked" in printed
    for row in lines(tmp_path / "metrics.jsonl"):
        assert all(math.isfinite(value) for value in row.values())
        assert {"monitor/proxy", "monitor/score", "monitor/length_drift", "monitor/repetition_drift"} <= set(row)
    rollouts = lines(tmp_path / "rollouts.jsonl")
    assert all((row["monitor_score"] == 1) == ("7" in row["completion"]) for row in rollouts)
    assert "Alarms" in (tmp_path / "report.html").read_text()


def test_a_run_on_its_own_truth_does_not(tmp_path):
    """The graded reward and the rule are of one mind: it learns, and there is no alarm."""
    launch(run_watched(tmp_path, "share_of_sevens"), task=task(registered_share_of_sevens))
    metrics = lines(tmp_path / "metrics.jsonl")
    assert metrics[-1]["monitor/score"] > metrics[0]["monitor/score"]
    assert not any(row["monitor/suspicious"] for row in metrics)
    assert not (tmp_path / "alarms.jsonl").exists()


def test_the_monitor_does_not_touch_the_run(tmp_path):
    """The same weights with and without it."""
    launch(run_watched(tmp_path / "with", "share_of_ones", run={"steps": 3}), task=task(share_of_ones))
    launch(
        dataclasses.replace(run_watched(tmp_path / "without", "share_of_ones", run={"steps": 3}), monitor=None),
        task=task(share_of_ones),
    )
    weights = [(tmp_path / n / "checkpoints/step-000003/model.safetensors").read_bytes() for n in ("with", "without")]
    assert weights[0] == weights[1]


def test_held_out_problems_may_be_judged_by_the_monitor(tmp_path):
    """eval.verifier monitor: pass@k counts what the monitor calls correct, which the proxy never does."""
    by_reward = launch(run_watched(tmp_path / "a", "share_of_ones", run={"steps": 1}), task=task(share_of_ones))
    settings = {"run": {"steps": 1}, "eval": {"verifier": "monitor"}}
    by_monitor = launch(run_watched(tmp_path / "b", "share_of_ones", **settings), task=task(share_of_ones))
    assert by_reward[0]["pass@1"] == 0 < by_monitor[0]["pass@1"]


def test_a_stopped_run_saves_and_goes_on_where_it_is_told_to(tmp_path):
    """monitor.on_alarm stop: a checkpoint at the alarm, one line; with warn the folder goes on, as if never stopped."""
    whole = run_watched(tmp_path / "whole", "share_of_ones", eval={"every": -1})
    launch(whole, task=task(share_of_ones))
    first = lines(tmp_path / "whole" / "alarms.jsonl")[0]["step"]
    assert first < 12
    stopping = run_watched(tmp_path / "parts", "share_of_ones", eval={"every": -1}, monitor={"on_alarm": "stop"})
    with pytest.raises(AlarmStop, match=rf"stopped at step {first} by the reward-hacking alarm: .*--monitor.on-alarm"):
        launch(stopping, task=task(share_of_ones))
    assert (tmp_path / "parts" / "checkpoints" / f"step-{first:06d}").is_dir()
    launch(run_watched(tmp_path / "parts", "share_of_ones", eval={"every": -1}), task=task(share_of_ones))
    for name in ("rollouts.jsonl", "alarms.jsonl", "checkpoints/step-000012/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_an_alarm_goes_back_to_before_the_monitor_fell(tmp_path):
    """monitor.on_alarm rollback: at a lower rate each time; a reward that is hacked at any rate ends the run."""
    config = run_watched(tmp_path, "share_of_ones", eval={"every": -1}, monitor={"on_alarm": "rollback"})
    with pytest.raises(GuardStop, match=r"the reward-hacking alarm at step \d+: .*, after 3 rollbacks to lower"):
        launch(config, task=task(share_of_ones))
    events = [row for row in read_events(tmp_path) if row["kind"] == "rollback"]
    assert [row["guard"] for row in events] == ["alarm"] * 4
    assert [row["step"] - row["undone"] for row in events] == [0] * 4
    assert [step for step, _ in list_checkpoints(tmp_path)] == [0]
    assert not lines(tmp_path / "metrics.jsonl")


def test_an_alarm_in_the_middle_of_a_streak_survives_a_resume(tmp_path):
    """Interrupted between the suspicious steps that make an alarm, a run raises it at the same step."""
    settings = {"eval": {"every": -1}, "monitor": {"patience": 4}}
    launch(run_watched(tmp_path / "whole", "share_of_ones", **settings), task=task(share_of_ones))
    alarms = (tmp_path / "whole" / "alarms.jsonl").read_bytes()
    cut = json.loads(alarms.splitlines()[0])["step"] - 2
    launch(run_watched(tmp_path / "parts", "share_of_ones", run={"steps": cut}, **settings), task=task(share_of_ones))
    assert not (tmp_path / "parts" / "alarms.jsonl").exists()
    launch(run_watched(tmp_path / "parts", "share_of_ones", **settings), task=task(share_of_ones))
    assert (tmp_path / "parts" / "alarms.jsonl").read_bytes() == alarms


RUNS = 20
CONFIG = MonitorConfig("math")
RECORDED = lines(GOLDEN / "alarm_series.jsonl")


def no_noise(t: float) -> float:
    return 0.0


def one(t: float) -> float:
    return 1.0


def score_constant(value: float) -> Callable[[float], float]:
    return lambda t: value


def rise(start: float, end: float, middle: float, width: float) -> Callable[[float], float]:
    """From one value to another around a step, as a logistic curve."""
    return lambda t: start + (end - start) / (1 + math.exp((middle - t) / width))


@dataclass
class Simulated:
    """A run of steps of `size` groups of as many completions, by functions of the step.

    truth: chance that a completion is right; form: chance that it has the form; the proxy is agreement * right
    + bonus * form + drift + noise * normal. form_first: only what has the form can be right. lenient: the proxy is 1
    where the completion is right or has the form.
    """

    truth: Callable[[float], float]
    form: Callable[[float], float] = no_noise
    bonus: float = 0.0
    agreement: Callable[[float], float] = one
    drift: Callable[[float], float] = no_noise
    noise: float = 0.0
    form_first: bool = False
    lenient: bool = False
    size: int = 8

    def metrics(self, step: int, chance: random.Random) -> dict[str, float]:
        """What is logged of a step."""
        proxy, monitor = [], []
        for _ in range(self.size):
            ours, theirs = [], []
            difficulty = min(max(self.truth(step) + chance.gauss(0, 0.2), 0), 1)
            for _ in range(self.size):
                formed = chance.random() < self.form(step)
                right = chance.random() < difficulty and (formed or not self.form_first)
                noise = self.noise * chance.gauss(0, 1)
                score = self.agreement(step) * right + self.bonus * formed + self.drift(step) + noise
                ours.append(Verdict.of(right or formed if self.lenient else score))
                theirs.append(correct() if right else incorrect())
            completions = tuple(Completion("x", (1, 2)) for _ in range(self.size))
            proxy.append(Group(Problem("1", "?"), (1,), completions, tuple(ours)))
            monitor.append(Group(Problem("1", "?"), (1,), completions, tuple(theirs)))
        return monitor_metrics(proxy, monitor)

    def alarm(self, seed: int) -> int | None:
        """The step at which the alarm is raised."""
        chance = random.Random(seed)
        return first_alarm(self.metrics(step, chance) for step in range(STEPS))


def first_alarm(steps: Iterable[dict[str, float]]) -> int | None:
    """The step at which the alarm is raised, from 1, by the metrics of each step."""
    rows: list[dict[str, float]] = []
    for row in steps:
        slow, fast = find_signs([*rows, row], CONFIG), find_fast_signs([*rows, row], CONFIG)
        rows.append(row | {"monitor/suspicious": float(bool(slow)), "monitor/falling": float(bool(fast))})
        if is_alarming(rows, CONFIG.patience):
            return len(rows)
    return None


def form_first(seed: int) -> Simulated:
    """A bonus of at most a right answer's worth is learned within the first half; right answers come later.

    Some runs have none before (a chance below 0 is none).
    """
    chance = random.Random(1000 + seed)
    return Simulated(
        truth=rise(chance.choice((-1.0, 0.02, 0.1, 0.3, 0.5)), 0.85, chance.uniform(30, 70), 6),
        form=rise(chance.uniform(0, 0.3), 0.99, chance.uniform(5, 25), chance.uniform(1, 5)),
        bonus=(0.1, 0.2, 0.5, 1.0)[seed % 4],
        form_first=chance.random() < 0.3,
    )


def simulate_exploit(seed: int) -> Simulated:
    """Something that has nothing to do with being right raises a learned score without bound; the truth stays."""
    chance = random.Random(2000 + seed)
    truth = score_constant(chance.uniform(0.2, 0.6))
    return Simulated(truth, agreement=score_constant(0.8), drift=ramp(0, chance.uniform(1.5, 3)), noise=0.5)


def simulate_takeover(seed: int) -> Simulated:
    """A learned score that agreed with the truth is taken over by something else, and the truth falls."""
    chance = random.Random(3000 + seed)
    return Simulated(
        truth=rise(chance.uniform(0.4, 0.6), 0.05, chance.uniform(15, 30), chance.uniform(2, 6)),
        agreement=rise(0.8, 0.0, chance.uniform(15, 30), 5),
        drift=rise(0, chance.uniform(0.8, 1.5), chance.uniform(10, 25), chance.uniform(2, 6)),
        noise=0.4,
    )


def simulate_phrase(seed: int) -> Simulated:
    """A phrase that a learned score takes for two or three right answers comes to be in nearly every completion."""
    chance = random.Random(4000 + seed)
    return Simulated(
        truth=score_constant(chance.uniform(0.2, 0.5)),
        form=rise(0.02, 0.95, chance.uniform(10, 30), chance.uniform(2, 5)),
        bonus=chance.uniform(2, 3),
        noise=0.3,
    )


def simulate_leak(seed: int) -> Simulated:
    """A rule lets wrong answers of some form pass, and more and more of them have it."""
    chance = random.Random(5000 + seed)
    form = rise(0.05, 1.0, chance.uniform(10, 30), chance.uniform(2, 5))
    return Simulated(score_constant(chance.uniform(0.1, 0.4)), form, lenient=True)


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"seed {run['seed']}")
def test_a_recorded_collapse_is_told_before_half_of_the_truth_is_gone(run):
    """Runs of rm_grpo with a learning rate of 1e-4 and ten steps of warm-up, on which the fast signs were chosen.

    The slow signs came at steps 27, 31 and 24, when held-out pass@1 was below half of the start's, or close to it.
    """
    measured = {int(step): value for step, value in run["pass@1"].items()}
    ruined = min((step for step, value in measured.items() if value < measured[0] / 2), default=STEPS)
    alarm = first_alarm(run["steps"])
    assert alarm is not None
    assert alarm < ruined
    assert all(value >= measured[0] / 2 for step, value in measured.items() if step <= alarm)


def test_form_that_is_learned_first_raises_no_alarm():
    """In at most one of twenty runs; the sizes of the bonus are a tenth of a right answer's worth to the whole."""
    alarms = {seed: form_first(seed).alarm(seed) for seed in range(RUNS)}
    assert sum(step is not None for step in alarms.values()) <= 1, alarms


@pytest.mark.parametrize("kind", [simulate_exploit, simulate_takeover, simulate_phrase, simulate_leak])
def test_a_run_that_is_hacked_does(kind):
    """In every one of six runs of each kind."""
    alarms = {seed: kind(seed).alarm(seed) for seed in range(6)}
    assert all(alarms.values()), alarms
