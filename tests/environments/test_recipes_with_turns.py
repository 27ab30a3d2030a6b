"""The recipes of real models with turns, run on a tiny local model with a chat template, and a local file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.model.load.tiny import tiny_model
from rlvr.sandbox.selftest import level
from rlvr.tasks.base import BOXED
from tests.helpers.chat_templates import chat_tokenizer
from tests.helpers.environments import hermes
from tests.helpers.files import lines

pytestmark = pytest.mark.slow

FLAGS = (
    "--sft.lr 3e-3 --sft.batch-size 8 --model.device cpu --model.dtype float32 --run.steps 2 --run.save-every 0 "
    "--rollout.problems-per-step 2 --rollout.group-size 4 --eval.num-problems 2 --eval.samples 1 --eval.k 1 "
    "--eval.every 0 --run.sample-every 0 --optim.lr 1e-4"
).split()


def save_model(folder: Path) -> str:
    """Save a random tiny model with a tokenizer of Qwen2.5's form."""
    tokenizer = chat_tokenizer("qwen2.5")
    tiny_model(tokenizer, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def assistant_turn(text: str) -> dict[str, str]:
    """Return a turn of the model as a message."""
    return {"role": "assistant", "content": text}


def run(recipe: str, folder: Path, demonstrations: list[dict], *flags: str) -> list[dict]:
    """Fine-tune on what the demonstrations say and train two steps. Return the logged rollouts."""
    data = write(folder / "demonstrations.jsonl", demonstrations)
    model = save_model(folder / "model")
    where = ["--model.name", model, "--run.out-dir", str(folder / "run"), "--sft.data", str(data)]
    assert main(["train", recipe, *FLAGS, *where, *flags]) == 0
    return lines(folder / "run" / "rollouts.jsonl")


def test_tool_math(tmp_path: Path) -> None:
    """A model that was shown to call Python does so in most rollouts, and reads what the program printed."""
    if level().number < 2:
        pytest.skip("the sandbox has no level 2 here")
    rows = [{"question": f"What is {i}+{i}?", "answer": f"{i}+{i} is\n#### {2 * i}"} for i in range(12)]
    for name, part in (("train", rows[:8]), ("test", rows[8:])):
        write(tmp_path / "gsm8k" / f"{name}.jsonl", part)
    shown = [
        {
            "prompt": f"What is {i}+{i}?\n{BOXED}",
            "completion": [assistant_turn(hermes("python", "print(12)")), assistant_turn("\\boxed{12}")],
        }
        for i in range(20, 28)
    ]
    found = run(
        "tool_math",
        tmp_path,
        shown,
        *("--run.data", str(tmp_path / "gsm8k"), "--sft.steps", "60", "--sft.batch-size", "4"),
        *("--rollout.max-new-tokens", "160", "--rollout.max-prompt-tokens", "700"),
    )
    assert len(found) == 2 * 2 * 4
    replied = [turn for row in found for turn in row["turns"] if turn["role"] == "tool"]
    assert len(replied) > len(found) / 2
    assert any(turn["text"] == "12" for turn in replied)
    assert any(row["tokens"] and row["turns"][-1]["role"] == "assistant" for row in found)


def test_game_rloo(tmp_path: Path) -> None:
    """A model that was shown to guess is told higher or lower, and its guesses cost."""
    shown = [{"prompt": f"Guess {i}.", "completion": "\\boxed{12}"} for i in range(8)]
    found = run(
        "game_rloo",
        tmp_path,
        shown,
        *("--sft.steps", "60", "--rollout.max-new-tokens", "120", "--rollout.turn-tokens", "30"),
    )
    told = [turn["text"] for row in found for turn in row["turns"] if turn["role"] == "user"]
    assert len(told) > len(found)
    assert any("left" in text for text in told)
    assert any(turn.get("reward", 0) < 0 for row in found for turn in row["turns"])
