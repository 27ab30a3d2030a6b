"""`rlvr simulate-schedule`: seconds that were counted by hand, rates that are found again, one line for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import pytest

from rlvr.commands.cli import main
from rlvr.commands.schedule.command import draw_log_normal
from rlvr.commands.schedule.rates import fit, measure, time_sampler
from rlvr.commands.schedule.simulation import Machine, Schedule, count_passes, count_work, simulate
from rlvr.config import Config
from rlvr.config.training import to_json
from rlvr.core.types import Completion, Sampler, Sampling
from rlvr.launch import launch
from tests.helpers.models import small_policy
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums

# One pass takes 1 s, whatever its rows; training takes a tenth of a second a token.
MACHINE = Machine(servers=1, seats=100, trainers=1, token_seconds=1, row_seconds=0, train_seconds=0.1)


def lengths(*groups: list[int]):
    """Return a function that gives these groups in turn, again and again."""
    place = iter(range(10**6))
    return lambda: groups[next(place) % len(groups)]


def test_passes_with_seats_for_all_and_for_some():
    assert count_passes([3, 9, 4], seats=3) == 9
    assert count_passes([3, 9, 4], seats=2) == 9  # 3 and 4 share a seat
    assert count_passes([3, 9, 4], seats=1) == 16
    assert count_passes([], seats=4) == 0


def test_sampling_then_training():
    """A step samples for its longest row's 10 s, and trains its 12 tokens in 1.2 s."""
    found = simulate(lengths([2, 10]), 1, 5, Schedule(), MACHINE)
    assert found.step_seconds == pytest.approx(11.2)
    assert found.idle(found.sampling) == pytest.approx(1.2 / 11.2)
    assert found.idle(found.training) == pytest.approx(10 / 11.2)
    assert set(found.versions) == {1}
    assert set(found.ages) == {0}


def test_ahead_sampling_hides_the_training():
    """After the first step's 10 s each step takes as long as its sampling; where they take turns nothing is hidden."""
    apart = simulate(lengths([2, 10]), 1, 10, Schedule(staleness=1), MACHINE)
    assert apart.steps == pytest.approx([20] + 9 * [10])
    assert set(apart.ages[2:]) == {1}
    shared = simulate(lengths([2, 10]), 1, 10, Schedule(staleness=1), replace(MACHINE, contention=2))
    assert shared.steps == pytest.approx([21.2] + 9 * [11.2])


def test_sampling_and_training_slow_each_other():
    """Both take half as long again until the shorter one is done."""
    assert replace(MACHINE, contention=1.5).overlap(4, 2) == pytest.approx(2 * 1.5 + 2)
    assert replace(MACHINE, contention=1.5).overlap(0, 2) == 2
    assert MACHINE.overlap(4, 2) == 4


def test_the_work_of_a_slice():
    """A row that has 10 tokens and gets 2, beside one that gets 5: 2 passes of 2 rows as wide as the first, and 3."""
    assert count_work([(10, 2), (0, 5)], seats=8) == (5, 7, 2, 10, 2 * (2 * 10 + 2) + (25 - 4) / 2)
    assert count_work([], seats=8) == (0, 0, 0, 0, 0)


def test_slices_do_not_wait_for_the_longest_row():
    """A row of 40 tokens spans four slices of 10; meanwhile the other groups are trained."""
    draw = lengths([10, 10], [10, 40])
    whole = simulate(draw, 2, 40, Schedule(staleness=1), MACHINE)
    cut = simulate(lengths([10, 10], [10, 40]), 2, 40, Schedule(staleness=3, slice_tokens=10), MACHINE)
    assert whole.step_seconds == pytest.approx(41, rel=0.03)
    assert cut.step_seconds < 15
    assert max(cut.versions) == 4
    assert len(cut.versions) == len(whole.versions) == 40 * 4


def test_every_row_is_sampled_once():
    """However rows are cut, the trained tokens are those of whole completions."""
    for how in (Schedule(), Schedule(2), Schedule(2, 7)):
        found = simulate(lengths([5, 23], [1, 11]), 2, 20, how, replace(MACHINE, servers=2))
        assert found.training == pytest.approx(20 * 40 * 0.1)


def test_a_rebuilt_cache_costs_the_cut_rows_tokens():
    how = Schedule(staleness=2, slice_tokens=10)
    kept = simulate(lengths([25]), 1, 10, how, MACHINE)
    rebuilt = simulate(lengths([25]), 1, 10, how, replace(MACHINE, prefill_seconds=0.5))
    assert rebuilt.sampling > kept.sampling


def test_rates_are_found_again():
    work = [(10, 100), (40, 150), (25, 600)]
    assert fit(work, [2 * p + 0.3 * t for p, t in work]) == pytest.approx([2, 0.3])
    assert fit(work, [0.3 * t for _, t in work]) == pytest.approx([0, 0.3], abs=1e-9)
    assert min(fit([(10, 100), (20, 100)], [5, 1])) == 0  # no rate is negative


class Law(Sampler):
    """Takes as long as a machine that is made up, on a clock of its own, for completions of known lengths."""

    def __init__(self, machine: Machine, length: Callable[[int], int]) -> None:
        self.machine, self.length, self.now = machine, length, 0.0
        self.slowed = 1.0

    def generate(self, prompts, sampling, seeds):
        raise NotImplementedError

    @contextmanager
    def keep_busy(self, device):
        self.slowed = self.machine.contention
        yield
        self.slowed = 1.0

    def load_weights(self, policy):
        self.now += self.machine.push_seconds

    def sample_rows(self, asks, on_row):
        rows = [(ask.drawn, min(self.length(ask.seed) - ask.drawn, ask.sampling.max_new_tokens)) for ask in asks]
        self.now += self.slowed * self.machine.sampling_seconds(count_work(rows, self.machine.seats))
        for place, (_, tokens) in enumerate(rows):
            on_row(place, Completion("", (1,) * tokens, (0.0,) * tokens))


def test_a_calibrated_machine_predicts_what_another_schedule_takes(monkeypatch):
    """Rates of a made-up machine are found from its sampler's seconds, and with them the steps of all schedules."""
    known = Machine(1, 64, 1, 0.02, 1e-4, 3e-4, 1.5, 0.25, 2e-3, 5e-5, 1e-7)
    law = Law(known, lambda seed: 4 + 7 * (seed % 23))
    monkeypatch.setattr("rlvr.commands.schedule.rates.time.perf_counter", lambda: law.now)
    monkeypatch.setattr("rlvr.commands.schedule.rates.keep_busy", law.keep_busy)
    groups = [[((1, 2), (1,) * law.length(4 * g + i)) for i in range(4)] for g in range(64)]
    tokens = sum(len(made) for group in groups[:16] for _, made in group)
    before = Machine(1, 64, 1, 0.0, 0.0, known.train_seconds + known.push_seconds / tokens)
    found = time_sampler(law, small_policy(), groups, 16, Sampling(200), before)
    assert asdict(found) == pytest.approx(asdict(known), rel=1e-6)
    draw = [[len(made) for _, made in group] for group in groups]
    for how in (Schedule(), Schedule(1), Schedule(3, 40)):
        seconds = [simulate(lengths(*draw), 8, 12, how, on).step_seconds for on in (known, found)]
        assert seconds[0] == pytest.approx(seconds[1])


def test_log_normal_lengths_have_the_median_and_the_longest():
    random = Random(1)
    rows = sorted(length for _ in range(500) for length in draw_log_normal(4.6, 1.0, 1000, 16, random))
    assert rows[len(rows) // 2] == pytest.approx(99.5, rel=0.05)
    assert rows[0] >= 1
    assert rows[-1] <= 1000


def write_run(folder: Path, **sampler: int) -> Path:
    """Write a run of three steps of 2 x 2 rows, whose passes take .5 s and whose rows add .01 s."""
    folder.mkdir()
    config = Config()
    record = json.loads(to_json(config))
    record["rollout"] |= {"problems_per_step": 2, "group_size": 2}
    record["sampler"] |= sampler
    (folder / "config.json").write_text(json.dumps(record))
    steps = {1: [4, 4, 4, 4], 2: [2, 8, 3, 3], 3: [5, 5, 20, 1]}
    with (folder / "metrics.jsonl").open("w") as metrics, (folder / "rollouts.jsonl").open("w") as rollouts:
        for step, tokens in steps.items():
            seconds = {"seconds/sample": 0.5 * max(tokens) + 0.01 * sum(tokens), "seconds/train": 0.2 * sum(tokens)}
            metrics.write(json.dumps({"step": step, **seconds}) + "\n")
            for place, length in enumerate(tokens):
                rollouts.write(json.dumps({"step": step, "problem": f"p{place // 2}", "tokens": length}) + "\n")
    return folder


def test_a_runs_lengths_and_rates(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    basis = measure(run)
    on = basis.machine
    assert (on.token_seconds, on.row_seconds, on.train_seconds) == pytest.approx((0.5, 0.01, 0.2))
    assert sorted(map(sorted, basis.groups)) == [[1, 20], [2, 8], [3, 3], [5, 5]]  # the first step is left out
    assert asdict(basis)["problems_per_step"] == 2
    assert on.contention == 2
    assert main(["simulate-schedule", str(run), "--slice-tokens", "4", "--steps", "20"]) == 0
    shown = capsys.readouterr().out
    assert "slices of 4, cache rebuilt" in shown
    assert "contention 2" in shown


def test_a_runs_sampler_is_timed(tmp_path, capsys):
    """With the weights of its newest checkpoint; all rates are found, and printed."""
    launch(tiny(tmp_path / "run", eval={"every": -1}), task=sums())
    assert main(["simulate-schedule", str(tmp_path / "run"), "--calibrate", "--steps", "5"]) == 0
    shown = capsys.readouterr().out
    assert "push_seconds" in shown
    assert "samplers: 1, of 512 rows each; trainers: 1; contention 2" in shown


def test_without_a_checkpoint_no_sampler_is_timed(tmp_path, capsys):
    assert main(["simulate-schedule", str(write_run(tmp_path / "run")), "--calibrate"]) == 2
    assert "has no checkpoint, whose weights could sample" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--median", "100", "--longest", "50"], "--longest 50: expected more than --median, 100"),
        (["--steps", "0"], "--steps"),
        (["nowhere"], "nowhere: no such folder"),
        (["--problems-per-step", "1", "--group-size", "1"], "expected 2 or more"),
        (["run", "--median", "5"], "median 5 would have no effect"),
        (["one", "two"], "2 runs; expected one, or none"),
        (["--calibrate"], "calibrate True would have no effect"),
    ],
)
def test_bad_input(arguments, told, capsys):
    assert main(["simulate-schedule", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_rows_without_tokens_and_steps_without_a_duration_are_left_out(tmp_path, capsys):
    """A filter may withhold all of a completion; a step that was not timed has no rate."""
    run = write_run(tmp_path / "run")
    with (run / "rollouts.jsonl").open("a") as rollouts, (run / "metrics.jsonl").open("a") as metrics:
        rollouts.write(json.dumps({"step": 3, "problem": "p0", "tokens": 0}) + "\n")
        rollouts.write(json.dumps({"step": 4, "problem": "p0", "tokens": 9}) + "\n")
        metrics.write(json.dumps({"step": 4, "seconds/sample": 0.0, "seconds/train": 1.0}) + "\n")
    assert main(["simulate-schedule", str(run), "--steps", "5"]) == 0
    assert "completions of" in capsys.readouterr().out


def test_a_run_that_sampled_ahead_does_not_say_how_long_sampling_takes(tmp_path, capsys):
    run = write_run(tmp_path / "run", name="vllm", max_staleness=1)
    assert main(["simulate-schedule", str(run)]) == 2
    assert "sampled ahead (sampler.max_staleness 1)" in capsys.readouterr().err
