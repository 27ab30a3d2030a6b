"""The pipeline llama2: its stages in order, what each is given; the comparison of three rewards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.training import two_reward_models
from rlvr.commands.cli import main
from rlvr.config.pipeline import PipelineConfig
from rlvr.pipeline.records import SEED_FOLDER
from rlvr.pipeline.stages import Stages
from rlvr.recipes import llama2
from rlvr.reward_model.preferences import read_pairs
from tests.helpers.pipelines import QUICK

MODELS = [f"{name}-{number}" for number in (1, 2) for name in ("help", "safe")]
ORDER = ["sft", *MODELS[:2], "best-1", "tune-1", *MODELS[2:], "best-2", "tune-2", "ppo"]


def run_llama2(out: Path) -> list[str]:
    measured = ("sft.eval.every=0", "sft.eval.num_problems=4", "ppo.eval.every=0", "ppo.eval.num_problems=4")
    return ["pipeline", "llama2", "--seeds", "3", "--out-dir", str(out), "--set", *QUICK["llama2"], *measured]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, Path]:
    """A pipeline of a few steps: its folder, and that of its seed."""
    out = tmp_path_factory.mktemp("llama2") / "out"
    assert main(run_llama2(out)) == 0
    return out, out / "seed-3"


def record(folder: Path, stage: str) -> dict:
    return json.loads((folder / f"{stage}.stage.json").read_text())


def test_the_stages_in_order(done):
    """Each is recorded; both rates are in the report."""
    out, folder = done
    times = [(folder / f"{stage}.stage.json").stat().st_mtime_ns for stage in ORDER]
    assert times == sorted(times)
    report = (out / "report.html").read_text()
    assert "open: pass@1" in report
    assert "private: pass@1" in report
    assert "right of the kept" in report


def test_what_a_round_is_given(done):
    """Samples of the newest policy, chosen by the newest models; fine-tuning of that policy on what was kept."""
    _, folder = done
    for number, policy in ((1, "sft"), (2, "tune-1")):
        best = record(folder, f"best-{number}")["settings"]
        assert best["model"] == f"{SEED_FOLDER}/{policy}/start"
        assert best["selector"] == "piecewise"
        options = " ".join(best["selector_option"])
        for name in ("help", "safe"):
            assert f".model={SEED_FOLDER}/{name}-{number}/model-0" in options
        tune = record(folder, f"tune-{number}")["settings"]
        assert tune["model"]["name"] == f"{SEED_FOLDER}/{policy}/start"
        assert tune["sft"]["data"] == f"{SEED_FOLDER}/best-{number}/data.jsonl"
    assert record(folder, "ppo")["settings"]["model"]["name"] == f"{SEED_FOLDER}/tune-2/start"


def test_reward_models_keep_the_older_pairs(done):
    """Round by round each has all pairs of the round before, and those of its own labels' policy."""
    _, folder = done
    for name in ("help", "safe"):
        before: list = []
        for number in (1, 2):
            files = [folder / f"{name}-{number}" / file for file in ("pairs.jsonl", "held_out.jsonl")]
            held = [pair for file in files for pair in read_pairs(file)]
            assert all(pair in held for pair in before)
            before = held
            assert len(record(folder, f"{name}-{number}")["settings"]["pairs"]["also"]) == (2 if number > 1 else 0)


def test_the_reward_of_ppo(done):
    """Whitened log-odds of the combination, its parts logged; the exact rule measures and is not rewarded."""
    _, folder = done
    settings = record(folder, "ppo")["settings"]
    assert settings["run"]["verifier"] == "piecewise"
    assert {"tag=private", "whiten=true"} < set(settings["run"]["verifier_option"])
    assert (
        f"help-2/model-0,helpful.std=1,safe.model={SEED_FOLDER}/safe-2/model-0" in settings["run"]["verifier_option"][2]
    )
    rows = [json.loads(line) for line in (folder / "ppo" / "rollouts.jsonl").read_text().splitlines()]
    first = [row for row in rows if row["step"] == rows[0]["step"]]
    assert len(first) == 16
    assert sum(row["score"] for row in first) == pytest.approx(0, abs=1e-4)
    assert sum(row["score"] ** 2 for row in first) == pytest.approx(16, abs=1e-3)
    for row in first:
        assert {"helpful", "safe", "tagged", "combined"} <= row["parts"].keys()
        assert row["parts"]["tagged"] == float(row["problem"].startswith("private/"))
        assert row["monitor_status"] != "partial"


def test_a_stage_that_is_missing_is_made_again(done, capsys):
    """What began from it must go first; the rest is skipped, and the same data come out."""
    out, folder = done
    data = (folder / "best-2" / "data.jsonl").read_bytes()
    (folder / "best-2.stage.json").unlink()
    assert main(run_llama2(out)) == 2
    assert "tune-2, ppo began from what it made before" in capsys.readouterr().err
    for later in ("tune-2", "ppo"):
        shutil.rmtree(folder / later)
        (folder / f"{later}.stage.json").unlink()
    assert main(run_llama2(out)) == 0
    assert capsys.readouterr().out.count("done before") == len(ORDER) - 3
    assert (folder / "best-2" / "data.jsonl").read_bytes() == data


def test_the_comparison_runs_the_same_stages(tmp_path):
    """Planned from one policy with equal settings, but for the reward; both alone are whitened too."""
    plan = Stages(PipelineConfig(tmp_path), tmp_path, 0, only_plan=True)
    two_reward_models.stages(plan)
    assert list(plan.planned) == [*ORDER, "ppo-helpful", "ppo-safe"]
    whole = Stages(PipelineConfig(tmp_path), tmp_path, 0, only_plan=True)
    llama2.stages(whole)
    assert {name: plan.planned[name] for name in ORDER} == whole.planned
    for name in MODELS:
        labels = "helpful" if name.startswith("help") else "safe"
        assert plan.planned[name]["pairs"]["task_option"] == [f"labels={labels}"]
    for name, model in (("ppo-helpful", "help-2"), ("ppo-safe", "safe-2")):
        settings = plan.planned[name]
        run = dict(settings["run"])
        assert run.pop("verifier") == "combine"
        options = run.pop("verifier_option")
        assert options[1] == f"options=one.model=planned/{model},one.std=1"
        assert options[2] == "whiten=one"
        both = whole.planned["ppo"]
        assert run == {key: value for key, value in both["run"].items() if not key.startswith("verifier")}
        assert {key: value for key, value in settings.items() if key != "run"} == {
            key: value for key, value in both.items() if key != "run"
        }
