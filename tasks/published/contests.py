"""Programming contests: APPS, TACO, CodeContests, LiveCodeBench. The verifier is `unit_tests`.

A test is an input with its output, compared with the tolerance that the statement names, or a call of a function.
Problems with several right answers need the contest's own judge, which is not published. They are left out and counted.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import io
import json
import pickle
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from rlvr.core.printable import kind_of
from rlvr.core.types import Problem, Task

from ..sources import SOURCES, Row, Source, column, published_task, register_published
from .functions import ANSWER, code_problem

# Imports that the contests' judges put before a program.
PRELUDE = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\n"
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys\n"
    "from builtins import pow\n"
)
# Characters between an example's input and its output, and between the arguments of a call and its value.
OUTPUT_GAP, CALL_GAP = 60, 30
MOST_BYTES = 1 << 29  # of unpacked tests
# Statements of problems with several right answers.
_SEVERAL = re.compile(
    r"(?:if there (?:are|is) (?:multiple|several|many|more than one)"
    r"|there (?:may|might|can) be (?:multiple|several|many)"
    r"|if (?:multiple|several|many) [\w ]{0,40}(?:exist|are possible))"
    r"[^.]{0,200}(?:any|whichever|arbitrary|one of them)"
    r"|(?:print|output|return|find|report|choose|give) (?:any|an arbitrary)(?: one)?(?: of)?"
    r" (?:the|these|them|such|valid|possible|correct|suitable|optimal|answers?|solutions?|value)\b"
    r"|(?:any|arbitrary) (?:valid|correct|suitable|possible|optimal) (?:answers?|solutions?|orders?|ways?)"
    # Of what is printed or returned; not of what is given, or done.
    r"|(?:print|output|return|write|display|list|answer)\w*\b[^.]{0,120}\bin (?:any|arbitrary) order"
    r"|\bin (?:any|arbitrary) order[^.]{0,40}\b(?:is|are|will be) accepted"
    r"|any of them (?:is|are|will be) accepted|special judge",
    re.IGNORECASE,
)
_ANY_CASE = re.compile(r"\bin any (?:letter )?case\b|\bin any register\b|\bcase[- ]insensitive", re.IGNORECASE)
_ERROR = re.compile(
    r"(?:(?:absolute|relative)[^.]{0,120}?(?:error|precision|difference)[^.]{0,160}?|\bwithin\s+)"
    r"(?:10\s*(?:\^|\*\*)\s*\{?\s*[-\u2212\u2013]\s*(\d{1,2})|1e-(\d{1,2})|(0\.0{0,11}1)(?!\d))",
    re.IGNORECASE,
)
_INTERACTIVE = re.compile(r"\binteractive (?:problem|task)\b|\bflush the output\b|\bfflush\b", re.IGNORECASE)


def has_several_answers(statement: str) -> bool:
    return _SEVERAL.search(" ".join(statement.split())) is not None


def is_interactive(statement: str) -> bool:
    """Return whether the program must talk with a judge."""
    return _INTERACTIVE.search(statement) is not None


def tolerance_of(statement: str) -> float:
    """Return the error that a statement allows ("absolute or relative error 10^{-6}"), else 0."""
    found = _ERROR.search(" ".join(statement.replace("$", "").split()))
    if found is None:
        return 0.0
    power = found[1] or found[2]
    return float(found[3]) if power is None else 10.0 ** -int(power)


def stdio_reference(inputs: Sequence[Any], outputs: Sequence[Any], statement: str) -> dict[str, Any] | str:
    """Return the reference of tests by input and output, or why there is none. A list holds lines, as in APPS."""
    if not inputs or len(inputs) != len(outputs):
        return "without tests"
    texts = [(as_text(given), as_text(expected)) for given, expected in zip(inputs, outputs)]
    if any(given is None or expected is None for given, expected in texts):
        return "with tests of another form"
    cases = [{"input": given, "output": expected} for given, expected in texts]
    reference: dict[str, Any] = {"type": "stdio", "cases": cases, "compare": "tokens"}
    tolerance = tolerance_of(statement)
    if tolerance:
        reference["tolerance"] = tolerance
    if _ANY_CASE.search(statement):
        reference["ignore_case"] = True
    return reference


def as_text(given: Any) -> str | None:
    """Return an input or output as text; None for what is neither text nor a list of lines."""
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return "\n".join(given)
    return given if isinstance(given, str) else None


def calls_reference(
    entry: str, arguments: Sequence[Any], expected: Sequence[Any], statement: str
) -> dict[str, Any] | str:
    """Return the reference of tests by calls of a function, or of a method of the class Solution."""
    if not arguments or len(arguments) != len(expected):
        return "without tests"
    if not entry.isidentifier() or not all(isinstance(given, list) for given in arguments):
        return "with tests of another form"
    cases = [{"args": given, "expected": value} for given, value in zip(arguments, expected)]
    tolerance = tolerance_of(statement)
    allowed = {"tolerance": tolerance} if tolerance else {}
    return {"type": "calls", "entry": entry, "cases": cases, "prelude": PRELUDE, **allowed}


def describe_call(reference: dict[str, Any]) -> str:
    """Return in words, for a prompt, what the tests call; "" for tests by input and output."""
    if reference["type"] != "calls":
        return ""
    owner, _, method = str(reference["entry"]).rpartition(".")
    return f"a class `{owner}` with the method `{method}`" if owner else f"a function `{method}`"


def restore_keys(given: Any) -> Any:
    """Turn the keys of a mapping back into numbers, if JSON has made text of them; leave other values as they are."""
    if isinstance(given, dict) and given and all(re.fullmatch(r"-?\d{1,18}", key) for key in given):
        return {int(key): value for key, value in given.items()}
    return given


def shows_all_tests(reference: dict[str, Any], statement: str) -> bool:
    """Return whether the statement shows every test: a program could have learnt these by heart.

    A test is shown if its output follows its input closely; in tests by calls, the arguments and then the value.
    """
    if reference["type"] == "calls":
        text = _compact(statement)
        return all(
            _are_shown([_compact(json.dumps(part)) for part in (*case["args"], case["expected"])], text, CALL_GAP)
            for case in reference["cases"]
        )
    words = f" {' '.join(statement.split())} "
    return all(
        _are_shown([f" {' '.join(case[key].split())} " for key in ("input", "output")], words, OUTPUT_GAP)
        for case in reference["cases"]
    )


def _compact(text: str) -> str:
    return "".join(text.split()).replace("'", '"').casefold()


def _are_shown(parts: Sequence[str], text: str, gap: int) -> bool:
    """Return whether a text has the parts in order, each at most `gap` characters after the one before."""
    at = text.find(parts[0])
    while at >= 0:
        end = at + len(parts[0])
        for part in parts[1:]:
            # A space that ends one part may begin the next.
            place = text.find(part, end - 1, end + gap + len(part))
            if place < 0:
                break
            end = place + len(part)
        else:
            return True
        at = text.find(parts[0], at + 1)
    return False


def in_class(reference: dict[str, Any], starter_code: str) -> dict[str, Any]:
    """Return a reference of calls; of a method, if the starter code has the class Solution."""
    if "class Solution" not in starter_code:
        return reference
    return {**reference, "entry": f"Solution.{reference['entry']}"}


class _Texts(pickle.Unpickler):
    """Unpickles only text, numbers, lists and dictionaries. Looking up or calling anything is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to another object")


def unpack_tests(text: str, where: str) -> list[dict[str, Any]]:
    """Return tests that are packed as in LiveCodeBench: JSON, or base64 of a compressed pickle of a JSON text.

    Raises ValueError unless it is a list of objects with input and output as text.
    """
    try:
        tests = json.loads(text)
    except ValueError:
        try:
            tests = json.loads(_pickled_text(text, where))
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: private tests are no JSON: {error}") from None
    if not isinstance(tests, list) or not all(
        isinstance(test, dict) and isinstance(test.get("input"), str) and isinstance(test.get("output"), str)
        for test in tests
    ):
        raise ValueError(f"{where}: tests of another form; expected a list of objects with input and output")
    return tests


def _pickled_text(text: str, where: str) -> str:
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text.encode(), validate=True), MOST_BYTES)
        if unzip.unconsumed_tail:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB")
        found = _Texts(io.BytesIO(data)).load()
    # What a damaged pickle makes load() raise is not only UnpicklingError (its documentation says so).
    except (binascii.Error, zlib.error, pickle.UnpicklingError, ValueError, EOFError, IndexError, KeyError, TypeError,
            AttributeError, ImportError, MemoryError, OverflowError) as error:  # fmt: skip
        raise ValueError(f"{where}: private tests that cannot be unpacked: {str(error)[:200]}") from None
    if type(found) is not str:
        raise ValueError(f"{where}: private tests are {kind_of(found)}, pickled; expected text")
    return found


RELEASES = {f"release_v{n}": tuple(f"test{i if i > 1 else ''}.jsonl" for i in range(1, n + 1)) for n in range(1, 7)}
GIVEN = ("public_tests", "private_tests")
EVERY = (*GIVEN, "generated_tests")
STDIO = "Read the input from stdin and write the answer to stdout."
SEVERAL, INTERACTIVE = "with several right answers (they need a judge)", "interactive"


def contest_prompt(statement: str, starter_code: str, called: str) -> str:
    """Return the statement and how the program is called. `called`: what the tests call; empty for stdin."""
    how = f"Complete this program:\n\n```python\n{starter_code.rstrip()}\n```" if called else STDIO
    if called and not starter_code.strip():
        how = f"Write {called}."
    return f"{statement.strip()}\n\n{how}\n\n{ANSWER}"


def contest_problem(
    name: str, statement: str, starter_code: str, reference: dict[str, Any] | str, **info: Any
) -> Problem | str:
    """Return a problem, or why the row has none."""
    if not statement.strip():
        return "without a statement"
    if isinstance(reference, str):
        return reference
    if is_interactive(statement):
        return INTERACTIVE
    if has_several_answers(statement):
        return SEVERAL
    try:
        problem = code_problem(name, contest_prompt(statement, starter_code, describe_call(reference)), reference)
    except ValueError:  # larger than what the verifier reads
        return "with unreadable references"
    weak = {"integrity": "weak"} if shows_all_tests(reference, statement) else {}
    return Problem(problem.id, problem.prompt, reference, {**problem.info, **info, **weak})


def apps_reference(tests: Any, statement: str, starter_code: str, most: int | None) -> dict[str, Any] | str:
    """Return the reference of APPS's and TACO's `input_output`: {"inputs", "outputs"} and perhaps "fn_name"."""
    try:
        held = json.loads(tests) if isinstance(tests, str) else tests
    except (ValueError, RecursionError):
        return "with tests of another form"
    if not isinstance(held, dict) or not all(isinstance(held.get(key), list) for key in ("inputs", "outputs")):
        return "without tests" if not held else "with tests of another form"
    inputs, outputs = held["inputs"][:most], held["outputs"][:most]
    if not held.get("fn_name"):
        return stdio_reference(inputs, outputs, statement)
    # Where all expected values are lists of one item, the lists are the data set's own.
    wrapped = all(isinstance(one, list) and len(one) == 1 for one in held["outputs"])
    # The data sets' own evaluation restores keys too.
    given = [
        [restore_keys(one) for one in arguments] if isinstance(arguments, list) else arguments for arguments in inputs
    ]
    expected = [restore_keys(one[0] if wrapped else one) for one in outputs]
    reference = calls_reference(str(held["fn_name"]), given, expected, statement)
    return reference if isinstance(reference, str) else in_class(reference, starter_code)


def _check_max_tests(pack: str, max_tests: int | None) -> None:
    if max_tests is not None and max_tests < 1:
        raise ValueError(f"task {pack!r}, max_tests {max_tests}: expected at least 1")


def _register_apps_like(pack: str, summary: str, difficulties_there: str) -> None:
    def apps_like(
        *,
        data: Path | None = None,
        difficulties: tuple[str, ...] = (),
        max_tests: int | None = None,
        include_weak: bool = False,
        num_train: int | None = None,
        num_test: int | None = None,
    ) -> Task:
        _check_max_tests(pack, max_tests)
        wanted = {name.casefold() for name in difficulties}

        def convert(row: Row, where: str, name: str) -> Problem | str:
            if wanted and str(row.get("difficulty", "")).casefold() not in wanted:
                return "of other difficulties"
            statement, start = str(column(row, ["question"], where) or ""), str(row.get("starter_code") or "")
            reference = apps_reference(column(row, ["input_output"], where), statement, start, max_tests)
            return contest_problem(name, statement, start, reference, difficulty=row.get("difficulty", ""))

        options: dict[str, Any] = {"include_weak": include_weak, "num_train": num_train, "num_test": num_test}
        return published_task(pack, data, convert, verifier="unit_tests", **options)

    apps_like.__name__ = apps_like.__qualname__ = pack
    apps_like.__doc__ = f"""{summary}

    difficulties: of {difficulties_there}; by default all. max_tests: use only the first ones of each
    problem. include_weak: also train on problems whose tests a program could pass that solves nothing.
    """
    register_published(pack)(apps_like)


_register_apps_like(
    "apps",
    "APPS: 10,000 programming problems of contests and exercises, half of them to train on.",
    "introductory, interview, competition",
)
_register_apps_like(
    "taco",
    "TACO: 26,443 programming problems of contests, 1,000 of them held out.",
    "EASY, MEDIUM, MEDIUM_HARD, HARD, VERY_HARD",
)


@register_published("code_contests")
def code_contests(
    *,
    data: Path | None = None,
    tests: Literal["given", "all"] = "given",
    max_tests: int | None = None,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """CodeContests: problems of Codeforces, AtCoder and others, 165 of them held out.

    tests: "given" are the public and the private ones, "all" also those that the data set's authors generated; these
    are used too where the given ones are the statement's examples only.
    """

    _check_max_tests("code_contests", max_tests)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        statement = str(column(row, ["description"], where) or "")
        if "<image>" in statement:
            return "with pictures"
        if any(row.get(name) for name in ("input_file", "output_file")):
            return "that read or write files"
        reference = _reference(row, where, statement, GIVEN if tests == "given" else EVERY, max_tests)
        if not isinstance(reference, str) and shows_all_tests(reference, statement):
            reference = _reference(row, where, statement, EVERY, max_tests)
        return contest_problem(name, statement, "", reference)

    return published_task(
        "code_contests",
        data,
        convert,
        num_train=num_train,
        num_test=num_test,
        verifier="unit_tests",
        include_weak=include_weak,
    )


def _reference(row: Row, where: str, statement: str, parts: tuple[str, ...], most: int | None) -> dict[str, Any] | str:
    inputs: list[Any] = []
    outputs: list[Any] = []
    for part in parts:
        held = column(row, [part], where) or {}
        inputs += held.get("input") or []
        outputs += held.get("output") or []
    return stdio_reference(inputs[:most], outputs[:most], statement)


@register_published("livecodebench")
def livecodebench(
    *,
    data: Path | None = None,
    release: Literal["release_v1", "release_v2", "release_v3", "release_v4", "release_v5", "release_v6"] = "release_v6",
    after: str = "",
    before: str = "",
    num_test: int | None = None,
) -> Task:
    """LiveCodeBench: contest problems of LeetCode, AtCoder and Codeforces by their date; test only.

    release: the problems up to this one of the hub's releases. after, before: contest dates such as 2024-08-01,
    from the first on and before the second, so that a model is measured on problems from after its training.
    """
    first_day, last_day = _parse_day(after, "after"), _parse_day(before, "before")
    source = Source(**{**vars(SOURCES["livecodebench"]), "files": {"test": RELEASES[release]}})

    def convert(row: Row, where: str, name: str) -> Problem | str:
        day = str(column(row, ["contest_date"], where) or "")[:10]
        if (first_day or last_day) and not day:
            return "without a date"
        if (first_day and day < first_day) or (last_day and day >= last_day):
            return "of other dates"
        statement, start = str(column(row, ["question_content"], where) or ""), str(row.get("starter_code") or "")
        reference = live_reference(row, where, statement, start)
        return contest_problem(
            f"livecodebench/{column(row, ['question_id'], where)}",
            statement,
            start,
            reference,
            date=day,
            platform=row.get("platform", ""),
        )

    return published_task("livecodebench", data, convert, source=source, num_test=num_test, verifier="unit_tests")


def live_reference(row: Row, where: str, statement: str, starter_code: str) -> dict[str, Any] | str:
    """Return the reference of a row of LiveCodeBench: its public and its private tests."""
    tests: list[dict[str, Any]] = []
    for kind in ("public_test_cases", "private_test_cases"):
        tests += unpack_tests(str(column(row, [kind], where) or "[]"), where)
    if not any(test.get("testtype") == "functional" for test in tests):
        return stdio_reference([t["input"] for t in tests], [t["output"] for t in tests], statement)
    metadata = row.get("metadata") or "{}"
    try:
        entry = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name", "")
        arguments = [[json.loads(line) for line in t["input"].split("\n") if line.strip()] for t in tests]
        expected = [json.loads(t["output"]) for t in tests]
    except (ValueError, AttributeError):
        return "with tests of another form"
    reference = calls_reference(str(entry), arguments, expected, statement)
    return reference if isinstance(reference, str) else in_class(reference, starter_code)


def _parse_day(text: str, option: str) -> str:
    if not text:
        return ""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"task 'livecodebench', {option} {text!r}: expected a date as 2024-08-01") from None
