"""What it costs that a verifier can be killed: a verdict in the caller's process against one in the worker processes.

Takes about 15 seconds on two cores.

    python tests/bench/killable.py [--items 20000]

Prints microseconds a verdict for a function that does next to nothing (the cost is all overhead), for one that works a
millisecond (two workers share the work), and seconds for the start of the workers and for the replacement of one whose
item ran out of time. Takes the best of three rounds.
"""

from __future__ import annotations

import argparse
import time

from rlvr.core.types import Problem
from rlvr.verifiers.runner import Runner


def trivial(problem: Problem, completion: str) -> bool:
    """Next to nothing."""
    return completion == problem.reference


def one_millisecond(problem: Problem, completion: str) -> bool:
    """A millisecond of work."""
    end = time.perf_counter() + 0.001
    while time.perf_counter() < end:
        pass
    return True


def loops(problem: Problem, completion: str) -> bool:
    """Never comes back from "loop"."""
    while completion == "loop":
        pass
    return True


def pairs(count: int, start: int = 0) -> list[tuple[Problem, str]]:
    """Distinct pairs with completions of some hundred characters."""
    return [
        (Problem(str(i), "What is it?", "42"), f"{i}: " + "so it is that " * 20) for i in range(start, start + count)
    ]


def seconds_each(verifier: object, items: int, *, isolate: bool) -> float:
    """Seconds a verdict, the workers already running; the best of three rounds."""
    verifier.isolate = isolate  # type: ignore[attr-defined]
    best = float("inf")
    with Runner(verifier) as runner:  # type: ignore[arg-type]
        runner.verify(pairs(4, -4))
        for number in range(3):
            some = pairs(items, number * items)
            start = time.perf_counter()
            runner.verify(some)
            best = min(best, (time.perf_counter() - start) / items)
    return best


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    items = parser.parse_args().items
    for name, verifier, count in (("trivial", trivial, items), ("1 ms of work", one_millisecond, items // 20)):
        here, there = (seconds_each(verifier, count, isolate=isolate) for isolate in (False, True))
        print(f"{name:14} {here * 1e6:8.1f} us a verdict in process, {there * 1e6:8.1f} us in two workers")
    with Runner(loops, timeout=0.5, workers=1) as runner:
        start = time.perf_counter()
        runner.verify(pairs(1))
        print(f"start of the workers and the first verdict: {time.perf_counter() - start:.2f} s")
        start = time.perf_counter()
        runner.verify([(Problem(str(i), ""), "loop") for i in range(8)])
        lost = (time.perf_counter() - start) / 8 - 0.5
        print(f"a worker killed at its deadline and replaced: {lost * 1e3:.1f} ms beyond the deadline")


if __name__ == "__main__":
    main()
