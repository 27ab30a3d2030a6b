"""Tests of programming contests as references of `unit_tests`: input and output, and calls of a function."""

from __future__ import annotations

import base64
import binascii
import io
import json
import pickle
import re
import zlib
from collections.abc import Sequence
from typing import Any, NoReturn

from rlvr.core.printable import kind_of

# What the contests' judges provide before a program.
PRELUDE = (
    "from typing import *\nfrom collections import *\nfrom itertools import *\nfrom functools import *\n"
    "from heapq import *\nfrom bisect import *\nfrom math import *\n"
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys\n"
    "from builtins import pow\n"
)
# Characters between an example's input and its output, and between the arguments of a call and its value.
OUTPUT_GAP, CALL_GAP = 60, 30
MOST_BYTES = 1 << 29  # of unpacked tests
# The statement of a problem with several right answers, which only a judge of its own can tell from wrong ones.
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


def several_answers(statement: str) -> bool:
    """Whether a statement says that several outputs are right: these need a judge that is not published."""
    return _SEVERAL.search(" ".join(statement.split())) is not None


def interactive(statement: str) -> bool:
    """Whether the program is to talk with a judge."""
    return _INTERACTIVE.search(statement) is not None


def tolerance_of(statement: str) -> float:
    """Return the error of numbers that a statement allows ("absolute or relative error 10^{-6}"), else 0."""
    found = _ERROR.search(" ".join(statement.replace("$", "").split()))
    if found is None:
        return 0.0
    power = found[1] or found[2]
    return float(found[3]) if power is None else 10.0 ** -int(power)


def stdio(inputs: Sequence[Any], outputs: Sequence[Any], statement: str) -> dict[str, Any] | str:
    """Return the reference of tests by input and output, or why there is none. Lists are lines, as APPS has them."""
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
    """Return an input or output as text; None for what is neither text nor lines of it."""
    if isinstance(given, list) and all(isinstance(line, str) for line in given):
        return "\n".join(given)
    return given if isinstance(given, str) else None


def calls(entry: str, arguments: Sequence[Any], expected: Sequence[Any], statement: str) -> dict[str, Any] | str:
    """Return the reference of tests by calls of a function, or of a method of the class Solution."""
    if not arguments or len(arguments) != len(expected):
        return "without tests"
    if not entry.isidentifier() or not all(isinstance(given, list) for given in arguments):
        return "with tests of another form"
    cases = [{"args": given, "expected": value} for given, value in zip(arguments, expected)]
    tolerance = tolerance_of(statement)
    allowed = {"tolerance": tolerance} if tolerance else {}
    return {"type": "calls", "entry": entry, "cases": cases, "prelude": PRELUDE, **allowed}


def called(reference: dict[str, Any]) -> str:
    """Return what tests call, in words for a prompt; "" for tests by input and output."""
    if reference["type"] != "calls":
        return ""
    owner, _, method = str(reference["entry"]).rpartition(".")
    return f"a class `{owner}` with the method `{method}`" if owner else f"a function `{method}`"


def whole_keys(given: Any) -> Any:
    """Return a mapping whose keys are all whole numbers as text, which JSON makes of them, with these numbers."""
    if isinstance(given, dict) and given and all(re.fullmatch(r"-?\d{1,18}", key) for key in given):
        return {int(key): value for key, value in given.items()}
    return given


def all_shown(reference: dict[str, Any], statement: str) -> bool:
    """Whether the statement shows every test, the input and soon after it the output: a program may have them by heart.

    Of tests by calls the arguments are looked for one after the other.
    """
    if reference["type"] == "calls":
        text = _compact(statement)
        return all(
            _shown([_compact(json.dumps(part)) for part in (*case["args"], case["expected"])], text, CALL_GAP)
            for case in reference["cases"]
        )
    words = f" {' '.join(statement.split())} "
    return all(
        _shown([f" {' '.join(case[key].split())} " for key in ("input", "output")], words, OUTPUT_GAP)
        for case in reference["cases"]
    )


def _compact(text: str) -> str:
    return "".join(text.split()).replace("'", '"').casefold()


def _shown(parts: Sequence[str], text: str, gap: int) -> bool:
    """Whether the parts are in a text, each at most `gap` characters behind the one before."""
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
    """Return a reference of calls for a method where the code to begin with has the class Solution."""
    if "class Solution" not in starter_code:
        return reference
    return {**reference, "entry": f"Solution.{reference['entry']}"}


class _Texts(pickle.Unpickler):
    """Unpickles text, numbers, lists and dictionaries; whatever would look up or call anything is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("the pickle refers to another object")


def unpacked(text: str, where: str) -> list[dict[str, Any]]:
    """Return tests as LiveCodeBench packs them: JSON, or JSON in a pickled text that is compressed and in base64.

    Nothing that a pickle names is looked up or called. Raise ValueError for anything but a list of objects with input
    and output as text.
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
