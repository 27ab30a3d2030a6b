"""`rlvr grade`: verify a file of completions, and compare the verdicts with expected ones. Loads no torch."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Annotated, Any, TextIO

from rlvr.config.settings import SECONDS, WORKERS_OR_CORES
from rlvr.core.files.jsonl import is_same_file, read_objects
from rlvr.core.files.write import check_replaceable, name_in_errors
from rlvr.core.printable import in_one_line, kind_of
from rlvr.core.registry import key_values, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem, Prompt, Status, Verdict
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.base import check_references

from .arguments import Positional, parse
from .errors import BAD_INPUT, error_line, run_guarded

REFERENCE_NAMES = ("reference", "gold", "answer")
PROMPT_NAMES = ("prompt", "problem", "question")
# Lines verified before their verdicts are written: an interrupted run keeps those.
CHUNK = 4096


@dataclass(frozen=True)
class GradeArgs:
    """Verdicts for a file of completions.

    Exit code 0: all lines verified. 2, after one line on standard error: input that cannot be used, a reference that
    cannot be read, or a verifier that fails on every line. 130: interrupted.
    """

    file: Positional[Path]
    """JSON lines in UTF-8 with completion and, where the verifier reads one, reference (or gold, answer); id, prompt,
    expected (a boolean) where known."""
    verifier: str
    """Registered name, or module:attribute."""
    verifier_option: tuple[str, ...] = ()
    """Options of the verifier, as key=value."""
    workers: Annotated[int, WORKERS_OR_CORES] = 0
    """Worker processes for the verifier, unless it runs in process (isolate = False or verify_batch). 0: one for each
    core, at least 2."""
    timeout: Annotated[float, SECONDS] = 10.0
    """Time limit for one completion in a worker process, in seconds."""
    output: Path | None = None
    """File for the verdicts, one JSON line each. None: standard output."""


OF_ROLLOUT = {"step", "problem", "sample"}  # fields of a line of rollouts.jsonl


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the input. expected: whether the completion is correct, None where the line does not say.

    has_reference: False for a line without a reference, True also where the reference is null.
    """

    number: int
    name: Any
    problem: Problem
    completion: str
    expected: bool | None
    has_reference: bool


def read_rows(path: Path) -> list[Row]:
    """Return the lines of a file, without blank ones. Raise ValueError naming a line that cannot be used.

    Lone surrogates are accepted: a completion is verified as the model wrote it.
    """
    rows = [parse_row(fields, number, path) for number, fields in read_objects(path, surrogates=True)]
    if not rows:
        raise ValueError(f"{path} is empty; expected JSON lines with reference and completion")
    return rows


def parse_row(fields: dict[str, Any], number: int, path: Path) -> Row:
    """Return one line as a Row. Raise ValueError where a field is missing or of the wrong type."""
    where = f"{path}, line {number}"
    reference = next((name for name in REFERENCE_NAMES if name in fields), None)
    if "completion" not in fields:
        raise ValueError(f"{where}: no completion; its fields are {', '.join(fields) or 'none'}")
    completion = fields["completion"]
    if not isinstance(completion, str):
        raise ValueError(f"{where}: completion is {kind_of(completion)}; expected text")
    expected = fields.get("expected")
    if expected is not None and not isinstance(expected, bool):
        raise ValueError(f"{where}: expected is {expected!r:.200}; expected true or false")
    name = fields.get("id", number)
    if isinstance(name, dict | list):
        raise ValueError(f"{where}: id is {kind_of(name)}; expected text or a number")
    prompt = read_prompt(next((fields[name] for name in PROMPT_NAMES if name in fields), ""), where)
    info = {key: value for key, value in fields.items() if key not in (reference, "completion")}
    problem = Problem(str(name), prompt, fields[reference] if reference else None, info)
    return Row(number, name, problem, completion, expected, reference is not None)


def read_prompt(value: Any, where: str) -> Prompt:
    """Return a prompt: text, or messages with role and content; null is "". Raise ValueError for anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value):
        return value
    raise ValueError(f"{where}: the prompt is {value!r:.80}; expected text, or messages with role and content")


def check_rows(rows: Sequence[Row], verifier: Any, name: str, path: Path) -> None:
    """Raise ValueError for the first line that lacks a prompt or a reference the verifier needs."""
    bare = next((row.number for row in rows if not row.problem.prompt), None)
    if bare is not None and VerifierTraits.of(verifier).reads_prompt:
        raise ValueError(f"{path}, line {bare}: no prompt, and verifier {name!r} reads it")
    for row in rows:
        if not row.has_reference:
            if row.problem.info.keys() >= OF_ROLLOUT:
                raise ValueError(
                    f"{path}, line {row.number}: a rollout of a run, which has no reference; `rlvr regrade "
                    f"{path.parent} --verifier {name}` judges rollouts, with the references of the run's pack"
                )
            try:
                check_references(verifier, [row.problem])
            except ValueError:
                raise ValueError(
                    f"{path}, line {row.number}: no reference (nor gold, answer), and verifier {name!r} reads it"
                ) from None


def grade(args: GradeArgs) -> int:
    """Verify every line, write the verdicts and a summary, and return the exit code.

    The code is 2, after one line that says why, where a reference could not be read or no line could be scored.
    Raise ValueError, LookupError or OSError for input that cannot be used at all.
    """
    verifier = make_verifier(args.verifier, **key_values(args.verifier_option, "--verifier-option"))
    rows = read_rows(args.file)
    if args.output is not None and is_same_file(args.output, args.file):
        raise ValueError(f"--output {args.output} is the input file; name another")
    if args.output is not None:
        check_replaceable(args.output, "--output", (b'"seconds": ',))  # what `_line` writes, and no log of a run
    check_rows(rows, verifier, args.verifier, args.file)
    graded: list[tuple[Row, Verdict]] = []
    seconds = 0.0
    with ExitStack() as stack:
        runner = stack.enter_context(Runner(verifier, workers=args.workers, timeout=args.timeout))
        out = sys.stdout
        if args.output is not None:
            stack.enter_context(name_in_errors(args.output))
            out = stack.enter_context(args.output.open("w", encoding="utf-8"))
        for chunk in _chunks(rows):
            start = time.perf_counter()
            verdicts = runner.verify([(row.problem, row.completion) for row in chunk])
            seconds += time.perf_counter() - start
            for row, verdict in zip(chunk, verdicts, strict=True):
                print(json.dumps(_line(row, verdict)), file=out)
            graded.extend(zip(chunk, verdicts, strict=True))
            out.flush()
    summarize(graded, seconds, sys.stderr if args.output is None else sys.stdout)
    failure = describe_failure(graded, args.file)
    if failure:
        print(error_line(ValueError(failure)), file=sys.stderr)
        return BAD_INPUT
    return 0


def describe_failure(graded: Sequence[tuple[Row, Verdict]], path: Path) -> str | None:
    """Return what failed where no line has a score or a reference could not be read; else None."""
    errors = [verdict for _, verdict in graded if verdict.status is Status.ERROR]
    if errors and all(verdict.score is None for _, verdict in graded):
        return (
            f"{errors[0].reason}; the verifier failed on {len(errors)} of {len(graded)} lines of {path}, and no line "
            "could be scored"
        )
    unread = [(row, verdict) for row, verdict in graded if verdict.status is Status.BAD_REFERENCE]
    if not unread:
        return None
    numbers = ", ".join(str(row.number) for row, _ in unread)
    lines = "line" if len(unread) == 1 else "lines"
    return f"{path}: the reference cannot be read on {lines} {numbers} ({unread[0][1].reason})"


def summarize(graded: Sequence[tuple[Row, Verdict]], seconds: float, out: TextIO) -> None:
    """Print counts, speed, and where lines say what they expect, the agreement and each disagreement."""
    counts = Counter(verdict.status for _, verdict in graded)
    print(
        f"{len(graded)} lines: " + ", ".join(f"{counts[status]} {status}" for status in Status if counts[status]),
        file=out,
    )
    print(f"{len(graded) / max(seconds, 1e-9):,.0f} verifications/s ({seconds:.2f} s)", file=out)
    scores = [verdict.score for _, verdict in graded if verdict.score is not None]
    if counts[Status.PARTIAL]:
        print(f"scores: mean {fmean(scores):.4g}, standard deviation {pstdev(scores):.4g}", file=out)
    labelled = [(row, verdict) for row, verdict in graded if row.expected is not None]
    if not labelled:
        return
    negatives = [(row, verdict) for row, verdict in labelled if row.expected and not verdict.correct]
    positives = [(row, verdict) for row, verdict in labelled if not row.expected and verdict.correct]
    undecided = [row for row, verdict in labelled if not row.expected and verdict.score is None]
    agree = len(labelled) - len(negatives) - len(positives) - len(undecided)
    print(
        f"agreement {agree}/{len(labelled)} ({agree / len(labelled):.2%}), false negatives {len(negatives)}, "
        f"false positives {len(positives)}" + (f", without a score {len(undecided)}" if undecided else ""),
        file=out,
    )
    for kind, wrong in (("false negative", negatives), ("false positive", positives)):
        for row, verdict in wrong:
            name = "" if row.name == row.number else f" (id {row.name})"
            extracted = "" if verdict.extracted is None else f", read {verdict.extracted[:200]!r}"
            text = f"{kind}: line {row.number}{name}: {verdict.status}{extracted}: {verdict.reason}"
            print(in_one_line(text.rstrip(": ")), file=out)


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _line(row: Row, verdict: Verdict) -> dict[str, Any]:
    return {
        "id": row.name,
        "status": verdict.status,
        "score": verdict.score,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "extracted": verdict.extracted,
        "seconds": round(verdict.seconds, 6),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run `rlvr grade` and return its exit code. After Ctrl-C the verdicts written so far are kept."""
    try:
        return run_guarded(lambda: grade(parse(GradeArgs, sys.argv[1:] if argv is None else argv, prog="rlvr grade")))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
