"""The command line: help, completion, flags in every spelling, choices; closed and broken streams.

What cannot be used, and the line that says so, is in tests/golden/bad_input.txt (test_bad_input.py).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.arguments import NAMES_ELSEWHERE, Flags, choose_classes, nearest, parse, values_of
from rlvr.commands.cli import main
from rlvr.commands.completion import SCRIPTS, next_words
from rlvr.commands.eval import EvalArgs
from rlvr.commands.list import recipe_command
from rlvr.commands.train import COMMAND_OF, load_recipe, recipe_config, recipe_names
from rlvr.config import SAMPLERS, AlgoConfig, Config, MonitorConfig
from rlvr.config.settings import help_texts
from rlvr.core.registry import key_values
from tests.helpers.files import ROOT

MOST = 60  # settings that `--help` shows
RECIPES = [
    (name, kind)
    for name in recipe_names()
    for kind, command in COMMAND_OF.items()
    if command == recipe_command(ROOT / "recipes" / f"{name}.py") != "pipeline"
]


def run_python(code: str, cwd: Path | None = None) -> str:
    """What a program prints in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def reject(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line of an expected error."""
    assert main(argv) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1
    return printed


def parse_train(*flags: str, recipe: str = "tiny_math") -> Any:
    """The config of `rlvr train RECIPE` with flags."""
    return recipe_config(load_recipe(recipe), flags, f"rlvr train {recipe}")


# Help


def help_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert not ended.value.code
    return capsys.readouterr().out


def shown_flags(text: str) -> list[str]:
    """The flags of a help text; a switch counts once."""
    return re.findall(r"^  --([a-z][\w.-]*)", text, re.MULTILINE)


def test_help_lists_the_commands(capsys):
    """No argument at all is a mistake, --help is not."""
    assert main(["--help"]) == 0
    assert "rlvr COMMAND" in capsys.readouterr().out
    assert main([]) == 2


@pytest.mark.parametrize(("recipe", "kind"), RECIPES)
def test_no_recipe_shows_more_settings_than_one_can_read(recipe, kind, capsys):
    """At most sixty, under any algorithm and sampler; the rest is counted at the end and shown by --help-all."""
    before = values_of(kind, load_recipe(recipe, kind).CONFIG)
    choices = [("--algo", name) for name in ALGORITHMS] + [("--sampler", name) for name in SAMPLERS]
    for choice in choices if kind is Config else [()]:
        flags = Flags(kind, choose_classes(before, choice)[0])
        assert 20 < len(flags.list_shown()) <= MOST
        for flag in flags.known.values():
            assert not flag.group or flag.selects or flag.setting.name in help_texts(type(flags.values[flag.group]))
    names = [flag.name for flag in Flags(kind, before).list_shown()]
    text = help_of(capsys, COMMAND_OF[kind], recipe, "--help")
    assert sorted(shown_flags(text)) == sorted(names)
    hidden = re.search(r"(\d+) settings are not shown, .*: --help-all", text)
    assert hidden
    assert len(shown_flags(help_of(capsys, COMMAND_OF[kind], recipe, "--help-all"))) == len(names) + int(hidden[1])


def test_a_selector_shows_its_own_settings(capsys):
    """PPO brings its discount and the critic, a monitor its window; each with default and text."""
    plain = set(shown_flags(help_of(capsys, "train", "tiny_math", "--help")))
    assert {"algo", "sampler", "monitor", "algo.kl-coef"} <= plain
    assert not {"critic.lr", "algo.gamma", "algo.beta", "monitor.window", "sampler.url", "model.lora-alpha"} & plain
    text = help_of(capsys, "train", "tiny_math", "--algo", "ppo", "--monitor", "exact", "--help")
    assert {"critic.lr", "algo.gamma", "monitor", "monitor.window"} <= set(shown_flags(text))
    assert "GAE lambda: 1 is return minus value" in " ".join(text.split())
    assert "(default: 0.0004)" in text  # the critic's, which the recipe holds for PPO
    assert "with --model.lora-rank above 0: lora-alpha, lora-targets" in text


def test_help_shows_what_the_other_flags_bring(capsys):
    """A setting that is read only with another is shown beside it; --help-all says of each what it is read with."""
    read = {"algo.kl-estimator", "algo.kl-in", "model.lora-alpha", "model.lora-targets"}
    plain = shown_flags(help_of(capsys, "train", "tiny_math", "--help"))
    assert not read & set(plain)
    flags = ["--algo.kl-coef", "0.1", "--model.lora-rank", "8"]
    assert read - {"model.lora-targets"} <= set(shown_flags(help_of(capsys, "train", "tiny_math", *flags, "--help")))
    everything = help_of(capsys, "train", "tiny_math", "--help-all")
    assert read <= set(shown_flags(everything))
    assert "Only with --algo.kl-coef above 0." in " ".join(everything.split())
    assert shown_flags(help_of(capsys, "train", "tiny_math", "--optim.lr", "fast", "--help")) == plain


def test_help_starts_without_torch():
    """The recipe, its settings and their texts need neither torch nor transformers."""
    code = (
        "import sys; from rlvr.commands.cli import main\n"
        "try: main(['train', 'tiny_math', '--help'])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'numpy', 'accelerate'} & set(sys.modules))"
    )
    printed = run_python(code)
    assert printed.splitlines()[-1] == "set()"
    assert "--algo.kl-coef" in printed
    assert "Weight of the KL divergence" in printed


def test_list_shows_all_that_one_name_says_of_itself(capsys):
    """Docstring, place, options with types and defaults; of a verifier and a pack of one name both."""
    for name, texts in {
        "countdown": [
            "countdown (verifier, ",
            "verifiers/countdown.py line ",
            "use  one of once, at_most_once  default 'once'",
            "The reference is {",
            "countdown (task pack, ",
            "num_train       a whole number  default 4096",
            "rlvr eval --model M --task countdown",
        ],
        "jsonl": ["needed", "--data PATH"],
        "rm_pairs": ["rlvr rm rm_pairs --help"],
    }.items():
        assert main(["list", name]) == 0
        printed = capsys.readouterr().out
        assert not [text for text in texts if text not in printed]


def test_list_shows_every_name_without_torch():
    """Each verifier, pack and recipe, and a user's own function that says nothing of itself."""
    code = (
        "import sys; from rlvr.commands.cli import main; from rlvr.core.registry import TASKS, VERIFIERS\n"
        "names = [*VERIFIERS.names(), *TASKS.names(), 'tiny_math', 'rm_pairs', 'string:capwords']\n"
        "codes = {name: main(['list', name]) for name in names}\n"
        "print(sum(codes.values()), len(codes) > 20, {'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    printed = run_python(code)
    assert printed.splitlines()[-1] == "0 True set()"
    assert "capwords (verifier" in printed


@pytest.mark.parametrize("command", ["train", "sft", "rm", "pipeline", "show-prompt", "verify-resume"])
def test_a_command_lists_the_recipes_that_it_takes(command, capsys):
    """None that it would then refuse, and no other is left out; fine-tuning those that have steps of it."""
    names = set(reject(capsys, command).strip().partition("known: ")[2].split(", "))
    kind = next((kind for kind, runner in COMMAND_OF.items() if runner == command), Config)
    takes = {name for name in recipe_names() if type(import_module(f"rlvr.recipes.{name}").CONFIG) is kind}
    assert names == {name for name in takes if command != "sft" or load_recipe(name).CONFIG.sft.steps}
    assert names


def test_completion_offers_commands_recipes_and_flags():
    """Those of the selectors that the line has so far; the scripts are right for their shells."""
    assert {"train", "profile", "verify-resume"} <= set(next_words([]))
    assert {"tiny_math", "rm_grpo"} <= set(next_words(["train"]))
    plain, chosen = (set(next_words(["train", "tiny_math", *flags])) for flags in ([], ["--algo", "ppo"]))
    assert {"--algo", "--algo.kl-coef", "--run.steps"} <= plain
    assert "--critic.lr" in chosen - plain
    for line, flag in {
        "train tiny_math --sampler vllm-server": "--sampler.url",
        "rm rm_pairs": "--pairs.held-out",
        "verify-resume tiny_math": "--kill-after",
        "pipeline instructgpt": "--seeds",
        "eval": "--max-problems",
        "simulate-schedule": "--group-size",
    }.items():
        assert flag in next_words(line.split())
    assert next_words(["no_such"]) == next_words(["train", "no_such"]) == []
    for shell, text in SCRIPTS.items():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        assert text.startswith("#compdef") == (shell == "zsh")


# Flags


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
    config = parse_train(*flags.split(), "--run.steps", "7", recipe="math_grpo")
    assert (config.model.gradient_checkpointing, config.run.steps) == (on, 7)


def test_the_short_form_of_a_dry_run_is_such_a_switch_too():
    """`--dry-run false` and `--no-dry-run` are `--run.no-dry-run`."""
    ways = {"--dry-run": True, "--no-dry-run": False, "--dry-run false": False, "--dry_run=true": True}
    for flags, on in ways.items():
        assert parse_train(*flags.split()).run.dry_run is on


def test_values_are_read_by_the_type_of_their_setting():
    """Dashes or underscores, an equals sign, negative numbers, lists, pairs, paths, None; options add up."""
    config = parse_train(
        *"--algo.kl_coef .1 --optim.lr=1e-3 --run.seed -3 --eval.k 1 4 --optim.betas .8 .9".split(),
        *"--run.data a/b --rollout.max-prompt-tokens 9 --rollout.max-prompt-tokens None".split(),
        *"--run.task-option a=1 b=x=y --run.task-option c=3 --run.seed -4".split(),
    )
    assert (config.algo.kl_coef, config.optim.lr, config.run.seed) == (0.1, 1e-3, -4)
    assert (config.eval.k, config.optim.betas) == ((1, 4), (0.8, 0.9))
    assert (config.run.data, config.rollout.max_prompt_tokens) == (Path("a/b"), None)
    assert key_values(config.run.task_option, "--run.task-option") == {"a": "1", "b": "x=y", "c": "3"}


def test_nearest_flags():
    """The same last part first, then what other trainers call it, then the spelling; what is read before the rest."""
    flags = Flags(Config, values_of(Config, Config(algo=AlgoConfig("ppo"), monitor=MonitorConfig("math"))))
    known = flags.known
    assert nearest("lr", known) == "did you mean --optim.lr? (or --critic.lr, --sft.lr)"
    assert nearest("run.stpes", known) == "did you mean --run.steps?"
    assert nearest("num-generations", known) == "did you mean --rollout.group-size?"
    assert nearest("beta", known, flags.unread) == "did you mean --algo.kl-coef?"
    assert nearest("max-new", known).startswith("did you mean --rollout.max-new-tokens?")
    assert nearest("monitor", known).startswith("it is a group of flags: --monitor")


def test_what_other_trainers_call_a_setting_exists_here():
    """Each name of the table leads to a flag of `train` or of `eval`."""
    assert set(NAMES_ELSEWHERE.values()) <= {
        name for kind in (Config, EvalArgs) for name in Flags(kind, values_of(kind)).known
    }


def test_only_what_is_missing_is_asked_for(capsys):
    """A positional argument that was given is not named."""
    line = reject(capsys, "profile", "arithmetic")
    assert "--model must be given" in line
    assert "TASK" not in line
    assert "TASK and --model must be given" in reject(capsys, "profile")


# Selectors


def test_a_selector_keeps_what_both_classes_have():
    """`--algo` keeps the recipe's settings that the other algorithm has too, and adds what the recipe holds for it."""
    config = parse_train("--algo.minibatches", "2", "--algo", "ppo")
    assert config.algo == AlgoConfig("ppo", minibatches=2)
    assert config.critic == load_recipe("tiny_math").VARIANTS["ppo"]["critic"]
    back = parse(Config, ["--algo", "dr_grpo"], prog="t", default=config)
    assert (back.algo.name, back.algo.minibatches, back.critic) == ("dr_grpo", 2, None)
    back.check()


def test_each_algorithm_and_sampler_can_be_chosen():
    """The config passes its own checks."""
    for name, row in ALGORITHMS.items():
        config = parse_train("--algo", name, *(["--teacher.kind", "start"] if row.teachers else []))
        assert config.algo.name == name
        assert (config.critic is not None) == row.critic
        assert (config.teacher is not None) == bool(row.teachers)
        config.check()
    for name, kind in SAMPLERS.items():
        config = parse_train("--sampler", name)
        assert type(config.sampler) is kind
        config.check()


def test_a_kl_term_does_not_change_its_place_in_silence(capsys):
    """countdown_grpo has it in the loss, where RAFT could not estimate it."""
    line = reject(capsys, "train", "countdown_grpo", "--algo", "raft")
    assert "algo.kl_coef 0.001 is in the loss, and raft has its KL term in the reward" in line


def test_a_monitor_of_a_recipe_can_be_left_out():
    """`--monitor none`; another one has none of the options of the first."""
    assert parse_train("--monitor", "none", recipe="rm_grpo").monitor is None
    other = parse_train("--monitor", "exact", "--monitor.window", "3", recipe="rm_grpo").monitor
    assert (other.verifier, other.window, other.verifier_option) == ("exact", 3, ())


@pytest.mark.parametrize(
    "flags",
    [
        "--algo ppo",
        "--algo.kl-coef .1",
        "--run.steps 5",
        "--run.no-keep-best",
        "--rollout.group-size 4",
        "--optim.lr 1",
    ],
)
def test_fine_tuning_takes_no_setting_of_reinforcement_learning(flags, tmp_path, capsys):
    """`rlvr sft` shows and takes what it reads: the model, the demonstrations, the evaluation of what comes out."""
    out = ["--run.out-dir", str(tmp_path / "run")]
    assert "this command does not read it" in reject(capsys, "sft", "tiny_math", *flags.split(), *out)
    assert not (tmp_path / "run").exists()
    shown = set(shown_flags(help_of(capsys, "sft", "tiny_math", "--help-all")))
    assert {"sft.lr", "model.name", "optim.tokens-per-microbatch", "eval.samples"} <= shown
    assert not {"algo", "algo.kl-coef", "run.steps", "rollout.group-size", "optim.lr"} & shown


def test_settings_of_evaluations_need_evaluations(tmp_path, capsys):
    """Where there are none (--eval.every -1), how they sample is neither shown nor taken."""
    off = ["train", "tiny_math", "--eval.every", "-1"]
    for name, value in {"samples": "2", "temperature": ".5", "top-p": ".5", "threshold": ".5", "k": "2"}.items():
        line = reject(capsys, *off, f"--eval.{name}", value, "--run.out-dir", str(tmp_path))
        assert "it is read only with --eval.every 0 or more" in line
    assert "eval.samples" not in shown_flags(help_of(capsys, *off, "--help"))


def test_a_sampler_that_is_not_installed_is_refused_first(tmp_path, monkeypatch, capsys):
    """Before the task is read, or a folder made."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    line = reject(capsys, "train", "tiny_math", "--sampler", "vllm", "--run.out-dir", str(tmp_path / "run"))
    assert "the vllm samplers need vLLM: pip install" in line
    assert not (tmp_path / "run").exists()


# The process


def test_modules_of_the_current_folder_are_found(tmp_path):
    """The installed script, whose own folder is on the path and not the user's, finds mine.py and its names."""
    (tmp_path / "mine.py").write_text("def shouting(problem, completion):\n    return completion.isupper()\n")
    (tmp_path / "answers.jsonl").write_text('{"id": "a", "reference": "", "completion": "HELLO"}\n')
    script = "import sys; sys.path[0] = '/nowhere'; from rlvr.commands.cli import main\n"
    script += "sys.exit(main(['grade', '--verifier', 'mine:shouting', 'answers.jsonl']))"
    assert '"status": "correct"' in run_python(script, tmp_path)


PRINTS = """
import os, sys, time
from rlvr.commands.errors import run_guarded

def work():
    from rlvr.commands.console import Display
    with open("log", "w") as log:
        for _ in range({times}):
            Display().say("progress")
            {others}
            time.sleep(0.1)
    return 0

sys.exit(run_guarded(work))
"""


def test_closed_standard_streams_do_no_harm(tmp_path):
    """What is printed goes nowhere: not into the next file that is opened, and it raises nothing."""
    program = PRINTS.format(times=1, others='print("noise"); os.write(2, b"noise")')
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False, timeout=60).returncode == 0
    assert (tmp_path / "log").read_bytes() == b""


def test_progress_into_a_pipe_that_nobody_reads_ends_as_any_output(tmp_path):
    """`rlvr train ... | head` ends with 141, as `rlvr list | head` does, and without a word."""
    command = [sys.executable, "-c", PRINTS.format(times=100, others="")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout
        assert program.stderr
        program.stdout.readline()
        program.stdout.close()
        assert program.wait(60) == 141
        assert program.stderr.read() == b""
