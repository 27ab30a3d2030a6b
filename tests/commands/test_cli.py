"""The command line: help, names, and one clear line with exit code 2 for input that cannot be used."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module

import pytest

from rlvr.commands.arguments import ELSEWHERE, Flags, key_values, nearest, values_of
from rlvr.commands.cli import main
from rlvr.commands.eval import EvalArgs
from rlvr.commands.train import COMMAND_OF, load_recipe, recipe_config, recipe_names
from rlvr.config import AlgoConfig, Config, MonitorConfig
from tests.helpers.files import ROOT


def rejected(capsys, *argv: str) -> str:
    """The one line of an expected error."""
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    return printed


def test_help_lists_the_commands(capsys):
    """No argument at all is a mistake, --help is not."""
    assert main(["--help"]) == 0
    assert "rlvr COMMAND" in capsys.readouterr().out
    assert main([]) == 2


def test_unknown_names_get_a_suggestion(capsys):
    """Commands, recipes, tasks, verifiers: the nearest name is offered."""
    assert "did you mean train?" in rejected(capsys, "trian")
    assert "did you mean tiny_math?" in rejected(capsys, "train", "tiny_mth")
    assert "did you mean arithmetic?" in rejected(capsys, "train", "tiny_math", "--run.task", "arithmetc")
    assert "did you mean math" in rejected(capsys, "train", "tiny_math", "--run.verifier", "maths")
    assert "no recipe file" in rejected(capsys, "train", "no_such.py")


def test_settings_that_cannot_work_are_named(capsys, tmp_path):
    """Group size, unknown flag, wrong type, a value out of range, an unknown option of a pack."""
    out = ("--run.out-dir", str(tmp_path / "run"))
    assert "group_size 1" in rejected(capsys, "train", "tiny_math", "--rollout.group-size", "1", *out)
    assert "--rollout.group-sice" in rejected(capsys, "train", "tiny_math", "--rollout.group-sice", "4", *out)
    assert "x" in rejected(capsys, "train", "tiny_math", "--run.steps", "x", *out)
    assert "clip_low" in rejected(capsys, "train", "tiny_math", "--algo.clip-low", "2", *out)
    assert "key=value" in rejected(capsys, "train", "tiny_math", "--run.task-option", "num_train", *out)
    assert "num_train" in rejected(capsys, "train", "tiny_math", "--run.task-option", "num_trian=3", *out)
    assert "no option 'a'" in rejected(capsys, "train", "tiny_math", "--run.verifier-option", "a=1", *out)
    assert "lora_rank -1" in rejected(capsys, "train", "tiny_math", "--model.lora-rank", "-1", *out)
    assert not (tmp_path / "run").exists()


def test_missing_and_broken_data_are_named(capsys, tmp_path):
    """A missing file, an empty one, a line that is no JSON (its number), a reference that cannot be read."""
    out = ("--run.out-dir", str(tmp_path / "run"))
    path = tmp_path / "problems.jsonl"
    train = ("train", "tiny_math", "--run.task", "jsonl", "--run.data", str(path), *out)
    assert str(path) in rejected(capsys, *train)
    path.write_text("")
    assert "no problem" in rejected(capsys, *train) or "empty" in rejected(capsys, *train)
    path.write_text('{"prompt": "1+1", "reference": "2"}\n{"prompt": \n')
    assert "line 2" in rejected(capsys, *train)
    lines = [f'{{"prompt": "{i}+1", "reference": "{i + 1}"}}' for i in range(20)]
    path.write_text("\n".join([*lines, '{"prompt": "x", "reference": ""}']))
    assert "reference" in rejected(capsys, *train)
    assert not (tmp_path / "run").exists()


def test_missing_model_is_named(capsys, tmp_path):
    """A folder that holds no model."""
    out = ("--run.out-dir", str(tmp_path / "run"))
    assert str(tmp_path) in rejected(
        capsys, "train", "tiny_math", "--model.name", str(tmp_path), "--sft.steps", "0", *out
    )


def test_modules_of_the_current_folder_are_found(tmp_path):
    """The installed script, whose own folder is on the path and not the user's, finds mine.py and its names."""
    (tmp_path / "mine.py").write_text("def shouting(problem, completion):\n    return completion.isupper()\n")
    (tmp_path / "answers.jsonl").write_text('{"id": "a", "reference": "", "completion": "HELLO"}\n')
    script = "import sys; sys.path[0] = '/nowhere'; from rlvr.commands.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "grade", "--verifier", "mine:shouting", "answers.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert '"status": "correct"' in done.stdout


def test_key_values():
    """The value may hold an equals sign; a missing one is an error."""
    assert key_values(["a=1", "b=x=y"], "--verifier-option") == {"a": "1", "b": "x=y"}
    with pytest.raises(ValueError, match="expected key=value"):
        key_values(["a"], "--verifier-option")


def test_help_of_a_recipe_names_its_fields():
    """Every field of the config is a flag, with its text."""
    command = [sys.executable, "-m", "rlvr", "train", "tiny_math", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "--algo.kl-coef" in done.stdout
    assert "Weight of the KL divergence" in done.stdout


def test_list_shows_all_that_one_name_says_of_itself(capsys):
    """Docstring, place, options with types and defaults; of a verifier and a pack of one name both."""
    assert main(["list", "countdown"]) == 0
    shown = capsys.readouterr().out
    assert "countdown (verifier, " in shown
    assert "verifiers/countdown.py line " in shown
    assert "use  one of once, at_most_once  default 'once'" in shown
    assert "The reference is {" in shown
    assert "countdown (task pack, " in shown
    assert "num_train       a whole number  default 4096" in shown
    assert "rlvr eval --model M --task countdown" in shown
    assert main(["list", "jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "needed" in shown
    assert "--data PATH" in shown
    assert main(["list", "rm_pairs"]) == 0
    assert "rlvr rm rm_pairs --help" in capsys.readouterr().out


def test_list_shows_every_name_without_torch():
    """Each verifier, pack and recipe, and a user's own function that says nothing of itself."""
    code = (
        "import sys; from rlvr.commands.cli import main; from rlvr.core.registry import TASKS, VERIFIERS\n"
        "names = [*VERIFIERS.names(), *TASKS.names(), 'tiny_math', 'rm_pairs', 'string:capwords']\n"
        "codes = {name: main(['list', name]) for name in names}\n"
        "print(sum(codes.values()), len(codes) > 20, {'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 True set()", done.stderr
    assert "capwords (verifier" in done.stdout or "string:capwords (verifier" in done.stdout


def test_flags_may_be_written_with_dashes_or_underscores(capsys, tmp_path):
    """`--algo.kl_coef` is `--algo.kl-coef`; a value may follow an equals sign; the next mistake is what is told."""
    for flags in (["--algo.kl_coef", "0.1"], ["--algo.kl-coef=0.1"], ["--run.seed", "-3"], ["--run.no-overwrite"]):
        out = ["--run.out-dir", str(tmp_path / "run"), "--run.trackers", "tensorbord"]
        assert "tensorboard" in rejected(capsys, "train", "tiny_math", *flags, *out)


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ("--model.gradient-checkpointing", True),
        ("--model.gradient_checkpointing=True", True),
        ("--model.gradient-checkpointing true", True),
        ("--no-model.gradient-checkpointing false", True),
        ("--no-model.gradient-checkpointing", False),
        ("--no_model.gradient_checkpointing", False),
        ("--model.no-gradient-checkpointing", False),
        ("--model.gradient-checkpointing false", False),
        ("--model.gradient-checkpointing=false", False),
    ],
)
def test_a_switch_is_turned_off_and_on_in_every_way_that_people_type(flags, on):
    """Also one that the recipe turns on; what follows it is read as ever."""
    recipe = load_recipe("math_grpo")
    config = recipe_config(recipe, [*flags.split(), "--run.steps", "7"], "rlvr train math_grpo")
    assert (config.model.gradient_checkpointing, config.run.steps) == (on, 7)


def test_the_short_form_of_a_dry_run_is_such_a_switch_too():
    """`--dry-run false` and `--no-dry-run` are `--run.no-dry-run`."""
    recipe = load_recipe("tiny_math")
    ways = {"--dry-run": True, "--no-dry-run": False, "--dry-run false": False, "--dry_run=true": True}
    for flags, on in ways.items():
        assert recipe_config(recipe, flags.split(), "rlvr train tiny_math").run.dry_run is on


@pytest.mark.parametrize("command", ["train", "sft", "rm", "pipeline", "show-prompt", "verify-resume"])
def test_a_command_lists_the_recipes_that_it_takes(command, capsys):
    """None that it would then refuse, and no other is left out; fine-tuning those that have steps of it."""
    names = set(rejected(capsys, command).strip().partition("known: ")[2].split(", "))
    kind = next((kind for kind, runner in COMMAND_OF.items() if runner == command), Config)
    takes = {name for name in recipe_names() if type(import_module(f"rlvr.recipes.{name}").CONFIG) is kind}
    assert names == {name for name in takes if command != "sft" or load_recipe(name).CONFIG.sft.steps}
    assert names


def test_nearest_flags():
    """The same last part first, then what other trainers call it, then the spelling."""
    known = Flags(Config, values_of(Config, Config(algo=AlgoConfig("ppo"), monitor=MonitorConfig("math")))).known
    assert nearest("lr", known) == "did you mean --optim.lr? (or --critic.lr, --sft.lr)"
    assert nearest("run.stpes", known) == "did you mean --run.steps?"
    assert nearest("num-generations", known) == "did you mean --rollout.group-size?"
    assert nearest("max-new", known).startswith("did you mean --rollout.max-new-tokens?")
    assert nearest("monitor", known).startswith("it is a group of flags: --monitor")


def test_what_other_trainers_call_a_setting_exists_here():
    """Each name of the table leads to a flag of `train` or of `eval`."""
    known = [Flags(kind, values_of(kind)).known for kind in (Config, EvalArgs)]
    assert set(ELSEWHERE.values()) <= {*known[0], *known[1]}


PRINTS = """
import os, sys, time
from rlvr.commands.errors import guarded

def work():
    from rlvr.commands.console import Display
    with open("log", "w") as log:
        for _ in range({times}):
            Display().say("progress")
            {others}
            time.sleep(0.1)
    return 0

sys.exit(guarded(work))
"""


def test_closed_standard_streams_do_no_harm(tmp_path):
    """What is printed goes nowhere: not into the next file that is opened, and it raises nothing."""
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    command = [
        "sh",
        "-c",
        shell,
        sys.executable,
        PRINTS.format(times=1, others='print("noise"); os.write(2, b"noise")'),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=60).returncode == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_progress_into_a_pipe_that_nobody_reads_ends_as_any_output(tmp_path):
    """`rlvr train ... | head` ends with 141, as `rlvr list | head` does, and without a word."""
    program = subprocess.Popen(
        [sys.executable, "-c", PRINTS.format(times=100, others="")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout
    assert program.stderr
    program.stdout.readline()
    program.stdout.close()
    assert program.wait(60) == 141
    assert program.stderr.read() == b""
    program.stderr.close()


@pytest.mark.parametrize(
    ("flag", "advice"),
    [("scale_rewards", "--algo.advantage-scale"), ("bf16", "--model.dtype"), ("num_train_epochs", "--run.steps")],
)
def test_names_of_trl_are_understood(flag, advice, capsys):
    """What TRL calls a setting is answered with the flag here, never with one that is only spelt alike."""
    assert main(["train", "tiny_math", f"--{flag}", "1"]) == 2
    assert f"did you mean {advice}?" in capsys.readouterr().err


def test_only_what_is_missing_is_asked_for(capsys):
    """A positional argument that was given is not named."""
    assert main(["profile", "arithmetic"]) == 2
    line = capsys.readouterr().err
    assert "--model must be given" in line
    assert "TASK" not in line
    assert main(["profile"]) == 2
    assert "TASK and --model must be given" in capsys.readouterr().err


def test_a_sampler_that_is_not_installed_is_refused_first(tmp_path, monkeypatch, capsys):
    """Before the task is read, or a folder made."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    out = tmp_path / "run"
    assert main(["train", "tiny_math", "--sampler", "vllm", "--run.out-dir", str(out)]) == 2
    assert "the vllm samplers need vLLM: pip install" in capsys.readouterr().err
    assert not out.exists()
