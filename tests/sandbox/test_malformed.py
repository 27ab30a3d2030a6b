"""Malformed values, handles and numbers from a program's side of a link."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from rlvr.sandbox.inside.link import Link
from rlvr.sandbox.inside.maker import Maker
from rlvr.sandbox.inside.plain import PlainError

DEEP: Any = "text"
for _ in range(500):
    DEEP = ["file", DEEP, 0]
OBJECT = [[0, "P", [], []]]
VALUES = [
    ["j"],
    ["j", 7],
    ["j", -1],
    ["j", True],
    ["j", "0"],
    ["j", None],
    ["j", 1],
    ["J"],
    ["J", 3, 4],
    ["J", [[0]], None],
    ["J", [[7, "P", [], []]], None],
    ["J", [[-1, "P", [], []]], None],
    ["J", [[1, "P", [], []]], None],
    ["J", [[0, "P", [["x"]], []]], None],
    ["J", OBJECT, ["j", 9]],
    ["S"],
    ["S", 0, "text", 0],
    ["S", 7, "text", 0],
    ["S", -1, "text", 0],
    ["S", 1, "text", -1],
    ["S", 1, "text", "0"],
    ["S", 1, ["b", "00"], 0],
    ["S", 1, ["b", 5], 0],
    ["S", 1, 5, 0],
    ["F"],
    ["F", 0, "f", None],
    ["F", -1, "f", None],
    ["g", 1, 2],
    ["g", "kind"],
    ["file", DEEP, 0],
    ["file"],
    ["builtin"],
    ["builtin", "nothing"],
    ["builtin", "print"],
    ["builtin", 3],
    ["namespace", "SimpleNamespace", ["l", []]],
    ["namespace", "SimpleNamespace", ["d", [[1, 2]]]],
    ["namespace", "Namespace", ["d", [["__class__", ["k", "int"]]]]],
    ["Counter", ["l", [1]], None],
    ["defaultdict", ["d", []], "nothing"],
    ["G", "os", "system"],
    ["?"],
    [],
    {},
    [["l", []]],
]


@pytest.fixture
def link() -> Any:
    reading, writing = os.pipe()
    made = Link({"classes": [], "objects": False, "exceptions": [], "test": ""}, writing, reading, Maker)
    yield made
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("data", VALUES, ids=repr)
def test_malformed_values_raise_one_error(link: Any, data: Any) -> None:

    known = type("P", (), {"__module__": "__main__"})()
    assert [link._number(known), link._number(io.StringIO())] == [0, 1]
    with pytest.raises(PlainError):
        link._read(data)


def test_objects_of_the_tests_keep_their_methods(link: Any) -> None:
    known = type("P", (), {"__module__": "__main__", "check": lambda self: False})()
    link._number(known)
    assert link._read(["J", [[0, "P", [["check", 1], ["x", 2]], []]], ["j", 0]]) is known
    assert vars(known) == {"x": 2}
