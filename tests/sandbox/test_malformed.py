"""Malformed values and numbers from a program's side of a link."""

from __future__ import annotations

import os
from typing import Any

import pytest

from rlvr.sandbox.wire.proxies import Link, NotPlain
from rlvr.sandbox.wire.values import Opaque

DEEP: Any = "text"
for _ in range(500):
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
def link() -> Any:
    reading, writing = os.pipe()
    made = Link(writing, reading)
    yield made
    made._replies.close()
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("data", VALUES, ids=range(len(VALUES)))
def test_malformed_values_are_not_compared(link: Any, data: Any) -> None:
    """They stand for no value, and break nothing."""
    value = link._read(data)
    assert isinstance(value, Opaque)
    with pytest.raises(NotPlain):
        assert value != 5
