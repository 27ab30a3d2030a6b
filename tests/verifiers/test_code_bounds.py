"""Costs of reading a program out of a completion: linear in its length, and bounded."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers import unit_tests as extract
from rlvr.verifiers.extract import sections as fences
from rlvr.verifiers.unit_tests import UnitTests

# A completion made of n characters, to be repeated or stretched.
TEXTS = {
    "spaces after a fence": lambda n: "```" + " " * n + "`",
    "spaces before a fence": lambda n: " " * n + "``",
    "tabs and spaces": lambda n: "```" + "\t " * (n // 2) + "`",
    "backticks": lambda n: "`" * n + "\n" + "`" * (n - 1) + " `",
    "tildes": lambda n: "~" * n + "x`",
    "a long language": lambda n: "```" + "a" * n + "`",
    "a language and spaces": lambda n: "```" + "py" * (n // 4) + " " * (n // 2) + "`",
    "many fences": lambda n: "```\n" * (n // 4),
    "many open fences": lambda n: "```python\n~~~\n" * (n // 14),
    "deep fences": lambda n: "\t```\n" * (n // 5),
    "fences that only deep ones close": lambda n: "```python\n     ```\n" * (n // 19),
    "fences in quotes": lambda n: "> ```\n" * (n // 6),
    "fences after tags": lambda n: "<a>```py\n" * (n // 9),
    "lines of spaces": lambda n: ("   " + "\n") * (n // 4) + "`",
    "think tags": lambda n: "</think>" * (n // 8),
    "think tags that are cut": lambda n: "</think" * (n // 7),
    "one long line": lambda n: "def f" * (n // 5),
    "def on every line": lambda n: "def \n" * (n // 5),
    "async on every line": lambda n: "async \n" * (n // 6),
    "carriage returns": lambda n: "```" + "\r" * n + "`",
    "wide spaces": lambda n: "```" + "\u3000" * n + "`",
    "an import path": lambda n: "import " + "a." * (n // 2) + "a",
    "a word": lambda n: "x" * n,
    "dots": lambda n: "." * n,
    "continuations": lambda n: "import a" + "\\\n.a" * (n // 4),
}


def read(text: str) -> None:
    """All that the verifier does with a completion before it is run."""
    fences.fenced_blocks(text)
    program = extract.program_of(text)
    extract.complete_program(program, "def f():\n", "f")


def seconds(text: str) -> float:
    """The best of three."""
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        read(text)
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.parametrize("kind", TEXTS)
def test_time_grows_with_the_length_and_not_its_square(kind: str):
    """Four times the text takes about four times as long; a square would take sixteen."""
    make = TEXTS[kind]
    small, large = seconds(make(100_000)), seconds(make(400_000))
    assert large < 0.4
    assert large < 9 * small + 0.01, (small, large)


def test_a_text_of_more_fences_than_any_answer_has_no_blocks():
    """At the bound the last block is found; beyond it the text is a program as a whole, which it is not."""
    block = "```python\nx = 1\n```\n"
    most = block * (fences.MAX_FENCES // 2)
    assert extract.program_of(most) == "x = 1\n"
    assert len(fences.fenced_blocks(most)) == fences.MAX_FENCES // 2
    assert fences.fenced_blocks(most + block) == []
    assert extract.program_of(most + block) == most + block


OLD = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n`]*$", re.MULTILINE)


def test_the_scanner_finds_the_fences_of_the_expression_that_defines_them():
    """On random short texts of the characters that matter."""
    draw = random.Random(0)
    pieces = ["`", "``", "```", "~~~", "~", " ", "\t", "\n", "\n", "python", "x", "+#.-", "\r", "é", "\u2028", "\x0b"]
    for _ in range(20_000):
        text = "".join(draw.choices(pieces, k=draw.randrange(1, 14)))
        expected = [(fence.start(), fence.end(), fence[1], fence[2]) for fence in OLD.finditer(text)]
        found = [tuple(fence[:4]) for fence in fences.fences(text) if not fence.before.strip(" \t")]
        assert found == expected, text


BLOCKS = {
    "in a list": ("1. So:\n\n   ```python\n   def f(x):\n       return x\n   ```\n", "def f(x):\n    return x\n"),
    "in a list, by a tab": ("- So:\n\t```python\n\tdef f(x):\n\t    return x\n\t```\n", "def f(x):\n    return x\n"),
    "after the mark of an item": ("- ```python\n  f = abs\n  ```\n", "f = abs\n"),
    "in a quote": ("> ```python\n> def f(x):\n>\n>     return x\n> ```", "def f(x):\n\n    return x\n"),
    "with one in a docstring": (
        "```python\ndef f(x):\n    '''So:\n\n    ```\n    f(1)\n    ```\n    '''\n```\nDone.",
        "def f(x):\n    '''So:\n\n    ```\n    f(1)\n    ```\n    '''\n",
    ),
    "with one of python in a docstring": (
        "```python\ndef f(x):\n    '''\n    ```python\n    f(1)\n    ```\n    '''\n```\n",
        "def f(x):\n    '''\n    ```python\n    f(1)\n    ```\n    '''\n",
    ),
    "after a tag": ("<answer>```python\nf = abs\n```\n</answer>", "f = abs\n"),
    "after a special token": ("<|message|>```python\nf = abs\n```\n", "f = abs\n"),
    "closed by a deeper one only": ("```python\nf = abs\n     ```\nThat is all.", "f = abs\n"),
    "after one in another language": ("```text\n```\n1. ```python\n   f = abs\n   ```\n", "f = abs\n"),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_of_code(kind: str):
    """Where Markdown lets them begin and end, and where models do."""
    text, program = BLOCKS[kind]
    assert extract.program_of(text, ("f",)) == program


COSTLY = {
    "an import path": "import " + "a." * 80_000 + "a",
    "a path after from": "from " + "b." * 80_000 + "a import c",
    "an import path in spaces": "import a" + " . a" * 40_000,
    "an import path on many lines": "import a" + ".\\\n a" * 40_000,
    "a path within the length that is parsed": "import " + "a." * 24_990 + "a",
    "a wide import path": "import " + "é." * 24_990 + "a",
    "paths after semicolons": "x; import " + "a_1." * 12_000 + "a",
    "lines": "a\n" * 500_000,
    "operators": "x = " + "a+" * 500_000 + "a",
    "brackets": "(" * 1_000_000,
    "calls": "x = a" + "()" * 500_000,
    "unary": "x = " + "-" * 1_000_000 + "1",
}
MEASURE = """
import resource, sys, time
from rlvr.verifiers import unit_tests as extract
text = sys.stdin.buffer.read().decode()
before, start = resource.getrusage(0).ru_maxrss, time.thread_time()
extract.complete_program(extract.program_of(text), "def f():\\n", "f")
print((resource.getrusage(0).ru_maxrss - before) // 1024, time.thread_time() - start)
"""


@pytest.mark.parametrize("kind", COSTLY)
def test_no_program_makes_the_caller_parse_at_great_cost(kind: str):
    """Not more than 100 MB and a second, whatever the model wrote."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], input=COSTLY[kind].encode(), capture_output=True, check=True, timeout=60
    )
    megabytes, took = done.stdout.split()
    assert int(megabytes) < 100
    assert float(took) < 1


@pytest.mark.parametrize(
    ("program", "whole"),
    [
        ("if True:\n    f = lambda: 1\n", True),
        ("#" * 60_000 + "\ndef f(): pass", True),
        ("import math\nasync def f(): pass", True),
        ("f: int = 2", True),
        ("    return f(1) == 2\n", False),
        ("    def g(): return 1\n    return g()\n", False),
    ],
)
def test_a_body_is_put_after_its_first_line(program: str, whole: bool):
    """A program that binds the function is whole."""
    assert extract.complete_program(program, "def f():\n", "f") == (program if whole else "def f():\n" + program)


def test_a_completion_beyond_the_bound_scores_by_a_limit():
    """It is neither searched nor run."""
    verifier = UnitTests()
    problem = Problem("p", "", {"type": "assert", "code": "assert f(1) == 1"})
    verdict = verifier(problem, "def f(x): return x\n" + "#" * extract.MAX_COMPLETION)
    verifier.close()
    assert (verdict.status, verdict.score) == (Status.LIMIT, 0.0)
    assert "1,048,576" in verdict.reason
