"""A run goes back to its best checkpoint and on at a lower learning rate, exactly, whenever it is killed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.config import Config
from rlvr.launch import launch
from rlvr.runs.log import append_event, read_events
from rlvr.train import train
from rlvr.training import saving as rollback
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.checkpoint.folders import checkpoint_folder, list_checkpoints
from rlvr.training.monitor.alarm import GuardStop, RollBack
from rlvr.training.run import Run
from rlvr.training.saving import LOWER, load_state, roll_back
from tests.helpers import overlap
from tests.helpers.files import lines
from tests.helpers.models import OwnWeights
from tests.helpers.processes import run_processes
from tests.helpers.resuming import check_same, results, run_that_unlearns, small
from tests.helpers.runs import Warned, make_run, with_settings


def summary(out_dir: Path) -> list[tuple[int, float]]:
    """Step and learning rate of each line of metrics.jsonl."""
    return [(row["step"], row["lr"]) for row in lines(out_dir / "metrics.jsonl")]


def read_run(out_dir: Path) -> dict[str, bytes]:
    """What a run has written and a repeated one writes again: weights, optimizer, rollouts, evaluations."""
    return {**results(out_dir, 4), "evaluations": (out_dir / "eval.jsonl").read_bytes()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was rolled back after step 2, and after step 4, to the start."""
    out_dir = tmp_path_factory.mktemp("rollback") / "whole"
    launch(run_that_unlearns(out_dir))
    return out_dir


def test_a_run_that_unlearns_goes_on_from_its_start_at_a_lower_rate(whole):
    """Twice, at a quarter each; the logs tell of the steps that count, events.jsonl of those that were undone."""
    assert summary(whole) == [(step, 0.001 * LOWER**2) for step in (1, 2, 3, 4)]
    assert [row["step"] for row in lines(whole / "eval.jsonl")] == [0, 2, 4]
    assert {row["step"] for row in lines(whole / "rollouts.jsonl")} == {1, 2, 3, 4}
    events = [row for row in read_events(whole) if row["kind"] == "rollback"]
    assert [(row["step"], row["undone"], row["number"]) for row in events] == [(2, 2, 1), (4, 4, 2)]
    assert "held-out pass@1 is 0.141 at step 2, and was 0.438 [0.262, 0.638] at the start" in events[0]["message"]
    state = json.loads((checkpoint_folder(whole, 4) / "state.json").read_text())
    assert [(r["kind"], r["from"], r["to"], r["lr"]) for r in state["rollbacks"]] == [
        ("regression", 2, 0, LOWER),
        ("regression", 4, 0, LOWER),
    ]
    first, last = (lines(whole / "eval.jsonl")[place] for place in (0, -1))
    assert last["pass@1"] >= first["pass@1_ci"][0]


class Killed(BaseException):
    """Stands for a SIGKILL: nothing catches it."""


class KilledAt(TrainerCallback):
    """Is killed after the n-th call of a kind."""

    def __init__(self, name: str, number: int) -> None:
        self.left = number
        setattr(self, name, self.count)

    def count(self, *_: object) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.mark.parametrize(
    ("name", "number"), [("on_evaluate", 2), ("on_evaluate", 5), ("on_step_end", 3), ("on_save", 4)]
)
def test_killed_around_a_rollback_the_run_ends_the_same(whole, tmp_path, name, number):
    """After an evaluation that asks for it, in the steps that follow it, while a checkpoint of them is saved."""
    config = run_that_unlearns(tmp_path / "run")
    with pytest.raises(Killed):
        launch(config, callbacks=[KilledAt(name, number)])
    launch(config)
    check_same(read_run(whole), read_run(tmp_path / "run"))
    assert summary(tmp_path / "run") == summary(whole)


@pytest.mark.parametrize("place", ["undo_after", "delete_undone", "load_state"])
@pytest.mark.parametrize("number", [1, 2])
def test_killed_within_a_rollback_the_run_ends_the_same(whole, tmp_path, monkeypatch, place, number):
    """Before state.json is replaced, before the undone checkpoints are deleted, before the logs are cut."""
    config, left, real = run_that_unlearns(tmp_path / "run"), [number], getattr(rollback, place)

    def die(*arguments: object) -> object:
        left[0] -= 1
        if not left[0]:
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(rollback, place, die)
    with pytest.raises(Killed):
        launch(config)
    monkeypatch.undo()
    launch(config)
    check_same(read_run(whole), read_run(tmp_path / "run"))
    assert summary(tmp_path / "run") == summary(whole)


def test_after_three_rollbacks_the_run_ends_with_its_best_checkpoint(tmp_path):
    """One line, and the start is the last checkpoint; the same command goes on at a lower rate again."""
    config = run_that_unlearns(tmp_path, lr=0.05, steps=2)
    with pytest.raises(GuardStop, match=r"after 3 rollbacks .* with 0\.0039\d* times --optim.lr"):
        launch(config)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [0]
    assert not (tmp_path / "metrics.jsonl").read_text()
    assert [row["kind"] for row in read_events(tmp_path)] == ["rollback"] * 4 + ["failed"]
    evaluations = launch(config)
    assert [row["step"] for row in evaluations] == [0, 2]
    assert summary(tmp_path) == [(step, 0.05 * LOWER**4) for step in (1, 2)]


def test_warn_says_so_and_goes_on(tmp_path):
    """In one line for each such evaluation; the run ends as one without a guard."""
    heard = Warned()
    launch(run_that_unlearns(tmp_path, "warn"), callbacks=[heard])
    assert len(heard.told) == 2
    assert heard.told[0] == "held-out pass@1 is 0.141 at step 2, and was 0.438 [0.262, 0.638] at the start"
    assert [row["step"] for row in read_events(tmp_path) if row["kind"] == "regression"] == [2, 4]
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2, 4]


def test_stop_ends_the_run_after_a_checkpoint(tmp_path):
    """The error says how to go on; so does the same command again."""
    config = run_that_unlearns(tmp_path, "stop")
    for _ in range(2):
        with pytest.raises(GuardStop, match=r"stopped at step 2: held-out pass@1 is 0.141 .*--eval.on-regression warn"):
            launch(config)
        assert [step for step, _ in list_checkpoints(tmp_path)] == [2]
    assert (tmp_path / "report.html").exists()
    launch(dataclasses.replace(config, eval=dataclasses.replace(config.eval, on_regression="warn")))
    assert [step for step, _ in summary(tmp_path)] == [1, 2, 3, 4]


def test_the_last_evaluation_is_guarded_too(tmp_path):
    """With eval.every 0 it is made after the last step."""
    with pytest.raises(GuardStop, match="stopped at step 2"):
        launch(run_that_unlearns(tmp_path, "stop", steps=2, every=0))


def test_two_processes_roll_back_alike(tmp_path):
    """Both go back at the same steps; the run ends with the steps of one process."""

    def work(rank: int) -> None:
        launch(run_that_unlearns(tmp_path))

    run_processes(2, work, timeout=300.0)
    assert summary(tmp_path) == [(step, 0.001 * LOWER**2) for step in (1, 2, 3, 4)]
    assert [row["undone"] for row in read_events(tmp_path) if row["kind"] == "rollback"] == [2, 4]


class Asks(TrainerCallback):
    """A guard: asks once, after a step, for a rollback to an earlier one."""

    def __init__(self, step: int, newest: int) -> None:
        self.step, self.newest, self.asked = step, newest, False

    def on_step_end(self, step: int, *_: object) -> None:
        if step == self.step and not self.asked:
            self.asked = True
            raise RollBack(step, "test", "as asked", newest=self.newest)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "saved beside": {"run": {"async_save": True}},
    "reference": {"algo": {"kl_coef": 0.1, "kl_target": 0.01, "minibatches": 2}},
    "reset": {"algo": {"kl_coef": 0.1, "reference_every": 3}},
    "reset before": {"algo": {"kl_coef": 0.1, "reference_every": 1}},
    "critic": {"algo": {"name": "ppo"}, "critic": {"lr": 1e-3}},
    "curriculum": {"curriculum": {"draw": "signal"}},
}


@pytest.mark.parametrize(("kind", "to"), [*((kind, 2) for kind in KINDS), ("plain", 0), ("reset", 0), ("critic", 0)])
def test_a_run_that_was_rolled_back_is_one_that_never_went_further(tmp_path, kind, to):
    """Weights, optimizers, reference, critic, draws and logs: as of a run that had only got so far, and goes on at a
    quarter of the rate. Any guard may ask."""

    def config(name: str, steps: int) -> Config:
        made = small(tmp_path / name, steps=steps, save_every=2)
        return with_settings(made, **{"eval": {"on_regression": "rollback", "every": -1}, **KINDS[kind]})

    launch(config("asked", 4), callbacks=[Asks(4, to)])
    launch(config("short", max(to, 1)))
    rollback.undo_after(tmp_path / "short", to, [{"kind": "test", "from": 4, "to": to, "lr": LOWER}])
    launch(config("short", 4))
    check_same(results(tmp_path / "short", 4), results(tmp_path / "asked", 4))
    assert summary(tmp_path / "short") == summary(tmp_path / "asked")
    for name in ("critic", "critic_optimizer", "reference"):
        one, other = (checkpoint_folder(tmp_path / run, 4) / f"{name}.safetensors" for run in ("short", "asked"))
        assert one.exists() == other.exists()
        assert not one.exists() or one.read_bytes() == other.read_bytes()


def test_rollouts_that_were_sampled_ahead_are_those_of_the_checkpoint(tmp_path):
    """With staleness 1 the run goes on with the batch in the checkpoint, as a resumed one does."""

    def make(name: str, steps: int) -> Run:
        run = overlap.make_run(tmp_path / name, sampler=OwnWeights, max_staleness=1, steps=steps)
        settings = dataclasses.replace(run.config.run, save_every=2, keep_checkpoints=3)
        run.config = dataclasses.replace(run.config, run=settings)
        return run

    asked = make("asked", 4)
    train(asked)
    with pytest.warns(RuntimeWarning, match="as asked; back to step 2, with 0.25 times the learning rate"):
        assert roll_back(asked, RollBack(4, "test", "as asked", newest=2)) == 2
    train(asked, 2)
    train(make("short", 2))
    rollback.undo_after(tmp_path / "short", 2, [{"kind": "test", "from": 4, "to": 2, "lr": LOWER}])
    short = make("short", 4)
    load_state(short.learner, checkpoint_folder(tmp_path / "short", 2), short.reporter.log)
    short.worker.sampler = OwnWeights(short.learner.policy)
    train(short, 2)
    assert overlap.logs(asked) == overlap.logs(short)
    check_same(results(tmp_path / "short", 4), results(tmp_path / "asked", 4))


def test_without_a_checkpoint_before_it_there_is_nothing_to_go_back_to(tmp_path):
    """A run that has saved none says so."""
    run = make_run(tmp_path)
    with pytest.raises(GuardStop, match=r"^it fell; there is no whole checkpoint before it to go back to$"):
        roll_back(run, RollBack(3, "test", "it fell"))


def test_an_event_after_a_line_that_was_cut_off_is_a_line_of_its_own(tmp_path):
    """A crash within a write costs that line only; steps, kinds and further fields are kept."""
    append_event(tmp_path, 1, "resume", "from step 1")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"time": "20')
    append_event(tmp_path, 2, "alarm", "two\nlines", number=float("nan"))
    events = read_events(tmp_path)
    assert [(row["step"], row["kind"], row["message"]) for row in events] == [
        (1, "resume", "from step 1"),
        (2, "alarm", "two\nlines"),
    ]
    assert events[1]["number"] is None
    assert all(row["time"].endswith("+00:00") for row in events)
