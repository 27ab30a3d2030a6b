"""Runnable training scripts. `rlvr train NAME` and `python recipes/NAME.py` are the same."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rlvr.config.pipeline import PipelineConfig


def main(recipe: ModuleType, config: Any) -> None:
    """Run a recipe without a `main` of its own: the stages of a pipeline, or a training run."""
    # Both import torch, which `--help` does not need.
    if isinstance(config, PipelineConfig):
        from rlvr.pipeline.stages import run_pipeline

        run_pipeline(config, recipe.stages)
    else:
        from rlvr.launch import launch

        launch(config)
