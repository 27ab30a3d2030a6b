"""Stages: a pipeline is a Python function that calls them in order, each with what the one before it made.

A stage has a folder of its own, and a record beside it once it is done: settings, what was made, what was measured, as
JSON. The same command then skips it. A record holds the word SEED_FOLDER for its seed's folder, so that it stays true
when the folder is moved or named by another path. A stage that was interrupted resumes as its own run does, from its
last checkpoint.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rlvr.commands.arguments import parse
from rlvr.commands.eval import EvalArgs
from rlvr.commands.eval import run as evaluated
from rlvr.commands.report.page import TITLE
from rlvr.commands.sample import DATA, SampleArgs, sample
from rlvr.commands.task import check_names
from rlvr.config import Config
from rlvr.config.pipeline import PipelineConfig
from rlvr.config.reward_model import RewardConfig
from rlvr.core.files.write import PARTIAL, check_place, check_replaceable, name_in_errors, write_whole
from rlvr.runs.folder import hold_lock

from .records import (
    PLANNED,
    RECORD,
    Tries,
    as_json,
    dependents,
    first_difference,
    has_content,
    list_changed,
    read_stage,
    replace_seed_folder,
)
from .report import write_pipeline_report


def check_planned(name: str, config: Any) -> None:
    """Raise ValueError or LookupError, naming the stage, for settings that cannot work.

    All stages are checked before the first one runs, because a later one may begin hours after it.
    """
    try:
        config.check()
        check_names(config)
    except (ValueError, LookupError) as error:
        raise ValueError(f"stage {name}: {error.args[0] if error.args else error}") from error
    data = getattr(getattr(config, "sft", None), "data", None)
    if data is not None and PLANNED not in data.parents and not data.exists():
        raise ValueError(f"stage {name}: sft.data {data}: no such file")


C = TypeVar("C")
A = TypeVar("A", SampleArgs, EvalArgs)


@dataclass(frozen=True)
class Made:
    """What a stage made: the folder of a model or a data set, and what was measured of it."""

    name: str
    path: Path
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Stages:
    """The stages of one seed's pipeline, in `folder`.

    `planned` collects names and settings, `changed` those that are no defaults. With `only_plan` no stage runs, and
    each returns a path in PLANNED.
    later: for each stage, those that depend on it.
    """

    config: PipelineConfig
    folder: Path
    seed: int
    say: Callable[[str], None] = print
    only_plan: bool = False
    planned: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    later: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()  # stages that are resumed know their inputs by it, from any current folder

    def sft(self, name: str, config: Config, *, policy: Made | None = None, data: Made | None = None) -> Made:
        """Fine-tune a model, or an earlier stage's policy, on the pack's demonstrations or on those in `data`.

        The result is the fine-tuned model, measured on held-out problems. With sft.steps 0 it is the model as it is.
        """
        sft = config.sft if data is None else dataclasses.replace(config.sft, data=data.path / DATA)
        run = dataclasses.replace(config.run, steps=0)
        return self._train(name, dataclasses.replace(config, run=run, sft=sft), policy)

    def train(self, name: str, config: Config, *, policy: Made | None = None) -> Made:
        """Train by reinforcement learning, from an earlier stage's policy or after the fine-tuning of the settings.

        The result is the last checkpoint.
        """
        if policy is not None:
            config = dataclasses.replace(config, sft=dataclasses.replace(config.sft, steps=0))
        return self._train(name, config, policy)

    def _train(self, name: str, config: Config, policy: Made | None) -> Made:
        from rlvr.launch import launch
        from rlvr.training.checkpoint.resume import find_checkpoint

        model = config.model
        if policy is not None:
            model = dataclasses.replace(model, name=str(policy.path))
        elif self.config.model is not None:
            model = dataclasses.replace(model, name=self.config.model)
        run = dataclasses.replace(config.run, seed=self.seed)
        config = self.with_flags(name, dataclasses.replace(config, model=model, run=run))
        if not config.sft.steps and not config.algo.ptx_coef:  # nothing would read it
            config = dataclasses.replace(config, sft=dataclasses.replace(config.sft, data=None))
        folder = self.folder / name
        trained = config.sft.steps > 0 or config.run.steps > 0

        def work() -> tuple[Path, Mapping[str, Any]]:
            placed = dataclasses.replace(config, run=dataclasses.replace(config.run, out_dir=folder))
            evaluations = launch(placed)
            return find_checkpoint(folder) if trained else folder, {"evaluations": evaluations}

        made = self.run_once(name, config, work)
        return made if trained else dataclasses.replace(made, path=place_of(config.model.name))

    def reward_model(self, name: str, config: RewardConfig, *, policy: Made) -> Made:
        """Train a reward model on pairs of the policy's completions; measured on held-out pairs."""
        from rlvr.commands.rm.launch import launch_reward_model, with_policy

        run = dataclasses.replace(config.run, seed=self.seed)
        config = self.with_flags(name, with_policy(dataclasses.replace(config, run=run), policy.path))
        folder = self.folder / name

        def work() -> tuple[Path, Mapping[str, Any]]:
            placed = dataclasses.replace(config, run=dataclasses.replace(config.run, out_dir=folder))
            result = launch_reward_model(placed)
            return Path(result["folder"]), {"reward model": result}

        return self.run_once(name, config, work)

    def sample(self, name: str, args: SampleArgs, *, policy: Made) -> Made:
        """Sample completions of training problems and keep the best; the result's folder has them as `data.jsonl`.

        Measured: the share that is right, of all and of those that are kept. An interrupted stage resumes.
        """
        return self._answer(name, args, policy, sample)

    def evaluate(self, name: str, args: EvalArgs, *, policy: Made) -> Made:
        """Measure a policy on held-out problems, as `rlvr eval` does. An interrupted stage resumes."""
        return self._answer(name, args, policy, lambda placed: {"evaluations": [evaluated(placed)]})

    def _answer(self, name: str, args: A, policy: Made, measure: Callable[[A], Mapping[str, Any]]) -> Made:
        args = self.with_flags(name, dataclasses.replace(args, model=str(policy.path), seed=self.seed))
        folder = self.folder / name
        return self.run_once(name, args, lambda: (folder, measure(dataclasses.replace(args, out_dir=folder))))

    def make(self, name: str, settings: Mapping[str, Any], make: Callable[[Path], Mapping[str, Any]]) -> Made:
        """Run any other stage: `make` writes into the folder that it is given, and returns what it measured."""
        folder = self.folder / name

        def work() -> tuple[Path, Mapping[str, Any]]:
            if has_content(folder):
                raise ValueError(f"{folder} is in the way, and no stage made it; move it, or choose another --out-dir")
            partial = folder.with_name(folder.name + PARTIAL)
            shutil.rmtree(partial, ignore_errors=True)  # of a stage that was interrupted
            with name_in_errors(partial):
                partial.mkdir(parents=True)
            return folder, make(partial)

        return self.run_once(name, settings, work)

    def with_flags(self, name: str, config: C) -> C:
        """Return a stage's config with the settings that the command line gives it (--set STAGE.SETTING)."""
        flags = self.config.of_stage(name)
        if not flags:
            return config
        found: C = parse(type(config), flags, prog=f"stage {name}", default=config)
        return found

    def run_once(self, name: str, config: Any, work: Callable[[], tuple[Path, Mapping[str, Any]]]) -> Made:
        """Return what the stage made, now or before. The record beside its folder says that it is done.

        Raises ValueError where it was made with other settings.
        """
        if name in self.planned:
            raise ValueError(f"two stages have the name {name!r}")
        if not re.fullmatch(r"[\w-]+", name):
            raise ValueError(f"a stage has the name {name!r}; expected letters, digits, - and _")
        self.planned[name], self.changed[name] = as_json(config), list_changed(config)
        if self.only_plan:
            if dataclasses.is_dataclass(config):
                check_planned(name, config)
            return Made(name, PLANNED / name)
        settings = replace_seed_folder(self.planned[name], self.folder)
        record = self.folder / f"{name}.{RECORD}"
        held = read_stage(record)
        if held is not None:
            path = self.folder / held["path"]
            if held["settings"] != settings:
                where = first_difference(held["settings"], settings)
                raise ValueError(
                    f"{record.parent / name} was made with other settings ({where}); choose another --out-dir, or "
                    "delete it and the stages after it"
                )
            if path.exists():
                self.say(f"stage {name}: done before, {path}")
                return Made(name, path, held["measured"])
        self.check_later(name)
        self.say(f"stage {name}")
        tries = Tries(self.folder, name)
        path, measured = work()
        text = {
            "settings": settings,
            "path": str(path.relative_to(self.folder)),
            "measured": measured,
            "seconds": tries.seconds(),
        }
        write_whole(record, json.dumps(text, indent=2, default=str) + "\n")
        tries.path.unlink()
        partial = path.with_name(path.name + PARTIAL)
        if partial.exists():  # after the record: a folder without a record is not a stage's
            os.replace(partial, path)
        gc.collect()  # a model of this stage may be in a reference cycle, and the next stage needs its memory
        return Made(name, path, json.loads(json.dumps(measured, default=str)))

    def check_later(self, name: str) -> None:
        """Raise ValueError where stages that depend on this one exist already: they read what it was before."""
        later = self.later.get(name, ())
        old = [one for one in later if has_content(self.folder / one) or (self.folder / f"{one}.{RECORD}").exists()]
        if old:
            raise ValueError(
                f"stage {name} would be made anew, and {', '.join(old)} began from what it made before; restore "
                f"{self.folder / name} and {name}.{RECORD}, or delete folder and {RECORD} of each of these too"
            )


def place_of(model: str) -> Path:
    return Path(model).absolute() if Path(model).is_dir() else Path(model)


def check_settings(config: PipelineConfig, planned: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting of a stage that the pipeline does not have."""
    for item in config.set:
        stage = item.partition(".")[0]
        if stage not in planned:
            raise ValueError(f"--set {item}: no stage {stage!r}; this pipeline has {', '.join(planned)}")


def run_pipeline(
    config: PipelineConfig, pipeline: Callable[[Stages], None], say: Callable[[str], None] = print
) -> Path:
    """Run a pipeline for each seed; return its report. Raises ValueError, before anything runs, for bad settings."""
    config.check()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a pipeline runs in one process; start its stages by their own commands with torchrun")
    # Plan: collect and check the settings of all stages, before the first one runs for hours.
    plan = Stages(config, config.out_dir / f"seed-{config.seeds[0]}", config.seeds[0], say, only_plan=True)
    pipeline(plan)
    check_settings(config, plan.planned)
    if config.stages:
        for name, changed in plan.changed.items():
            say("\n  ".join([f"{name}:", *changed]))
        return config.out_dir
    check_place(config.out_dir, "--out-dir")
    if "," in str(config.out_dir.absolute()):
        raise ValueError(f"--out-dir {config.out_dir.absolute()} has a comma, which divides settings of verifiers")
    check_replaceable(config.out_dir / "report.html", "--out-dir", (TITLE.encode(),))
    # Run each seed, one stage after the other.
    later = dependents(plan.planned)
    config.out_dir.mkdir(parents=True, exist_ok=True)
    for seed in config.seeds:
        folder = config.out_dir / f"seed-{seed}"
        with hold_lock(folder):  # other seeds may run at the same time
            say(f"seed {seed}: {folder}")
            pipeline(Stages(config, folder, seed, say, later=later))
    with hold_lock(config.out_dir):
        report = write_pipeline_report(config.out_dir, list(plan.planned))
    say(f"report: {report}")
    return report
