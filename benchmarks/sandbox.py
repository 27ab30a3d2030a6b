"""Speed of the sandbox, and of HumanEval through it.

Takes about 12 seconds on two cores.

    python benchmarks/sandbox.py [DATA]      # with a folder that has HumanEval.jsonl: all of it, eight times

Everything is measured in one run: compare the ratios. CPU time is that of this process and all it started, servers
included. The baseline is what a careful script does: `python -c` in a fresh process, with the same imports.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlvr.sandbox import Job, Pool, RunStatus, host

SLOTS = 2
RUNS = 600
BASELINE_RUNS = 60
# What a server has imported in advance.
IMPORTS = "import bisect, collections, copy, functools, heapq, itertools, json, math, operator, re, string, typing"


def cpu_seconds() -> float:
    """Of this process and its ended children."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    work()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def sandbox_runs(preload: tuple[str, ...], program: str, runs: int) -> tuple[float, float]:
    """(wall seconds, CPU seconds) of `runs` runs, the start of the pool taken off."""

    def run_all(count: int) -> float:
        wall = 0.0
        with Pool(SLOTS, preload) as pool:
            pool.warm()
            start = time.perf_counter()
            results = pool.run_many([Job(program, "abc")] * count)
            wall = time.perf_counter() - start
        if any(result.status is not RunStatus.OK or result.stdout != "cba\n" for result in results):
            raise RuntimeError(f"a run failed: {next(r for r in results if r.status is not RunStatus.OK)}")
        return wall

    walls: list[float] = [run_all(0)]
    _, start_cpu = measure(lambda: walls.append(run_all(0)))
    _, cpu = measure(lambda: walls.append(run_all(runs)))
    return walls[-1], cpu - start_cpu


def baseline_runs(program: str) -> tuple[float, float]:
    """The same by subprocess, as many at a time."""

    def one(_: int) -> None:
        command = [sys.executable, "-c", program]
        output = subprocess.run(command, input="abc", capture_output=True, text=True, check=True)
        if output.stdout != "cba\n":
            raise RuntimeError(output.stderr)

    def run_all() -> None:
        with ThreadPoolExecutor(SLOTS) as threads:
            list(threads.map(one, range(BASELINE_RUNS)))

    return measure(run_all)


def compare(name: str, preload: tuple[str, ...]) -> None:
    """One line for a set of imports."""
    program = "print(input()[::-1])"
    imports = IMPORTS + "".join(f"\nimport {module}" for module in preload)
    wall, cpu = sandbox_runs(preload, program, RUNS)
    base_wall, base_cpu = baseline_runs(f"{imports}\n{program}")
    rate, base_rate = RUNS / wall, BASELINE_RUNS / base_wall
    print(
        f"{name}: {rate:.0f} runs/s, {1000 * cpu / RUNS:.2f} ms of CPU a run; python -c {base_rate:.1f} runs/s, "
        f"{1000 * base_cpu / BASELINE_RUNS:.1f} ms; {rate / base_rate:.1f} times the rate"
    )


def humaneval(data: Path, completions: int) -> None:
    """All problems, several completions each, through the verifier."""
    from rlvr.core.types import Problem
    from rlvr.verifiers.unit_tests import UnitTests

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.reference.make_code_files import humaneval_files

    rows = humaneval_files(data)["humaneval"]
    pairs = [(Problem(row["id"], "", row["reference"]), row["completion"]) for row in rows] * completions
    verifier = UnitTests(slots=SLOTS)
    start = time.perf_counter()
    verdicts = verifier.verify_batch(pairs)
    wall = time.perf_counter() - start
    verifier.close()
    print(
        f"HumanEval, {len(rows)} problems x {completions}: {wall:.1f} s, {sum(v.correct for v in verdicts)} of "
        f"{len(verdicts)} correct ({len(verdicts) / wall:.0f}/s)"
    )


def main() -> None:
    """Read the command line and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path, help="folder of code data sets, for HumanEval")
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {host.interpreter()}")
    compare("no extra imports", ())
    compare("numpy preloaded", ("numpy",))
    if args.data is not None:
        humaneval(args.data, 8)


if __name__ == "__main__":
    main()
