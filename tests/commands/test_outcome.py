"""How a run ends: a sentence, the checkpoint, and a command that is true when it is copied."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from rlvr.commands.arguments import parse
from rlvr.commands.console import describe_outcome, find_program, list_saved_models
from rlvr.commands.eval import EvalArgs, build_eval_command
from rlvr.config import Config, EvalConfig, ModelConfig, MonitorConfig, RolloutConfig, RunConfig
from tests.helpers import warm
from tests.helpers.files import ROOT


def test_the_sentence() -> None:
    """Before and after with intervals; one evaluation alone; a score where it says more; nothing without any."""
    first = {"step": 0, "num_problems": 128, "pass@8": 0.9, "pass@1": 0.46, "pass@1_ci": [0.404, 0.52], "score": 0.46}
    last = first | {"step": 80, "pass@1": 0.953, "pass@1_ci": [0.92, 0.97], "score": 0.953}
    assert describe_outcome([first, last]) == (
        "Held-out pass@1 went from 0.460 [0.404, 0.520] to 0.953 [0.920, 0.970] over 80 steps, on 128 problems "
        "(in brackets: 95 % intervals)."
    )
    assert describe_outcome([first]) == "Held-out pass@1 is 0.460 [0.404, 0.520], at step 0, on 128 problems."
    graded = describe_outcome([first | {"score": -1.0}, last | {"score": 2.0, "score_ci": None}])
    assert "and score went from -1.000 to 2.000 over" in graded
    assert describe_outcome([]) == ""


def evaluation_of(config: Config) -> EvalArgs:
    """The arguments that the printed command parses to."""
    command = build_eval_command(config, Path("a folder/checkpoints/step-000080"))
    assert command.startswith(f"{find_program()} eval ")
    return parse(EvalArgs, shlex.split(command.removeprefix(f"{find_program()} eval ")), prog="rlvr eval")


TURNS = {"max_turns": 3, "turn_tokens": 20, "reply_tokens": 99, "context_tokens": 900, "reply_seconds": 7.5}


@pytest.mark.parametrize("rollout", [{}, {"max_turns": 3}, {"max_prompt_tokens": 850}, TURNS])
def test_the_command_plays_the_runs_environment(rollout: dict) -> None:
    """With its options, and the limits of its turns."""
    options = ("tools=python,calculator", "calls=hermes")
    config = Config(
        run=RunConfig(task="gsm8k", environment="tools", environment_option=options),
        rollout=RolloutConfig(**rollout),
        model=ModelConfig(dtype="float32", trust_remote_code=True, attention="eager"),
    )
    args = evaluation_of(config)
    assert (args.environment, args.environment_option) == ("tools", options)
    assert {name: getattr(args, name) for name in rollout} == rollout
    others = TURNS.keys() - rollout.keys()
    assert {name: getattr(args, name) for name in others} == {name: getattr(RolloutConfig(), name) for name in others}
    assert (args.dtype, args.trust_remote_code, args.attention) == ("float32", True, "eager")


def test_the_command_has_the_settings_of_the_run() -> None:
    """Task, data, verifier, sampling: everything that held-out numbers depend on, quoted for a shell."""
    config = Config(
        run=RunConfig(
            task="gsm8k",
            data=Path("my data"),
            task_option=("num_test=4",),
            verifier="math",
            verifier_option=("extract=strict", "a=b c"),
            out_dir=Path("a folder"),
        ),
        model=ModelConfig(device="cpu", chat="never", system_prompt="Think 'first'."),
        rollout=RolloutConfig(max_new_tokens=77, stop=("\n\n",)),
        eval=EvalConfig(samples=4, k=(1, 4), temperature=0.6, top_p=0.9, threshold=0.5),
    )
    args = evaluation_of(config)
    assert args == EvalArgs(
        model="a folder/checkpoints/step-000080",
        task="gsm8k",
        data=Path("my data"),
        task_option=("num_test=4",),
        verifier="math",
        verifier_option=("extract=strict", "a=b c"),
        k=(1, 4),
        samples=4,
        threshold=0.5,
        max_new_tokens=77,
        temperature=0.6,
        top_p=0.9,
        stop=("\n\n",),
        system_prompt="Think 'first'.",
        chat="never",
        device="cpu",
        out_dir=Path("a folder/eval-step-000080"),
    )
    assert args.sampling() == config.eval_sampling()


def test_the_command_judges_as_the_evaluation_did() -> None:
    """Where the monitor judges held-out problems the command names the monitor."""
    config = Config(
        run=RunConfig(verifier="reward_model", verifier_option=("model=x",)),
        monitor=MonitorConfig("math", verifier_option=("extract=lenient",)),
        eval=EvalConfig(verifier="monitor"),
    )
    args = evaluation_of(config)
    assert (args.verifier, args.verifier_option) == ("math", ("extract=lenient",))
    plain = evaluation_of(dataclasses.replace(config, eval=EvalConfig()))
    assert (plain.verifier, plain.verifier_option) == ("reward_model", ("model=x",))


def test_a_run_without_checkpoints_names_none(tmp_path: Path) -> None:
    """The fine-tuned policy where no step was trained; nothing in an empty folder."""
    config = Config(run=RunConfig(out_dir=tmp_path))
    assert list_saved_models(config) == []
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "state.json").write_text("{}")
    assert list_saved_models(config) == [("fine-tuned model", tmp_path / "start")]


@pytest.mark.slow
def test_the_last_lines_are_true_when_they_are_copied(tmp_path: Path) -> None:
    """Sentence, checkpoint, report, command; the command runs in a shell and gives the run's last numbers again.

    The run's held-out problems are all there are, so that both evaluations draw the same samples.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    flags = (
        "--run.task-option num_train=16 num_test=4 num_demonstrations=16 --sft.steps 2 --run.steps 2 "
        "--model.device cpu --rollout.problems-per-step 2 --rollout.group-size 2 --rollout.max-new-tokens 5 "
        "--eval.samples 2 --eval.k 1 2"
    ).split()
    done = warm.run(["train", "tiny_math", *flags, "--run.out-dir", "my run"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Held-out pass@1 went from 0." in done.stdout
    found = dict(text.split(": ", 1) for text in done.stdout.splitlines() if ": " in text)
    checkpoint = found.get("last checkpoint") or found["last checkpoint, and the best"]
    assert checkpoint.startswith("my run/checkpoints/step-000002, held-out pass@1 0.")
    for path in (checkpoint, found.get("best checkpoint", checkpoint)):
        assert (tmp_path / path.split(",")[0] / "model.safetensors").exists()
    assert (tmp_path / found["report"]).exists()
    lines = done.stdout.splitlines()
    (line,) = [lines[i + 1] for i, text in enumerate(lines) if text.startswith("next, ")]
    again = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, shell=True, check=False
    )
    assert again.returncode == 0, again.stderr
    result = json.loads((tmp_path / "my run" / "eval-step-000002" / "result.json").read_text())
    last = json.loads((tmp_path / "my run" / "eval.jsonl").read_text().splitlines()[-1])
    assert {name: result[name] for name in ("pass@1", "pass@2", "completion_tokens")} == {
        name: last[name] for name in ("pass@1", "pass@2", "completion_tokens")
    }
