"""Pipelines: stages in order, skipped when done, taken up again after a SIGKILL, and the report over seeds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.eval import EvalArgs
from rlvr.commands.sample import SampleArgs
from rlvr.config import SFTConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.pipeline.records import Tries
from rlvr.pipeline.report import figures, write_pipeline_report
from rlvr.pipeline.stages import Made, Stages, run_pipeline
from tests.helpers import chromium
from tests.helpers.folders import read_files
from tests.helpers.pages import write_run
from tests.helpers.pipelines import QUICK
from tests.helpers.resuming import small

STAGES = ["sft", "text", "reward", "ppo", "ppo-differences"]


def counting_pipeline(calls: list[str]):
    """A pipeline of three stages that write a number, each one more than the stage before."""

    def pipeline(stages: Stages) -> None:
        made = Made("", Path())
        for name in ("one", "two", "three"):
            made = step(stages, name, made)

    def step(stages: Stages, name: str, before: Made) -> Made:
        def make(folder: Path) -> dict[str, float]:
            calls.append(f"{stages.seed}/{name}")
            number = int((before.path / "n").read_text()) if before.name else stages.seed
            (folder / "n").write_text(str(number + 1))
            return {"n": number + 1, "n_ci": [number, number + 2]}

        return stages.make(name, {"after": str(before.path), "seed": stages.seed}, make)

    return pipeline


def test_stages_run_once_for_each_seed(tmp_path):
    """In order, each with what the one before it made; a second call runs none, and a new seed only its own."""
    calls: list[str] = []
    config = PipelineConfig(tmp_path / "out", seeds=(3,))
    run_pipeline(config, counting_pipeline(calls), say=lambda text: None)
    assert calls == ["3/one", "3/two", "3/three"]
    assert (tmp_path / "out" / "seed-3" / "three" / "n").read_text() == "6"
    said: list[str] = []
    run_pipeline(dataclasses.replace(config, seeds=(3, 4)), counting_pipeline(calls), say=said.append)
    assert calls[3:] == ["4/one", "4/two", "4/three"]
    assert sum("done before" in line for line in said) == 3


def test_a_stage_that_fails_is_repeated_alone(tmp_path):
    """What it left is thrown away; what was done before it stays."""
    calls: list[str] = []
    broken = [True]

    def pipeline(stages: Stages) -> None:
        counting_pipeline(calls)(stages)

        def fails(folder: Path) -> dict[str, float]:
            (folder / "half").write_text("half")
            if broken.pop() if broken else False:
                raise KeyboardInterrupt
            assert [path.name for path in folder.iterdir()] == ["half"]
            return {}

        stages.make("four", {}, fails)

    config = PipelineConfig(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(config, pipeline, say=lambda text: None)
    assert not (tmp_path / "out" / "seed-0" / "four").exists()
    run_pipeline(config, pipeline, say=lambda text: None)
    assert len(calls) == 3


def test_other_settings_are_refused(tmp_path):
    """Naming the stage and the first setting that differs; nothing is changed."""
    run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]), say=lambda text: None)
    before = read_files(tmp_path)

    def pipeline(stages: Stages) -> None:
        stages.make("one", {"after": "elsewhere", "seed": 0}, lambda folder: {})

    with pytest.raises(ValueError, match=r"one was made with other settings \(after '.', now 'elsewhere'\)"):
        run_pipeline(PipelineConfig(tmp_path / "out"), pipeline, say=lambda text: None)
    assert read_files(tmp_path) == before


def test_a_folder_that_no_stage_made_stays(tmp_path):
    """Where a stage of one's own would write: one line, and nothing is deleted."""
    there = tmp_path / "out" / "seed-0" / "one"
    there.mkdir(parents=True)
    (there / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="one is in the way, and no stage made it"):
        run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]), say=lambda text: None)
    assert (there / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("lost", ["one.stage.json", "one", "two.stage.json"])
def test_a_stage_that_has_been_read_is_not_made_anew(tmp_path, lost):
    """What later stages made began from it: they are named, and nothing runs."""
    calls: list[str] = []
    config = PipelineConfig(tmp_path / "out")
    run_pipeline(config, counting_pipeline(calls), say=lambda text: None)
    seed = tmp_path / "out" / "seed-0"
    (seed / lost).rename(tmp_path / "elsewhere")
    before = read_files(tmp_path)
    later = "two, three" if lost.startswith("one") else "three"
    with pytest.raises(ValueError, match=rf"would be made anew, and {later} began from"):
        run_pipeline(config, counting_pipeline(calls), say=lambda text: None)
    assert read_files(tmp_path) == before
    assert len(calls) == 3


def test_a_folder_that_was_moved_and_its_name_from_here(tmp_path, monkeypatch):
    """Records hold for a moved folder, and for a relative path; a copy of a seed's folder is no seed."""
    calls: list[str] = []
    run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline(calls), say=lambda text: None)
    (tmp_path / "out").rename(tmp_path / "moved")
    (tmp_path / "moved" / "seed-0-before").mkdir()
    monkeypatch.chdir(tmp_path)
    run_pipeline(PipelineConfig(Path("moved")), counting_pipeline(calls), say=lambda text: None)
    assert len(calls) == 3


@pytest.mark.parametrize("text", ["{", "[]", '{"settings": {}}'])
def test_a_damaged_record_is_one_line(tmp_path, text):
    run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]), say=lambda text: None)
    (tmp_path / "out" / "seed-0" / "two.stage.json").write_text(text)
    with pytest.raises(ValueError, match=r"two.stage.json (is not|holds)"):
        run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]), say=lambda text: None)


def test_a_report_of_somebody_else_stays(tmp_path):
    (tmp_path / "report.html").write_text("mine")
    with pytest.raises(ValueError, match="exists, and nothing in it says that this command wrote it"):
        run_pipeline(PipelineConfig(tmp_path), counting_pipeline([]), say=lambda text: None)
    assert (tmp_path / "report.html").read_text() == "mine"


def test_fine_tuning_on_what_a_stage_sampled(tmp_path):
    """The data set goes from stage to stage; the last one measures best-of-2 with its KL bound; `set` changes them."""
    few = ("num_train=8", "num_test=4")
    own = {"task": "arithmetic", "task_option": few, "max_new_tokens": 80, "device": "cpu", "workers": 1}
    digit = {"verifier": "regex", "verifier_option": ("pattern=7", "match=search")}

    def pipeline(stages: Stages) -> None:
        base = dataclasses.replace(small(tmp_path, steps=0), sft=SFTConfig(steps=2, batch_size=4))
        start = stages.sft("start", base)
        data = stages.sample("data", SampleArgs(model="", samples=4, **own, **digit), policy=start)
        tuned = stages.sft("tuned", base, policy=start, data=data)
        best = EvalArgs(model="", samples=2, k=(1, 2), selector="length", selector_option=("unit=characters",), **own)
        stages.evaluate("best", best, policy=tuned)

    folder = tmp_path / "out" / "seed-0"
    config = PipelineConfig(tmp_path / "out", set=("data.samples=5", "data.temperature=0.9", "tuned.sft.steps=3"))
    report = run_pipeline(config, pipeline, say=lambda text: None)
    answers = (folder / "data" / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 8 * 5
    settings = json.loads((folder / "tuned" / "config.json").read_text())
    assert settings["sft"]["data"] == str(folder / "data" / "data.jsonl")
    assert settings["sft"]["steps"] == 3
    assert settings["model"]["name"] == str(folder / "start" / "start")
    measured = json.loads((folder / "best.stage.json").read_text())["measured"]["evaluations"][0]
    assert measured["best@2_kl"] == pytest.approx(0.1931, abs=1e-4)
    text = report.read_text()
    for name in ("right of the kept", "best@2 (KL at most 0.19)", "pass@1"):
        assert name in text


def test_several_processes_are_refused(tmp_path, monkeypatch):
    """Each would run all stages, in the same folders."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a pipeline runs in one process"):
        run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]))
    assert not (tmp_path / "out").exists()


def test_two_stages_of_one_name_are_refused(tmp_path):
    def pipeline(stages: Stages) -> None:
        stages.sft("same", small(tmp_path, steps=0))
        stages.sft("same", small(tmp_path, steps=0))

    with pytest.raises(ValueError, match="two stages have the name 'same'"):
        run_pipeline(PipelineConfig(tmp_path / "out"), pipeline)
    assert not (tmp_path / "out").exists()


def test_recipes_of_other_commands(capsys):
    """A pipeline is no training run, and the other way round: the line names the command."""
    assert main(["train", "instructgpt"]) == 2
    assert "rlvr pipeline instructgpt" in capsys.readouterr().err
    assert main(["pipeline", "tiny_math"]) == 2
    assert "rlvr train tiny_math" in capsys.readouterr().err
    assert main(["pipeline", "instructgpt", "--stages", "--set", "ppo.algo.ptx-coef=0"]) == 0
    assert "sft.data=" not in capsys.readouterr().out.partition("\nppo:")[2].partition("\nppo-")[0]
    assert main(["pipeline", "instructgpt", "--stages"]) == 0
    printed = capsys.readouterr().out
    ppo = printed.partition("\nppo:\n")[2].partition("\nppo-")[0].splitlines()
    assert "  sft.data=planned/text/data.jsonl" in ppo
    assert "  algo.kl-coef=0.2" in ppo
    assert not any(line.startswith("  algo.clip-low=") for line in ppo)  # a default
    assert stage_names(printed) == STAGES


def test_the_report_has_each_seed_and_the_mean(tmp_path):
    """Intervals of each seed, means with their deviation, counts as whole numbers, a link to a stage's own page."""
    for seed, (first, last) in {0: (0.25, 0.5), 1: (0.35, 0.7)}.items():
        rows = [{"step": 0, "pass@1": first, "pass@1_ci": [0.1, 0.4]}, {"step": 2, "pass@1": last}]
        folder = tmp_path / f"seed-{seed}"
        (folder / "rl").mkdir(parents=True)
        measured = {"evaluations": rows, "pairs": 1200 + seed * 2}
        record = {"settings": {"a": "<b>"}, "path": "rl", "measured": measured, "seconds": 90.0}
        (folder / "rl.stage.json").write_text(json.dumps(record))
    (tmp_path / "seed-1" / "rl" / "report.html").write_text("")
    text = write_pipeline_report(tmp_path, ["rl", "never"]).read_text()
    assert "1,201 ± 1.41" in text
    assert re.findall(r'<a href="[^"]*">', text) == ['<a href="seed-1/rl/report.html">']
    assert "0.250 [0.100, 0.400] → 0.500" in text
    assert "0.300 ± 0.0707" in text
    assert "0.600 ± 0.141" in text
    assert "2 of 2" in text
    assert "0 of 2" in text
    assert "<b>" not in text
    assert "different settings" not in text
    other = json.loads((tmp_path / "seed-1" / "rl.stage.json").read_text())
    (tmp_path / "seed-1" / "rl.stage.json").write_text(json.dumps({**other, "settings": {"a": "c"}}))
    assert "Stage rl has different settings" in write_pipeline_report(tmp_path, ["rl"]).read_text()
    packs = [{"pass@1": 0.5, "packs": {"sums": {"pass@1": 0.75}, "none": None}}]
    found = {figure.name: figure.value for figure in figures({"settings": {}, "measured": {"evaluations": packs}})}
    assert found == {"pass@1": 0.5, "sums: pass@1": 0.75}
    accuracy = {"reward model": {"accuracy": 0.9, "accuracy_ci": [0.8, 0.95]}, "kl": 0.125}
    shown = {figure.name: figure.text for figure in figures({"settings": {}, "measured": accuracy})}
    assert shown == {"accuracy on held-out pairs": "0.900 [0.800, 0.950]", "kl": "0.125"}


def write_stage(folder: Path, name: str, settings: dict, measured: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"settings": settings, "path": name, "measured": measured, "seconds": 90.0}
    (folder / f"{name}.stage.json").write_text(json.dumps(record))


def test_a_stage_is_compared_with_the_policy_that_it_began_with(tmp_path):
    """Its own first evaluation, or the last one of the stage before it, by way of one that measured nothing; of the
    same pack alone. A reward model begins at chance."""

    def settings(model: str, task: str = "sums") -> dict:
        return {"model": {"name": model}, "run": {"task": task}}

    rows = [{"pass@1": rate, "num_problems": 8} for rate in (0.25, 0.5)]
    write_stage(tmp_path, "sft", settings("base"), {"evaluations": rows[:1]})
    write_stage(tmp_path, "copy", settings("SEED_FOLDER/sft/start"), {})
    write_stage(tmp_path, "tuned", settings("SEED_FOLDER/copy/start"), {"evaluations": rows[1:]})
    write_stage(tmp_path, "other", settings("SEED_FOLDER/tuned/x", "words"), {"evaluations": rows[1:]})
    write_stage(tmp_path, "reward", {"model": {"name": "SEED_FOLDER/sft/start"}}, {"reward model": {"accuracy": 0.75}})
    names = ("sft", "copy", "tuned", "other", "reward")
    records = {name: json.loads((tmp_path / f"{name}.stage.json").read_text()) for name in names}
    before = {name: [figure.before for figure in figures(record, records)] for name, record in records.items()}
    assert before == {"sft": [None], "copy": [], "tuned": [0.25], "other": [None], "reward": [0.5]}
    own = {"settings": {}, "measured": {"evaluations": rows}}
    assert [(figure.before, figure.value) for figure in figures(own)] == [(0.25, 0.5)]


@pytest.mark.parametrize(("value", "text"), [(12345, "12,345"), (0, "0"), (0.0004, "0.0004"), (1.0, "1")])
def test_counts_are_whole_numbers(value, text):
    (figure,) = figures({"settings": {}, "measured": {"found": value}})
    assert figure.text == text


def test_the_time_of_a_stage_is_that_of_all_its_tries(tmp_path, monkeypatch):
    """One that was killed counts until it last wrote; of a stage that is done nothing is left but its record."""
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    Tries(tmp_path, "a")
    for name, written in (("a", 1060), ("a-other", 4000)):  # the second is another stage's
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "weights").touch()
        os.utime(tmp_path / name / "checkpoints" / "weights", (written, written))
    now[0] = 5000.0
    Tries(tmp_path, "a")  # killed before it wrote anything
    now[0] = 6000.0
    last = Tries(tmp_path, "a")
    now[0] = 6010.0
    assert last.seconds() == 70
    run_pipeline(PipelineConfig(tmp_path / "out"), counting_pipeline([]), say=lambda text: None)
    assert not list(tmp_path.glob("out/*/*.tries.json"))


@pytest.mark.skipif(chromium.PROGRAM is None, reason="no Chromium (Debian: apt-get install chromium)")
def test_the_page_has_the_curves_of_the_stages(tmp_path):
    """A line for each stage, a mean over seeds; a reward model whose steps begin anew has none; links lead to pages."""
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}"
        for name, steps in (("first", [1, 2, 3]), ("second", [1, 2]), ("reward", [1, 2, 1, 2])):
            write_run(folder / name, metrics=[{"step": step, "reward": step / 4 + seed / 10} for step in steps])
            write_stage(folder, name, {}, {"reward": 0.5})
        (folder / "second" / "report.html").write_text("<title>rlvr: its own</title>")
    path = write_pipeline_report(tmp_path, ["first", "second", "reward"])
    with chromium.open_page() as page:
        page.resize(1200, 900)
        page.load(path)
        page.until("document.body?.dataset.ready")
        page.until("document.querySelectorAll('.uplot').length > 0")
        legend = page.evaluate("document.querySelector('.u-legend').textContent")
        assert "first" in legend
        assert "second" in legend
        assert "reward" not in legend
        assert page.evaluate("document.querySelectorAll('h1, nav a').length") == 1
        page.evaluate("document.querySelector('a').click()")
        page.until("document.title === 'rlvr: its own'")


def test_one_seed_runs_in_one_process_at_a_time(tmp_path):
    """The second command names the first one's process; another seed of the folder runs."""
    calls: list[str] = []

    def pipeline(stages: Stages) -> None:
        if stages.only_plan or stages.seed == 4:
            return counting_pipeline(calls)(stages)
        with pytest.raises(ValueError, match=r"another run is writing in .*seed-3"):
            run_pipeline(config, counting_pipeline(calls), say=lambda text: None)
        return run_pipeline(dataclasses.replace(config, seeds=(4,)), pipeline, say=lambda text: None)

    config = PipelineConfig(tmp_path, seeds=(3,))
    run_pipeline(config, pipeline, say=lambda text: None)
    assert {call[0] for call in calls} == {"4"}


# Each pipeline of the recipes, killed once in every stage: it ends with the models and data of an unbroken run.


def command(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "rlvr", "pipeline", name, "--out-dir", str(folder), "--set", *QUICK[name]]


def stage_names(printed: str) -> list[str]:
    """The names of the stages that `--stages` has printed."""
    return [line.removesuffix(":") for line in printed.splitlines() if not line.startswith(" ")]


def stages(name: str) -> list[str]:
    """The names of a pipeline's stages, in order."""
    asked = [sys.executable, "-m", "rlvr", "pipeline", name, "--stages"]
    printed = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return stage_names(printed)


def kill_in(name: str, folder: Path, stage: str, seconds: float) -> bool:
    """Start the pipeline, and kill it and its workers so long after a stage has begun; whether it was still in it."""
    with subprocess.Popen(
        command(name, folder), stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == f"stage {stage}":
                time.sleep(seconds)
                break
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.read()
    return not (folder / "seed-0" / f"{stage}.stage.json").exists()


def files_made(folder: Path) -> dict[str, bytes]:
    """Weights, data sets and rollouts, by their place."""
    wanted = ("*.safetensors", "data.jsonl", "pairs.jsonl", "rollouts.jsonl")
    paths = [path for kind in wanted for path in (folder / "seed-0").rglob(kind)]
    return {str(path.relative_to(folder)): path.read_bytes().replace(bytes(folder), b"") for path in paths}


def took(folder: Path, stage: str) -> float:
    """The seconds that a stage has taken."""
    record = json.loads((folder / "seed-0" / f"{stage}.stage.json").read_text())
    return float(record["seconds"])


@pytest.mark.survey
@pytest.mark.parametrize("name", sorted(QUICK))
def test_killed_in_every_stage(tmp_path, name):
    """SIGKILL while each stage is at work, one after the other; what is made is the same, byte for byte."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run(command(name, whole), check=True, stdout=subprocess.DEVNULL)
    inside = {stage: kill_in(name, parts, stage, seconds=0.4 * took(whole, stage)) for stage in stages(name)}
    done = subprocess.run(command(name, parts), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files_made(parts).keys() == files_made(whole).keys()
    different = [place for place, held in files_made(whole).items() if files_made(parts)[place] != held]
    assert not different
    assert sum(inside.values()) >= 0.7 * len(inside), inside
