"""What runs in the sandbox: it makes and scores problems of reasoning-gym. Its text is sent there; nothing imports it.

A request is JSON, a reply one line of JSON on stdout. Each answer is scored in a fork of this process, which is killed
at its limit. So an answer cannot affect the others.
"""

from __future__ import annotations

import ast
import dataclasses
import gc
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any

MAX_DATASETS = 8  # that stay in memory
WALL = 5  # real time for an answer, in multiples of its processor time
MAX_REPLY = 1 << 16


class _Unused(types.ModuleType):
    """Stands for a module that is imported and never used: matplotlib (of cellpylib) takes half a second to load."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused(name)


for _name in ("", ".pyplot", ".animation", ".collections"):
    sys.modules["matplotlib" + _name] = _Unused("matplotlib" + _name)
for _name in ("mpl_toolkits", "mpl_toolkits.mplot3d"):
    sys.modules[_name] = _Unused(_name)

import reasoning_gym  # noqa: E402
from reasoning_gym.dataset import ProceduralDataset  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402
from reasoning_gym.utils import SYSTEM_PROMPTS  # noqa: E402

# These scorers evaluate the answer as Python. Here they read a literal instead.
for _module in ("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"):
    for _place in ("algorithmic", "games"):
        if _found := sys.modules.get(f"reasoning_gym.{_place}.{_module}"):
            _found.eval = ast.literal_eval  # type: ignore[attr-defined]

# sympy's parser evaluates its text, so only formulas may reach it.
_FORMULA = re.compile(
    r"(?:\s+|\d+(?:\.\d*)?|\.\d+|[-+*/^(),]|[A-Za-z]\d?(?![A-Za-z\d_])|(?:pi|oo|exp|log|ln|sqrt|Abs|(?:a|arc)?(?:sin|cos|"
    r"tan|cot|sec|csc)h?|erf|Si|Ci|Ei|li|gamma)(?![A-Za-z\d_]))*"
)


_scoring = False


def _guard_sympy() -> None:
    import sympy
    from sympy.parsing import sympy_parser

    parse = sympy_parser.parse_expr

    def parse_formula(text: str, *args: Any, **kwargs: Any) -> Any:
        if _scoring and (len(text) > 2000 or not _FORMULA.fullmatch(text)):
            raise ValueError("not a formula")
        return parse(text, *args, **kwargs)

    for module in [sympy, sympy_parser, sympy.parsing, *list(sys.modules.values())]:
        if getattr(module, "parse_expr", None) is parse:
            module.parse_expr = parse_formula


_guard_sympy()

# Answers that a problem has in its metadata.
_GOLD = {
    "graph_color": lambda metadata: json.dumps(metadata["possible_answer"]),
    "propositional_logic": lambda metadata: metadata["example_answer"],
    "rubiks_cube": lambda metadata: metadata["example_correct_answer"],
}
# Here the package's scorer accepts anything, or more than the answer.
_EXACT = ("game_of_life_halting", "letter_jumble", "spell_backward")
# Here it gives a part score for any text.
_ALL_OR_NOTHING = ("propositional_logic",)
# The form of an answer, for scorers that ignore other signs or evaluate more.
_ARITHMETIC = re.compile(r"(?!.*(?:\*\s*\*|/\s*/))[\d\s+\-*/().]*", re.DOTALL)
_FORMS = {"countdown": _ARITHMETIC, "puzzle24": _ARITHMETIC, "sokoban": re.compile(r"[LRUD\s]*")}
# Variables, operators and brackets in an answer of propositional_logic.
_LOGIC = re.compile(r"([A-Za-z]+)|[\s()¬∧∨→↔]")
_NOT_FINITE = re.compile(r"(?<![A-Za-z])(?:nan|inf|infinity)(?![A-Za-z])", re.IGNORECASE)


def _pack(value: Any) -> Any:
    """Return a value in the types of JSON. Tuples, sets and dicts become objects that name their type."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [_pack(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [_pack(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": sorted((_pack(item) for item in value), key=repr)}
    if isinstance(value, dict):
        return {"dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "item") and hasattr(value, "tolist"):  # of numpy
        return _pack(value.tolist())
    raise TypeError(f"a {type(value).__name__} in a problem")


def _unpack(data: Any) -> Any:
    if isinstance(data, list):
        return [_unpack(item) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, items),) = data.items()
    if kind == "dict":
        return {_unpack(key): _unpack(item) for key, item in items}
    made = (_unpack(item) for item in items)
    return tuple(made) if kind == "tuple" else set(made)


def _tuples(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings, with a tuple in place of a list if the default is a tuple."""
    fields = {field.name: field for field in dataclasses.fields(DATASETS[name][1])}
    return {
        key: tuple(value) if isinstance(value, list) and isinstance(fields[key].default, tuple) else value
        for key, value in config.items()
    }


_made: dict[str, Any] = {}


def _dataset(name: str, config: dict[str, Any], seed: int, size: int) -> Any:
    key = json.dumps([name, config, seed, size], sort_keys=True)
    if key not in _made:
        while len(_made) >= MAX_DATASETS:
            del _made[next(iter(_made))]
        _made[key] = reasoning_gym.create_dataset(name, seed=seed, size=size, **_tuples(name, config))
    return _made[key]


def settings(name: str) -> dict[str, str]:
    if name not in DATASETS:
        return {}
    fields = dataclasses.fields(DATASETS[name][1])
    return {field.name: repr(field.default)[:80] for field in fields if field.name not in ("seed", "size")}


def describe() -> dict[str, Any]:
    """Return the names of all data sets, and the system prompts."""
    return {"names": sorted(DATASETS), "prompts": SYSTEM_PROMPTS}


def problems(name: str, config: dict[str, Any], seed: int, size: int, first: int, count: int) -> dict[str, Any]:
    """Return `count` problems of a data set of `size`, from number `first` on, with the scores of their answers."""
    dataset = _dataset(name, config, seed, size)
    made = []
    for index in range(first, first + count):
        entry = dataset[index]
        if entry.get("answer") is None and name in _GOLD:
            entry = {**entry, "answer": _GOLD[name](entry["metadata"])}
        text = json.dumps(_pack(entry))
        gold = entry["answer"]
        score = _score(dataset, name, _unpack(json.loads(text)), str(gold)) if gold is not None else {"score": 0.0}
        made.append({"question": str(entry["question"]), "answer": str(gold), "entry": text, "own": score})
    return {"problems": made}


def _score(dataset: Any, name: str, entry: dict[str, Any], answer: str) -> dict[str, Any]:
    """Return the score of an answer, or the exception that its scorer raised."""
    global _scoring
    gold = str(entry["answer"])
    # A data set without a scorer of its own gives a part score for every text that contains the answer.
    if name in _EXACT or type(dataset).score_answer is ProceduralDataset.score_answer:
        return {"score": float(answer.strip().casefold() == gold.strip().casefold())}
    if name in _FORMS and not _FORMS[name].fullmatch(answer):
        return {"score": 0.0}
    if name == "propositional_logic" and not _is_logic(answer, entry["metadata"]["variables"]):
        return {"score": 0.0}
    if name == "knights_knaves" and not _says_one_role(answer, entry["metadata"]["names"]):
        return {"score": 0.0}
    if _NOT_FINITE.search(answer) and not _NOT_FINITE.search(gold):
        return {"score": 0.0}
    _scoring = True
    try:
        score = float(dataset.score_answer(answer, entry))
        if name == "puzzle24" and score == 1:
            score = float(_makes_24(answer, entry["metadata"]["numbers"]))
    except MemoryError:
        return {"ended": "memory"}
    except Exception as error:
        return {"raised": type(error).__name__}
    finally:
        _scoring = False
    if not math.isfinite(score) or (name in _ALL_OR_NOTHING and score < 1):
        return {"score": 0.0}
    return {"score": score}


def _makes_24(answer: str, numbers: list[int]) -> bool:
    """Whether a formula uses each number once and equals 24. The package accepts any numbers, and 24.9."""
    value = sys.modules["sympy"].parse_expr(answer, evaluate=True)
    return bool(value == 24) and sorted(map(int, re.findall(r"\d+", answer))) == sorted(numbers)


def _is_logic(answer: str, variables: list[str]) -> bool:
    """Whether an answer uses only these variables. The package accepts any text as a variable."""
    signs = _LOGIC.findall(answer)
    return not _LOGIC.sub("", answer) and all(sign in variables for sign in signs if sign)


def _says_one_role(answer: str, names: list[str]) -> bool:
    """Whether an answer has each name once, and one more word for each name.

    The package ignores "not" and "or", and gives a part score if one person is said to be both.
    """
    words = [word for word in re.findall(r"\w+", answer.casefold()) if word not in ("is", "a", "an", "the", "and")]
    people = sorted(str(name).casefold() for name in names)
    return sorted(word for word in words if word in people) == people and len(words) == 2 * len(people)


def _run_in_fork(work: Any, seconds: int) -> dict[str, Any]:
    """Run `work` in a fork of this process; return its result, or how the fork ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    data, until, late = b"", time.monotonic() + WALL * seconds, False
    while True:
        if not select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            late = True
            break
        part = os.read(reading, MAX_REPLY)
        data += part
        if not part or len(data) > MAX_REPLY:
            break
    os.close(reading)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)):
        return {"ended": "timeout"}
    try:
        reply = json.loads(data)
    except ValueError:
        return {"ended": "crash"}
    return reply if isinstance(reply, dict) else {"ended": "crash"}


def scores(rows: list[list[Any]], seconds: int) -> dict[str, Any]:
    """Return a reply for each row: (name of the data set, its settings, the problem's text, the answer)."""
    made = []
    for name, config, text, answer in rows:
        try:
            dataset, entry = _dataset(name, config, 0, 1), _unpack(json.loads(text))
        except Exception as error:
            made.append({"broken": f"{type(error).__name__}: {error}"[:200]})
            continue
        made.append(_run_in_fork(lambda d=dataset, n=name, e=entry, a=answer: _score(d, n, e, a), seconds))
    return {"scores": made}


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "describe": describe,
    "settings": settings,
    "problems": problems,
    "scores": scores,
}


def serve(request: str) -> None:
    """Run one request and print the reply."""
    said = json.loads(request)
    output = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.close(quiet)
    try:
        reply = _OPERATIONS[said["do"]](**said["with"])
    except Exception as error:
        reply = {"failed": f"{type(error).__name__}: {error}"[:400]}
    finally:
        sys.stdout.flush()
        os.dup2(output, 1)
        os.close(output)
    print(json.dumps(reply), flush=True)


# A fork copies each page that it writes to. Garbage collection would write to all pages.
gc.collect()
gc.freeze()
