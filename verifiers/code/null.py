"""Programs that solve nothing, and the constants and arguments with which they answer: which tests they pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvr.sandbox.inside import plain
from rlvr.verifiers.code import equality

# What programs return that solve nothing, by their source.
_SOURCES = "None True False 0 1 -1 0.0 1.0 float('nan') float('inf') '' [] [0] [float('nan')] () {} set()".split()
CONSTANTS: dict[str, Any] = {source: eval(source) for source in _SOURCES}
_OBJECT = plain.Opaque("object", None, True)
PRINTED = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "False", "None")

_ARGUMENTS = ("args[0] if args else None", "[*args, *kwargs.values()][1] if len(args) + len(kwargs) > 1 else None")
_STATEMENTS = {"raise": "raise ValueError('no')", "exit": "raise SystemExit(0)", "end": "__import__('os')._exit(0)"}
_ANYTHING = """
class Anything:
    def __init__(self, *args, **kwargs): pass
    def __getattr__(self, name):
        if name.startswith('__'): raise AttributeError(name)
        return lambda *args, **kwargs: Anything()
    def __call__(self, *args, **kwargs): return Anything()
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __bool__(self): return True
    def __contains__(self, item): return True
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __getitem__(self, key): return Anything()
    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    def __sub__(self, other): return 0
    __abs__ = __float__ = lambda self: 0.0
"""


def describe(answer: str) -> str:
    """Return in words that an answer passes; "" for none."""
    return f"a program that answers with {answer} passes" if answer else ""


def passing_value(cases: Sequence[tuple[Sequence[Any], Any]], same: Callable[[Any, Any, float], bool]) -> str:
    """Return the name of a constant that is right for all (arguments, expected value), "the argument", or ""."""
    for name, value in (*CONSTANTS.items(), ("an object", _OBJECT)):
        if all(same(value, expected, 0.0) for _, expected in cases):
            return name
    if len(cases) > 1 and all(same(cases[0][1], expected, 0.0) for _, expected in cases):
        return repr(cases[0][1])
    for number in range(min(len(args) for args, _ in cases)):
        if all(same(args[number], expected, 0.0) for args, expected in cases):
            return "the argument"
    return ""


def passing_output(cases: Sequence[tuple[str, str]], rule: equality.Output) -> str:
    """Return the text that is right for all (input, output) by the rule of comparison, "the input", or ""."""
    same = rule.same
    for text in PRINTED:
        if all(same(text, output) for _, output in cases):
            return repr(text)
    if len(cases) > 1 and all(same(cases[0][1], output) for _, output in cases):
        return repr(cases[0][1])
    return "the input" if all(same(given, output) for given, output in cases) else ""


def null_programs(names: Sequence[str]) -> dict[str, str]:
    """Return, by what they do, programs that define the names and solve nothing; without names such as only print."""
    if not names:
        found = {f"prints {text!r}": f"print({text!r})" for text in PRINTED}
        found |= {"prints its input": "import sys\nsys.stdout.write(sys.stdin.read())"}
        return found | _STATEMENTS | {"nothing": "pass"}
    found = {"nothing": "pass", "raises": "raise ValueError('no')"}
    for value in (*CONSTANTS, *_ARGUMENTS):
        found[f"returns {value}"] = "".join(f"def {name}(*args, **kwargs): return {value}\n" for name in names)
    for name, statement in _STATEMENTS.items():
        found[f"calls {name}"] = "".join(f"def {each}(*args, **kwargs): {statement}\n" for each in names)
    found["an object that answers everything"] = _ANYTHING + "".join(f"{name} = Anything\n" for name in names)
    return found
