"""Project and run name of experiment trackers."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import accelerate.tracking
import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

import rlvr.runs.trackers
from rlvr.commands.verify_resume import MEASURED
from rlvr.launch import launch
from rlvr.runs.tracker_tables import SENDERS, as_markdown, table_of_rollouts
from rlvr.runs.trackers import Tracked, tensorboard, write_state
from rlvr.training.callbacks import tracker_name
from tests.helpers.files import lines
from tests.helpers.pages import log_sample
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums


class Recorder(GeneralTracker):
    """Notes what a tracker is given."""

    name = "recorder"
    requires_logging_directory = False
    given: ClassVar[list[Any]] = []

    def __init__(self, project: str, **options: Any) -> None:
        super().__init__()
        self.given.append((project, options))

    def start(self) -> None:
        """Nothing to open."""

    @property
    def tracker(self) -> None:
        """Nothing inside."""

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.given.append(values)

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.given.append((step, values))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the trackers wandb and comet_ml are given, as if they were installed."""
    for name in ("wandb", "comet_ml"):
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, type(name, (Recorder,), {"name": name}))
        monkeypatch.setitem(rlvr.runs.trackers.MODULES, name, ("json",))
    installed = [accelerate.tracking.LoggerType("wandb"), accelerate.tracking.LoggerType("comet_ml")]
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", installed)
    monkeypatch.setattr(Recorder, "given", [])
    monkeypatch.delitem(SENDERS, "wandb")  # which would import it
    return Recorder.given


def test_a_tracker_is_told_project_and_name(tmp_path, recorder):
    """Unless given the folder's name; settings and every step's numbers follow."""
    quick = {"steps": 2, "trackers": ("wandb",)}
    launch(tiny(tmp_path / "first", run={**quick, "sample_every": 0}, eval={"every": -1}), task=sums())
    named = {**quick, "tracker_project": "sums", "tracker_name": "seed 3", "sample_every": 0}
    recorder_first = list(recorder)
    recorder.clear()
    launch(tiny(tmp_path / "second", run=named, eval={"every": -1}), task=sums())
    ids = [json.loads((tmp_path / name / "trackers.json").read_text())["ids"]["wandb"] for name in ("first", "second")]
    assert recorder_first[0] == ("rlvr", {"name": "first", "id": ids[0], "resume": "allow"})
    assert recorder[0] == ("sums", {"name": "seed 3", "id": ids[1], "resume": "allow"})
    assert recorder[1]["run.tracker_name"] == "seed 3"
    assert "versions.rlvr" in recorder[1]
    assert [step for step, _ in recorder[2:]] == [1, 2]
    assert "reward" in recorder[2][1]


def test_a_tracker_that_takes_no_name_says_so(tmp_path, recorder):
    """A name that was asked for is not dropped; without one it runs."""
    config = tiny(tmp_path, run={"steps": 1, "trackers": ("comet_ml",), "tracker_name": "x"}, eval={"every": -1})
    with pytest.raises(ValueError, match="comet_ml has no run names"):
        rlvr.runs.trackers.check_trackers(config.run)
    assert recorder == []


def test_the_trackers_are_accelerates():
    """The table that is read before torch is imported has a row for each of them."""
    assert set(rlvr.runs.trackers.MODULES) == set(LOGGER_TYPE_TO_CLASS)


def test_tensorboard_writes_to_a_folder_of_project_and_name(tmp_path):
    """OUT_DIR/PROJECT/NAME; without a name OUT_DIR/PROJECT."""
    run = tiny(tmp_path, run={"tracker_project": "sums", "tracker_name": "a"}).run
    assert (tensorboard(run).run_name, tensorboard(run).logging_dir_param) == ("sums/a", tmp_path)
    assert tensorboard(tiny(tmp_path).run).run_name == "rlvr"
    if importlib.util.find_spec("tensorboard") is not None:
        settings = {"steps": 1, "trackers": ("tensorboard",), "tracker_project": "sums", "tracker_name": "a"}
        launch(tiny(tmp_path / "run", run=settings, eval={"every": -1}), task=sums())
        assert list((tmp_path / "run" / "sums" / "a").glob("events.out.*"))


# The trackers themselves, offline: they hold of a run that was resumed what metrics.jsonl and eval.jsonl hold.

Held = dict[str, dict[int, list[Any]]]  # by name and step: what was logged there; of tables and histograms True

# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def from_tensorboard(folder: Path) -> Held:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held: Held = {}
    for path in sorted({file.parent for file in folder.rglob("events.out.*")}):
        events = EventAccumulator(str(path), size_guidance={"tensors": 0, "histograms": 0, "scalars": 0}).Reload()
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                held.setdefault(name, {}).setdefault(event.step, []).append(event.value)
        kinds = {**dict.fromkeys(events.Tags()["histograms"], events.Histograms)}
        kinds |= {name: events.Tensors for name in events.Tags()["tensors"] if not name.startswith("_hparams")}
        for name, read in kinds.items():
            for event in read(name):
                held.setdefault(name.removesuffix("/text_summary"), {}).setdefault(event.step, []).append(True)
    return held


def as_logged(value: Any) -> Any:
    """A number; True for a table or a histogram."""
    return True if isinstance(value, dict) and "_type" in value else float(value)


def logged_records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: a header of 7 bytes, then LevelDB's log format, in blocks of 32 kB."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:  # no room for a header: the rest of the block is empty
            place += left
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        if not kind:
            return
        parts = (parts if kind in (3, 4) else b"") + content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts


def from_wandb(folder: Path) -> Held:
    from wandb.proto import wandb_internal_pb2

    held: Held = {}
    for path in sorted(folder.rglob("run-*.wandb")):
        for data in logged_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") != "history":
                continue
            items = [
                ([item.key] if item.key else list(item.nested_key), item.value_json) for item in record.history.item
            ]
            step = next(int(json.loads(value)) for names, value in items if names == ["_step"])
            for (name, *inner), value in items:
                if not name.startswith("_") and inner in ([], ["_type"]):  # a table or histogram has several items
                    logged = True if inner else as_logged(json.loads(value))
                    held.setdefault(name, {}).setdefault(step, []).append(logged)
    return held


def from_trackio(folder: Path) -> Held:
    held: Held = {}
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as database:
            for step, text in database.execute("select step, metrics from metrics"):
                for name, value in json.loads(text).items():
                    held.setdefault(name, {}).setdefault(step, []).append(as_logged(value))
    return held


def from_mlflow(folder: Path) -> Held:
    from mlflow.tracking import MlflowClient

    client, held = MlflowClient(), {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    held.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
            for path in folder.rglob(f"{run.info.run_id}/artifacts/**/step-*.json"):
                name = f"{path.parent.parent.name}/{path.parent.name}"
                held.setdefault(name, {}).setdefault(int(path.stem[5:]), []).append(bool(json.loads(path.read_text())))
    return held


def runs_of(tracker: str, folder: Path) -> int:
    """The number of runs that a tracker has."""
    if tracker == "wandb":
        return len({path.stem.rpartition("-")[2] for path in folder.rglob("run-*.wandb")})
    if tracker == "mlflow":
        return len(list(folder.rglob("artifacts/report.html")))
    if tracker == "trackio":
        with sqlite3.connect(next(folder.rglob("*.db"))) as database:
            return database.execute("select count(distinct run_name) from metrics").fetchone()[0]
    return len(list((folder / "run" / "rlvr").glob("events.out.*"))) and 1


READERS: dict[str, Callable[[Path], Held]] = {
    "tensorboard": from_tensorboard,
    "wandb": from_wandb,
    "trackio": from_trackio,
    "mlflow": from_mlflow,
}


@pytest.mark.parametrize("tracker", READERS)
def test_a_tracker_holds_every_number_of_a_resumed_run(tmp_path, monkeypatch, tracker):
    """Each metric of each step, and of the evaluations, once; each table and histogram once; all in one run."""
    if importlib.util.find_spec(tracker) is None:
        pytest.skip(f"{tracker} is not installed")
    there = tmp_path / "tracker"
    there.mkdir()
    for name, value in {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(there),
        "WANDB_SILENT": "true",
        "TRACKIO_DIR": str(there),
        "MLFLOW_TRACKING_URI": f"file://{there}",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "HF_HUB_OFFLINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    importlib.import_module(tracker)
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "trackio"]:
        if hasattr(module, "TRACKIO_DIR"):  # read from the environment by whoever imported it first
            monkeypatch.setattr(module, "TRACKIO_DIR", there)
    measured = {"num_problems": 2, "samples": 2, "k": (1, 2), "every": 1}
    for steps in (3, 4):
        settings = {"steps": steps, "trackers": (tracker,), "sample_every": 1, "save_every": 1}
        launch(tiny(tmp_path / "run", run=settings, eval=measured), task=sums())
        if steps == 3:  # as after a crash before the last checkpoint: step 3 is repeated
            shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000003")
    held, deadline = READERS[tracker](tmp_path), time.monotonic() + 30
    while 4 not in held.get("eval/answers", {}) and time.monotonic() < deadline:  # wandb writes in another process
        time.sleep(0.1)
        held = READERS[tracker](tmp_path)
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    for row in metrics:
        for name, value in row.items():
            if name != "step" and not (row["step"] == 3 and name.startswith(MEASURED)):
                assert held[tracker_name(name)][row["step"]] == [pytest.approx(value, rel=1e-6)], name
    evaluations = lines(tmp_path / "run" / "eval.jsonl")
    assert [row["step"] for row in evaluations] == [0, 1, 2, 3, 4]
    for row in evaluations:
        assert held["eval/pass_at_1"][row["step"]] == [pytest.approx(row["pass@1"], abs=1e-6)]
    once = {step: [True] for step in range(1, 5)}
    for name in ("rollouts/samples", "rollouts/lengths", "rollouts/rewards"):
        assert held[name] == once, name
    assert held["eval/answers"] == {0: [True], **once}
    assert runs_of(tracker, tmp_path) == 1


def test_steps_are_sent_once_and_again_only_after_a_rollback(tmp_path):
    """A resume repeats steps with the same numbers, which are not sent; a rollback with others, which are."""
    sent: list[int] = []
    accelerator: Any = SimpleNamespace(log=lambda values, step: sent.append(step))
    run = tiny(tmp_path, run={"sample_every": 0}).run
    write_state(tmp_path, {"step": 0, "evaluation": -1, "ids": {}})

    def train(tracked: Tracked, *steps: int) -> list[int]:
        sent.clear()
        for step in steps:
            tracked.numbers(step, {"reward": 1.0})
            tracked.rollouts(step, [])
        return list(sent)

    first = Tracked(run, accelerator)
    assert train(first, 1, 2, 3) == [1, 2, 3]
    assert train(Tracked(run, accelerator), 2, 3, 4) == [4]
    first.go_back(1)
    assert train(first, 2, 3) == [2, 3]


def test_a_table_of_rollouts_is_bounded_and_harmless():
    """At most 32 rows, evenly from all groups; texts are cut and have no control characters; turns have a mean."""
    rollouts = [
        log_sample(
            1, i, completion="\x1b" + "x" * 5000, advantage=[1.0, 2.0], prompt=[{"role": "user", "content": "a"}]
        )
        for i in range(100)
    ]
    table = table_of_rollouts(rollouts)
    assert len(table.rows) == 25
    assert [row[1] for row in table.rows] == list(range(0, 100, 4))
    row = dict(zip(table.columns, table.rows[0]))
    assert (row["advantage"], row["prompt"]) == (1.5, "user: a")
    assert row["completion"].startswith("\\x1bxxx")
    assert len(row["completion"]) < 2100
    assert as_markdown("<b>|\n") == "\\<b\\>\\|⏎ "


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pass@8", "pass_at_8"),
        ("pass^8", "pass_hat_8"),
        ("pack/reasoning_gym:sums/reward", "pack/reasoning_gym:sums/reward"),
        ("pack/a+b é/reward", "pack/a_b _/reward"),
    ],
)
def test_names_are_those_that_every_tracker_takes(name, expected):
    assert tracker_name(name) == expected
