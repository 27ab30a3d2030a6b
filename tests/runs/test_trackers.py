"""Project and run name of experiment trackers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

import accelerate.tracking
import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

import rlvr.runs.trackers
from rlvr.launch import launch
from rlvr.runs.trackers import tensorboard
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


def test_a_tracker_is_told_project_and_name(tmp_path: Path, recorder: list[Any]) -> None:
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


def test_a_tracker_that_takes_no_name_says_so(tmp_path: Path, recorder: list[Any]) -> None:
    """A name that was asked for is not dropped; without one it runs."""
    config = tiny(tmp_path, run={"steps": 1, "trackers": ("comet_ml",), "tracker_name": "x"}, eval={"every": -1})
    with pytest.raises(ValueError, match="comet_ml has no run names"):
        rlvr.runs.trackers.check_trackers(config.run)
    assert recorder == []


def test_the_trackers_are_accelerates() -> None:
    """The table that is read before torch is imported has a row for each of them."""
    assert set(rlvr.runs.trackers.MODULES) == set(LOGGER_TYPE_TO_CLASS)


def test_tensorboard_writes_to_a_folder_of_project_and_name(tmp_path: Path) -> None:
    """OUT_DIR/PROJECT/NAME; without a name OUT_DIR/PROJECT."""
    run = tiny(tmp_path, run={"tracker_project": "sums", "tracker_name": "a"}).run
    assert (tensorboard(run).run_name, tensorboard(run).logging_dir_param) == ("sums/a", tmp_path)
    assert tensorboard(tiny(tmp_path).run).run_name == "rlvr"
    if importlib.util.find_spec("tensorboard") is not None:
        settings = {"steps": 1, "trackers": ("tensorboard",), "tracker_project": "sums", "tracker_name": "a"}
        launch(tiny(tmp_path / "run", run=settings, eval={"every": -1}), task=sums())
        assert list((tmp_path / "run" / "sums" / "a").glob("events.out.*"))
