"""Input that cannot be used, of many kinds: one line on stderr, exit code 2, and not a file written, changed or lost.

Each line of tests/golden/bad_input.txt is a command line of its own kind, and words that its message must hold: what
was found, where, and what was expected.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import rlvr.launch
from rlvr import Problem, Task
from rlvr.commands import task as commands_task
from rlvr.commands.cli import main
from rlvr.commands.grade import read_rows
from rlvr.commands.report.compare import read_conditions
from rlvr.config import Config, RolloutConfig, RunConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.core.files import jsonl as json_lines
from rlvr.core.registry import key_values, make_task, make_verifier
from rlvr.reward_model.preferences import read_pairs
from rlvr.tasks.base import Generated, build_task
from rlvr.tasks.sources import read_file
from rlvr.verifiers.runner.base import describe
from tests.bad_files import GOOD, contents, line, read_golden
from tests.helpers.files import ROOT

OUT = RunConfig(out_dir=Path("runs/never"))


# Of each sort some in a process of their own, where torch is not imported yet.
IN_A_SHELL = {
    "trian",
    "grade --verifier math data/latin.jsonl",
    "grade --verifier math data/pipe.jsonl",
    "list maths",
    "report run_binary",
    "audit jsonl",
    "eval --model tiny --task math500 --data data/latin.jsonl",
    "train tiny_math --lr 1e-4",
    "train tiny_math --run.task jsonl",
    "train tiny_math --run.task jsonl --run.data data/gzipped.jsonl",
    "rm rm_pairs --optim.lr nan",
}


def read_table() -> list[Any]:
    """The commands of the table with their words, each named by itself."""
    rows = read_golden("bad_input.txt")
    return [pytest.param(c.replace(r"\x1b", "\x1b"), words.split(" | "), id=c) for c, words in rows]


def check_line(printed: str, words: list[str]) -> None:
    """One line, an error, without a control character, that holds the words."""
    assert printed.count("\n") == 1, printed
    assert printed.startswith("error: ")
    assert "Traceback" not in printed
    assert not [c for c in printed.rstrip("\n") if unicodedata.category(c) in ("Cc", "Cs")], ascii(printed)
    for word in words:
        assert word in printed, printed


@pytest.mark.parametrize(("command", "words"), read_table())
def test_one_line_and_nothing_touched(command, words, bad_files, capsys):
    """Exit code 2, one line on stderr that says what was found, nothing on stdout, and every file as it was."""
    before = contents(bad_files)
    assert main(shlex.split(command)) == 2
    printed = capsys.readouterr()
    check_line(printed.err, words)
    assert printed.out == ""
    assert contents(bad_files) == before


def test_there_are_enough_kinds():
    """The table holds at least 150 kinds, each once."""
    commands = [parameter.values[0] for parameter in read_table()]
    assert len(set(commands)) == len(commands) >= 150


def test_settings_that_a_recipe_holds_for_later_are_no_mistake(bad_files, capsys):
    """tiny_math sets the critic's learning rate, which grpo does not read; the next rule is what is told."""
    assert main(["train", "tiny_math", "--run.trackers", "tensorbord"]) == 2
    check_line(capsys.readouterr().err, ["tensorboard"])


def accept_all(problem: Problem, completion: str) -> bool:
    return True


def launch_task(*problems: Problem) -> object:
    return rlvr.launch.launch(Config(run=OUT), task=Task("mine", problems, [], accept_all))


# What a message says, and a call from Python that raises it. Names and options are those of the command line's rows.
LIBRARY = {
    "group_size 0": lambda: rlvr.launch.launch(Config(run=OUT, rollout=RolloutConfig(group_size=0))),
    "no task 'sums'": lambda: rlvr.launch.launch(Config(run=RunConfig(task="sums"))),
    "no problems": launch_task,
    "the id 'a'": lambda: launch_task(Problem("a", "x"), Problem("a", "y")),
    "task is a list; expected a Task, or the name of a pack": lambda: rlvr.launch.launch(Config(run=OUT), task=[]),
    "verifier is a list; expected a function": lambda: rlvr.launch.launch(Config(run=OUT), verifier=[]),
    "no task 'gsm9k'": lambda: rlvr.launch.launch(Config(run=OUT), task="gsm9k"),
    "no verifier 'maths'": lambda: rlvr.launch.launch(Config(run=OUT), verifier="maths"),
    "no verifier 'mahts'": lambda: rlvr.launch.launch(
        Config(run=dataclasses.replace(OUT, verifier="mahts")), task=Task("mine", [Problem("a", "x")], [], accept_all)
    ),
    "the verifier of task 'mine' is a name, 'math'": lambda: Task("mine", [Problem("a", "x")], [], "math"),
    "for a pack that is named": lambda: rlvr.launch.launch(
        Config(run=dataclasses.replace(OUT, task_option=("num_train=3",))),
        task=Task("mine", [Problem("a", "x")], [], accept_all),
    ),
    "no pairs": lambda: RewardConfig().check(),
    "nowhere.jsonl": lambda: read_pairs(Path("data/nowhere.jsonl")),
    "latin.jsonl, line": lambda: read_pairs(Path("data/latin.jsonl")),
    "no regular file": lambda: read_file(Path("data/pipe.jsonl")),
    "unknown format '.csv'": lambda: read_file(Path("data/table.csv")),
    "words.jsonl, line 2: not JSON": lambda: read_rows(Path("data/words.jsonl")),
    "canary: no metrics.jsonl": lambda: read_conditions(["canary"]),
    "needs data": lambda: make_task("jsonl"),
    "did you mean seed": lambda: make_task("arithmetic", sede=3),
    "seed: 'one'": lambda: make_task("arithmetic", seed="one"),
    "did you mean math": lambda: make_verifier("maths"),
    "'loose'": lambda: make_verifier("math", extract="loose"),
    "'a b' is no module's name": lambda: make_verifier("a b:c"),
    "the data set is empty": lambda: build_task("mine", train=[], test=[]),
    "problem 'a'": lambda: build_task("mine", train=[Problem("a", "x", "")], test=[]),
    "-1 problems": lambda: Generated(-1, str),
    "expected key=value": lambda: key_values(["a"], "--verifier-option"),
    "a is given twice": lambda: key_values(["a=1", "a=2"], "--verifier-option"),
}


@pytest.mark.parametrize("words", LIBRARY)
def test_library_entry_points(words, bad_files):
    """The same mistakes in Python raise one of these exceptions with one line, and write nothing."""
    before = contents(bad_files)
    with pytest.raises((TypeError, ValueError, LookupError, OSError)) as caught:
        LIBRARY[words]()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(bad_files) == before


def test_a_line_without_end_is_not_read_into_memory(bad_files, capsys, monkeypatch):
    """A line beyond the limit is refused at the limit."""
    monkeypatch.setattr(json_lines, "LONGEST", 2**20)
    (bad_files / "long.jsonl").write_bytes(GOOD + b'{"prompt": "' + b"x" * 2**21 + b'"}\n')
    assert main(["grade", "--verifier", "math", "long.jsonl"]) == 2
    check_line(capsys.readouterr().err, ["long.jsonl, line 2: longer than 1 MiB"])


@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("grade --verifier math data/good.jsonl", "data/good.jsonl"),
        ("train tiny_math --run.task jsonl --run.data data/good.jsonl", "data/good.jsonl"),
        ("report run", "run/metrics.jsonl"),
        ("compare run", "run/metrics.jsonl"),
        ("rm rm_pairs --model.name m --pairs.file data/one_pair.jsonl", "data/one_pair.jsonl"),
        ("grade --verifier exact data/good.jsonl --output canary/verdicts.jsonl", "canary/verdicts.jsonl"),
    ],
)
def test_missing_permission(command, file, bad_files, capsys):
    """The file is named. As root, who may read everything, the command runs with the rights of another user."""
    main(shlex.split(command.replace("good", "no").replace("one_pair", "no").replace(" run", " no")))  # imports
    capsys.readouterr()
    bad_files.chmod(0o755)
    (bad_files / "canary").chmod(0o555)
    for path in (bad_files / "data" / "good.jsonl", bad_files / "data" / "one_pair.jsonl"):
        path.chmod(0o444)
    if not file.startswith("canary"):
        (bad_files / file).chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)
    try:
        assert main(shlex.split(command)) == 2
    finally:
        os.seteuid(user)
        (bad_files / "canary").chmod(0o755)
    check_line(capsys.readouterr().err, [f"{file}: Permission denied"])


def run_rlvr(folder: Path, *command: str, **more) -> subprocess.CompletedProcess[str]:
    """`rlvr` in a process of its own, in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "rlvr", *command], capture_output=True, text=True, cwd=folder, env=environment, **more
    )


@pytest.mark.parametrize(("command", "words"), [known for known in read_table() if known.id in IN_A_SHELL])
def test_in_a_process_of_its_own(command, words, bad_files):
    """As a shell sees it: the exit code, one line on stderr, nothing on stdout, the files as they were."""
    before = contents(bad_files)
    done = run_rlvr(bad_files, *shlex.split(command), timeout=240)
    assert done.returncode == 2
    assert done.stdout == ""
    check_line(done.stderr, words)
    assert contents(bad_files) == before


def test_a_folder_that_is_gone(bad_files):
    """The current folder was deleted under the shell."""
    gone = bad_files / "gone"
    gone.mkdir()
    script = f"import os, sys; sys.path[:] = [p for p in sys.path if p]; os.rmdir({str(gone)!r}); "
    script += "import rlvr.commands.cli as c; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", script + "sys.exit(c.main(['grade', '--verifier', 'math', 'x.jsonl']))"],
        capture_output=True,
        text=True,
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    check_line(done.stderr, ["No such file"])


def test_text_that_is_fine_is_read(bad_files, capsys):
    """A byte order mark, Windows line ends, blank lines, a number as id, an id used by several completions."""
    content = b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n" + line(id=7) + GOOD.strip()
    (bad_files / "windows.jsonl").write_bytes(content)
    assert main(["grade", "--verifier", "math", "windows.jsonl"]) == 0
    assert [json.loads(text)["id"] for text in capsys.readouterr().out.splitlines()] == ["a", 7, "a"]
    assert len(read_file(bad_files / "windows.jsonl")) == 3
    (bad_files / "bom.json").write_bytes(b"\xef\xbb\xbf[" + GOOD.strip() + b"]")
    assert len(read_file(bad_files / "bom.json")) == 1
    (bad_files / "plain.jsonl").write_bytes(line(reference=..., completion="HELLO"))
    assert main(["grade", "--verifier", "mine:loud", "plain.jsonl"]) == 0
    assert main(["audit", "jsonl", "--data", "data/good.jsonl"]) == 0


def test_a_stream_that_is_open_is_read(bad_files):
    """/dev/stdin is no regular file, and is not refused."""
    done = run_rlvr(bad_files, "grade", "--verifier", "math", "/dev/stdin", input=GOOD.decode())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "correct"


@pytest.mark.parametrize("verifier", ["mine:fails", "mine:talks"])
def test_a_verifier_that_scores_nothing_ends_with_an_error(verifier, bad_files, capsys):
    """The verdicts are written, and exit code and message say that none of them is a score."""
    assert main(["grade", "--verifier", verifier, "data/good.jsonl", "--output", "out.jsonl"]) == 2
    errors = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1
    assert "no line could be scored" in errors[0]
    assert "\x1b" not in errors[0]
    assert len((bad_files / "out.jsonl").read_text().splitlines()) == 2


def test_settings_hold_for_a_task_that_is_an_object():
    """A verifier that the config names judges it, and one that is given takes that one's place."""
    config = Config(run=dataclasses.replace(OUT, verifier="math"))
    mine = Task("mine", [Problem("a", "1+1=", "2")], [], accept_all)
    assert describe(commands_task.build_task(config, mine).verifier).startswith("rlvr.verifiers.math")
    given, task, verifier = rlvr.launch.write_names(config, mine, accept_all)
    assert commands_task.build_task(given, task).verifier is verifier is accept_all
