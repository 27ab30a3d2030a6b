"""No code outside the table of algorithms asks which algorithm it is: it reads the row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.algo import algorithms
from rlvr.algo.algorithms import ALGORITHMS, Algorithm
from rlvr.commands.cli import main
from rlvr.config import AlgoConfig, Config, RunConfig
from rlvr.config.training import read_config

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "rlvr" / "algo" / "algorithms.py"


def compared(tree: ast.AST) -> Iterator[str]:
    """The texts that a file compares anything with: ==, !=, in, not in, and the patterns of match."""
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        sides += [node.value] if isinstance(node, ast.MatchValue) else []
        for side in sides:
            for part in ast.walk(side):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_no_name_of_an_algorithm_is_compared():
    """In no file of rlvr/ but the table."""
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "rlvr").rglob("*.py"))
        if path != TABLE and (names := ALGORITHMS.keys() & compared(ast.parse(path.read_text())))
    }
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "if algo.name == 'ppo': pass",
        "if 'dpo' != algo.name: pass",
        "x = algo.name in ('raft', 'dpo')",
        "x = algo.name not in {'grpo'}",
        "match algo.name:\n    case 'rloo' | 'maxrl':\n        pass",
    ],
)
def test_each_way_of_comparing_is_seen(code):
    """The test above would fail for each of them."""
    assert ALGORITHMS.keys() & compared(ast.parse(code))


def test_a_row_is_all_that_a_new_algorithm_needs(monkeypatch, tmp_path, capsys):
    """`--algo NAME` knows it, its settings are AlgoConfig, and a run that used it is resumed."""
    row = Algorithm("halves", "nowhere", lambda groups: [[0.5] * len(group) for group in groups])
    monkeypatch.setitem(algorithms.ALGORITHMS, "halves", row)
    config = Config(run=RunConfig(out_dir=Path("runs/never")), algo=AlgoConfig("halves"))
    config.check()
    assert read_config({"algo": {"name": "halves"}}).algo == AlgoConfig("halves")
    flags = ["--algo", "halves", "--algo.epochs", "0", "--run.out-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_math", *flags]) == 2
    assert "algo.epochs 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "tiny_math", "--algo", "halves", "--help"])
    assert "halves" in capsys.readouterr().out
