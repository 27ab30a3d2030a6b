"""`rlvr train RECIPE`, and `rlvr sft`, `rlvr rm` and `rlvr pipeline`: find a recipe and run it."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from rlvr.config import AlgoConfig, Config, CriticConfig, OptimConfig, TeacherConfig
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import settings_of
from rlvr.core.files.models import check_path
from rlvr.core.registry import did_you_mean, load

from .arguments import parse, take_option
from .errors import run_guarded
from .list import recipe_command, recipe_files

# The command that runs a recipe, by the class of its CONFIG.
COMMAND_OF: dict[type, str] = {Config: "train", RewardConfig: "rm", PipelineConfig: "pipeline"}


def recipe_names(command: str | None = None) -> list[str]:
    """Return the names of the recipes that come with the project: all, or those that a command runs."""
    if command is None:
        return [file.stem for file in recipe_files()]
    runner = command if command in COMMAND_OF.values() else "train"  # show-prompt and the like read those of train
    names = [file.stem for file in recipe_files() if recipe_command(file) == runner]
    return [name for name in names if command != "sft" or load_recipe(name).CONFIG.sft.steps > 0]


def load_recipe(name: str, kind: type = Config) -> ModuleType:
    """Return the module of a recipe, by its name or the path of a Python file. It has a CONFIG of this kind.

    It may have VARIANTS: groups that another algorithm or sampler brings, e.g. {"ppo": {"critic": CriticConfig(...)}}.
    Raises LookupError for a module without CONFIG, and for a recipe of another command.
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
        if name not in recipe_names():
            known = did_you_mean(name, recipe_names(COMMAND_OF[kind]))
            known = f"name the file, {name}.py" if Path(f"{name}.py").is_file() else known
            raise LookupError(f"no recipe {name!r}; {known}")
        module = importlib.import_module(f"rlvr.recipes.{name}")
    held = type(getattr(module, "CONFIG", None))
    if held not in COMMAND_OF:
        kinds = " or ".join(known.__name__ for known in COMMAND_OF)
        raise LookupError(f"recipe {name}: expected a {kinds} named CONFIG")
    if held is not kind:
        raise LookupError(f"recipe {name} is run by another command: rlvr {COMMAND_OF[held]} {name}")
    return module


def split_recipe(argv: Sequence[str], command: str) -> tuple[str, list[str]]:
    """Return the recipe's name and the flags. Asking for help without a recipe prints the names and exits."""
    if argv and argv[0] in ("-h", "--help"):
        names = ", ".join(recipe_names(command))
        print(f"usage: rlvr {command} RECIPE [--run.steps N ...]\nrecipes: {names}, or a .py file")
        raise SystemExit(0)
    if not argv or argv[0].startswith("-"):
        raise ValueError(f"rlvr {command}: name a recipe first; known: {', '.join(recipe_names(command))}")
    return argv[0], list(argv[1:])


def check_model_flag(flags: Sequence[str]) -> None:
    """Raise ValueError for a model folder that does not exist, before anything slow is imported."""
    check_path(take_option(flags, "--model.name")[0])


def expand_flags(flags: Sequence[str]) -> list[str]:
    """Return the flags with the short form of run.dry_run written out."""
    return [re.sub(r"^--(no-)?dry[-_]run(?=$|=)", r"--run.\1dry-run", flag) for flag in flags]


def recipe_config(module: ModuleType, argv: Sequence[str], prog: str, kind: type | None = None) -> Any:
    """Return a recipe's config with its flags, as `kind` (its own unless given). main checks the rest."""
    kind = kind or type(module.CONFIG)
    return parse(
        kind,
        expand_flags(argv) if issubclass(kind, Config) else argv,
        prog=prog,
        description=(module.__doc__ or "").strip(),
        default=module.CONFIG,
        variants=getattr(module, "VARIANTS", None),
    )


def run_config(module: ModuleType, config: Any) -> None:
    """Run a recipe: by its own `main(config)`, else as `rlvr.recipes.main` runs those of its kind."""
    # Recipes stand above the commands, so they are imported by name, as the recipe itself was.
    main = getattr(module, "main", None) or functools.partial(importlib.import_module("rlvr.recipes").main, module)
    main(config)


def run_recipe(module: ModuleType, argv: Sequence[str], prog: str) -> int:
    run_config(module, recipe_config(module, argv, prog))
    return 0


def main(argv: Sequence[str]) -> int:
    name, flags = split_recipe(argv, "train")
    check_model_flag(flags)
    return run_recipe(load_recipe(name), flags, f"rlvr train {name}")


@dataclass(frozen=True)
class SFTRun(Config):
    """The settings of `rlvr sft`: those of a run, without what only reinforcement learning reads."""

    NOT_READ: ClassVar = {
        "algo": {setting.name for setting in settings_of(AlgoConfig)},
        "critic": {setting.name for setting in settings_of(CriticConfig)},
        "teacher": {setting.name for setting in settings_of(TeacherConfig)},
        "optim": {setting.name for setting in settings_of(OptimConfig)} - {"tokens_per_microbatch", "name", "offload"},
        "rollout": {
            "problems_per_step",
            "group_size",
            "temperature",
            "top_p",
            "top_k",
            "resample_rounds",
            "truncated",
            "overlong_buffer",
        },
        "run": {"steps", "save_every", "keep_best", "sample_every", "token_values", "shuffle_rewards"},
    }


def rm_main(argv: Sequence[str]) -> int:
    name, flags = split_recipe(argv, "rm")
    return run_recipe(load_recipe(name, RewardConfig), flags, f"rlvr rm {name}")


def pipeline_main(argv: Sequence[str]) -> int:
    """Run `rlvr pipeline RECIPE [flags]`: the stages one after the other; what is done is skipped."""
    name, flags = split_recipe(argv, "pipeline")
    return run_recipe(load_recipe(name, PipelineConfig), flags, f"rlvr pipeline {name}")


def sft_main(argv: Sequence[str]) -> int:
    """Run `rlvr sft RECIPE [flags]`: no reinforcement learning; the fine-tuned model is saved in OUT_DIR/start."""
    name, flags = split_recipe(argv, "sft")
    check_model_flag(flags)
    module = load_recipe(name)
    config = recipe_config(module, flags, f"rlvr sft {name}", SFTRun)
    if not config.sft.steps:
        raise ValueError(f"recipe {name} fine-tunes for no steps; set --sft.steps")
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(Config)}
    run_config(module, Config(**values | {"run": dataclasses.replace(config.run, steps=0)}))
    return 0


def script(module_globals: dict[str, object]) -> None:
    """Run a recipe from its own file: `python recipes/NAME.py [flags]` is `rlvr train NAME [flags]`, or its command."""
    module = ModuleType(str(module_globals["__file__"]), str(module_globals["__doc__"]))
    module.__dict__.update(module_globals)
    sys.exit(run_guarded(lambda: run_recipe(module, sys.argv[1:], Path(sys.argv[0]).name)))
