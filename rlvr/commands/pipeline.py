"""`rlvr pipeline RECIPE`: the stages of a recipe one after the other; what is done is skipped."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlvr.config.pipeline import PipelineConfig
from rlvr.core.files.models import check_path

from .arguments import parse
from .errors import run_guarded
from .train import load_recipe, run_config, split_recipe


def main(argv: Sequence[str]) -> int:
    name, flags = split_recipe(argv, "pipeline")
    module = load_recipe(name, PipelineConfig)
    text = (module.__doc__ or "").strip()
    config = parse(PipelineConfig, flags, prog=f"rlvr pipeline {name}", description=text, default=module.CONFIG)
    check_path(config.model)
    run_config(module, config)
    return 0


def script(module_globals: dict[str, object]) -> None:
    """Run a pipeline from its own file: `python recipes/NAME.py [flags]` is `rlvr pipeline NAME [flags]`."""
    sys.exit(run_guarded(lambda: main([str(module_globals["__file__"]), *sys.argv[1:]])))
