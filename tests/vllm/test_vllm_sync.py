"""The folders in memory of servers that a run starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.sampling.vllm.weights import MEMORY, delete_orphans, process_lives, process_space, shared_folder

HOLD = """
import sys, time
from rlvr.sampling.vllm.weights import shared_folder
with shared_folder() as folder:
    (folder / "weights").write_bytes(b"1")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folder_is_gone_afterwards():
    """While it is there its name says whose it is."""
    with shared_folder() as folder:
        assert folder.name.startswith(f"rlvr-{process_space()}-{os.getpid()}-")
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no /dev/shm here")
def test_folder_of_a_killed_process_goes_with_the_next_start():
    """One that lives keeps its own; once killed, the next start of any run deletes what it left."""
    command = [sys.executable, "-c", HOLD]
    root = str(Path(__file__).resolve().parents[2])
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root})
    left = Path(process.stdout.readline().strip())
    assert process_lives(process.pid)
    with shared_folder():
        assert (left / "weights").exists()
    process.kill()
    process.communicate()
    assert (left / "weights").exists()
    with shared_folder():
        assert not left.exists()


def test_other_folders_are_left_alone(tmp_path):
    """Those of another container's processes, and whatever else begins alike."""
    for name in (f"rlvr-{int(process_space()) + 1}-999999999-x", "rlvr-old", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / f"rlvr-{process_space()}-999999999-x").mkdir()
    delete_orphans(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        (f"rlvr-{int(process_space()) + 1}-999999999-x", "rlvr-old", "other")
    )
