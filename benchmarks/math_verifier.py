"""The math verifier beside math-verify 0.9.0: rates, latencies and resident memory, in one process and one run.

Takes about 57 seconds on two cores.

    python benchmarks/math_verifier.py [--data DIR] [--memory 50000]

Needs `pip install math-verify==0.9.0` (a virtual environment of its own that holds it, with
PYTHONPATH set to this repository, is enough; without it only our own figures are printed).

Our own adversarial table is measured (each pair once, caches cold), and with a folder of data (`--data`, else the
environment variable RLVR_DATA) two more sets: varied cases in the same way (math_cases.jsonl), and real completions
(math_completions.jsonl: eight per question, so that golds repeat). Denial-of-service cases are timed apart and for us
only: the other side's time there is that of its own timeouts. Compare rates by their ratio in one run, on a busy
machine that of processor time; absolute figures differ between machines.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rlvr.core.types import Problem
from rlvr.verifiers.math import MathVerifier

REPOSITORY = Path(__file__).resolve().parents[1]
Judge = Callable[[str, str], bool]


def load(path: Path) -> list[dict]:
    """The rows of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def pairs_of(cases: list[dict], *, slow: bool = False) -> list[tuple[str, str]]:
    """Gold and completion of the cases of denial of service (`slow`), or of all others."""
    return [(case["gold"], case["completion"]) for case in cases if (case["category"] == "dos") is slow]


def ours() -> Judge:
    """Our quick path: what is decided in the caller's process (None, for the pool, counts as not decided)."""
    verifier = MathVerifier()

    def judge(gold: str, completion: str) -> bool:
        verdict = verifier.fast_path(Problem("", "", gold), completion)
        return verdict is not None and verdict.correct

    return judge


def theirs() -> Judge | None:
    """math-verify with its defaults, the gold as LaTeX; None where it is not installed."""
    try:
        import math_verify
    except ImportError:
        return None

    def judge(gold: str, completion: str) -> bool:
        return bool(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(completion)))

    return judge


def measure(judge: Judge, pairs: list[tuple[str, str]]) -> list[tuple[float, float]]:
    """(seconds, processor seconds) of each verification, after one that warms up imports."""
    judge("\\sqrt{7}", "\\boxed{\\frac{7}{\\sqrt{7}}}")
    times = []
    for gold, completion in pairs:
        start, used = time.perf_counter(), time.process_time()
        judge(gold, completion)
        times.append((time.perf_counter() - start, time.process_time() - used))
    return times


def report(name: str, times: list[tuple[float, float]]) -> tuple[float, float]:
    """Prints one line; returns the seconds and the processor's. On a busy machine the latter are the ones to read."""
    seconds, used = zip(*times)
    rate = len(seconds) / sum(seconds)
    p99, p99_used = (statistics.quantiles(values, n=100)[98] * 1e3 for values in (seconds, used))
    print(
        f"  {name:12} {rate:8.0f}/s   median {statistics.median(seconds) * 1e6:7.0f} us   p99 {p99:7.2f} ms"
        f" (processor {p99_used:7.2f} ms)   max {max(seconds) * 1e3:8.2f} ms"
    )
    return sum(seconds), sum(used)


def compare(title: str, pairs: list[tuple[str, str]], other: Judge | None) -> None:
    """Both graders over the same pairs."""
    print(f"{title}: {len(pairs)} pairs")
    own = report("rlvr", measure(ours(), pairs))
    if other is not None:
        found = report("math-verify", measure(other, pairs))
        print(f"  ratio {found[0] / own[0]:.1f}, of processor time {found[1] / own[1]:.1f}")


def resident() -> float:
    """Resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def memory(pairs: list[tuple[str, str]], verifications: int) -> None:
    """Resident memory over many verifications, no two of them alike."""
    judge = ours()
    print(f"resident memory over {verifications} verifications")
    for index in range(verifications):
        gold, completion = pairs[index % len(pairs)]
        judge(gold, completion.replace("\\boxed{", f"\\boxed{{0\\cdot{index}+"))
        if (index + 1) % (verifications // 5) == 0:
            print(f"  {index + 1:8}: {resident():.1f} MB")


def main() -> None:
    """Runs everything and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RLVR_DATA"), help="a folder of more cases")
    parser.add_argument("--memory", type=int, default=50_000, help="verifications of the memory test; 0: leave it out")
    arguments = parser.parse_args()
    other = theirs()
    if other is None:
        print("math-verify is not installed: our own figures only")
    table = load(REPOSITORY / "tests" / "golden" / "math_adversarial.jsonl")
    if arguments.data is None:
        print("no --data and no RLVR_DATA: our own table only")
        cases = table
    else:
        cases = load(arguments.data / "math_cases.jsonl")
    varied = pairs_of(cases)
    if arguments.data is not None:
        compare("varied cases, cold", varied, other)
        completions = [(row["answer"], row["completion"]) for row in load(arguments.data / "math_completions.jsonl")]
        compare("real completions", completions, other)
    compare("our table", pairs_of(table), other)
    compare("denial of service", pairs_of(cases, slow=True), None)
    if arguments.memory:
        memory(varied, arguments.memory)


if __name__ == "__main__":
    main()
