"""Each pipeline of the recipes, killed once in every stage: it ends with the models and data of an unbroken run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.pipelines import QUICK


def command(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "rlvr", "pipeline", name, "--out-dir", str(folder), "--set", *QUICK[name]]


def stages(name: str) -> list[str]:
    """The names of a pipeline's stages, in order."""
    asked = [sys.executable, "-m", "rlvr", "pipeline", name, "--stages"]
    printed = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return [line.partition(":")[0] for line in printed.splitlines()]


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


def made(folder: Path) -> dict[str, bytes]:
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
def test_killed_in_every_stage(tmp_path: Path, name: str) -> None:
    """SIGKILL while each stage is at work, one after the other; what is made is the same, byte for byte."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    subprocess.run(command(name, whole), check=True, stdout=subprocess.DEVNULL)
    inside = {stage: kill_in(name, parts, stage, seconds=0.4 * took(whole, stage)) for stage in stages(name)}
    done = subprocess.run(command(name, parts), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert made(parts).keys() == made(whole).keys()
    different = [place for place, held in made(whole).items() if made(parts)[place] != held]
    assert not different
    assert sum(inside.values()) >= 0.7 * len(inside), inside
