"""Find a program that solves nothing and passes tests: such tests are weak.

This file is sent to the sandbox as a program. So it imports nothing of this project.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import itertools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

CONSTANTS = (
    "None True False 0 1 -1 0.0 1.0 float('nan') float('inf') -float('inf') "
    "'' 'a' b'' [] [0] [1] [float('nan')] () {} set() (0,0) (0,0,0) (0,0,0,0) ([],0) ('','') ([],[])"
).split()
_Answer = Callable[[list[Any]], Any]
_SECONDS = 2.0
# Of one test code: literals that are tried as answers, of them those that are tried in lists, and how long lists are.
_MOST_VALUES, _MOST_ITEMS, _MOST_LENGTH = 200, 20, 50
_LONGEST = 60  # characters
_LONGEST_RANGE = 100_000
_LARGEST = 1e15  # of numbers between which others are tried
_EXCEPTIONS: dict[str, type[Exception]] = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
}


class _Run:
    """One execution of tests. Each function, method and operator of the program returns `answer(name, arguments)`."""

    def __init__(self, answer: Callable[[str, list[Any]], Any]) -> None:
        self.answer = answer
        self.checks = self.failures = 0
        self.ended = False
        # The calls that differ, with the arguments of functions; each call of a method may depend on earlier ones.
        self.calls: set[tuple[str, str]] = set()

    def ask(self, name: str, given: list[Any]) -> Any:
        """Return the answer of a method, attribute or operator of an object."""
        self.calls.add((name, f"call {len(self.calls)}"))
        return self.answer(name, given)

    def passes(self) -> bool:
        """Whether the tests ran to their end, and a check was executed."""
        return self.ended and self.checks > 0 and not self.failures


class _Function:
    """A function or class of the program. methods: the names that the tests call as methods."""

    def __init__(self, run: _Run, name: str, methods: set[str], *, is_class: bool = False) -> None:
        self._run, self._name, self._methods, self._is_class = run, name, methods, is_class

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_class:
            return _Object(self._run, self._methods)
        given = [*args, *kwargs.values()]
        self._run.calls.add((self._name, repr(given)))
        return self._run.answer(self._name, given)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        return _Function(self._run, name, self._methods)


class _Object:
    """An object of a class of the program."""

    def __init__(self, run: _Run, methods: set[str]) -> None:
        self.__dict__.update(_run=run, _methods=methods)

    def __getattr__(self, name: str) -> Any:
        if name[:2] == "__":
            raise AttributeError(name)
        if name in self._methods:
            return lambda *args, **kwargs: self._run.ask(name, list(args))
        return self._run.ask(name, [])


for _name in "len str repr getitem setitem delitem setattr iter contains".split():
    _read = iter if _name == "iter" else lambda value: value
    _name = f"__{_name}__"
    setattr(_Object, _name, lambda self, *args, name=_name, read=_read: read(self._run.ask(name, list(args))))


class _Probe:
    """An answer that notes what it is compared with, and agrees."""

    def __init__(self, name: str, compared: dict[str, list[Any]]) -> None:
        self.name, self.compared = name, compared

    def note(self, *others: Any) -> Any:
        """Note that the answer is looked at, and return it."""
        self.compared.setdefault(self.name, []).extend(others)
        return self

    def __getattr__(self, name: str) -> Any:
        return self.note


def _probe(name: str, compared: dict[str, list[Any]]) -> Any:
    probe = _Probe(name, compared)
    return getattr(probe, name)() if name in ("__len__", "__str__", "__repr__") else probe


_PROBE_RESULTS: dict[str, Callable[[_Probe], Any]] = {
    "eq ne lt le gt ge contains bool": lambda probe: True,
    "add radd sub rsub mul rmul truediv mod getitem abs neg round": lambda probe: probe,
    "iter": lambda probe: iter(()),
    "len hash int": lambda probe: 0,
    "float": lambda probe: 0.0,
    "str repr": lambda probe: "",
}
for _names, _make in _PROBE_RESULTS.items():
    for _name in _names.split():
        setattr(_Probe, f"__{_name}__", lambda self, *others, make=_make: make(self.note(*others)))


class _Tests:
    """Test code, the names of the program in it, and which of them are classes."""

    def __init__(self, test: str, names: list[str], classes: list[str]) -> None:
        self.tree = ast.parse(test)
        self.code = compile(self.tree, "test.py", "exec")
        self.names, self.classes = names, classes
        functions = [node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        self.methods = {func.attr for func in functions if isinstance(func, ast.Attribute)}
        self.until = time.process_time() + _SECONDS

    def run(self, answer: Callable[[str, list[Any]], Any], *, whole: bool = False) -> _Run:
        """Run the tests: up to the first assert that fails, or as a whole."""
        run = _Run(answer)

        def check(number: int) -> None:
            run.checks += 1

        def fail(number: int, text: str) -> None:
            run.failures += 1
            if not whole:
                raise SystemExit

        if time.process_time() > self.until:
            raise TimeoutError("these tests take too long")
        space: dict[str, Any] = {"__name__": "__main__", "_judge_Exception": Exception, "_judge_failed": fail}
        space["_judge_loop"] = contextlib.nullcontext()
        space |= {"_judge_after": lambda value: value, "_judge_checked": check, "print": lambda *args, **kwargs: None}
        for name in self.names:
            space[name] = _Function(run, name, self.methods, is_class=name in self.classes)
        random.seed(0)
        try:
            exec(self.code, space)
            for name, found in list(space.items()):
                if name.startswith("test") and name not in self.names and callable(found):
                    found()
        except BaseException:
            return run
        run.ended = True
        return run


def find_null_program(test: str, names: list[str], classes: list[str]) -> str:
    """Return what a program answers that solves nothing and passes the tests, in words; "" for none.

    test: test code, instrumented so that an assert that fails calls `_judge_failed`.
    """
    sys.set_int_max_str_digits(0)
    tests = _Tests(test, names, classes)
    for source in CONSTANTS:
        if tests.run(_always(returning(eval(source)))).passes():
            return source
    for what, echo in ECHOES.items():
        if tests.run(_always(echo)).passes():
            return what
    said = _texts_of(tests.tree)
    for raised in sorted({node.id for node in ast.walk(tests.tree) if isinstance(node, ast.Name)} & _EXCEPTIONS.keys()):
        for text in ("no", " ".join(said), *said[:_MOST_ITEMS]):
            if tests.run(_always(_raising(_EXCEPTIONS[raised], text))).passes():
                return f"the exception {raised}"
    return _find_by_name(tests)


def _find_by_name(tests: _Tests) -> str:
    """Return answers that pass, one for each name: for one after another that with which most checks hold.

    A single answer is always a constant. So the tests must look at more answers than there are names.
    """
    compared: dict[str, list[Any]] = {}
    called = tests.run(lambda name, given: _probe(name, compared), whole=True).calls
    compared = compared or {name: [] for name, _ in called}
    values = [*map(eval, CONSTANTS), *_values_of(tests.tree, itertools.chain(*compared.values()))]
    answers = [(f"{value!r:.{_LONGEST}}", returning(value)) for value in values]
    chosen: dict[str, tuple[str, _Answer]] = {}
    for each in compared:
        most = -1
        for answer in itertools.chain(answers, ECHOES.items() if len(compared) > 1 else ()):
            tried = {**chosen, each: answer}
            run = tests.run(_by_name(tried), whole=len(compared) > 1)
            if run.passes() and sum(name in compared for name, _ in run.calls) > len(compared):
                return ", ".join(f"{name}: {what}" for name, (what, _) in tried.items())
            if run.checks > most:
                most, chosen[each] = run.checks, answer
    return ""


def _values_of(tree: ast.Module, compared: Iterator[Any]) -> Iterator[Any]:
    """Yield values that may be right for several calls: those in the tests, numbers between them, lists of them."""
    found = {repr(value): value for value in compared if not isinstance(value, (_Probe, _Object, _Function))}
    for node in ast.walk(tree):
        try:
            value = ast.literal_eval(node) if isinstance(node, ast.expr) else None
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
        found.setdefault(repr(value), value)
    values = list(found.values())[:_MOST_VALUES]
    yield from values
    texts, largest = _texts_of(tree), max((value for value in values if type(value) is int), default=0)
    yield from ("".join(texts), " ".join(texts), [" ".join(texts)], "123", _items_of(tree))
    yield range(min(max(largest + 1, 1000), _LONGEST_RANGE))
    yield from ([first, value] for first in (0, 1) for value in values)
    yield dict.fromkeys(_items_of(tree), 0)
    numbers = sorted({value for value in values if type(value) in (int, float) and abs(value) < _LARGEST})
    yield from ((one + other) / 2 for one, other in itertools.pairwise(numbers))
    if numbers:
        yield from (
            numbers[-1] + 1,
            numbers[0] - 1,
            1_000_001,
            (numbers[0] - 1, numbers[-1] + 1),
            [numbers[0] - 1, numbers[-1] + 1],
        )
    for size in [number for number in numbers if type(number) is int and 0 < number < _MOST_LENGTH][:_MOST_ITEMS]:
        yield from ("a" * size, list(range(size)), set(range(size)), dict.fromkeys(range(size)))
        yield from ([value] * size for value in [1, *values[:_MOST_ITEMS]])


def _texts_of(tree: ast.Module) -> list[str]:
    """Return the texts in tests, but for those that say which assert fails."""
    failures = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and "_judge_failed" in ast.dump(node.func)
    ]
    said = {id(part) for call in failures for part in ast.walk(call)}
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in said]
    return list(dict.fromkeys(value for value in constants if type(value) is str))[:_MOST_VALUES]


def _items_of(tree: ast.Module) -> dict[Any, Any]:
    """Return a dict of all items that the tests read, with those that they compare with: `f(1)['a'] == 2`."""
    keys = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    found: dict[Any, Any] = {key.value: 0 for key in keys if isinstance(key, ast.Constant)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Subscript):
            key, value = node.left.slice, node.comparators[0]
            if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                found[key.value] = value.value
    return found


def _always(answer: _Answer) -> Callable[[str, list[Any]], Any]:
    return lambda name, given: answer(given)


def _by_name(answers: dict[str, tuple[str, _Answer]]) -> Callable[[str, list[Any]], Any]:
    return lambda name, given: answers[name][1](given) if name in answers else None


def returning(value: Any) -> _Answer:
    """Return a function that answers with copies of a value."""
    return lambda given: copy.deepcopy(value)


def _raising(kind: type[Exception], text: str) -> _Answer:
    def answer(given: list[Any]) -> Any:
        raise kind(text)

    return answer


def _first(given: list[Any]) -> Any:
    return given[0] if given else None


def _change(given: list[Any], name: str, *args: Any) -> None:
    change = getattr(_first(given), name, None)
    if change is not None:
        change(*args)


def _length(given: list[Any]) -> int:
    size = _first(given)
    return size if type(size) is int and size < _MOST_LENGTH else len(size) if hasattr(size, "__len__") else 0


ECHOES: dict[str, _Answer] = {
    "the first argument": _first,
    "the second argument": lambda given: given[1] if len(given) > 1 else None,
    "the third argument": lambda given: given[2] if len(given) > 2 else None,
    "the fourth argument": lambda given: given[3] if len(given) > 3 else None,
    "the last argument": lambda given: given[-1] if given else None,
    "1 and the argument": lambda given: [1, _first(given)],
    "the argument and 1": lambda given: [_first(given), 1],
    "0 and the argument": lambda given: [0, _first(given)],
    "the argument and 0": lambda given: [_first(given), 0],
    "the argument, 0 and 0": lambda given: [_first(given), 0, 0],
    "the argument and nothing": lambda given: (_first(given), []),
    "nothing and the argument": lambda given: ([], _first(given)),
    "the arguments": tuple,
    "nothing, and empties the argument": lambda given: _change(given, "clear"),
    "nothing, and appends to the argument": lambda given: _change(given, "append", None),
    "a list as long as the argument": lambda given: [0] * _length(given),
    "a list as long as the argument, of NaN": lambda given: [math.nan] * _length(given),
    "letters as many as the argument": lambda given: "a" * _length(given),
    "digits as many as the argument": lambda given: "1" * _length(given),
    "characters as many as the argument": lambda given: ("aA1!" * _length(given))[: _length(given)],
}
