"""What an expression of test code may be, as far as it can be told without running it: a `Value`."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


class Container:
    """A container of the tests, such as a list.

    holds: the containers in it. given: the calls by which the program got it, and may have changed it. repeated:
    something may hold it twice. origins: what it may be, as an item that a variable was bound to, with the binding;
    copies: the items that may be it, likewise.
    """

    def __init__(self, holds: Iterable[Container] = ()) -> None:
        self.holds = {*holds}
        self.given: set[ast.AST] = set()
        self.repeated = False
        self.origins: list[tuple[object, Container]] = []
        self.copies: list[tuple[object, Container]] = []

    def find_alike(self) -> set[Container]:
        """Return the containers that may be this one: origins, copies, and copies of the origins by other bindings.

        The items that one binding takes are different ones, unless the same container is in several places.
        """
        above, alike = [self], [self]
        for container in above:
            for binding, origin in container.origins:
                above.append(origin)
                others = [copy for by, copy in origin.copies if by is not binding or origin.repeated]
                alike += [origin, *others]
        below = [self, *(container for container in alike if container not in above)]
        for container in below:
            below += [copy for _, copy in container.copies]
        return {*alike, *below}


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

    def give(self, call: ast.AST) -> int:
        """Note that the program gets it by a call. Return how many containers were looked at."""
        given = [alike for container in self.find_inside() for alike in container.find_alike()]
        for container in given:
            container.given.add(call)
        return len(given)

    def take_item(self, binding: object) -> Value:
        """Return one item, which a binding of variables takes. The containers in it are copies."""
        copies: dict[Container, Container] = {}
        return Value(self.answers, frozenset(_copy(held, copies, binding) for held in self.find_held()))


def _copy(container: Container, copies: dict[Container, Container], binding: object) -> Container:
    if container not in copies:
        copy = copies[container] = Container()
        copy.repeated = container.repeated
        copy.given = set(container.given) if container.repeated else set()
        copy.origins.append((binding, container))
        container.copies.append((binding, copy))
        copy.holds = {_copy(held, copies, binding) for held in container.holds}
    return copies[container]


def mark_repeated(groups: Iterable[Iterable[Container]]) -> None:
    """Note which containers are in several of the groups."""
    seen = set[Container]()
    for group in map(set, groups):
        for container in group & seen:
            container.repeated = True
        seen |= group


def join(values: Iterable[Value]) -> Value:
    """Return what is one of several values, or holds them."""
    found = [*values]
    answers = frozenset(answer for value in found for answer in value.answers)
    containers = frozenset(container for value in found for container in value.containers)
    return Value(answers, containers, next((value.kind for value in found if value.kind), ""))
