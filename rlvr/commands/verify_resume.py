"""`rlvr verify-resume RECIPE`: run a recipe twice, once killed and resumed, and compare what both have written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rlvr.core.files.write import check_place
from rlvr.core.types import RunError
from rlvr.runs.reading import Tail, all_rollouts, answer_files, read_lines, read_rollouts
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.supervision.signals import StopRequest

from .arguments import take_option
from .machine import check_device
from .task import check_names
from .train import check_model_flag, expand_flags, load_recipe, recipe_config, split_recipe

Finding = tuple[str, str]  # what was compared, and how it differs ("": not at all)
# Metrics of the machine, which no two runs share: durations, what is made of them, memory.
MEASURED = ("seconds/", "idle/", "tokens_per_second", "memory/")


def compare_runs(one: Path, other: Path, steps: int) -> list[Finding]:
    """Compare what two runs have written after `steps` steps: weights, optimizer states, logs."""
    findings = []
    for name, folder in (("", checkpoint_folder), ("start: ", lambda run, _: run / "start")):
        folders = [folder(run, steps) for run in (one, other)]
        files = {path.relative_to(root) for root in folders for path in root.rglob("*") if path.is_file()}
        for file in sorted(files):
            if file.suffix == ".safetensors" or file.name == "ahead.jsonl":
                findings.append((f"{name}{file}", tensors_differ(*(root / file for root in folders))))
            elif file.suffix == ".distcp":
                findings.append((f"{name}{file}", bytes_differ(*(root / file for root in folders))))
    logs: dict[str, Callable[[Path], Any]] = {
        "rollouts.jsonl": all_rollouts,
        "eval.jsonl": lambda run: read_lines(run / "eval.jsonl"),
        "held-out answers": lambda run: (row for path in answer_files(run).values() for row in read_rollouts(path)),
        "alarms.jsonl": lambda run: read_lines(run / "alarms.jsonl"),
        "metrics.jsonl": lambda run: map(without_measured, read_lines(run / "metrics.jsonl")),
    }
    return [*findings, *((name, lines_differ(read(one), read(other))) for name, read in logs.items())]


def without_measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line of metrics without those of the machine."""
    return {name: value for name, value in row.items() if not name.startswith(MEASURED)}


def bytes_differ(one: Path, other: Path) -> str:
    """Return how two files differ; "" where they are equal."""
    for path in (one, other):
        if not path.exists():
            return f"{path} is missing"
    return "" if one.read_bytes() == other.read_bytes() else "other bytes"


def tensors_differ(one: Path, other: Path) -> str:
    """Return how two files of tensors differ: which tensor by how much; "" where they are equal."""
    found = bytes_differ(one, other)
    if found != "other bytes" or one.suffix != ".safetensors":
        return found
    from safetensors.torch import load_file

    held, others = load_file(one), load_file(other)
    if held.keys() != others.keys():
        return f"other tensors: {', '.join(sorted(held.keys() ^ others.keys())[:3])}"
    wrong = [name for name in held if held[name].shape != others[name].shape or not held[name].equal(others[name])]
    if not wrong:
        return "equal tensors in other bytes"
    name = wrong[0]
    if held[name].shape != others[name].shape:
        return f"{name} has another shape"
    most = (held[name].double() - others[name].double()).abs().max().item()
    return f"{len(wrong)} of {len(held)} tensors differ, {name} by up to {most:.3g}"


def lines_differ(one: Any, other: Any) -> str:
    """Return the first line in which two logs differ; "" where they are equal."""
    missing: Any = object()
    a: Any
    b: Any
    for number, (a, b) in enumerate(zip_longest(one, other, fillvalue=missing), 1):
        if a is missing or b is missing:
            return f"line {number} is only in the {'resumed' if a is missing else 'whole'} run"
        if a != b:
            names = [name for name in dict.fromkeys(chain(a, b)) if a.get(name, missing) != b.get(name, missing)]
            return f"line {number}: {names[0]} is {a.get(names[0])!r:.40}, resumed {b.get(names[0])!r:.40}"
    return ""


STEPS = 6  # of both runs, unless --run.steps says otherwise
SIGNALS = (signal.SIGINT, signal.SIGTERM)
POLL = 0.02  # seconds between looks at the log of the run that is to be killed
USAGE = """usage: rlvr verify-resume RECIPE [--kill-after N] [--run.steps N ...]
Train a recipe for --run.steps steps (default: 6) twice; kill the second run (SIGKILL) when its log holds step N
(default: half of the steps, rounded up), resume it, and compare weights, optimizer, rollouts, evaluations and metrics.
The runs are in --run.out-dir (default: runs/verify-resume-RECIPE). A checkpoint is saved every step, unless
--run.save-every says otherwise. All settings of `rlvr train RECIPE` may be given.
Exit code 0: all is equal byte for byte. 1: something differs. 2: input that cannot be used."""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, flags = split_recipe(argv, "verify-resume")
    if {"-h", "--help"} & set(flags):
        print(USAGE)
        return 0
    asked, flags = take_option(expand_flags(flags), "--kill-after")
    check_model_flag(flags)
    base, steps, settings = settings_of(name, flags)
    kill_after = kill_step(asked, steps)
    check_free(base)
    whole, resumed = base / "whole", base / "resumed"
    with StopRequest().handling_signals() as stop:  # a signal ends the run that is under way, too
        stop.doing, stop.left = "training", lambda: f"delete {base} to begin again"
        train_both([sys.executable, "-m", "rlvr", "train", name, *settings, "--run.out-dir"], base, steps, kill_after)

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
    """Return the step after whose log line the run is killed. ValueError where no step would be left to resume."""
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


@contextmanager
def start_and_end(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a run in a session of its own, whose output goes into a file, and end it.

    A signal that comes while it starts waits until it can be ended.
    """
    allow = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, SIGNALS)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        with log.open("wb") as file:
            out = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, start_new_session=True, preexec_fn=allow, **out)  # type: ignore[call-overload]
        try:
            allow()
            yield process
        finally:
            end(process)
    finally:
        allow()


def carry_out(command: Sequence[str], log: Path) -> None:
    """Run to the end. Raise RunError, with its last line, where it fails; an interruption ends it."""
    with start_and_end(command, log) as process:
        code = process.wait()
    if code:
        raise RunError(f"the run ended with code {code}: {last_line(log)} (its output: {log})")


def kill_at(command: Sequence[str], folder: Path, step: int, log: Path) -> None:
    """Run until a step is logged, and kill it. Raise RunError where it fails or ends before."""
    tail, seen = Tail(folder / "metrics.jsonl"), 0
    with start_and_end(command, log) as process:
        while seen < step:
            code = process.poll()
            seen = max([seen, *(int(row.get("step", 0)) for row in tail.records()[1])])
            if code is not None:
                raise RunError(f"the run ended with code {code} before it was killed: {last_line(log)} (see {log})")
            time.sleep(POLL)
        if process.poll() is not None:
            raise RunError("the run ended before it was killed; choose more steps, or a smaller --kill-after")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no output"
