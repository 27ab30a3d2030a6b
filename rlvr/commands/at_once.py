"""Seeds of a pipeline at the same time, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def run_seeds(
    command: Sequence[str], seeds: Sequence[int], at_once: int, say: Callable[[str], None] = print
) -> dict[int, int]:
    """Run `rlvr COMMAND --seeds SEED` for each seed, `at_once` at the same time; return the exit codes.

    What they print follows their seeds ("seed 1: ..."). They share the processor's cores, unless OMP_NUM_THREADS is
    set. A seed that fails does not end the others. A first SIGINT or SIGTERM is handed on to those that run, and no
    other one starts.
    """
    threads = str(max(1, (os.cpu_count() or 1) // at_once))
    environment = {"OMP_NUM_THREADS": threads, **os.environ, "PYTHONUNBUFFERED": "1"}
    waiting, places = list(seeds), threading.Semaphore(at_once)
    codes: dict[int, int] = {}
    with handed_on() as running:
        readers = []
        while waiting:
            places.acquire()
            if running.stopped:
                break
            seed = waiting.pop(0)
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
            running.add(process)

            def follow(seed: int = seed, process: subprocess.Popen[str] = process) -> None:
                assert process.stdout is not None
                for line in process.stdout:
                    say(f"seed {seed}: {line.rstrip()}")
                codes[seed] = process.wait()
                places.release()

            readers.append(threading.Thread(target=follow, daemon=True))
            readers[-1].start()
        for reader in readers:
            reader.join()
    return codes


class Running:
    """The processes that run, and the signal that was handed on to them, if any."""

    def __init__(self) -> None:
        self.stopped = 0
        self._processes: list[subprocess.Popen[str]] = []

    def add(self, process: subprocess.Popen[str]) -> None:
        """Take a process; it gets the signal at once where there was one before."""
        self._processes.append(process)
        if self.stopped:
            process.send_signal(self.stopped)

    def hand_on(self, number: int, frame: Any = None) -> None:
        """Send a signal to all processes that run."""
        self.stopped = number
        for process in self._processes:
            process.send_signal(number)


@contextmanager
def handed_on() -> Iterator[Running]:
    """Hand SIGINT and SIGTERM on to processes, in the main thread."""
    running = Running()
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    before = {number: signal.signal(number, running.hand_on) for number in numbers}
    try:
        yield running
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
