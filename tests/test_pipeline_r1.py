"""The pipeline r1, cut down to a few seconds: what goes from stage to stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.tasks.generated.bilingual_sums import bilingual_sums, notes
from rlvr.training.sft.demonstrations import read_demonstrations
from tests.helpers.pipelines import QUICK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One seed's folder, after the run. Each of its stages makes the packs, which are smaller here."""
    out = tmp_path_factory.mktemp("r1")
    with pytest.MonkeyPatch.context() as patch:
        for pack in (bilingual_sums, notes):
            for size in {"num_train": 200, "num_test": 40, "num_demonstrations": 200}.items():
                patch.setitem(pack.__kwdefaults__, *size)
        assert main(["pipeline", "r1", "--out-dir", str(out), "--set", *QUICK["r1"]]) == 0
    return out / "seed-0"


def settings(folder: Path, stage: str) -> dict:
    found: dict = json.loads((folder / stage / "config.json").read_text())
    return found


def test_what_each_stage_begins_with(folder):
    """R1-Zero and the cold start begin with the base model, and so does the second fine-tuning."""
    starts = {"zero": "base", "cold": "base", "tuned": "base", "distilled": "small", "small-zero": "small"}
    for stage, start in starts.items():
        assert settings(folder, stage)["model"]["name"] == str(folder / start / "start"), stage
    for stage, start in {"reason": "cold", "r1": "tuned"}.items():
        assert settings(folder, stage)["model"]["name"] == str(folder / start / "start"), stage
    assert settings(folder, "tuned")["sft"]["data"] == str(folder / "best" / "data.jsonl")
    assert settings(folder, "distilled")["sft"]["data"] == str(folder / "data" / "data.jsonl")


def test_the_last_training_has_rules_and_a_reward_model(folder):
    """Scores of sums are those of the rules, of requests those of the model, which are no 0 or 1."""
    rows = [json.loads(line) for line in (folder / "r1" / "rollouts.jsonl").read_text().splitlines()]
    sums = [row["score"] for row in rows if row["problem"].startswith("bilingual_sums")]
    notes = [row["score"] for row in rows if row["problem"].startswith("notes")]
    assert sums
    assert notes
    assert all(score in (0.0, 0.2, 0.5, 0.7, 1.0, 1.2, 1.5, 1.7) or 0 < score < 1.7 for score in sums)
    assert not any(score in (0.0, 1.0) for score in notes)
    assert len({round(score, 6) for score in notes}) > 1


def test_both_kinds_of_prompts_are_sampled_and_measured(folder):
    prompts = [problem.prompt for problem, _ in read_demonstrations(folder / "best" / "data.jsonl")]
    assert any(prompt.startswith("note ") for prompt in prompts)
    assert any(prompt.endswith("=") for prompt in prompts)
    found = json.loads((folder / "r1-both.stage.json").read_text())["measured"]["evaluations"][0]
    assert set(found["packs"]) == {"bilingual_sums", "notes"}
    report = (folder.parent / "report.html").read_text()
    for text in ("notes: pass@1", "right of the kept", "accuracy on held-out pairs"):
        assert text in report


def test_the_student_is_smaller(folder):
    sizes = {
        stage: json.loads((folder / stage / "start" / "config.json").read_text())["hidden_size"]
        for stage in ("tuned", "distilled")
    }
    assert sizes == {"tuned": 128, "distilled": 64}
