"""`rlvr eval` and `rlvr list`: what they print and write, and one line for input that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.model.load.policy import load_policy

QUICK = ["--max-new-tokens", "4", "--device", "cpu"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"question": f"What is {i} + 1?", "answer": f"It is #### {i + 1}"} for i in range(5)]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def flags(data: Path, out_dir: Path, *more: str) -> list[str]:
    return ["eval", "--model", "tiny", "--task", "gsm8k", "--data", str(data), "--out-dir", str(out_dir), *QUICK, *more]


def test_writes_answers_and_result(data, tmp_path, capsys):
    """A line for every sample, the numbers as JSON, and a table with strict and lenient extraction."""
    out = tmp_path / "out"
    assert main(flags(data, out, "--samples", "4", "--k", "1", "4", "--max-problems", "3")) == 0
    answers = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert [(a["id"], a["sample"]) for a in answers] == [(f"gsm8k/test/{p}", s) for p in range(3) for s in range(4)]
    result = json.loads((out / "result.json").read_text())
    assert (result["num_problems"], result["num_samples"]) == (3, 12)
    assert {"pass@1", "pass@4", "pass@1_ci", "lenient_pass@1", "strict_pass@1", "truncated", "status"} <= result.keys()
    printed = capsys.readouterr().out
    assert "lenient" in printed
    assert "3 problems, 12 answers" in printed


def test_goes_on_and_refuses_other_settings(data, tmp_path, capsys):
    """More samples extend the same answers; another temperature or other data in the same folder is refused."""
    out = tmp_path / "out"
    assert main(flags(data, out, "--samples", "2")) == 0
    before = (out / "answers.jsonl").read_text()
    assert main(flags(data, out, "--samples", "3")) == 0
    after = (out / "answers.jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 15
    capsys.readouterr()
    assert main(flags(data, out, "--temperature", "0.5")) == 2
    assert "temperature is 1.0 there and 0.5 here" in capsys.readouterr().err
    data.write_text(data.read_text().replace("#### 1", "#### 7"))
    assert main(flags(data, out)) == 2
    assert "fingerprint is" in capsys.readouterr().err
    assert main(flags(data, tmp_path / "other", "--split", "train")) == 2
    assert "no train problems" in capsys.readouterr().err


def test_saved_model_and_own_verifier(data, tmp_path):
    """A folder that `save` wrote is a model; a verifier with options replaces the pack's."""
    load_policy(ModelConfig(device="cpu"), corpus=["What is 0123456789+?"], seed=1).save(tmp_path / "model")
    out = tmp_path / "out"
    chosen = ["--verifier", "math", "--verifier-option", "extract=lenient"]
    arguments = flags(data, out, *chosen)
    arguments[arguments.index("tiny")] = str(tmp_path / "model")
    assert main(arguments) == 0
    result = json.loads((out / "result.json").read_text())
    assert "strict_pass@1" in result
    assert "lenient_pass@1" not in result


def test_graded_verifier_and_threshold(data, tmp_path, capsys):
    """The mean score stands beside pass@1 with its interval, and a line says what to do; a threshold needs no new
    answers."""
    (tmp_path / "graded_here.py").write_text(
        "def grade(problem, completion):\n    return .25 + len(completion) % 2 / 2\n"
    )
    arguments = flags(data, tmp_path / "out", "--verifier", "graded_here:grade", "--samples", "4")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(tmp_path)
        assert main(arguments) == 0
        printed = capsys.readouterr().out
        result = json.loads((tmp_path / "out" / "result.json").read_text())
        assert result["pass@1"] == 0.0
        assert 0.25 <= result["score"] <= 0.75
        assert f"{result['score']:.3f} [{result['score_ci'][0]:.2f}, {result['score_ci'][1]:.2f}]" in printed
        assert "--threshold X counts a score of at least X" in printed
        answers = (tmp_path / "out" / "answers.jsonl").read_bytes()
        assert main([*arguments, "--threshold", ".5"]) == 0
        printed = capsys.readouterr().out
        assert (tmp_path / "out" / "answers.jsonl").read_bytes() == answers
        again = json.loads((tmp_path / "out" / "result.json").read_text())
        assert again["pass@1"] == pytest.approx((result["score"] - 0.25) * 2)
        assert "right is a score of at least 0.5" in printed
        assert "--threshold X" not in printed


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the data set is empty"),
        (
            '{"question": "a", "answer": "#### 1"}\n{"question"\n',
            "test.jsonl, line 2: not JSON: Expecting ':' delimiter at column 12",
        ),
        ('{"question": "a", "answer": "none"}\n', "row 1: the answer does not end"),
        ('{"question": "a", "answer": "#### ,"}\n', "none of 1 rows can be used for test: 1 without an answer"),
    ],
)
def test_bad_data_is_one_line(data, tmp_path, capsys, content, message):
    """Empty data, a malformed line (by its number) and a reference that cannot be read."""
    data.write_text(content)
    assert main(flags(data, tmp_path / "out")) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_gsm8k_from_the_shared_data(rlvr_data, tmp_path):
    """GSM8K's test problems run through a tiny model."""
    folder = rlvr_data("gsm8k/test.jsonl").parent
    assert main(flags(folder, tmp_path / "out", "--k", "1", "2", "--samples", "2", "--max-problems", "8")) == 0
    assert len((tmp_path / "out" / "answers.jsonl").read_text().splitlines()) == 16


def test_list_has_a_line_each(capsys):
    """Verifiers, packs, environments and recipes, each with its summary; options on demand."""
    # In a process of its own: other tests register verifiers that have no docstring.
    listed = subprocess.run([sys.executable, "-m", "rlvr", "list"], capture_output=True, text=True, timeout=120)
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == ["verifiers", "packs", "environments", "recipes"]
    entries = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    assert {"math", "arithmetic", "gsm8k", "jsonl", "tools", "tiny_math"} <= entries.keys()
    assert all(entries.values())
    assert entries["math_grpo"].startswith("GSM8K")
    assert main(["list", "--options"]) == 0
    assert "num_train=4096" in capsys.readouterr().out
    assert main(["list", "recipes"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("recipes\n  code_grpo ")
    assert "gsm8k " not in said.split("qwen2_5")[0]
