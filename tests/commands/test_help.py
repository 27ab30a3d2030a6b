"""What `--help` of a recipe shows, how much of it, and that it starts without torch; the completion script."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.arguments import Flags, choose_classes, parse, values_of
from rlvr.commands.cli import main
from rlvr.commands.completion import SCRIPTS, next_words
from rlvr.commands.list import recipe_command
from rlvr.commands.train import COMMAND_OF, load_recipe, recipe_names
from rlvr.config import SAMPLERS, AlgoConfig, Config
from rlvr.config.settings import help_texts
from tests.helpers.files import ROOT

MOST = 60  # settings that `--help` shows

RECIPES = [
    (name, kind)
    for name in recipe_names()
    for kind, command in COMMAND_OF.items()
    if command == recipe_command(ROOT / "recipes" / f"{name}.py") != "pipeline"
]


def shown(text: str) -> list[str]:
    """The flags of a help text; a switch counts once."""
    return re.findall(r"^(?:│ |  )--([a-z][\w.-]*)", text, re.MULTILINE)


def help_of(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(("recipe", "kind"), RECIPES)
def test_no_recipe_shows_more_settings_than_one_can_read(recipe, kind, capsys):
    """At most sixty, under any algorithm and sampler; the rest is counted at the end and shown by --help-all."""
    choices = [("--algo", name) for name in ALGORITHMS] + [("--sampler", name) for name in SAMPLERS]
    for choice in choices if kind is Config else [()]:
        values, _ = choose_classes(values_of(kind, load_recipe(recipe, kind).CONFIG), choice)
        flags_ = Flags(kind, values)
        assert 20 < len(flags_.shown()) <= MOST
        assert all(entry.setting.name in help_texts(type(values.get(entry.group, kind))) or entry.selects
                   for entry in flags_.known.values() if entry.group)  # fmt: skip
    flags = [f"--{entry.name}" for entry in Flags(kind, values_of(kind, load_recipe(recipe, kind).CONFIG)).shown()]
    text = help_of(capsys, COMMAND_OF[kind], recipe, "--help")
    assert sorted(f"--{flag}" for flag in shown(text)) == sorted(flags)
    hidden = re.search(r"(\d+) settings are not shown, .*: --help-all", text)
    assert hidden
    assert len(shown(help_of(capsys, COMMAND_OF[kind], recipe, "--help-all"))) == len(flags) + int(hidden[1])


def test_a_choice_shows_its_own_settings(capsys):
    """PPO brings its discount and the critic, a monitor its window; each with default and text."""
    plain = shown(help_of(capsys, "train", "tiny_math", "--help"))
    assert {"algo", "sampler", "monitor", "algo.kl-coef"} <= set(plain)
    assert not {"critic.lr", "algo.gamma", "algo.beta", "monitor.window", "sampler.url", "model.lora-alpha"} & set(
        plain
    )
    text = help_of(capsys, "train", "tiny_math", "--algo", "ppo", "--monitor", "exact", "--help")
    assert {"critic.lr", "algo.gamma", "monitor", "monitor.window"} <= set(shown(text))
    assert "GAE lambda: 1 is return minus value" in " ".join(text.split())
    assert "(default: 0.0004)" in text  # the critic's, which the recipe holds for PPO
    assert "with --model.lora-rank above 0: lora-alpha, lora-targets" in text


def test_help_shows_what_the_other_flags_bring(capsys):
    """A setting that is read only with another is shown beside it; --help-all says of each what it is read with."""
    read = {"algo.kl-estimator", "algo.kl-in", "model.lora-alpha", "model.lora-targets"}
    plain = shown(help_of(capsys, "train", "tiny_math", "--help"))
    assert not read & set(plain)
    flags = ["--algo.kl-coef", "0.1", "--model.lora-rank", "8"]
    assert read - {"model.lora-targets"} <= set(shown(help_of(capsys, "train", "tiny_math", *flags, "--help")))
    everything = help_of(capsys, "train", "tiny_math", "--help-all")
    assert read <= set(shown(everything))
    assert "Only with --algo.kl-coef above 0." in " ".join(everything.replace("│", " ").split())
    assert shown(help_of(capsys, "train", "tiny_math", "--optim.lr", "fast", "--help")) == plain


def test_help_starts_without_torch():
    """The recipe, its settings and their texts need neither torch nor transformers."""
    code = (
        "import sys; from rlvr.commands.cli import main\n"
        "try: main(['train', 'tiny_math', '--help'])\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'numpy', 'accelerate'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()", done.stderr
    assert "--algo.kl-coef" in done.stdout


def test_choices_keep_what_they_share():
    """`--algo` keeps the recipe's settings that the other algorithm has too, and adds what the recipe holds for it."""
    module = load_recipe("tiny_math")
    flags = ["--algo.minibatches", "2", "--algo", "ppo"]
    config = parse(Config, flags, prog="t", default=module.CONFIG, variants=module.VARIANTS)
    assert config.algo == AlgoConfig("ppo", minibatches=2)
    assert config.critic == module.VARIANTS["ppo"]["critic"]
    back = parse(Config, ["--algo", "dr_grpo"], prog="t", default=config)
    assert (back.algo.name, back.algo.minibatches, back.critic) == ("dr_grpo", 2, None)
    back.check()


def test_each_algorithm_and_sampler_can_be_chosen():
    """Its settings have its class, and the config passes its own checks."""
    default = load_recipe("tiny_math").CONFIG
    for name in ALGORITHMS:
        config = parse(Config, ["--algo", name], prog="t", default=default)
        assert config.algo.name == name
        assert (config.critic is not None) == ALGORITHMS[name].critic
        config.check()
    for name, kind in SAMPLERS.items():
        config = parse(Config, ["--sampler", name], prog="t", default=default)
        assert type(config.sampler) is kind
        config.check()


def test_a_kl_term_does_not_change_its_place_in_silence(capsys):
    """countdown_grpo has it in the loss, where RAFT could not estimate it."""
    assert main(["train", "countdown_grpo", "--algo", "raft"]) == 2
    assert "algo.kl_coef 0.001 is in the loss, and raft has its KL term in the reward" in capsys.readouterr().err


def test_a_monitor_of_a_recipe_can_be_left_out():
    """`--monitor none`; another one has none of the options of the first."""
    default = load_recipe("rm_grpo").CONFIG
    assert parse(Config, ["--monitor", "none"], prog="t", default=default).monitor is None
    other = parse(Config, ["--monitor", "exact", "--monitor.window", "3"], prog="t", default=default).monitor
    assert (other.verifier, other.window, other.verifier_option) == ("exact", 3, ())


def test_completion_offers_commands_recipes_and_flags():
    """Those of the selectors that the line has so far; the scripts are right for their shells."""
    assert {"train", "profile", "verify-resume"} <= set(next_words([]))
    assert {"tiny_math", "rm_grpo"} <= set(next_words(["train"]))
    plain, chosen = (set(next_words(["train", "tiny_math", *flags])) for flags in ([], ["--algo", "ppo"]))
    assert {"--algo", "--algo.kl-coef", "--run.steps"} <= plain
    assert {"--critic.lr"} <= chosen - plain
    assert "--sampler.url" in next_words(["train", "tiny_math", "--sampler", "vllm-server"])
    assert "--pairs.held-out" in next_words(["rm", "rm_pairs"])
    assert "--kill-after" in next_words(["verify-resume", "tiny_math"])
    assert "--seeds" in next_words(["pipeline", "instructgpt"])
    assert "--max-problems" in next_words(["eval"])
    assert next_words(["no_such"]) == next_words(["train", "no_such"]) == []
    for shell, text in SCRIPTS.items():
        assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
        assert text.startswith("#compdef") == (shell == "zsh")


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
    assert main(["sft", "tiny_math", *flags.split(), *out]) == 2
    assert "this command does not read it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    flags_shown = set(shown(help_of(capsys, "sft", "tiny_math", "--help-all")))
    assert {"sft.lr", "model.name", "optim.tokens-per-microbatch", "eval.samples"} <= flags_shown
    assert not {"algo", "algo.kl-coef", "run.steps", "rollout.group-size", "optim.lr"} & flags_shown


def test_settings_of_evaluations_need_evaluations(tmp_path, capsys):
    """Where there are none (--eval.every -1), how they sample is neither shown nor taken."""
    for flag in ("--eval.samples", "--eval.temperature", "--eval.top-p", "--eval.threshold", "--eval.k"):
        flags = ["--eval.every", "-1", flag, "2" if flag == "--eval.samples" else "0.5", "--run.out-dir", str(tmp_path)]
        if flag == "--eval.k":
            flags[3] = "2"
        assert main(["train", "tiny_math", *flags]) == 2
        assert "it is read only with --eval.every 0 or more" in capsys.readouterr().err
    assert "eval.samples" not in shown(help_of(capsys, "train", "tiny_math", "--eval.every", "-1", "--help"))
