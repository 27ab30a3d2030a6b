"""`rlvr completion bash|zsh`: a script for a shell, which asks the command itself for the words that may come next."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlvr.config import Config

from .arguments import Flags, Positional, choose_classes, parse, values_of
from .train import COMMAND_OF, load_recipe, recipe_names

WITH_RECIPE = ("train", "sft", "show-prompt", "verify-resume", "rm", "pipeline")
OWN_FLAGS = {"verify-resume": ["kill-after"], "show-prompt": ["id"]}
BASH = """_rlvr() {
    local words="$(rlvr completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _rlvr rlvr
"""
SCRIPTS = {"bash": BASH, "zsh": f"#compdef rlvr\nautoload -U +X bashcompinit && bashcompinit\n{BASH}"}


@dataclass(frozen=True)
class CompletionArgs:
    """Print a script that completes commands, recipes and flags in a shell, e.g. `rlvr completion bash >>
    ~/.local/share/bash-completion/completions/rlvr`."""

    shell: Positional[Literal["bash", "zsh"]]
    """The shell that is to read the script."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr completion SHELL`, or answer the script that it printed, which puts "words" in the shell's place."""
    if argv[:1] == ["words"]:
        print("\n".join(next_words(argv[1:])))
        return 0
    print(SCRIPTS[parse(CompletionArgs, argv, prog="rlvr completion").shell], end="")
    return 0


def next_words(line: Sequence[str]) -> list[str]:
    """Return what may follow the words of a command line: commands, recipes, or flags."""
    from .cli import COMMANDS

    command, *rest = line or [""]
    if not line or command not in COMMANDS:
        return [] if line else list(COMMANDS)
    if command in WITH_RECIPE and not rest:
        return recipe_names(command)
    with contextlib.suppress(ValueError, LookupError):  # of a line that is not right so far
        if command not in WITH_RECIPE:
            kind = arguments_of(command)
            values = values_of(kind)
        else:
            kind = next((kind for kind, known in COMMAND_OF.items() if known == command), Config)
            module = load_recipe(rest[0], kind)
            values, _ = choose_classes(values_of(kind, module.CONFIG), rest[1:], getattr(module, "VARIANTS", None))
        return [f"--{name}" for name in (*Flags(kind, values).known, *OWN_FLAGS.get(command, ()))]
    return []


def arguments_of(command: str) -> Any:
    """Return the dataclass of a command's flags: `EvalArgs` of the module of `rlvr eval`. Hyphens divide words."""
    from .cli import COMMANDS

    module, name, _ = COMMANDS[command]
    main = getattr(importlib.import_module(f"rlvr.commands.{module}"), name)
    return getattr(sys.modules[main.__module__], f"{command.title().replace('-', '')}Args")
