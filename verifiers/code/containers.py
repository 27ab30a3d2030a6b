"""What an expression of test code may be, as far as it can be told without running it: a `Value`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


class Container:
    """A container of the tests, such as a list.

    holds: the containers in it; origins: those that it may be, as the item of a loop; given: the calls by which the
    program got it, and may have changed it.
    """

    def __init__(self, holds: Iterable[Container] = (), origins: Iterable[Container] = ()) -> None:
        self.holds, self.origins = {*holds}, {*origins}
        self.given: set[ast.AST] = set()


@dataclass(frozen=True)
class Value:
    """What an expression may be. A number or a text of the tests has no answers and no containers.

    answers: the numbers of the program's answers that it may come from; containers: those of the tests that it may be;
    kind: "object" for an object of a class of the program, "part" for what was read from one.
    """

    answers: frozenset[int] = frozenset()
    containers: frozenset[Container] = frozenset()
    kind: Literal["", "object", "part"] = ""

    def find_held(self) -> frozenset[Container]:
        """Return the containers that an item of it may be."""
        return frozenset(held for container in self.containers for held in container.holds)

    def find_inside(self) -> set[Container]:
        """Return the containers that it may be, and all that these hold."""
        found, left = set[Container](), [*self.containers]
        while left:
            container = left.pop()
            if container not in found:
                found.add(container)
                left.extend(container.holds)
        return found

    def find_given(self) -> set[ast.AST]:
        """Return the calls by which the program got any of it."""
        return {call for container in self.find_inside() for call in container.given}

    def give(self, call: ast.AST) -> None:
        """Note that the program gets it by a call."""
        left = [*self.find_inside()]
        while left:
            container = left.pop()
            container.given.add(call)
            left.extend(origin for origin in container.origins if call not in origin.given)

    def take_item(self) -> Value:
        """Return one item. The containers in it are copies, told apart by the variables that hold them."""
        copies: dict[Container, Container] = {}
        return Value(self.answers, frozenset(_copy(held, copies) for held in self.find_held()))


def _copy(container: Container, copies: dict[Container, Container]) -> Container:
    if container not in copies:
        copies[container] = Container(origins=[container])
        copies[container].holds = {_copy(held, copies) for held in container.holds}
    return copies[container]


def join(values: Iterable[Value]) -> Value:
    """Return what is one of several values, or holds them."""
    found = [*values]
    answers = frozenset(answer for value in found for answer in value.answers)
    containers = frozenset(container for value in found for container in value.containers)
    return Value(answers, containers, next((value.kind for value in found if value.kind), ""))
