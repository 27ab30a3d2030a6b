"""One run a folder: what another process holds is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from rlvr.commands.cli import main
from rlvr.runs.folder import hold_lock
from tests.helpers.files import ROOT
from tests.helpers.folders import claim, held, run_folder

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
    before = held(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(ValueError, match=rf"another run is writing in .*run \(process {process.pid} on "):
            claim(run_folder(tmp_path / "run", overwrite=overwrite))
        with pytest.raises(ValueError, match="another run is writing"):
            run_folder(tmp_path / "run", overwrite=overwrite).check()
    assert main(["train", "tiny_math", "--run.out-dir", str(tmp_path / "run"), "--run.overwrite"]) == 2
    assert re.fullmatch(r"error: another run is writing in .*\n", capsys.readouterr().err)
    assert held(tmp_path) == before
    process.send_signal(signal.SIGKILL)
    process.wait()
    os.kill(child, 0)  # it lives
    claim(run_folder(tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "lock").read_text())["pid"] == os.getpid()


def test_of_runs_that_start_at_once_one_gets_the_folder(tmp_path):
    """Eight processes, one lock; the others say so."""
    code = (
        "import sys; from pathlib import Path; from rlvr.runs.folder import locked\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n    with locked(Path(sys.argv[1])): print('mine', flush=True); sys.stdin.readline()\n"
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
