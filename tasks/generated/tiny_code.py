"""Small list functions with hidden tests: code RL for a model of a million parameters on a CPU.

A prompt names two different steps and an optional reducer, without examples: `items 2 to 4; sort down; max or 0:`.
The answer is a Python function of two assignments and a return:

    def f(a):
     a=a[1:4]
     a=sorted(a)[::-1]
     return max(a) if a else 0

The reward is 1 where all hidden tests pass. Demonstrations contain errors, drawn independently for each step:
`a[i:j]` for `a[i-1:j]`, `>` for `>=`, `x-k` for `k-x`, the reversal of "sort down" or the guard against the empty list
forgotten. Each wrong form is right for another prompt (over k, subtract k, sort, sum), so that the prompt decides which
form is right.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlvr.core.registry import register_task
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Task

from ..base import Demonstration, check_probabilities, generate_task

# Of 400 sloppy programs none, and of misread prompts one in a thousand, passes so many tests and fails others.
HIDDEN_TESTS = 24
SLOPPY_WEIGHT = 3  # how much more often a step with a sloppy form is drawn
ENTRY = "f"
VALUES = range(-5, 16)
LENGTHS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True)
class Step:
    """One kind of step: its words, its meaning, and its Python; `sloppy` is the wrong step of the demonstrations.

    `run` maps a list and the parameters to a list. In the texts {0} and {1} are the parameters and {before} is {0} - 1.
    `threshold` marks a comparison with {0}; `undo` inverts an arithmetic step: it maps an output value to its input.
    """

    words: str
    code: str
    run: Callable[..., list[int]]
    parameters: tuple[tuple[int, ...], ...] = ((),)
    sloppy: Step | None = None
    threshold: bool = False
    undo: Callable[[int, int], int] | None = None


@dataclass(frozen=True)
class Reducer:
    """The return value of a function of the list `a`; `sloppy`: its Python without the guard against the empty list."""

    words: str
    code: str
    run: Callable[[list[int]], Any]
    sloppy: str = ""


CUTS = tuple((k,) for k in range(1, 6))
DIGITS = tuple((k,) for k in range(1, 10))
FACTORS = tuple((k,) for k in range(2, 8))
RANGES = tuple((i, j) for i in range(1, 7) for j in range(i + 1, 8))

OVER = Step("over {0}", "[x for x in a if x>{0}]", lambda a, k: [x for x in a if x > k], DIGITS, threshold=True)
UNDER = Step("under {0}", "[x for x in a if x<{0}]", lambda a, k: [x for x in a if x < k], DIGITS, threshold=True)
SUBTRACT = Step("subtract {0}", "[x-{0} for x in a]", lambda a, k: [x - k for x in a], DIGITS, undo=lambda y, k: y + k)
SORT = Step("sort", "sorted(a)", lambda a: sorted(a))
COUNTED_FROM_ZERO = Step("", "a[{0}:{1}]", lambda a, i, j: a[i:j])
STEPS = (
    Step("first {0}", "a[:{0}]", lambda a, k: a[:k], CUTS),
    Step("last {0}", "a[-{0}:]", lambda a, k: a[-k:], CUTS),
    Step("drop first {0}", "a[{0}:]", lambda a, k: a[k:], CUTS),
    Step("drop last {0}", "a[:-{0}]", lambda a, k: a[:-k], CUTS),
    Step("items {0} to {1}", "a[{before}:{1}]", lambda a, i, j: a[i - 1 : j], RANGES, COUNTED_FROM_ZERO),
    Step("reverse", "a[::-1]", lambda a: a[::-1]),
    OVER,
    UNDER,
    Step("at least {0}", "[x for x in a if x>={0}]", lambda a, k: [x for x in a if x >= k], DIGITS, OVER, True),
    Step("at most {0}", "[x for x in a if x<={0}]", lambda a, k: [x for x in a if x <= k], DIGITS, UNDER, True),
    Step("even", "[x for x in a if x%2==0]", lambda a: [x for x in a if x % 2 == 0]),
    Step("odd", "[x for x in a if x%2==1]", lambda a: [x for x in a if x % 2 == 1]),
    Step("add {0}", "[x+{0} for x in a]", lambda a, k: [x + k for x in a], DIGITS, undo=lambda y, k: y - k),
    SUBTRACT,
    Step(
        "subtract from {0}",
        "[{0}-x for x in a]",
        lambda a, k: [k - x for x in a],
        DIGITS,
        SUBTRACT,
        undo=lambda y, k: k - y,
    ),
    Step("times {0}", "[x*{0} for x in a]", lambda a, k: [x * k for x in a], FACTORS, undo=lambda y, k: y // k),
    SORT,
    Step("sort down", "sorted(a)[::-1]", lambda a: sorted(a)[::-1], sloppy=SORT),
)
WEIGHTS = tuple(SLOPPY_WEIGHT if step.sloppy else 1 for step in STEPS)

PLAIN = Reducer("", "a", lambda a: a)
REDUCERS = (
    Reducer("sum", "sum(a)", sum),
    Reducer("count", "len(a)", len),
    Reducer("max or 0", "max(a) if a else 0", lambda a: max(a) if a else 0, "max(a)"),
    Reducer("min or 0", "min(a) if a else 0", lambda a: min(a) if a else 0, "min(a)"),
    Reducer("first or 0", "a[0] if a else 0", lambda a: a[0] if a else 0, "a[0]"),
    Reducer("last or 0", "a[-1] if a else 0", lambda a: a[-1] if a else 0, "a[-1]"),
)


@dataclass(frozen=True)
class Spec:
    """The specification of a function: two steps with their parameters, and a reducer."""

    steps: tuple[tuple[Step, tuple[int, ...]], ...]
    reducer: Reducer = PLAIN

    @functools.cached_property
    def words(self) -> str:
        """The prompt: `items 2 to 4; sort down; max or 0:`."""
        parts = [step.words.format(*parameters) for step, parameters in self.steps]
        return "; ".join([*parts, self.reducer.words] if self.reducer.words else parts) + ":"

    def run(self, a: list[int]) -> Any:
        """Return the value of the function for `a`, which is not changed."""
        for step, parameters in self.steps:
            a = step.run(a, *parameters)
        return self.reducer.run(a)

    def program(self, rng: random.Random | None = None, sloppiness: float = 0.0) -> str:
        """Return the program; each step and reducer with a sloppy form takes it with probability `sloppiness`."""

        def errs(part: Step | Reducer) -> bool:
            return bool(part.sloppy) and rng is not None and rng.random() < sloppiness

        lines = [f"def {ENTRY}(a):"]
        for step, parameters in self.steps:
            written = step.sloppy if step.sloppy and errs(step) else step
            lines.append(" a=" + written.code.format(*parameters, before=parameters[0] - 1 if parameters else None))
        lines.append(" return " + (self.reducer.sloppy if errs(self.reducer) else self.reducer.code))
        return "\n".join(lines)

    def inputs(self, key: str) -> Iterator[list[int]]:
        """Yield endless input lists, seeded by the spec and `key`, the empty list first.

        Where the spec has a threshold, a quarter of the lists hold only it and one of its neighbours, so that `>` and
        `>=` differ even where only the largest value counts.
        """
        rng = random.Random(derive_seed("tiny_code", key, self.words))
        edges = self._edges()
        yield []
        while True:
            values: Sequence[int] = VALUES
            if edges and rng.random() < 0.25:
                edge = rng.choice(edges)
                values = (edge, edge + rng.choice((-1, 1)))
            yield rng.choices(values, k=rng.choice(LENGTHS))

    def _edges(self) -> list[int]:
        """Return the thresholds as input values of the function."""
        edges = []
        for position, (step, parameters) in enumerate(self.steps):
            if step.threshold:
                edge = parameters[0]
                for former, given in reversed(self.steps[:position]):
                    edge = former.undo(edge, *given) if former.undo else edge
                edges.append(edge)
        return edges

    def varies(self) -> bool:
        """Whether the outputs vary: at most half of eight inputs give the same one."""
        outputs = Counter(repr(self.run(values)) for values in itertools.islice(self.inputs("telling"), 8))
        return max(outputs.values()) <= 4

    def problem(self, name: str) -> Problem:
        inputs = itertools.islice(self.inputs("hidden"), HIDDEN_TESTS)
        cases = [{"args": [values], "expected": self.run(values)} for values in inputs]
        return Problem(name, self.words, {"type": "calls", "entry": ENTRY, "cases": cases})


def propose(stream: random.Random) -> tuple[str, Spec]:
    """Draw a spec whose outputs are not nearly constant; return its words and it."""
    while True:
        kinds: list[Step] = []
        while len(kinds) < 2:
            kinds += [step for step in stream.choices(STEPS, WEIGHTS) if step not in kinds]
        reducer = stream.choice(REDUCERS) if stream.random() < 0.4 else PLAIN
        spec = Spec(tuple((kind, stream.choice(kind.parameters)) for kind in kinds), reducer)
        if spec.varies():
            return spec.words, spec


@register_task("tiny_code")
def tiny_code(
    *,
    seed: int = 0,
    num_train: int = 2048,
    num_test: int = 512,
    num_demonstrations: int = 16000,
    sloppiness: float = 0.5,
) -> Task:
    """Small list functions with hidden tests, and sloppy demonstrations for SFT: code RL on a CPU in minutes."""
    check_probabilities("tiny_code", sloppiness=sloppiness)

    def problem(name: str, spec: Spec, stream: random.Random) -> Problem:
        return spec.problem(name)

    def demonstrate(name: str, spec: Spec, stream: random.Random) -> Demonstration:
        return Problem(name, spec.words), spec.program(stream, sloppiness)  # nothing judges it: it needs no tests

    sizes = num_train, num_test, num_demonstrations
    return generate_task(
        "tiny_code", propose, problem, demonstrate, seed=seed, sizes=sizes, verifier="unit_tests", store=True
    )
