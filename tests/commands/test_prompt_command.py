"""`rlvr show-prompt` and dry runs."""

from __future__ import annotations

import pytest

from rlvr.commands.cli import main
from rlvr.commands.prompt import escape_invisible
from rlvr.config import ModelConfig
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from tests.helpers.models import TEMPLATE
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums

SMALL = ["--run.task-option", "num_train=16", "num_test=8", "num_demonstrations=16"]


def test_the_prompt_is_shown_as_the_policy_sees_it(tmp_path, capsys):
    """Through the template, control characters escaped, with its tokens, the verifier and the reference."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=["[user]system assistant 0123456789+-=J\n\x1b"])
    policy.tokenizer.chat_template = TEMPLATE
    policy.save(tmp_path / "model")
    for path in (tmp_path / "model").glob("*.safetensors"):
        path.unlink()  # weights are not read
    flags = ["--model.name", str(tmp_path / "model"), "--model.system-prompt", "es\n\x1b[2J", *SMALL]
    assert main(["show-prompt", "tiny_math", *flags, "--id", "arithmetic/test/3"]) == 0
    printed = capsys.readouterr().out
    assert "problem arithmetic/test/3, rendered through the chat template: " in printed
    prompt = printed.split("shown)\n")[1].split("\n--- end")[0]
    assert prompt.startswith("[system]es\\n\n\\x1b[2J[user]")
    assert prompt.endswith("=[a]")
    assert "\x1b" not in printed
    asked = prompt.removeprefix("[system]es\\n\n\\x1b[2J[user]").removesuffix("[a]")
    assert f": {len('[system]es' + '..[2J[user]' + asked + '[a]')} tokens" in printed
    assert "verifier: rlvr.verifiers.math.MathVerifier" in printed
    left, sign, right = asked[:3], asked[3], asked[4:7]
    reference = int(left) + int(right) if sign == "+" else int(left) - int(right)
    assert f"reference (never shown to the model): {reference}" in printed


def test_the_teachers_prompt_is_shown_with_what_it_is_told(capsys):
    """Of a completion that is verified as in a run; with the reference in place of a correct sibling."""
    flags = ["--algo", "sdpo", "--teacher.template", "{reason}|{sibling}|{prompt}", *SMALL, "--run.verifier", "exact"]
    show = ["show-prompt", "tiny_math", *flags, "--teacher"]
    assert main([*show, "--completion", "7", "--teacher.tells", "reason", "sibling"]) == 0
    printed = capsys.readouterr().out
    reference = printed.split("reference (never shown to the model): ")[1].strip()
    assert f"{reference}" in printed.split("shown)\n")[1].split("\n--- end")[0]
    assert main([*show, "--completion", reference, "--teacher.tells", "reason"]) == 2
    assert "the teacher is told nothing of a completion that is correct" in capsys.readouterr().err
    assert main(["show-prompt", "tiny_math", *SMALL, "--teacher"]) == 2
    assert "set --teacher, with --algo sdpo" in capsys.readouterr().err


def test_without_a_recipe_or_a_known_problem_one_line_says_so(capsys):
    """An unknown id gets a suggestion; a missing value is named."""
    assert main(["show-prompt"]) == 2
    assert "name a recipe first" in capsys.readouterr().err
    assert main(["show-prompt", "tiny_math", *SMALL, "--id", "arithmetic/tain/3"]) == 2
    assert "did you mean arithmetic/train/3" in capsys.readouterr().err
    assert main(["show-prompt", "tiny_math", "--id"]) == 2
    assert "--id: expected a value" in capsys.readouterr().err


def test_a_dry_run_shows_and_writes_nothing(tmp_path, capsys, monkeypatch):
    """From the command line: exit code 0, the prompt, the sizes and the folder."""
    monkeypatch.chdir(tmp_path)
    for command in ("train", "sft"):
        assert main([command, "tiny_math", *SMALL, "--dry-run", "--run.out-dir", "out"]) == 0
        printed = capsys.readouterr().out
        for expected in (
            "16 problems to train on, 8 held out",
            "rendered as plain text",
            "128 problems x 8 completions = 1024 rollouts",
            "1000 steps on 16 demonstrations",
            "out would be made",
            "dry run: nothing was written",
        ):
            assert expected in printed
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_what_the_run_would_refuse(tmp_path, capsys):
    """A folder with another run, a prompt that does not fit, a task without what is asked for."""
    launch(tiny(tmp_path / "run", run={"steps": 1}, eval={"every": -1}), task=sums())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert launch(tiny(tmp_path / "run", run={"dry_run": True, "steps": 2}, eval={"every": -1}), task=sums()) == []
    assert "it would resume from step 1" in capsys.readouterr().out
    for group, message in (
        ({"algo": {"kl_coef": 0.5}}, "other settings"),
        ({"rollout": {"max_new_tokens": 1023}}, "more than the 1024|other settings"),
        ({"run": {"trackers": ("tensorbord",), "dry_run": True}}, "did you mean tensorboard"),
        ({"sft": {"steps": 3}}, "no demonstrations"),
    ):
        settings = {"run": {"dry_run": True}, "eval": {"every": -1}, **group}
        with pytest.raises(ValueError, match=message):
            launch(tiny(tmp_path / "run", **settings), task=sums())
    with pytest.raises(ValueError, match="more than the 1024"):
        launch(tiny(tmp_path / "new", run={"dry_run": True}, rollout={"max_new_tokens": 1022}), task=sums())
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_what_cannot_be_seen_is_escaped():
    """Control characters, directions, line separators; letters of any alphabet stay."""
    assert escape_invisible("a\n\t\x1b[0m\u202e\u2028é中\u200b") == "a\\n\\t\\x1b[0m\\u202e\\u2028é中\\u200b"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("", "algorithm: grpo, loss clip, lr 0.0002"),
        ("--algo dpo", "algorithm: dpo, loss dpo, lr 0.0002, with a reference policy"),
        (
            "--algo ppo --algo.kl-coef .1 --algo.kl-in reward",
            "algorithm: ppo, loss clip, lr 0.0002, KL term 0.1 x k1 in the reward, critic separate, lr 0.0004",
        ),
    ],
)
def test_a_dry_run_names_the_algorithm(flags, line, tmp_path, capsys):
    """Its loss, learning rates, KL term and critic."""
    assert main(["train", "tiny_math", "--dry-run", "--run.out-dir", str(tmp_path / "run"), *flags.split()]) == 0
    assert line in capsys.readouterr().out.splitlines()
