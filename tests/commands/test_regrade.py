"""`rlvr regrade`: the same verifier repeats every verdict, another one's disagreements are listed, all of them."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main as rlvr
from rlvr.commands.task import build_task
from rlvr.config import AlgoConfig, Config, RolloutConfig, RunConfig, to_json
from rlvr.core.registry import make_verifier
from rlvr.core.types import Completion, Group, Status, Turn, Verdict
from rlvr.runs.log import rollout_records
from rlvr.training.step.rewards import credited_advantages, credited_rewards, group_rewards
from rlvr.verifiers.runner.base import verify_one
from tests.helpers.runs import with_settings

STEPS, PROBLEMS = 3, 4
FORMS = ("\\boxed{{{}}}", "the answer is {}", "\\boxed{{{}1}}", "no idea")  # strict, only lenient, wrong, none
LENIENT = {"extract": "lenient"}


def log_step(config: Config, step: int, groups: list[Group]) -> list[dict[str, Any]]:
    """Return the lines that a run with these settings writes of a step."""
    advantages = credited_advantages(groups, credited_rewards(groups, config, lambda ids: ""), config.algo)
    shown = [[list(a.values) if hasattr(a, "values") else a for a in row] for row in advantages]
    return rollout_records(step, groups, group_rewards(groups, config.rollout), shown)


def make(folder: Path, *, turns: bool = False, **groups: Any) -> Config:
    """Write a run on arithmetic whose verifier extracts leniently: its settings, and rollouts in two files."""
    config = Config(
        run=RunConfig(task="arithmetic", verifier="math", verifier_option=("extract=lenient",), steps=STEPS),
        rollout=RolloutConfig(problems_per_step=PROBLEMS, group_size=len(FORMS), max_new_tokens=20),
        algo=AlgoConfig("grpo"),
    )
    config = with_settings(config, **groups)
    task = build_task(config)
    records = []
    for step in range(1, STEPS + 1):
        found = []
        for problem in task.train[PROBLEMS * step : PROBLEMS * (step + 1)]:
            texts = [form.format(problem.reference) for form in FORMS]
            made = [completion(text, i, turns=turns) for i, text in enumerate(texts)]
            verdicts = tuple(verify_one(task.verifier, problem, text) for text in texts)
            found.append(Group(problem, (), tuple(made), verdicts))
        records.append(log_step(config, step, found))
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**json.loads(to_json(config)), "fingerprint": task.fingerprint}))
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for rows in records[1:] for row in rows))
    with gzip.open(folder / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(json.dumps(row) + "\n" for row in records[0]))
    return config


def completion(text: str, sample: int, *, turns: bool) -> Completion:
    """Return a completion of 5 tokens and more, of one turn or of two with a reply between."""
    length = 5 + sample
    if not turns:
        return Completion(text, (1,) * length, (0.0,) * length)
    said = (Turn("assistant", "ask", 2, reward=0.25 * sample), Turn("tool", "told", 3), Turn("assistant", text, length))
    return Completion(text, (1,) * (length + 5), (0.0,) * (length + 5), turns=said)


def result_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    "groups", [{}, {"rollout": {"truncated": "penalize", "overlong_buffer": 14}}, {"turns": True}], ids=str
)
def test_the_own_verifier_repeats_everything(tmp_path, groups):
    """Every verdict and every reward, with a penalty of overlong answers and with rewards of turns too."""
    make(tmp_path / "run", **groups)
    assert rlvr(["regrade", str(tmp_path / "run"), "--out-dir", str(tmp_path / "out")]) == 0
    found = result_of(tmp_path / "out")
    assert (found["rollouts"], found["disagreements"], found["agreement"]) == (48, 0, 1.0)
    assert found["same_verdict_in_other_words"] == 0
    assert found["reward"]["changed"] == 0
    assert found["groups"] == 12
    assert found["groups_with_signal"] == {"stored": 12, "new": 12}
    assert lines(tmp_path / "out" / "disagreements.jsonl") == []


def test_strict_against_lenient(tmp_path, capsys):
    """Listed is exactly what the two verifiers judge otherwise; rewards are those of such a run."""
    config = make(tmp_path / "run")
    words = ["--verifier", "math", "--verifier-option", "extract=strict"]
    assert rlvr(["regrade", str(tmp_path / "run"), *words]) == 0
    shown = capsys.readouterr().out
    out = tmp_path / "run" / "regrade-math-extract=strict"
    task = build_task(config)
    problems = {problem.id: problem for problem in task.train}
    strict = make_verifier("math", extract="strict")
    with gzip.open(tmp_path / "run" / "rollouts-0000.jsonl.gz", "rt") as part:
        rows = [json.loads(line) for line in part] + lines(tmp_path / "run" / "rollouts.jsonl")
    fresh = [verify_one(strict, problems[row["problem"]], row["completion"]) for row in rows]
    expected = [
        (row["step"], row["problem"], row["sample"])
        for row, verdict in zip(rows, fresh)
        if (row["status"], row["score"]) != (str(verdict.status), verdict.score)
    ]
    listed = lines(out / "disagreements.jsonl")
    assert [(row["step"], row["problem"], row["sample"]) for row in listed] == expected
    assert {row["sample"] for row in listed if row["reward"][0] != row["reward"][1]} == {1}
    table = Counter((row["status"], str(verdict.status)) for row, verdict in zip(rows, fresh))
    found = result_of(out)
    assert {(a, b): n for a, row in found["confusion"].items() for b, n in row.items()} == table
    assert found["reward"] == {"stored": 0.5, "new": 0.25, "changed": 12}
    assert listed[0]["reward"] == [1.0, 0.0]
    assert f": {len(expected)} of 48 rollouts have another verdict" in shown


@pytest.mark.parametrize("cut", [0, 1, 700, -1, -30])
def test_resumed_where_it_was_interrupted(tmp_path, cut):
    """Whatever was written, also half a line: the same files; and what is there is not judged again."""
    make(tmp_path / "run")
    command = ["regrade", str(tmp_path / "run"), "--out-dir", str(tmp_path / "out"), "--verifier", "math"]
    assert rlvr(command) == 0
    names = ("verdicts.jsonl", "disagreements.jsonl", "result.json")
    before = [(tmp_path / "out" / name).read_bytes() for name in names]
    (tmp_path / "out" / names[0]).write_bytes(before[0][:cut])
    (tmp_path / "out" / names[1]).unlink()
    assert rlvr(command) == 0
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == before
    held = lines(tmp_path / "out" / names[0])
    held[5] |= {"status": "timeout", "score": 0.0}
    (tmp_path / "out" / names[0]).write_text("".join(json.dumps(row) + "\n" for row in held))
    assert rlvr(command) == 0
    assert sum(row.get("timeout", 0) for row in result_of(tmp_path / "out")["confusion"].values()) == 1


def test_options_alone_are_of_the_runs_own_verifier(tmp_path):
    """They come in place of what the run has for them, in a folder of their own."""
    make(tmp_path / "run")
    assert rlvr(["regrade", str(tmp_path / "run"), "--verifier-option", "extract=strict"]) == 0
    named = ["--verifier", "math", "--verifier-option", "extract=strict", "--out-dir", str(tmp_path / "named")]
    assert rlvr(["regrade", str(tmp_path / "run"), *named]) == 0
    own = tmp_path / "run" / "regrade-own-extract=strict"
    assert result_of(own)["confusion"] == result_of(tmp_path / "named")["confusion"]


def test_rollouts_that_became_others_are_judged_again(tmp_path):
    """From the first line on whose rollout is another; lines beyond the last rollout go."""
    make(tmp_path / "run")
    command = ["regrade", str(tmp_path / "run"), "--out-dir", str(tmp_path / "out")]
    assert rlvr(command) == 0
    rows = lines(tmp_path / "run" / "rollouts.jsonl")
    rows[0]["completion"] = "something else"
    (tmp_path / "run" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:-3]))
    assert rlvr(command) == 0
    found = result_of(tmp_path / "out")
    assert (found["rollouts"], found["disagreements"]) == (45, 1)
    assert len(lines(tmp_path / "out" / "verdicts.jsonl")) == 45


def test_what_the_environment_judged_stays(tmp_path):
    """By the run's own verifier; a failed environment's rollouts by any."""
    make(tmp_path / "run")
    rows = lines(tmp_path / "run" / "rollouts.jsonl")
    rows[3] |= {"status": "correct", "score": 1.0, "judged_by": "environment"}
    rows[7] |= {"status": "error", "score": None, "finish_reason": "error", "reward": None}
    (tmp_path / "run" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words, kept, differing in (([], 2, 0), (["--verifier", "math"], 1, 1)):
        out = tmp_path / f"out{kept}"
        assert rlvr(["regrade", str(tmp_path / "run"), "--out-dir", str(out), *words]) == 0
        found = result_of(out)
        assert found["kept_verdicts"] == kept
        listed = [(row["problem"], row["sample"], row["new"]["score"]) for row in lines(out / "disagreements.jsonl")]
        assert listed.count((rows[3]["problem"], 3, 0.0)) == differing
        assert found["confusion"]["error"] == {"error": 1}


def test_the_log_says_who_judged():
    """Where the environment gave the verdict, and only there."""
    from rlvr.core.types import Problem

    given = dataclasses.replace(completion("a", 0, turns=True), verdict=Verdict(Status.CORRECT, 1.0))
    group = Group(Problem("p", ""), (), (given, completion("a", 1, turns=True)), (Verdict(Status.CORRECT, 1.0),) * 2)
    rows = rollout_records(1, [group], [[1.0, 1.0]], [[0.0, 0.0]])
    assert [row.get("judged_by") for row in rows] == ["environment", None]


@pytest.mark.parametrize(
    "spoil, words, expected",
    [
        ("", ["--verifier", "mth"], "math"),
        ("", ["--verifier", "math", "--verifier-option", "extract=strictly"], "extract"),
        ("", ["--verifier", "math", "--verifier-option", "extract"], "key=value"),
        ("", ["--verifier-option", "extrakt=strict"], "did you mean extract?"),
        ("", ["--verifier", "json_schema"], "expected an object"),
        ("", ["--timeout", "0"], "--timeout 0"),
        ("", ["--workers", "-1"], "--workers -1"),
        ("", ["--out-dir", "."], "current folder"),
        ("", ["--out-dir", "run"], "no run of this kind wrote"),
        ("config.json", [], "config.json"),
        ("rollouts.jsonl", [], "cannot be read"),
        ("problem", [], "is not among the task's problems"),
        ("fingerprint", [], "fingerprint"),
        ("damaged", [], "line 1"),
    ],
)
def test_bad_input(tmp_path, spoil, words, expected, capsys, monkeypatch):
    """One line, exit code 2, and nothing is written."""
    make(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    rows, settings = Path("run/rollouts.jsonl"), Path("run/config.json")
    if spoil == "config.json":
        settings.unlink()
    elif spoil == "rollouts.jsonl":
        rows.unlink()
        Path("run/rollouts-0000.jsonl.gz").unlink()
        expected = "expected the folder of a run"
    elif spoil == "problem":
        rows.write_text(json.dumps({**lines(rows)[0], "problem": "elsewhere"}) + "\n")
    elif spoil == "fingerprint":
        settings.write_text(settings.read_text().replace('"fingerprint": "', '"fingerprint": "0'))
    elif spoil == "damaged":
        rows.write_text('{"step": \n' + rows.read_text())
    before = sorted(tmp_path.rglob("*"))
    assert rlvr(["regrade", "run", *words]) == 2
    out, error = capsys.readouterr()
    assert error.count("\n") == 1, out
    assert expected in error
    assert sorted(tmp_path.rglob("*")) == before


def test_another_verifier_needs_another_folder(tmp_path, capsys):
    """What is there stays."""
    make(tmp_path / "run")
    command = ["regrade", str(tmp_path / "run"), "--out-dir", str(tmp_path / "out")]
    assert rlvr(command) == 0
    before = (tmp_path / "out" / "verdicts.jsonl").read_bytes()
    assert rlvr([*command, "--verifier", "exact"]) == 2
    assert "a regrading with other settings: verifier is None there and 'exact' here" in capsys.readouterr().err
    assert (tmp_path / "out" / "verdicts.jsonl").read_bytes() == before
    assert rlvr([*command, "--workers", "1"]) == 0
