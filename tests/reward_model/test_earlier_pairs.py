"""`pairs.also`: pairs of earlier policies, trained on beside those of a newer one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.rm.launch import launch_reward_model
from rlvr.config import ModelConfig
from rlvr.config.reward_model import BaseModelConfig, PairsConfig, RewardConfig, RewardRunConfig
from rlvr.model.load.policy import load_policy
from rlvr.reward_model.preferences import PreferencePair, read_pairs, write_pairs

EARLIER = [PreferencePair(f"{n}+1=", f"{n} a", f"{n} b") for n in range(10)]
LATER = [PreferencePair(f"{n}+1=", f"{n} c", f"{n} d") for n in range(5, 12)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    """The folder of a random tiny policy."""
    folder = tmp_path_factory.mktemp("policy")
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+= abcd"]).save(folder)
    return str(folder)


def launched(tmp_path: Path, base: str, **pairs) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Train for one pass; return what was trained on, and what was held out."""
    config = RewardConfig(
        run=RewardRunConfig(out_dir=tmp_path / "run", overwrite=True),
        pairs=dataclasses.replace(PairsConfig(held_out=0.3), **pairs),
        model=BaseModelConfig(name=base, device="cpu"),
    )
    launch_reward_model(config)
    return read_pairs(tmp_path / "run" / "pairs.jsonl"), read_pairs(tmp_path / "run" / "held_out.jsonl")


def written(tmp_path: Path, name: str, pairs: list[PreferencePair]) -> Path:
    path = tmp_path / name
    write_pairs(path, pairs)
    return path


def test_pairs_of_several_files(tmp_path, policy):
    """All are there once; those of one prompt are on one side, of whichever file they are."""
    files = [written(tmp_path, "first.jsonl", EARLIER[:4]), written(tmp_path, "second.jsonl", EARLIER[4:])]
    train, held = launched(tmp_path, policy, file=written(tmp_path, "later.jsonl", LATER), also=tuple(files))
    assert sorted((*train, *held), key=str) == sorted((*EARLIER, *LATER), key=str)
    assert not {pair.prompt for pair in train} & {pair.prompt for pair in held}
    assert len({pair.prompt for pair in held}) == 4  # .3 of 12 prompts


@pytest.mark.parametrize(("pattern", "sampled"), [("[abcd]", True), ("never written", False)])
def test_pairs_of_a_file_beside_sampled_ones(tmp_path, policy, pattern, sampled):
    """Where the newer policy's completions give no pairs, those of the file are trained on by themselves."""
    train, held = launched(
        tmp_path,
        policy,
        policy=policy,
        task="arithmetic",
        num_problems=16,
        max_new_tokens=4,
        verifier="regex",
        verifier_option=(f"pattern={pattern}", "match=search"),
        also=(written(tmp_path, "first.jsonl", EARLIER),),
    )
    found = [*train, *held]
    assert all(pair in found for pair in EARLIER)
    assert (len(found) > len(EARLIER)) == sampled


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "none.jsonl"), ("", "the file is empty"), ('{"prompt": "a"}\n', "line 1: no chosen and no rejected")],
)
def test_a_bad_file_is_one_line(tmp_path, capsys, policy, content, message):
    """Before anything is sampled or written."""
    path = tmp_path / ("none.jsonl" if content is None else "bad.jsonl")
    if content is not None:
        path.write_text(content)
    flags = ["--pairs.policy", policy, "--pairs.also", str(path), "--run.out-dir", str(tmp_path / "run")]
    assert main(["rm", "rm_pairs", *flags]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "run").exists()
