"""Programs that solve nothing: a pack whose tests accept one of them teaches nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlvr.verifiers.code import testcode
from rlvr.verifiers.code.passing import PRINTED

_VALUES = (
    *("None", "True", "False", "0", "1", "-1", "1.0", "''", "()", "[]", "{}", "set()", "float('nan')"),
    *("args[0] if args else None", "[*args, *kwargs.values()][1] if len(args) + len(kwargs) > 1 else None"),
)
_STATEMENTS = {"raise": "raise ValueError('no')", "exit": "raise SystemExit(0)", "end": "__import__('os')._exit(0)"}
_OBJECT = """
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


def null_programs(reference: Mapping[str, Any]) -> dict[str, str]:
    """Return, by what they do, programs that define the names of a reference and solve nothing."""
    if reference["type"] == "stdio":
        found = {f"prints {text!r}": f"print({text!r})" for text in PRINTED}
        found |= {"prints its input": "import sys\nsys.stdout.write(sys.stdin.read())"}
        return found | _STATEMENTS | {"nothing": "pass"}
    names = _names(reference)
    found = {"nothing": "pass", "raises": "raise ValueError('no')"}
    for value in _VALUES:
        found[f"returns {value}"] = "".join(f"def {name}(*args, **kwargs): return {value}\n" for name in names)
    for name, statement in _STATEMENTS.items():
        found[f"calls {name}"] = "".join(f"def {each}(*args, **kwargs): {statement}\n" for each in names)
    found["an object that answers everything"] = _OBJECT + "".join(f"{name} = Anything\n" for name in names)
    return found


def _names(reference: Mapping[str, Any]) -> tuple[str, ...]:
    entry = str(reference.get("entry", "")).split(".")[0]
    if reference["type"] == "calls":
        return (entry,)
    prelude = "\n".join(reference.get(key, "") for key in ("prelude", "setup"))
    return testcode.program_names(testcode.of_program(reference["code"]), entry, prelude)
