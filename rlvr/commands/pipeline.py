"""`rlvr pipeline RECIPE`: the stages of a recipe one after the other; what is done is skipped."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from rlvr.config.pipeline import PipelineConfig
from rlvr.core.files.models import check_path

from .arguments import parse
from .errors import run_guarded
from .train import load_recipe, run_config, split_recipe


def main(argv: Sequence[str]) -> int:
    """Run `rlvr pipeline RECIPE [flags]`."""
    name, flags = split_recipe(argv, "pipeline")
    module = load_recipe(name, PipelineConfig)
    text = (module.__doc__ or "").strip()
    config = parse(PipelineConfig, flags, prog=f"rlvr pipeline {name}", description=text, default=module.CONFIG)
    check_path(config.model)
    if config.at_once > 1 and len(config.seeds) > 1 and not config.stages:
        return run_at_once(name, flags, config, module)
    run_config(module, config)
    return 0


def run_at_once(name: str, flags: Sequence[str], config: PipelineConfig, module: ModuleType) -> int:
    """Run each seed in a process of its own; return the first exit code that is not 0."""
    with contextlib.redirect_stdout(io.StringIO()):  # settings that cannot work end the command here
        run_config(module, dataclasses.replace(config, stages=True))
    codes = run_seeds(["pipeline", name, *without(flags, "--seeds", "--at-once")], config.seeds, config.at_once)
    failed = {seed: code for seed in config.seeds if (code := codes.get(seed, 1))}
    for seed, code in failed.items():
        what = f"ended with exit code {code}" if seed in codes else "was not begun"
        print(f"seed {seed}: {what}", file=sys.stderr)
    return next(iter(failed.values()), 0)


def run_seeds(
    command: Sequence[str], seeds: Sequence[int], at_once: int, say: Callable[[str], None] = print
) -> dict[int, int]:
    """Run `rlvr COMMAND --seeds SEED` for each seed, `at_once` at the same time. Return the exit codes.

    Lines that they print begin with their seed ("seed 1: ..."). They share the processor's cores, unless
    OMP_NUM_THREADS is set. A seed that fails does not end the others. A first SIGINT or SIGTERM is sent on to those
    that run, and no other one starts.
    """
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONUNBUFFERED": "1"}
    running: list[subprocess.Popen[str]] = []
    received: list[int] = []
    starting = threading.Lock()

    def run_seed(seed: int) -> tuple[int, int] | None:
        with starting:
            if received:
                return None
            process = subprocess.Popen(
                [sys.executable, "-m", "rlvr", *command, "--seeds", str(seed), "--at-once", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,  # the terminal's Ctrl-C comes from here, once
            )
            running.append(process)
            for number in received:  # while the process was started
                process.send_signal(number)
        assert process.stdout is not None
        for line in process.stdout:
            say(f"seed {seed}: {line.rstrip()}")
        return seed, process.wait()

    def send_on(number: int, frame: Any = None) -> None:
        received.append(number)
        for process in running:
            process.send_signal(number)

    main_thread = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main_thread else ()
    before = {number: signal.signal(number, send_on) for number in numbers}
    try:
        with ThreadPoolExecutor(at_once) as pool:
            return dict(done for done in pool.map(run_seed, seeds) if done is not None)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def without(flags: Sequence[str], *names: str) -> list[str]:
    """Return flags without those of these names and their values."""
    kept, keeps = [], True
    for flag in flags:
        if flag.startswith("--"):
            keeps = flag.partition("=")[0] not in names
        if keeps:
            kept.append(flag)
    return kept


def script(module_globals: dict[str, object]) -> None:
    """Run a pipeline from its own file: `python recipes/NAME.py [flags]` is `rlvr pipeline NAME [flags]`."""
    sys.exit(run_guarded(lambda: main([str(module_globals["__file__"]), *sys.argv[1:]])))
