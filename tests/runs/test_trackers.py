"""Project and run name of experiment trackers."""

from __future__ import annotations

import importlib.util
import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import accelerate.tracking
import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

import rlvr.runs.trackers
from rlvr.launch import launch
from rlvr.runs.trackers import tensorboard
from rlvr.training.callbacks import tracker_name
from tests.helpers.files import lines
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
        monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, Recorder)
        monkeypatch.setitem(rlvr.runs.trackers.MODULES, name, ("json",))
    installed = [accelerate.tracking.LoggerType("wandb"), accelerate.tracking.LoggerType("comet_ml")]
    monkeypatch.setattr(accelerate.tracking, "_available_trackers", installed)
    monkeypatch.setattr(Recorder, "given", [])
    return Recorder.given


def test_a_tracker_is_told_project_and_name(tmp_path, recorder):
    """Unless given the folder's name; settings and every step's numbers follow."""
    quick = {"steps": 2, "trackers": ("wandb",)}
    launch(tiny(tmp_path / "first", run=quick, eval={"every": -1}), task=sums())
    named = {**quick, "tracker_project": "sums", "tracker_name": "seed 3"}
    recorder_first = list(recorder)
    recorder.clear()
    launch(tiny(tmp_path / "second", run=named, eval={"every": -1}), task=sums())
    assert recorder_first[0] == ("rlvr", {"name": "first"})
    assert recorder[0] == ("sums", {"name": "seed 3"})
    assert recorder[1]["run.tracker_name"] == "seed 3"
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

Held = dict[str, dict[int, list[float]]]  # by name and step: what was logged there

# What the programs warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def from_tensorboard(folder: Path) -> Held:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held: Held = {}
    for path in sorted({file.parent for file in folder.rglob("events.out.*")}):
        events = EventAccumulator(str(path)).Reload()
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                held.setdefault(name, {}).setdefault(event.step, []).append(event.value)
    return held


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
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = int(json.loads(items["_step"]))
            for name, value in items.items():
                if not name.startswith("_"):
                    held.setdefault(name, {}).setdefault(step, []).append(float(json.loads(value)))
    return held


def from_trackio(folder: Path) -> Held:
    held: Held = {}
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as database:
            for step, text in database.execute("select step, metrics from metrics"):
                for name, value in json.loads(text).items():
                    held.setdefault(name, {}).setdefault(step, []).append(float(value))
    return held


def from_mlflow(folder: Path) -> Held:
    from mlflow.tracking import MlflowClient

    client, held = MlflowClient(), {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id]):
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    held.setdefault(name, {}).setdefault(metric.step, []).append(metric.value)
    return held


READERS: dict[str, Callable[[Path], Held]] = {
    "tensorboard": from_tensorboard,
    "wandb": from_wandb,
    "trackio": from_trackio,
    "mlflow": from_mlflow,
}


@pytest.mark.parametrize("tracker", READERS)
def test_a_tracker_holds_every_number_of_a_resumed_run(tmp_path, monkeypatch, tracker):
    """Each metric of each step, and of the evaluations, once."""
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
    for steps in (2, 3):
        settings = {"steps": steps, "trackers": (tracker,)}
        launch(tiny(tmp_path / "run", run=settings, eval={"num_problems": 2, "samples": 2, "k": (1, 2)}), task=sums())
    held = READERS[tracker](tmp_path)
    metrics = lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        for name, value in row.items():
            if name != "step":
                assert held[tracker_name(name)][row["step"]] == [pytest.approx(value, rel=1e-6)], name
    evaluations = lines(tmp_path / "run" / "eval.jsonl")
    assert [row["step"] for row in evaluations] == [0, 2, 3]
    for row in evaluations:
        assert held["eval/pass_at_1"][row["step"]] == [pytest.approx(row["pass@1"], abs=1e-6)]


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
