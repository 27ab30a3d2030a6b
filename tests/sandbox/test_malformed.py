"""Malformed values and numbers from a program's side of a link."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rlvr.sandbox.wire import service, values
from rlvr.sandbox.wire.proxies import Link, NotPlain

DEEP: Any = "text"
for _ in range(300):
    DEEP = ["l", [DEEP]]
VALUES = [
    ["h", 0],
    ["h"],
    ["j", 7],
    ["J", 3, 4],
    ["v"],
    ["v", [["l", []]]],
    ["v", 5],
    ["V", 5],
    ["e"],
    ["e", "x"],
    ["m", 5],
    ["S", 5],
    ["S", "zz"],
    ["g", "<i8", [], [["l", []]]],
    ["w", [1]],
    ["w", [["t", [1]]]],
    ["w", [["t", [["l", []], 1]]]],
    ["N", "P", ["x"], []],
    ["A", "<i8", [2], [1]],
    ["l", 5],
    DEEP,
    ["G", "os", "system"],
    ["?"],
    [],
    {},
    [["l", []]],
]


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What it is sent lies in a pipe back to it; what it sends is thrown away."""
    reading, writing = os.pipe()
    made = Link(writing, reading)
    monkeypatch.setattr(service, "send", lambda *_: None)
    yield made
    made._replies.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("data", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("place", ["v", "changed"])
def test_malformed_values_end_the_tests(link: Any, data: Any, place: str) -> None:
    """Where an answer stands, and where a change of a container does: the tests end, or have an object of no use."""
    answer = {"v": None, "changed": [], place: data if place == "v" else [[0, data]]}
    os.write(link._requests, values.dumps(answer) + b"\n")  # a pipe back to itself
    with pytest.raises(NotPlain):
        assert link.ask("call", "f") != 5


@pytest.mark.parametrize("changed", [5, [5], [[]], [[7, 1]], [["x", 1]], {"a": 1}, [[0, ["s", []]]]])
def test_malformed_changes_end_the_tests(link: Any, changed: Any) -> None:
    """Of containers that are not shared, or of another kind."""
    os.write(link._requests, values.dumps({"v": None, "changed": changed}) + b"\n")
    with pytest.raises(NotPlain):
        link.ask("call", "f", [1])
