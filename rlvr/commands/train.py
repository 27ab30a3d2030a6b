"""`rlvr train RECIPE` and `rlvr sft RECIPE`; how recipes are found and run, `rlvr rm`'s too."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from rlvr.commands.arguments import guarded, parse
from rlvr.config import Config
from rlvr.config.bounds import check_effect, check_numbers
from rlvr.config.reward_model import RewardConfig
from rlvr.files.models import check_path
from rlvr.registry import did_you_mean, load

# The command that runs a recipe, by the kind of its CONFIG.
COMMAND_OF: dict[type, str] = {Config: "train", RewardConfig: "rm"}


def recipe_names() -> list[str]:
    """The recipes that come with the project."""
    package = importlib.import_module("rlvr.recipes")
    folders = [Path(folder) for folder in package.__path__]
    return sorted(path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "__init__")


def load_recipe(name: str, kind: type = Config) -> ModuleType:
    """The module of a recipe, by its name or the path of a Python file. It has CONFIG, of this kind, and main(config).

    LookupError where it has not, and where it is a recipe for another command.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise LookupError(f"no recipe file {name}")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        load(functools.partial(spec.loader.exec_module, module), f"recipe {name}")
    else:
        names = recipe_names()
        if name not in names:
            raise LookupError(f"no recipe {name!r}; {did_you_mean(name, names)}")
        module = importlib.import_module(f"rlvr.recipes.{name}")
    held = type(getattr(module, "CONFIG", None))
    if held not in COMMAND_OF or not callable(getattr(module, "main", None)):
        kinds = " or ".join(known.__name__ for known in COMMAND_OF)
        raise LookupError(f"recipe {name}: expected a {kinds} named CONFIG and a function main(config)")
    if held is not kind:
        raise LookupError(f"recipe {name} is run by another command: rlvr {COMMAND_OF[held]} {name}")
    return module


def split_recipe(argv: Sequence[str], command: str) -> tuple[str, list[str]]:
    """The recipe's name and the flags. Asking for help without a recipe prints the names."""
    if argv and argv[0] in ("-h", "--help"):
        print(f"usage: rlvr {command} RECIPE [--run.steps N ...]\nrecipes: {', '.join(recipe_names())}, or a .py file")
        raise SystemExit(0)
    if not argv or argv[0].startswith("-"):
        raise ValueError(f"rlvr {command}: name a recipe first; known: {', '.join(recipe_names())}")
    return argv[0], list(argv[1:])


def take_option(flags: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """The last value of an option (`--id X`, `--id=X`) and the other flags. ValueError where it has no value."""
    value, rest, left = None, list[str](), list(flags)
    while left:
        flag = left.pop(0)
        if flag == option:
            if not left:
                raise ValueError(f"{option}: expected a value")
            value = left.pop(0)
        elif flag.startswith(f"{option}="):
            value = flag.partition("=")[2]
        else:
            rest.append(flag)
    return value, rest


def check_model_flag(flags: Sequence[str]) -> None:
    """Raises ValueError for a model folder that does not exist: before a recipe is imported, which takes seconds."""
    check_path(take_option(flags, "--model.name")[0])


def expand(flags: Sequence[str]) -> list[str]:
    """The flags with the short form of run.dry_run written out."""
    return ["--run.dry-run" if flag == "--dry-run" else flag for flag in flags]


def run_recipe(module: ModuleType, argv: Sequence[str], prog: str) -> int:
    """A recipe with its flags."""
    kind = type(module.CONFIG)
    argv = expand(argv) if kind is Config else argv
    config = parse(kind, argv, prog=prog, description=(module.__doc__ or "").strip(), default=module.CONFIG)
    check_numbers(config)  # the rest is checked by main, which may fill in settings of its own
    if isinstance(config, Config):
        check_effect(config, module.CONFIG)
    module.main(config)
    return 0


def main(argv: Sequence[str]) -> int:
    """`rlvr train RECIPE [flags]`."""
    name, flags = split_recipe(argv, "train")
    check_model_flag(flags)
    return run_recipe(load_recipe(name), flags, f"rlvr train {name}")


def sft_main(argv: Sequence[str]) -> int:
    """`rlvr sft RECIPE [flags]`: no reinforcement learning; the fine-tuned model lies in OUT_DIR/start."""
    name, flags = split_recipe(argv, "sft")
    check_model_flag(flags)
    module = load_recipe(name)
    config = parse(Config, expand(flags), prog=f"rlvr sft {name}", default=module.CONFIG)
    check_numbers(config)
    if not config.sft.steps:
        raise ValueError(f"recipe {name} fine-tunes for no steps; set --sft.steps")
    check_effect(config, module.CONFIG)
    module.main(dataclasses.replace(config, run=dataclasses.replace(config.run, steps=0)))
    return 0


def script(module_globals: dict[str, object]) -> None:
    """What `python recipes/NAME.py [flags]` does: the same as `rlvr train NAME [flags]`."""
    module = ModuleType(str(module_globals["__file__"]), str(module_globals["__doc__"]))
    module.__dict__.update(module_globals)
    sys.exit(guarded(lambda: run_recipe(module, sys.argv[1:], Path(sys.argv[0]).name)))
