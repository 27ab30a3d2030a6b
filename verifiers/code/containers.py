"""What the proof of strength knows of values while it executes test code: containers, who made them, who holds them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

_LONGEST = 300  # characters

Key = tuple[int, str]  # a variable: the number of its scope, its name
Kind = Literal["own", "answer", "object", "lazy"]


class NotProved(Exception):
    """Why test code is not proved to be strong."""


@dataclass(frozen=True)
class Value:
    """A value: the containers that it may be, by number; numbers, texts and tuples of them are none.

    `answer`: computed from what the program has answered. `text`: the literal, how it was computed, or a name of its
    own where it is not known ("?7"; for a number or text "?n7", drawn at random "?r7" and "?rn7"). `origin`: the
    function or method of the program that it is an answer of; `given`: the texts of its arguments, and what the same
    computation makes of them.
    """

    places: frozenset[int] = frozenset()
    answer: bool = False
    text: str = ""
    origin: str = ""
    given: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Container:
    """One container. `made`: how many calls of the program there were before; `parts`: the containers that it holds.

    "own" ones were made by the tests, "lazy" ones are iterators of theirs; an "answer" is whatever the program has
    returned; an "object" stays with the program. `passed`: the number of the call that an own one was last handed to.
    `altered`: it may have another value in Python now. `literal`: nothing else can hold its parts.
    """

    kind: Kind
    made: int
    parts: frozenset[int] = frozenset()
    passed: int = 0
    altered: bool = False
    changed: bool = False
    literal: bool = False


@dataclass
class State:
    """Variables and containers at one place of the code, and how often the program was called."""

    variables: dict[Key, Value] = field(default_factory=dict)
    containers: dict[int, Container] = field(default_factory=dict)
    calls: int = 0
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def copy(self) -> State:
        """Return a state that changes by itself; numbers of containers are never used twice."""
        return State(dict(self.variables), dict(self.containers), self.calls, self.numbers)

    def join(self, other: State) -> None:
        """Become what is true at a place that is reached in either state."""
        for key, value in other.variables.items():
            mine = self.variables.get(key)
            self.variables[key] = value if mine is None else either(mine, value)
        for number, theirs in other.containers.items():
            ours = self.containers.get(number, theirs)
            self.containers[number] = replace(
                ours,
                parts=ours.parts | theirs.parts,
                passed=max(ours.passed, theirs.passed),
                altered=ours.altered or theirs.altered,
                changed=ours.changed or theirs.changed,
                literal=ours.literal and theirs.literal,
            )
        self.calls = max(self.calls, other.calls)

    def make(self, kind: Kind, parts: Iterable[int] = (), *, literal: bool = False) -> frozenset[int]:
        """Return the place of a new container."""
        number = next(self.numbers)
        self.containers[number] = Container(kind, self.calls, frozenset(parts), literal=literal)
        return frozenset((number,))

    def mark(self, places: Iterable[int], **changes: int) -> None:
        """Set flags of containers."""
        for place in places:
            self.containers[place] = replace(self.containers[place], **changes)  # type: ignore[arg-type]

    def reach(self, places: Iterable[int]) -> set[int]:
        """Return containers with all that they hold, directly or through others."""
        found: set[int] = set()
        left = list(places)
        while left:
            place = left.pop()
            if place not in found:
                found.add(place)
                left += self.containers[place].parts
        return found

    def parts(self, value: Value) -> frozenset[int]:
        """Return the containers that may be taken out of a value; a part of an answer is the answer."""
        found: set[int] = set()
        for place in value.places:
            container = self.containers[place]
            found |= {place} if container.kind == "answer" else container.parts
        return frozenset(found)

    def kinds(self, places: Iterable[int]) -> set[Kind]:
        """Return the kinds of containers."""
        return {self.containers[place].kind for place in places}

    def forget(self, others: Iterable[Value]) -> None:
        """Drop the containers that neither variables nor other values hold."""
        kept = self.reach(place for value in (*self.variables.values(), *others) for place in value.places)
        self.containers = {place: self.containers[place] for place in kept}

    def holders(self, place: int) -> int:
        """Return how many variables and containers hold a container."""
        named = sum(place in value.places for value in self.variables.values())
        return named + sum(place in container.parts for container in self.containers.values())


def short(text: str) -> str:
    """Return a text that is not a literal, or where it is long another one for it: texts are only compared."""
    return text if len(text) < _LONGEST or "?" not in text else f"{text[:2]}{hash(text)}"


def is_scalar(value: Value) -> bool:
    """Whether a value is known to be a number or text, or None."""
    return not value.places and (value.text[:1] not in "?({[" or value.text.startswith(("?n", "?rn")))


def either(one: Value, other: Value) -> Value:
    """Return a value that is one of two."""
    same = one.text == other.text
    kind = "?n" if is_scalar(one) and is_scalar(other) else "?"
    text, origin = (one.text, one.origin) if same else (short(f"{kind}({one.text}|{other.text})"), "")
    return Value(one.places | other.places, one.answer or other.answer, text, origin, one.given if same else ())
