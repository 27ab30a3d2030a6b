"""`rlvr verify-resume RECIPE`: run a recipe twice, once killed and resumed, and compare what both have written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rlvr.commands.choices import take_option
from rlvr.commands.machine import check_device
from rlvr.commands.task import check_names
from rlvr.commands.train import check_model_flag, expand, load_recipe, recipe_config, split_recipe
from rlvr.files.write import check_place
from rlvr.runs.reading import Tail
from rlvr.training.signals import StopRequest
from rlvr.types import RunError

STEPS = 6  # of both runs, unless --run.steps says otherwise
POLL = 0.02  # seconds between looks at the log of the run that is to be killed
USAGE = """usage: rlvr verify-resume RECIPE [--kill-after N] [--run.steps N ...]
Train a recipe for --run.steps steps (default: 6) twice; kill the second run (SIGKILL) when its log holds step N
(default: half of the steps, rounded up), resume it, and compare weights, optimizer, rollouts, evaluations and metrics.
The runs are in --run.out-dir (default: runs/verify-resume-RECIPE). A checkpoint is saved every step, unless
--run.save-every says otherwise. All settings of `rlvr train RECIPE` may be given.
Exit code 0: all is equal byte for byte. 1: something differs. 2: input that cannot be used."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr verify-resume RECIPE` and return its exit code."""
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, flags = split_recipe(argv, "verify-resume")
    if {"-h", "--help"} & set(flags):
        print(USAGE)
        return 0
    asked, flags = take_option(expand(flags), "--kill-after")
    check_model_flag(flags)
    base, steps, settings = settings_of(name, flags)
    kill_after = kill_step(asked, steps)
    check_free(base)
    whole, resumed = base / "whole", base / "resumed"
    with StopRequest().answering() as stop:  # a signal ends the run that is under way, too
        stop.doing, stop.left = "training", lambda: f"delete {base} to begin again"
        train_both([sys.executable, "-m", "rlvr", "train", name, *settings, "--run.out-dir"], base, steps, kill_after)
    from rlvr.commands.resume_compare import compare_runs  # imports torch

    findings = compare_runs(whole, resumed, steps)
    for what, difference in findings:
        print(f"  {what:24} {difference or 'equal, byte for byte'}")
    different = sum(bool(difference) for _, difference in findings)
    end = f"{different} of {len(findings)} differ" if different else "the resumed run is the same, byte for byte"
    print(end)
    return 1 if different else 0


def train_both(command: Sequence[str], base: Path, steps: int, kill_after: int) -> None:
    """Train once to the end, and once killed after a step and resumed. command: to train, but for the folder."""
    whole, resumed = base / "whole", base / "resumed"
    print(f"training {steps} steps: {whole}", flush=True)
    carry_out([*command, str(whole)], base / "whole.log")
    print(f"training again, killed when step {kill_after} is logged: {resumed}", flush=True)
    kill_at([*command, str(resumed)], resumed, kill_after, base / "killed.log")
    print("resuming it", flush=True)
    carry_out([*command, str(resumed)], base / "resumed.log")


def settings_of(name: str, flags: Sequence[str]) -> tuple[Path, int, list[str]]:
    """Return the folder of both runs, their number of steps, and their flags. ValueError where these do not fit."""
    out_dir, settings = take_option(flags, "--run.out-dir")
    if any(flag.partition("=")[0].replace("_", "-") == "--run.steps" for flag in settings):
        given = settings
    else:
        given = [*settings, "--run.steps", str(STEPS)]
    if not any(flag.partition("=")[0].replace("_", "-") == "--run.save-every" for flag in given):
        given = [*given, "--run.save-every", "1"]
    config = recipe_config(load_recipe(name), given, f"rlvr verify-resume {name}")
    for setting in ("overwrite", "dry_run"):
        if getattr(config.run, setting):
            raise ValueError(f"--run.{setting.replace('_', '-')} has no meaning here: both runs begin in new folders")
    config.check()
    check_names(config)
    check_device(config.model.device)
    if config.run.steps < 2:
        raise ValueError(f"--run.steps {config.run.steps}: expected 2 or more, so that a run can be killed in between")
    recipe = Path(name).stem
    return Path(out_dir or f"runs/verify-resume-{recipe}"), config.run.steps, list(given)


def kill_step(asked: str | None, steps: int) -> int:
    """Return the step after whose log line the run is killed. ValueError where there is no step left to resume."""
    if asked is None:
        return (steps + 1) // 2
    if not asked.isdecimal() or not 1 <= int(asked) < steps:
        raise ValueError(f"--kill-after {asked!r:.40}: expected a number from 1 to {steps - 1}, below --run.steps")
    return int(asked)


def check_free(base: Path) -> None:
    """Raise ValueError where the folder for both runs cannot be used or holds something."""
    check_place(base, "--run.out-dir")
    if base.is_dir() and any(base.iterdir()):
        raise ValueError(f"--run.out-dir {base} is not empty; choose another, or delete it")
    base.mkdir(parents=True, exist_ok=True)


def started(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a run in a process group of its own; its output goes into a file."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )


def carry_out(command: Sequence[str], log: Path) -> None:
    """Run to the end. Raise RunError, with its last line, where it fails; an interruption ends it."""
    process = started(command, log)
    try:
        code = process.wait()
    except BaseException:
        end(process)
        raise
    if code:
        raise RunError(f"the run ended with code {code}: {last_line(log)} (its output: {log})")


def kill_at(command: Sequence[str], folder: Path, step: int, log: Path) -> None:
    """Run until a step is logged, and kill it. Raise RunError where it fails or ends before."""
    process, tail, seen = started(command, log), Tail(folder / "metrics.jsonl"), 0
    try:
        while seen < step:
            code = process.poll()
            seen = max([seen, *(int(row.get("step", 0)) for row in tail.records()[1])])
            if code is not None:
                raise RunError(f"the run ended with code {code} before it was killed: {last_line(log)} (see {log})")
            time.sleep(POLL)
        if process.poll() is not None:
            raise RunError("the run ended before it was killed; choose more steps, or a smaller --kill-after")
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    """Return the last line of a run's output."""
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
