"""tests/slow_tests.txt names tests that exist, and leaves each file with several at least one."""

from __future__ import annotations

import ast

from tests.helpers.files import ROOT, slow_tests


def functions(file: str) -> set[str]:
    """Names of the test functions of a file below tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_each_line_is_a_test_and_each_file_keeps_one():
    """A renamed test drops out of the list loudly; `make test` runs a part of every file with several tests."""
    whole: dict[str, set[str]] = {}
    for line, parts in slow_tests().items():
        file, name = line.split("::")
        assert name in functions(file), line
        if not all(first for first, _ in parts):
            whole.setdefault(file, set()).add(name)
    assert [file for file, names in whole.items() if functions(file) <= names and len(names) > 1] == []
