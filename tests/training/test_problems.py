"""Problems by pass rates: posteriors, draws, profiles, resumes; the same for mixtures of packs."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rlvr.commands.cli import main as cli
from rlvr.config import Config, CurriculumConfig, RolloutConfig, RunConfig
from rlvr.core.types import PACK, Completion, Group, Problem, Task, Verdict, correct, error, incorrect
from rlvr.launch import launch
from rlvr.tasks.base import seal_task
from rlvr.training.problems.draws import STATE, Draws, further_mixed, mixed_items
from rlvr.training.problems.pass_rates import PassRates, choose_problems, read_profile
from tests.helpers.files import lines
from tests.helpers.resuming import small
from tests.helpers.verifiers import PROBLEMS, has_seven

POOL = PROBLEMS[:20]
SIGNAL = CurriculumConfig(draw="signal")


def group(problem: Problem, *verdicts: Verdict) -> Group:
    completions = tuple(Completion("x", (1,), (0.0,)) for _ in verdicts)
    return Group(problem, (1,), completions, verdicts)


def outcome(problem: Problem, right: int, wrong: int) -> Group:
    return group(problem, *[correct()] * right, *[incorrect("")] * wrong)


def draws(curriculum: CurriculumConfig = SIGNAL, *, count=4, problems=POOL, seed=0, group_size=8, shares=None) -> Draws:
    rollout = RolloutConfig(problems_per_step=count, group_size=group_size)
    return Draws(Config(run=RunConfig(seed=seed), rollout=rollout, curriculum=curriculum), problems, shares)


def write_profile(path: Path, task: Task, rates: dict[str, float], samples: int = 8) -> Path:
    rows = [
        {
            "id": name,
            "samples": samples,
            "correct": round(rate * samples),
            "score": rate,
            "fingerprint": task.fingerprint,
        }
        for name, rate in rates.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sums() -> Task:
    return seal_task(Task("sums", POOL, PROBLEMS[20:28], has_seven))


@pytest.mark.parametrize("right,wrong,size", [(0, 0, 2), (0, 0, 16), (3, 5, 4), (8, 0, 8), (0, 4, 3), (40, 2, 16)])
def test_the_predicted_signal_is_the_posterior_s(right, wrong, size):
    """1 - E[p^n] - E[(1-p)^n] and E[p(1-p)] under Beta(1 + right, 1 + wrong), by exact binomial integrals."""

    def moment(i: int, j: int) -> Fraction:
        """The integral of p^(right+i) (1-p)^(wrong+j), by that of p^right (1-p)^wrong."""
        a, b = right + 1, wrong + 1
        top = math.factorial(a + i - 1) * math.factorial(b + j - 1) * math.factorial(a + b - 1)
        return Fraction(top, math.factorial(a + b + i + j - 1) * math.factorial(a - 1) * math.factorial(b - 1))

    rates = PassRates(POOL, {"3": (right, wrong)}, 50)
    assert rates.signal([POOL[3]], size)[0] == pytest.approx(float(1 - moment(size, 0) - moment(0, size)), abs=1e-12)
    assert rates.variances()[3] == pytest.approx(float(moment(1, 1)), abs=1e-12)


def test_outcomes_count_half_after_the_half_life():
    """Of 8 right outcomes 4 are left after as many steps as the half-life; what is nearly nothing becomes nothing."""
    rates = PassRates(POOL, {}, half_life=5)
    rates.observe([outcome(POOL[0], 8, 0)])
    for _ in range(5):
        rates.observe([])
    assert rates.added[:, 0] == pytest.approx([4.0, 0.0])
    for _ in range(200):
        rates.observe([])
    assert not rates.added.any()
    assert rates.state() == []


def test_partial_scores_count_by_their_mean_and_errors_not_at_all():
    """p of graded outcomes is their mean; a verdict without a score is no outcome."""
    rates = PassRates(POOL, {}, 50)
    graded = [Verdict("partial", 0.25), Verdict("partial", 0.5), correct(), error("down")]
    rates.observe([group(POOL[2], *graded)])
    assert rates.added[:, 2] == pytest.approx([1.75, 1.25])


@pytest.mark.parametrize("score", [-0.5, 1.5, 200.0])
def test_scores_that_are_no_pass_rates_are_refused(score):
    """A learned reward has no bounds: the line names the problem, the score and what to leave out."""
    with pytest.raises(ValueError, match=r"problem '1' has a score of .*need scores from 0 to 1"):
        PassRates(POOL, {}, 50).observe([group(POOL[1], Verdict("partial", score))])


def test_draws_are_by_expected_p_times_1_minus_p():
    """The first problem of many steps: as often as its probability, and the floor for those that teach nothing."""
    drawn = draws(CurriculumConfig(draw="signal", floor=0.2), count=1, problems=POOL[:5])
    drawn.rates.restore([[0, 1000.0, 0.0], [1, 0.0, 1000.0], [2, 500.0, 500.0], [3, 100.0, 900.0]])
    weights = [0.0, 0.0, 0.25, 0.09, 1 / 6]  # up to the prior
    expected = [0.8 * w / sum(weights) + 0.04 for w in weights]
    assert drawn.probabilities() == pytest.approx(expected, abs=3e-3)
    counts = Counter(drawn.of_step(step)[0].id for step in range(4000))
    for problem, probability in zip(POOL, drawn.probabilities()):
        assert abs(counts[problem.id] / 4000 - probability) < 4.5 * math.sqrt(probability / 4000)


def test_without_a_floor_a_solved_problem_is_rare_but_possible():
    """The prior alone leaves something of a problem that was always right; the floor's share is exact."""
    drawn = draws(CurriculumConfig(draw="signal", floor=1.0))
    drawn.rates.restore([[0, 1e6, 0.0]])
    assert drawn.probabilities() == pytest.approx([1 / 20] * 20)
    none = draws(CurriculumConfig(draw="signal", floor=0.0))
    none.rates.restore([[0, 1e6, 0.0]])
    assert 0 < none.probabilities()[0] < 1e-6


def test_a_step_has_no_problem_twice_unless_there_are_too_few():
    """Without replacement within a step and in rounds of dynamic sampling; more than there are repeat in turn."""
    drawn = draws(count=16)
    for step in range(50):
        ids = [p.id for p in drawn.of_step(step)]
        assert len(set(ids)) == 16
        assert len(more := {p.id for p in drawn.further(step, 0, set(ids))}) == 4
        assert not more & set(ids)
    assert drawn.further(0, 1, {p.id for p in POOL}) == []
    counts = Counter(p.id for p in draws(count=50).of_step(3))
    assert sorted(set(counts.values())) == [2, 3]
    assert len(draws(count=7, problems=[POOL[0], POOL[0]]).of_step(0)) == 7


def test_draws_are_a_function_of_seed_step_and_outcomes():
    """In any order, from a state that went through JSON; another seed, step or outcome draws others."""

    def after(outcomes, seed=0) -> Draws:
        made = draws(seed=seed)
        for groups in outcomes:
            made.observe(groups)
        return made

    seen = [[outcome(POOL[i], 8, 0), outcome(POOL[i + 1], 3, 5)] for i in range(0, 18, 2)]
    one, other = after(seen), after(seen)
    ahead = [[p.id for p in one.of_step(step)] for step in range(6)]
    assert [[p.id for p in other.of_step(step)] for step in reversed(range(6))] == ahead[::-1]
    assert [[p.id for p in after(seen, seed=1).of_step(step)] for step in range(6)] != ahead
    assert [[p.id for p in after([]).of_step(step)] for step in range(6)] != ahead


def test_a_state_is_taken_up_to_the_last_bit(tmp_path):
    """Outcomes with fractions, and what was predicted of steps that are sampled ahead."""
    made = draws()
    for i in range(15):
        made.observe([group(POOL[i], Verdict("partial", 0.1 * (i % 10)), correct())])
    made.of_step(15)
    (tmp_path / STATE).write_text(made.state())
    again = draws()
    again.restore(tmp_path)
    assert np.array_equal(again.rates.added, made.rates.added)
    assert again.state() == made.state()
    groups = [outcome(POOL[0], 1, 1), outcome(POOL[1], 2, 0)]
    described = again.describe(15, groups)
    assert described == made.describe(15, groups)
    assert described["signal/seen"] == 0.5


def test_epochs_keep_no_rates_without_a_profile():
    """The default logs and saves nothing of it."""
    made = draws(CurriculumConfig())
    made.observe([outcome(POOL[0], 1, 1)])
    assert made.describe(0, []) == {}
    assert made.state() is None


def test_predictions_are_calibrated():
    """Pass rates drawn from the prior, outcomes from them: predicted and seen shares agree over many steps."""
    rng = np.random.default_rng(0)
    problems = [Problem(str(i), f"{i}") for i in range(200)]
    truth = dict(zip((p.id for p in problems), rng.random(200)))
    made = draws(CurriculumConfig(draw="signal", half_life=1e9), count=16, problems=problems, group_size=4)
    shares = []
    for step in range(150):
        groups = [outcome(p, right := int(rng.binomial(4, truth[p.id])), 4 - right) for p in made.of_step(step)]
        shares.append(made.describe(step, groups))
        made.observe(groups)
    predicted, seen = (sum(s[name] for s in shares) / len(shares) for name in ("signal/predicted", "signal/seen"))
    assert abs(predicted - seen) < 0.03
    rates = np.array(list(truth.values()))
    signal = 1 - rates**4 - (1 - rates) ** 4
    ideal = float((signal * rates * (1 - rates)).sum() / (rates * (1 - rates)).sum())
    late = sum(s["signal/seen"] for s in shares[-50:]) / 50
    assert late > (signal.mean() + ideal) / 2


def test_a_range_of_pass_rates_filters(tmp_path):
    """Both ends are in; what is not in the profile is left out and told; the fingerprint follows the profile."""
    task = sums()
    rates = {"0": 0.0, "1": 0.1, "2": 0.5, "3": 0.9, "4": 1.0, "other": 0.5}
    profile = write_profile(tmp_path / "profile.jsonl", task, rates)
    kept, told = choose_problems(task, CurriculumConfig(profile, (0.1, 0.9)))
    assert [p.id for p in kept.train] == ["1", "2", "3"]
    assert kept.test == task.test
    assert told == (
        "pass rates from 0.1 to 0.9: 3 of 20 problems are trained on (1 below, 1 above; 15 of 20 problems are not in "
        "the profile, and left out)"
    )
    whole, said = choose_problems(task, CurriculumConfig(profile))
    assert list(whole.train) == list(task.train)
    assert said.startswith("15 of 20 problems are not in the profile")
    assert whole.fingerprint != task.fingerprint
    write_profile(profile, task, {**rates, "2": 0.625})
    assert choose_problems(task, CurriculumConfig(profile))[0].fingerprint != whole.fingerprint
    assert choose_problems(task, CurriculumConfig()) == (task, "")


def test_a_profile_that_does_not_fit_is_refused(tmp_path):
    """Of another task, of problems that are not trained on, and a range that leaves nothing."""
    task = sums()
    other = write_profile(tmp_path / "other.jsonl", dataclasses.replace(task, fingerprint="f" * 16), {"0": 0.5})
    with pytest.raises(ValueError, match="a profile of other problems"):
        choose_problems(task, CurriculumConfig(other))
    held_out = write_profile(tmp_path / "held_out.jsonl", task, {"20": 0.5})
    with pytest.raises(ValueError, match="profile the split train"):
        choose_problems(task, CurriculumConfig(held_out))
    flat = write_profile(tmp_path / "flat.jsonl", task, {"0": 0.0, "1": 1.0})
    with pytest.raises(ValueError, match=r"0 of 20 problems .*widen --curriculum.pass-rate"):
        choose_problems(task, CurriculumConfig(flat, (0.2, 0.8)))


@pytest.mark.parametrize(
    "change,words",
    [
        ({"id": 3}, "line 2: no id"),
        ({"fingerprint": None}, "line 2: no id or no fingerprint"),
        ({"fingerprint": "g"}, "line 2: of another task"),
        ({"samples": 0}, "line 2: samples 0"),
        ({"samples": True}, "line 2: samples True"),
        ({"score": -0.1}, "line 2: score -0.1"),
        ({"score": None}, "line 2: score None"),
        ({"id": "a"}, "line 2: problem 'a' is there twice"),
    ],
)
def test_a_damaged_profile_is_named_by_line(tmp_path, change, words):
    row = {"id": "a", "samples": 2, "correct": 1, "score": 0.5, "fingerprint": "f"}
    path = tmp_path / "profile.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "id": "b", **change}) + "\n")
    with pytest.raises(ValueError, match=words):
        read_profile(path)


def test_the_profile_command_writes_what_a_run_reads(tmp_path, capsys):
    """Profile, then train on what is left of it, in two commands; with the share predicted beside the seen one."""
    pack = ["num_train=12", "num_test=4", "num_demonstrations=8"]
    verifier = ["regex", "pattern=7", "match=search"]
    out = ["--out-dir", str(tmp_path / "profile"), "--model", "tiny", "--device", "cpu", "--max-new-tokens", "12"]
    flags = ["--task-option", *pack, "--verifier", verifier[0], "--verifier-option", *verifier[1:], "--samples", "8"]
    assert cli(["profile", "arithmetic", *out, *flags]) == 0
    rows = lines(tmp_path / "profile" / "profile.jsonl")
    assert [row["score"] for row in rows] == [row["correct"] / row["samples"] for row in rows]
    config = small(tmp_path / "run", steps=2)
    curriculum = CurriculumConfig(tmp_path / "profile" / "profile.jsonl", (0.1, 0.9))
    run = dataclasses.replace(config.run, task_option=tuple(pack), verifier_option=tuple(verifier[1:]))
    capsys.readouterr()
    launch(dataclasses.replace(config, run=run, curriculum=curriculum))
    kept = {row["id"] for row in rows if 0.1 <= row["score"] <= 0.9}
    assert f"{len(kept)} of 12 problems are trained on" in " ".join(capsys.readouterr().out.split())
    rollouts = lines(tmp_path / "run" / "rollouts.jsonl")
    assert {row["problem"] for row in rollouts} <= kept
    for row in lines(tmp_path / "run" / "metrics.jsonl"):
        groups: dict[str, set[float]] = {}
        for rollout in rollouts:
            if rollout["step"] == row["step"]:
                groups.setdefault(rollout["problem"], set()).add(rollout["reward"])
        assert 0 < row["signal/predicted"] <= 1
        assert row["signal/seen"] == sum(len(rewards) > 1 for rewards in groups.values()) / len(groups)


def test_a_run_is_not_resumed_with_another_curriculum(tmp_path, capsys):
    """Another floor, and another way to draw, are refused in one line; a floor that nothing reads is not compared."""
    flags = "train tiny_math --run.steps 1 --sft.steps 2 --eval.every -1 --model.device cpu".split()
    flags += ["--rollout.problems-per-step", "2", "--rollout.group-size", "2", "--run.out-dir", str(tmp_path / "run")]
    flags += ["--run.task-option", "num_train=8", "num_test=2", "num_demonstrations=8"]
    assert cli([*flags, "--curriculum.draw", "signal"]) == 0
    capsys.readouterr()
    assert cli([*flags, "--curriculum.draw", "signal", "--curriculum.floor", ".5"]) == 2
    assert "curriculum.floor is 0.1 there and 0.5 here" in capsys.readouterr().err
    assert cli(flags) == 2
    assert "curriculum.draw is 'signal' there and 'epochs' here" in capsys.readouterr().err


SHARES = {"few": 0.5, "many": 0.3, "hard": 0.2}
SIZES = {"few": 4, "many": 25, "hard": 9}
MIXED_POOL = [
    Problem(f"{pack}/{i}", f"{pack} {i}?", "1", {PACK: pack}) for i in range(25) for pack in SIZES if i < SIZES[pack]
]
PACKS = np.array([problem.info[PACK] for problem in MIXED_POOL])


draws_of_packs = partial(draws, count=8, problems=MIXED_POOL, seed=5, group_size=4, shares=SHARES)


def by_signal(floor: float = 0.1, **settings) -> Draws:
    """Draws after outcomes of every kind: right, wrong, and between, in each pack."""
    made = draws_of_packs(CurriculumConfig(draw="signal", floor=floor), **settings)
    made.observe([outcome(problem, right := i % 7, 6 - right) for i, problem in enumerate(MIXED_POOL)])
    made.observe([outcome(problem, 0, 6) for problem in MIXED_POOL if problem.info[PACK] == "hard"])
    return made


def of_packs(values: np.ndarray) -> dict[str, float]:
    return {pack: float(values[pack == PACKS].sum()) for pack in SHARES}


@pytest.mark.parametrize("floor", [0.0, 0.1, 1.0])
def test_each_pack_has_its_share_of_the_probability(floor: float) -> None:
    """Whatever its size and its outcomes; within it problems count by their p(1-p), and by the floor."""
    made = by_signal(floor)
    found = made.probabilities()
    assert of_packs(found) == pytest.approx(SHARES, rel=1e-12)
    variances = made.rates.variances()
    for pack, share in SHARES.items():
        own = variances[pack == PACKS]
        expected = [share * ((1 - floor) * v / math.fsum(own) + floor / len(own)) for v in own]
        assert found[pack == PACKS] == pytest.approx(expected, rel=1e-12)
    assert len(set(variances)) > 5


@pytest.mark.parametrize("pack", SHARES)
def test_outcomes_of_one_pack_leave_the_others_alone(pack: str) -> None:
    """A pack whose problems were all solved keeps its share, and the problems of others their probability."""
    one, other = by_signal(), by_signal()
    for _ in range(20):
        other.observe([outcome(problem, 4, 0) for problem in MIXED_POOL if problem.info[PACK] == pack][:-1])
        one.observe([])
    before, after = one.probabilities(), other.probabilities()
    assert after[pack != PACKS] == pytest.approx(before[pack != PACKS], rel=1e-9)
    assert not np.allclose(after[pack == PACKS], before[pack == PACKS])
    assert of_packs(after) == pytest.approx(SHARES)


def test_draws_have_the_shares() -> None:
    """The first problem of many steps is of each pack as often as its share says, and each by its probability."""
    made = by_signal(count=1)
    drawn = Counter(made.of_step(step)[0].id for step in range(3000))
    probabilities = dict(zip((problem.id for problem in MIXED_POOL), made.probabilities()))
    for pack, share in SHARES.items():
        count = sum(number for name, number in drawn.items() if name.startswith(pack))
        assert abs(count / 3000 - share) < 4.5 * math.sqrt(share / 3000)
    for name, probability in probabilities.items():
        assert abs(drawn[name] / 3000 - probability) < 4.5 * math.sqrt(probability / 3000)


def test_a_pack_without_problems_leaves_its_share_to_the_others() -> None:
    """As where a profile's range leaves none of it; what is left keeps its proportions."""
    kept = [problem for problem in MIXED_POOL if problem.info[PACK] != "few"]
    found = draws_of_packs(CurriculumConfig(draw="signal"), problems=kept).probabilities()
    packs = np.array([problem.info[PACK] for problem in kept])
    assert found[packs == "many"].sum() == pytest.approx(0.6)
    assert found[packs == "hard"].sum() == pytest.approx(0.4)


def test_rounds_of_dynamic_sampling_by_signal() -> None:
    """Without what is used; packs with nothing left give nothing; by the shares of the others."""
    made = by_signal(count=3)
    used = {problem.id for problem in MIXED_POOL if problem.info[PACK] == "few"}
    counts: Counter[str] = Counter()
    for step in range(800):
        further = made.further(step, 0, used)
        assert len({problem.id for problem in further} - used) == 3
        counts[further[0].info[PACK]] += 1
    assert set(counts) == {"many", "hard"}
    assert abs(counts["many"] / 800 - 0.6) < 4.5 * math.sqrt(0.6 / 800)
    assert len(made.further(0, 1, {problem.id for problem in MIXED_POOL[2:]})) == 2


def test_epochs_with_a_profile_keep_the_shares(tmp_path: Path) -> None:
    """Pass rates that are tracked, not drawn by, change nothing: draws and further ones are those of the mixture."""
    profile = tmp_path / "profile.jsonl"
    row = {"samples": 8, "correct": 2, "score": 0.25, "fingerprint": "f"}
    profile.write_text("".join(json.dumps({"id": problem.id, **row}) + "\n" for problem in MIXED_POOL))
    made = draws_of_packs(CurriculumConfig(profile))
    for step in range(4):
        drawn = made.of_step(step)
        assert drawn == mixed_items(MIXED_POOL, SHARES, 8, seed=5, step=step)
        used = {problem.id for problem in drawn}
        further = made.further(step, 1, used)
        assert further == further_mixed(MIXED_POOL, SHARES, 8, seed=5, step=step, round_number=1, used=used)
        assert not used & {problem.id for problem in further}
        # What was predicted is of both.
        assert made.describe(step, [outcome(drawn[0], 2, 2)])["signal/predicted"] > 0
        made.observe([outcome(problem, 4, 0) for problem in drawn])
