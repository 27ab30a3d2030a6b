"""A run's folder: what may be deleted in it, where it may lie, and who may write there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.core.files import write as files
from rlvr.core.files.write import check_place, check_replaceable, write_whole
from rlvr.core.types import RunError
from rlvr.runs.folder import EVALUATION, REWARD_MODEL, TRAINING, hold_lock
from tests.helpers.files import ROOT
from tests.helpers.folders import RECORD, claim, read_files, run_folder
from tests.helpers.models import small_policy

REWARD_RECORD = {"run": {}, "pairs": {}, "train": {}, "versions": {}}
EVAL_RECORD = {"model": "m", "task": "t", "samples": 1, "fingerprint": "f"}
# Files of a training run, and files that lie beside them.
OURS = (
    "metrics.jsonl rollouts.jsonl rollouts-0000.jsonl.gz eval.jsonl alarms.jsonl report.html answers-000020.jsonl.gz "
    "checkpoints/step-000050/state.json checkpoints/step-000075.partial/model.safetensors start/state.json "
    "rlvr/events.out.tfevents.1.host rlvr/17.2/hparams.yml eval.jsonl.partial"
).split()
THEIRS = (
    "notes.md checkpoints/step-000050-converted/model.gguf checkpoints/best/model.safetensors rollouts-mine.jsonl "
    "rlvr/plot.py start-again/x model-0/weights answers.jsonl data.csv"
).split()


def fill(folder: Path, names: list[str], record: dict | None = None, name: str = "config.json") -> None:
    for path in map(folder.joinpath, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something")
    if record is not None:
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(record))


def test_overwrite_deletes_what_a_run_wrote_and_nothing_else(tmp_path):
    """By name and only in a folder with a run's record; a user's files beside them stay byte for byte."""
    fill(tmp_path / "run", [*OURS, *THEIRS], RECORD)
    theirs = {name: read_files(tmp_path / "run")[name] for name in THEIRS}
    lines = claim(run_folder(tmp_path / "run", overwrite=True))
    left = read_files(tmp_path / "run")
    assert {name: left[name] for name in THEIRS} == theirs
    assert set(left) - set(THEIRS) == {"config.json", "lock"}
    assert any("notes.md" in line and "stay" in line for line in lines)


def test_links_are_removed_and_not_what_they_point_to(tmp_path):
    """A checkpoint that is a link loses the link; the folder of checkpoints may itself be one."""
    fill(tmp_path / "elsewhere", ["kept/state.json", "step-000002/state.json"])
    fill(tmp_path / "run", ["metrics.jsonl"], RECORD)
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "step-000001").symlink_to(tmp_path / "elsewhere" / "kept")
    (tmp_path / "run" / "start").symlink_to(tmp_path / "elsewhere" / "kept")
    claim(run_folder(tmp_path / "run", overwrite=True))
    assert read_files(tmp_path / "elsewhere") == {"kept/state.json": b"something"}


FOREIGN = {
    "a model": (["model.safetensors"], {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}),
    "a git checkout": ([".git/HEAD", "train.py"], None),
    "runs": (["tiny_math/config.json"], None),
    "a config of something else": ([], {}),
    "a run without its record": (["metrics.jsonl", "checkpoints/step-000050/state.json"], None),
}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("kind", [TRAINING, REWARD_MODEL, EVALUATION], ids=lambda kind: kind.name)
@pytest.mark.parametrize("what", FOREIGN)
def test_a_folder_of_something_else_is_refused_untouched(tmp_path, what, kind, overwrite):
    """With overwrite or without: one line that names some of what is there; nothing is written or deleted."""
    names, record = FOREIGN[what]
    fill(tmp_path / "mine", names, record)
    before = read_files(tmp_path / "mine")
    with pytest.raises(ValueError, match=r"holds files that no run of this kind wrote \(.*choose another"):
        claim(run_folder(tmp_path / "mine", kind, overwrite=overwrite))
    assert read_files(tmp_path / "mine") == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_of_another_kind_is_refused_untouched(tmp_path, overwrite):
    """An evaluation does not go into a training run's folder, nor a reward model into an evaluation's."""
    fill(tmp_path / "train", ["metrics.jsonl"], RECORD)
    fill(tmp_path / "rm", ["model-0/x"], REWARD_RECORD)
    fill(tmp_path / "eval", ["answers.jsonl"], EVAL_RECORD, "settings.json")
    before = read_files(tmp_path)
    for place, kind, found in (
        ("train", EVALUATION, "holds a training run"),
        ("train", REWARD_MODEL, "holds a training run"),
        ("rm", TRAINING, "holds the training of a reward model"),
        ("eval", REWARD_MODEL, "holds an evaluation"),
    ):
        with pytest.raises(ValueError, match=found):
            claim(run_folder(tmp_path / place, kind, overwrite=overwrite))
    assert read_files(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b'{"run": ', b"\xff\xfe", b"[1]"])
def test_a_record_that_cannot_be_read_is_one_line(tmp_path, content):
    """It may be a run's: nothing is touched, also with overwrite."""
    fill(tmp_path, ["metrics.jsonl"])
    (tmp_path / "config.json").write_bytes(content)
    before = read_files(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json (is not JSON|holds a list)"):
        claim(run_folder(tmp_path, overwrite=True))
    assert read_files(tmp_path) == before


def test_empty_and_harmless_folders_are_taken(tmp_path):
    """A new folder, an empty one, one with the log that a shell opened for the run, one that a killed start left."""
    for name in ("new", "empty", "log", "left"):
        if name != "new":
            (tmp_path / name).mkdir()
        if name == "empty":
            (tmp_path / name / "checkpoints").mkdir()
        if name == "log":
            (tmp_path / name / "train.log").write_text("started")
        if name == "left":
            (tmp_path / name / "lock").write_text("{}")
            (tmp_path / name / "config.json.partial").write_text('{"ru')
        claim(run_folder(tmp_path / name, overwrite=True))
        assert json.loads((tmp_path / name / "config.json").read_text()) == RECORD
    assert (tmp_path / "log" / "train.log").read_text() == "started"


def test_a_run_without_anything_of_worth_begins_anew(tmp_path):
    """Other settings are refused while there is a checkpoint; without one its logs are replaced, and a line says so."""
    fill(tmp_path / "run", ["metrics.jsonl", "notes.md", "checkpoints/step-000001/state.json"], {**RECORD, "run": 1})
    before = read_files(tmp_path / "run")
    with pytest.raises(ValueError, match=r"x is 1 there and 2 here; choose another.*--run\.overwrite"):
        claim(run_folder(tmp_path / "run"))
    assert read_files(tmp_path / "run") == before
    (tmp_path / "run" / "checkpoints" / "step-000001" / "state.json").unlink()
    (tmp_path / "run" / "checkpoints" / "step-000001").rmdir()
    (tmp_path / "run" / "checkpoints").rmdir()
    lines = claim(run_folder(tmp_path / "run"))
    assert ["which is replaced: metrics.jsonl deleted" in line for line in lines] == [True]
    assert set(read_files(tmp_path / "run")) == {"config.json", "lock", "notes.md"}


def test_what_the_run_reads_is_not_deleted_with_the_folder(tmp_path):
    """The model of the last checkpoint, trained on in the same folder with overwrite, would be gone."""
    fill(tmp_path / "run", ["checkpoints/step-000050/model.safetensors"], RECORD)
    before = read_files(tmp_path)
    model = str(tmp_path / "run" / "checkpoints" / "step-000050")
    with pytest.raises(ValueError, match=r"step-000050 lies in --run\.out-dir"):
        claim(run_folder(tmp_path / "run", overwrite=True, inputs=["tiny", "", model]))
    assert read_files(tmp_path) == before


def test_places_that_are_not_for_results(tmp_path, monkeypatch):
    """The current folder, the home folder, what holds them, the system's folders, and links to any of them."""
    home, here = tmp_path / "users" / "me", tmp_path / "work" / "project"
    for folder in (home, here / "model"):
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    (here / "link").symlink_to(here)
    (here / "homelink").symlink_to(home)
    wrong = [
        "",
        ".",
        "..",
        "../..",
        "model/..",
        str(here),
        "link",
        "homelink",
        str(home),
        str(home.parent),
        str(tmp_path),
    ]
    wrong += ["/", "/tmp", "/usr", "/usr/local", "/etc", "/etc/rlvr", "/proc/self", "/dev", "/var", "/bin/x", "~/run"]
    for place in wrong:
        with pytest.raises(ValueError, match=r"--run\.out-dir .*; name a new folder"):
            check_place(Path(place), "--run.out-dir")
    for place in ("runs/x", "model", "../other", str(home / "runs"), "/dev/shm/run", "/usr/src/app", "/mnt/disk/run"):
        check_place(Path(place), "--run.out-dir")


def test_a_folder_inside_a_checkpoint_is_refused(tmp_path):
    """It would be deleted with the checkpoint."""
    fill(tmp_path, ["run/checkpoints/step-000020/state.json"])
    with pytest.raises(ValueError, match="lies in the checkpoint"):
        check_place(tmp_path / "run" / "checkpoints" / "step-000020" / "eval", "--out-dir")


def test_places_that_cannot_be_written(tmp_path):
    """A file where a folder is expected, also further up; a folder without the permission to write."""
    (tmp_path / "file").write_text("x")
    for place in ("file", "file/run"):
        with pytest.raises(ValueError, match="file is a file; expected a folder"):
            check_place(tmp_path / place, "--run.out-dir")
    (tmp_path / "closed").mkdir(mode=0o555)
    code = (
        "import os, sys; from pathlib import Path; from rlvr.core.files.write import check_place\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: check_place(Path(sys.argv[1]), '--run.out-dir')\n"
        "except ValueError as error: print(error)"
    )
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == tmp_path.owner() and folder != Path("/") and str(folder).count("/") > 1:
            folder.chmod(folder.stat().st_mode | 0o055)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "closed" / "run")], capture_output=True, text=True, cwd=ROOT
    )
    assert "no permission to write there" in done.stdout, done.stderr


COMMANDS: list[Callable[[str], list[str]]] = [
    lambda out: ["train", "tiny_math", "--run.out-dir", out, "--run.overwrite"],
    lambda out: ["sft", "tiny_math", "--run.out-dir", out, "--run.overwrite"],
    lambda out: ["rm", "rm_pairs", "--run.out-dir", out, "--run.overwrite", "--pairs.policy", "tiny"],
    lambda out: ["eval", "--model", "tiny", "--task", "arithmetic", "--out-dir", out],
    lambda out: ["profile", "arithmetic", "--model", "tiny", "--out-dir", out],
]


@pytest.mark.parametrize("out", ["", "..", "model"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command("")[0])
def test_no_command_touches_the_current_folder_or_a_model(tmp_path, monkeypatch, capsys, command, out):
    """One line, exit code 2, and every file is as before."""
    fill(tmp_path / "here" / "model", ["model.safetensors"], {"model_type": "llama"})
    fill(tmp_path / "here", ["thesis.tex"])
    monkeypatch.chdir(tmp_path / "here")
    before = read_files(tmp_path)
    assert main(command(out)) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "out-dir" in error
    assert read_files(tmp_path) == before


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """A disk that is full leaves the old content, no second file, and a line that names the file."""
    path = tmp_path / "result.json"
    write_whole(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot write .*result\.json: No space left on device"):
        write_whole(path, "new")
    assert read_files(tmp_path) == {"result.json": b"old"}


def test_files_of_others_are_not_replaced(tmp_path):
    """A file is replaced where it bears the mark of the command, or is empty; /dev/null is no file."""
    fill(tmp_path, ["other.png"])
    (tmp_path / "empty.png").touch()
    (tmp_path / "ours.png").write_bytes(b"PNG by rlvr")
    for path in (tmp_path / "empty.png", tmp_path / "ours.png", tmp_path / "none.png", Path("/dev/null")):
        check_replaceable(path, "--out", (b"by rlvr",))
    with pytest.raises(ValueError, match="exists, and nothing in it says that this command wrote it"):
        check_replaceable(tmp_path / "other.png", "--out", (b"by rlvr",))
    with pytest.raises(ValueError, match="is a folder; expected a file"):
        check_replaceable(tmp_path, "--out", (b"by rlvr",))


def test_pages_and_verdicts_of_others_are_not_replaced(tmp_path, monkeypatch, capsys):
    """compare, report and grade: a file that they did not write is refused in one line, their own are replaced."""
    monkeypatch.chdir(tmp_path)
    steps = "".join(json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, 4))
    fill(tmp_path, ["paper.html", "run/report.html", "data.jsonl"])
    for run in ("run", "other", "own"):
        (tmp_path / run).mkdir(exist_ok=True)
        (tmp_path / run / "metrics.jsonl").write_text(steps)
    (tmp_path / "rows.jsonl").write_text('{"reference": "1", "completion": "1"}\n')
    grade = ["grade", "--verifier", "math", "rows.jsonl", "--output"]
    before = read_files(tmp_path)
    for command, name in (
        (["compare", "own", "--out", "paper.html"], "paper.html"),
        (["report", "run"], "report.html"),
        ([*grade, "data.jsonl"], "data.jsonl"),
        ([*grade, "run/metrics.jsonl"], "metrics.jsonl"),
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"{name}' exists, and nothing in it says that this command wrote it" in error
    assert read_files(tmp_path) == before
    for _ in range(2):
        assert main(["compare", "own", "--out", "figures/new.html"]) == 0
        assert main(["report", "own"]) == 0
        assert main([*grade, "verdicts.jsonl"]) == 0


def interrupt(*_: object, **__: object) -> None:
    """Stands for a signal."""
    raise KeyboardInterrupt


def test_an_evaluation_without_an_answer_leaves_its_folder_free(tmp_path, monkeypatch, capsys):
    """One that was killed while the model was loaded: another takes its folder, and says so; one with answers stays."""
    monkeypatch.chdir(tmp_path)
    small_policy().save(tmp_path / "other-model")
    rest = "--task arithmetic --out-dir out --max-problems 2 --max-new-tokens 2 --device cpu".split()
    monkeypatch.setattr("rlvr.model.load.policy.load_policy", interrupt)
    assert main(["eval", "--model", "./other-model", *rest]) == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["eval", "--model", "tiny", *rest]) == 0
    assert "out held an evaluation without an answer, which is replaced" in capsys.readouterr().out
    answers = (tmp_path / "out" / "answers.jsonl").read_bytes()
    assert main(["eval", "--model", "./other-model", *rest]) == 2
    assert "model is 'tiny' there and './other-model' here" in capsys.readouterr().err
    with hold_lock(tmp_path / "out"):
        assert main(["eval", "--model", "tiny", *rest]) == 2
    assert f"another run is writing in out (process {os.getpid()} on" in capsys.readouterr().err
    assert (tmp_path / "out" / "answers.jsonl").read_bytes() == answers


def test_a_folder_that_is_no_utf8_is_refused_before_anything_runs(tmp_path):
    """Libraries that write models take no such path: told at the start, not when the first checkpoint is due."""
    with pytest.raises(ValueError, match="is no UTF-8 text, which model files need"):
        check_place(tmp_path / os.fsdecode(b"n\xe9"), "--run.out-dir")


# One run a folder: what another process holds is refused.

HOLDER = """
import os, sys, time
from pathlib import Path
from rlvr.runs.folder import RunFolder, TRAINING
from rlvr.verifiers.runner import Runner
from rlvr.core.registry import make_verifier
from rlvr import Problem

record = {"run": {}, "rollout": {}, "algo": {}, "fingerprint": "f", "versions": {}}
folder = RunFolder(Path(sys.argv[1]), TRAINING, flag="--run.out-dir", record=lambda held: record,
                   difference=lambda held: None, loses=lambda held: True, overwrite=False)
with folder.lock(), Runner(make_verifier("math"), workers=2) as runner:
    folder.claim()
    runner.verify([(Problem("a", "1+1", "2"), "2")])
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A second process that has the folder tmp_path/run, with verifiers' workers and a forked child of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    child = int(process.stdout.readline())
    yield process, child
    for pid in (child, process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    process.stdout.close()


def test_two_runs_do_not_share_a_folder(tmp_path, holder, capsys):
    """The second is told who is there, with overwrite too, and touches nothing; SIGKILL of the first frees the folder,
    although a child that it forked lives on.
    """
    process, child = holder
    before = read_files(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=rf"another run is writing in .*run \(process {process.pid} on "):
            claim(run_folder(tmp_path / "run", overwrite=overwrite))
        with pytest.raises(ValueError, match="another run is writing"):
            run_folder(tmp_path / "run", overwrite=overwrite).check()
    assert main(["train", "tiny_math", "--run.out-dir", str(tmp_path / "run"), "--run.overwrite"]) == 2
    assert re.fullmatch(r"error: another run is writing in .*\n", capsys.readouterr().err)
    assert read_files(tmp_path) == before
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(child, 0)  # it lives
    claim(run_folder(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "lock").read_text())["pid"] == os.getpid()


def test_of_runs_that_start_at_once_one_gets_the_folder(tmp_path):
    """Eight processes, one lock; the others say so."""
    code = (
        "import sys; from pathlib import Path; from rlvr.runs.folder import hold_lock\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    with hold_lock(Path(sys.argv[1])): print('mine', flush=True); sys.stdin.readline()\n"
        "except ValueError as error: print(error, flush=True)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
    processes = [subprocess.Popen(command, text=True, cwd=ROOT, **pipes) for _ in range(8)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 8
    for process in processes:
        process.stdin.write("go\n")
    said = [process.stdout.readline().strip() for process in processes]
    for process in processes:
        process.communicate(timeout=60)  # closes its input: whoever has the lock ends
    assert said.count("mine") == 1
    assert sum("another run is writing" in line for line in said) == 7


def test_a_folder_made_for_nothing_is_removed(tmp_path):
    """Where the run wrote nothing but the lock; a folder that was there stays."""
    (tmp_path / "old").mkdir()
    for name in ("new", "old"):
        with pytest.raises(RuntimeError), hold_lock(tmp_path / name):
            raise RuntimeError
    assert not (tmp_path / "new").exists()
    assert (tmp_path / "old").exists()
