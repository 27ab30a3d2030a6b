"""The command line: `rlvr COMMAND ...`. Each command is imported when it is called, so that light ones start fast."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from rlvr.commands.arguments import BAD_INPUT, error_line, guarded
from rlvr.registry import did_you_mean

COMMANDS = {
    "train": ("rlvr.commands.train", "main", "train a recipe: fine-tuning, reinforcement learning, evaluation"),
    "sft": ("rlvr.commands.train", "sft_main", "only the supervised fine-tuning of a recipe"),
    "rm": (
        "rlvr.commands.reward_model",
        "main",
        "train a reward model on pairs: your own, or of a policy and a verifier",
    ),
    "show-prompt": ("rlvr.commands.prompt", "main", "a recipe's first prompt as the policy sees it, and its verifier"),
    "merge": ("rlvr.commands.merge", "main", "a LoRA checkpoint and its base as one model"),
    "eval": ("rlvr.commands.eval", "main", "pass@k of a model on a task pack"),
    "grade": ("rlvr.commands.grade", "main", "verdicts for a file of completions"),
    "audit": ("rlvr.commands.audit", "main", "check a task pack: overlap, references, what its verifier accepts"),
    "profile": ("rlvr.commands.profile", "main", "how hard a pack is for a model: pass rates over its problems"),
    "report": ("rlvr.commands.report", "main", "curves and tables of a run as HTML and PNG"),
    "compare": (
        "rlvr.commands.compare",
        "main",
        "runs side by side: reward, monitor and pass@k, a figure and a table",
    ),
    "list": ("rlvr.commands.list", "main", "verifiers, task packs and recipes"),
    "doctor": ("rlvr.commands.doctor", "main", "what this machine offers: sandbox, GPU, versions"),
}


def usage() -> str:
    """The text of `rlvr --help`."""
    rows = "\n".join(f"  {name:11} {text}" for name, (_, _, text) in COMMANDS.items())
    return f"usage: rlvr COMMAND ...\n\n{rows}\n\n`rlvr COMMAND --help` lists a command's options."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command. Exit code 2 and one line on stderr for input that cannot be used."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else BAD_INPUT
    if arguments[0] == "--version":
        from rlvr import __version__

        print(__version__)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        print(error_line(LookupError(f"no command {name!r}; {did_you_mean(name, COMMANDS)}")), file=sys.stderr)
        return BAD_INPUT
    # OpenMP's idle threads otherwise spin, which costs much on a shared machine; read once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return guarded(lambda: run(name, rest))


def run(name: str, rest: Sequence[str]) -> int:
    """Imports a command and runs it."""
    # "mine:attribute" names a module of the current folder, as under `python -m`; last, so that it shadows nothing.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.append(os.getcwd())
    module, function, _ = COMMANDS[name]
    return int(getattr(importlib.import_module(module), function)(rest))


if __name__ == "__main__":
    sys.exit(main())
