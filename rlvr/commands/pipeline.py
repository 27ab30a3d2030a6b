"""`rlvr pipeline RECIPE`: the stages of a recipe one after the other; what is done is skipped."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
from collections.abc import Sequence
from types import ModuleType

from rlvr.commands.arguments import guarded, parse
from rlvr.commands.at_once import run_seeds
from rlvr.commands.train import load_recipe, split_recipe
from rlvr.config.pipeline import PipelineConfig
from rlvr.files.models import check_path


def main(argv: Sequence[str]) -> int:
    """Run `rlvr pipeline RECIPE [flags]`."""
    name, flags = split_recipe(argv, "pipeline")
    module = load_recipe(name, PipelineConfig)
    text = (module.__doc__ or "").strip()
    config = parse(PipelineConfig, flags, prog=f"rlvr pipeline {name}", description=text, default=module.CONFIG)
    check_path(config.model)
    if config.at_once > 1 and len(config.seeds) > 1 and not config.stages:
        return at_once(name, flags, config, module)
    module.main(config)
    return 0


def at_once(name: str, flags: Sequence[str], config: PipelineConfig, module: ModuleType) -> int:
    """Run the seeds in processes of their own; return the first exit code that is not 0."""
    with contextlib.redirect_stdout(io.StringIO()):  # settings that cannot work end the command here
        module.main(dataclasses.replace(config, stages=True))
    codes = run_seeds(["pipeline", name, *without(flags, "--seeds", "--at-once")], config.seeds, config.at_once)
    failed = {seed: code for seed in config.seeds if (code := codes.get(seed, 1))}
    for seed, code in failed.items():
        what = f"ended with exit code {code}" if seed in codes else "was not begun"
        print(f"seed {seed}: {what}", file=sys.stderr)
    return next(iter(failed.values()), 0)


def without(flags: Sequence[str], *names: str) -> list[str]:
    """Return flags without those of these names, and their values."""
    kept, keeps = [], True
    for flag in flags:
        if flag.startswith("--"):
            keeps = flag.partition("=")[0] not in names
        if keeps:
            kept.append(flag)
    return kept


def script(module_globals: dict[str, object]) -> None:
    """Run a pipeline from its own file: `python recipes/NAME.py [flags]` is `rlvr pipeline NAME [flags]`."""
    sys.exit(guarded(lambda: main([str(module_globals["__file__"]), *sys.argv[1:]])))
