"""The curriculum within the shares of a mixture: only the problems of one pack compete; killed and resumed."""

from __future__ import annotations

import json
import math
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rlvr.config import Config, CurriculumConfig, RolloutConfig, RunConfig
from rlvr.core.types import PACK, Completion, Group, Problem, correct, incorrect
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.problems.draws import STATE, Draws, further_mixed, mixed_items
from tests.helpers import warm
from tests.helpers.files import lines
from tests.helpers.resuming import check_same, results

SHARES = {"few": 0.5, "many": 0.3, "hard": 0.2}
SIZES = {"few": 4, "many": 25, "hard": 9}
POOL = [
    Problem(f"{pack}/{i}", f"{pack} {i}?", "1", {PACK: pack}) for i in range(25) for pack in SIZES if i < SIZES[pack]
]
PACKS = np.array([problem.info[PACK] for problem in POOL])


def outcome(problem: Problem, right: int, wrong: int) -> Group:
    verdicts = (*[correct()] * right, *[incorrect("")] * wrong)
    return Group(problem, (1,), tuple(Completion("x", (1,), (0.0,)) for _ in verdicts), verdicts)


def draws(curriculum: CurriculumConfig, count: int = 8, problems=POOL, shares=SHARES) -> Draws:
    rollout = RolloutConfig(problems_per_step=count, group_size=4)
    return Draws(Config(run=RunConfig(seed=5), rollout=rollout, curriculum=curriculum), problems, shares)


def by_signal(floor: float = 0.1, **settings) -> Draws:
    """Draws after outcomes of every kind: right, wrong, and between, in each pack."""
    made = draws(CurriculumConfig(draw="signal", floor=floor), **settings)
    made.observe([outcome(problem, right := i % 7, 6 - right) for i, problem in enumerate(POOL)])
    made.observe([outcome(problem, 0, 6) for problem in POOL if problem.info[PACK] == "hard"])
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
        other.observe([outcome(problem, 4, 0) for problem in POOL if problem.info[PACK] == pack][:-1])
        one.observe([])
    before, after = one.probabilities(), other.probabilities()
    assert after[pack != PACKS] == pytest.approx(before[pack != PACKS], rel=1e-9)
    assert not np.allclose(after[pack == PACKS], before[pack == PACKS])
    assert of_packs(after) == pytest.approx(SHARES)


def test_draws_have_the_shares() -> None:
    """The first problem of many steps is of each pack as often as its share says, and each by its probability."""
    made = by_signal(count=1)
    drawn = Counter(made.of_step(step)[0].id for step in range(3000))
    probabilities = dict(zip((problem.id for problem in POOL), made.probabilities()))
    for pack, share in SHARES.items():
        count = sum(number for name, number in drawn.items() if name.startswith(pack))
        assert abs(count / 3000 - share) < 4.5 * math.sqrt(share / 3000)
    for name, probability in probabilities.items():
        assert abs(drawn[name] / 3000 - probability) < 4.5 * math.sqrt(probability / 3000)


def test_a_pack_without_problems_leaves_its_share_to_the_others() -> None:
    """As where a profile's range leaves none of it; what is left keeps its proportions."""
    kept = [problem for problem in POOL if problem.info[PACK] != "few"]
    found = draws(CurriculumConfig(draw="signal"), problems=kept).probabilities()
    packs = np.array([problem.info[PACK] for problem in kept])
    assert found[packs == "many"].sum() == pytest.approx(0.6)
    assert found[packs == "hard"].sum() == pytest.approx(0.4)


def test_rounds_of_dynamic_sampling_by_signal() -> None:
    """Without what is used; packs with nothing left give nothing; by the shares of the others."""
    made = by_signal(count=3)
    used = {problem.id for problem in POOL if problem.info[PACK] == "few"}
    counts: Counter[str] = Counter()
    for step in range(800):
        further = made.further(step, 0, used)
        assert len({problem.id for problem in further} - used) == 3
        counts[further[0].info[PACK]] += 1
    assert set(counts) == {"many", "hard"}
    assert abs(counts["many"] / 800 - 0.6) < 4.5 * math.sqrt(0.6 / 800)
    assert len(made.further(0, 1, {problem.id for problem in POOL[2:]})) == 2


def test_epochs_with_a_profile_keep_the_shares(tmp_path: Path) -> None:
    """Pass rates that are tracked, not drawn by, change nothing: draws and further ones are those of the mixture."""
    profile = tmp_path / "profile.jsonl"
    row = {"samples": 8, "correct": 2, "score": 0.25, "fingerprint": "f"}
    profile.write_text("".join(json.dumps({"id": problem.id, **row}) + "\n" for problem in POOL))
    made = draws(CurriculumConfig(profile))
    for step in range(4):
        drawn = made.of_step(step)
        assert drawn == mixed_items(POOL, SHARES, 8, seed=5, step=step)
        used = {problem.id for problem in drawn}
        further = made.further(step, 1, used)
        assert further == further_mixed(POOL, SHARES, 8, seed=5, step=step, round_number=1, used=used)
        assert not used & {problem.id for problem in further}
        # What was predicted is of both.
        assert made.describe(step, [outcome(drawn[0], 2, 2)])["signal/predicted"] > 0
        made.observe([outcome(problem, 4, 0) for problem in drawn])


def arguments(out_dir: Path, data: Path) -> list[str]:
    """A run on three packs: another verifier, an environment, and shares for each; the reward is often earned."""
    options = [f"digits.data={data}", "digits.verifier=regex", "digits.verifier_options=pattern=(?s).*7.*"]
    options += ["digits.test_share=0", "hops.num_train=8", "hops.num_test=2", "hops.num_demonstrations=8"]
    options += ["arithmetic.num_train=16", "arithmetic.num_test=2", "arithmetic.num_demonstrations=32"]
    flags = {
        "--run.task": ["mixture"],
        "--run.task-option": ["packs=digits=jsonl:2,arithmetic:1,hops:1", "options=" + ",".join(options)],
        "--run.steps": ["6"],
        "--run.save-every": ["2"],
        "--run.sample-every": ["0"],
        "--run.out-dir": [str(out_dir)],
        "--sft.steps": ["4"],
        "--eval.every": ["-1"],
        "--rollout.problems-per-step": ["4"],
        "--rollout.group-size": ["4"],
        "--rollout.resample-rounds": ["1"],
        "--rollout.max-turns": ["3"],
        "--curriculum.draw": ["signal"],
        "--curriculum.half-life": ["3"],
        "--optim.lr": ["1e-3"],
        "--optim.warmup-steps": ["0"],
        "--model.device": ["cpu"],
    }
    return ["train", "tiny_math", *(word for flag, values in flags.items() for word in (flag, *values))]


@pytest.mark.slow
def test_a_killed_run_on_a_mixture_goes_on_byte_for_byte(tmp_path: Path) -> None:
    """SIGKILL after the save of step 2 and before that of step 4: weights, rollouts and pass rates in the end."""
    data = tmp_path / "digits.jsonl"
    rows = [{"prompt": f"Say a digit, {i}: ", "reference": "any"} for i in range(12)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    _, errors = (running := warm.start(arguments(whole, data))).communicate()
    assert running.returncode == 0, errors
    running = warm.start(arguments(killed, data))
    metrics, deadline = killed / "metrics.jsonl", time.monotonic() + 240
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert not checkpoint_folder(killed, 6).exists()
    printed, errors = (again := warm.start(arguments(killed, data))).communicate()
    assert again.returncode == 0, errors
    assert "resuming from step" in printed
    check_same(results(whole, 6), results(killed, 6))
    one, other = (checkpoint_folder(folder, 6) / STATE for folder in (whole, killed))
    assert one.read_bytes() == other.read_bytes()
    ours, theirs = (lines(folder / "metrics.jsonl") for folder in (whole, killed))
    names = ["signal/predicted", "signal/seen", *(f"pack/{pack}/reward" for pack in ("digits", "arithmetic", "hops"))]
    assert [[row.get(name) for name in names] for row in ours] == [[row.get(name) for name in names] for row in theirs]
    # It would say nothing of weights that did not move, and of packs that were not drawn.
    assert sum(row["grad_norm"] > 0 for row in ours) >= 3
    assert all(any(name in row for row in ours) for name in names)
