"""Callbacks: what a run tells, and in which order."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from rlvr import Problem, Task
from rlvr.config import AlgoConfig, Config, EvalConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig
from rlvr.launch import launch
from rlvr.runs.log import RunLog
from rlvr.training.callbacks import Reporter, TrainerCallback


def has_digit(problem, completion):
    return any(c.isdigit() for c in completion)


has_digit.isolate = False  # a rule this quick needs no workers


def sums() -> Task:
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(28)]
    return Task(
        "sums", problems[:20], problems[20:], has_digit, [(Problem(f"d{i}", f"{i}-{i}="), "7") for i in range(4)]
    )


def tiny(out_dir: Path, **groups: Any) -> Config:
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=2, save_every=1, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu"),
        rollout=RolloutConfig(problems_per_step=4, group_size=4, max_new_tokens=6),
        algo=AlgoConfig("reinforce"),
        optim=OptimConfig(lr=1e-3),
        eval=EvalConfig(every=1, num_problems=4, samples=1, k=(1,)),
    )
    return dataclasses.replace(config, **groups)


class Recorder(TrainerCallback):
    """Notes the name and the step of every event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.metrics: list[dict[str, Any]] = []

    def on_sft_begin(self, num_steps):
        self.events.append(("sft begin", num_steps))

    def on_sft_step(self, step, loss):
        assert math.isfinite(loss)
        self.events.append(("sft", step))

    def on_train_begin(self, config, start):
        self.events.append(("train begin", start))

    def on_log(self, step, metrics):
        self.metrics.append(dict(metrics))
        self.events.append(("log", step))

    def on_step_end(self, step, metrics, rollouts):
        assert {rollout["step"] for rollout in rollouts} == {step}
        self.events.append(("step", step))

    def on_evaluate_begin(self, step, num_problems):
        assert num_problems == 4
        self.events.append(("evaluate begin", step))

    def on_evaluate(self, step, metrics):
        assert 0 <= metrics["pass@1"] <= 1
        self.events.append(("evaluate", step))

    def on_save(self, step, folder):
        assert (folder / "state.json").is_file()
        self.events.append(("save", step))

    def on_train_end(self, step):
        self.events.append(("train end", step))


def test_a_run_tells_its_callbacks_in_order(tmp_path):
    """Fine-tuning, the evaluation before training, each step, its evaluation and checkpoint, the end."""
    recorder = Recorder()
    launch(tiny(tmp_path, sft=SFTConfig(steps=2, batch_size=2)), task=sums(), callbacks=[recorder])
    steps = [(name, step) for step in (1, 2) for name in ("log", "step", "evaluate begin", "evaluate", "save")]
    before = [("sft begin", 2), ("sft", 1), ("sft", 2), ("evaluate begin", 0), ("evaluate", 0), ("train begin", 0)]
    assert recorder.events == [*before, *steps, ("train end", 2)]
    logged = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert recorder.metrics == logged


def test_what_a_callback_raises_ends_the_run_and_the_others_hear_of_the_end(tmp_path):
    """on_train_end comes whatever ended the training, with the steps that are done."""

    class Breaks(TrainerCallback):
        def on_step_end(self, step, metrics, rollouts):
            raise RuntimeError("no more")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="no more"):
        launch(tiny(tmp_path), task=sums(), callbacks=[recorder, Breaks()])
    assert recorder.events[-1] == ("train end", 1)


def test_an_alarm_is_told(tmp_path):
    """The record that is told is the line of alarms.jsonl."""
    told = []

    class Alarmed(TrainerCallback):
        def on_alarm(self, record):
            told.append(record)

    log = RunLog(tmp_path)
    Reporter(log, Accelerator(cpu=True), [Alarmed()]).alarm({"step": 3, "signs": {"fallen": "..."}})
    assert told == log.read("alarms") == [{"step": 3, "signs": {"fallen": "..."}}]


def test_warnings_go_to_callbacks_that_take_them_else_to_python(tmp_path):
    """A callback without on_warning does not swallow one."""
    told = []

    class Warned(TrainerCallback):
        def on_warning(self, text):
            told.append(text)

    Reporter(RunLog(tmp_path), Accelerator(cpu=True), [Recorder(), Warned()]).warn("look")
    assert told == ["look"]
    with pytest.warns(RuntimeWarning, match="look again"):
        Reporter(RunLog(tmp_path), Accelerator(cpu=True), [Recorder()]).warn("look again")
