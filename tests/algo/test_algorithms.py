"""The tables of algorithms and losses: a row and its function are all that a new one needs; nobody compares names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from rlvr.algo.advantages import Rewards, drop_missing
from rlvr.algo.algorithms import ALGORITHMS, Algorithm, per_group
from rlvr.algo.losses import LOSSES, Loss
from rlvr.commands.cli import main
from rlvr.config import AlgoConfig, Config, RunConfig
from rlvr.config.settings import settings_of
from rlvr.config.training import read_config
from rlvr.core.printable import describe_type
from rlvr.train import train
from tests.helpers.files import ROOT
from tests.helpers.runs import make_run
from tests.helpers.verifiers import HasSeven

TABLE = ROOT / "rlvr" / "algo" / "algorithms.py"


def best_only(rewards: Rewards) -> list[float]:
    """The reward of the best completions, 0 for the others: the example of rlvr/algo/algorithms.py."""
    best = max(drop_missing(rewards), default=0.0)
    return [r if r == best else 0.0 for r in rewards]


@pytest.mark.parametrize("trains_on", ["signal", "all", "chosen"])
def test_a_row_that_is_added_trains(tmp_path, monkeypatch, trains_on):
    """Two steps by the new rule: its advantages are logged, and what is trained on is what the row says."""
    row = Algorithm("best_only", "none", per_group(best_only), trains_on=trains_on)
    monkeypatch.setitem(ALGORITHMS, "best_only", row)
    run = make_run(tmp_path, verifier=HasSeven(), run={"steps": 2}, algo={"name": "best_only"})
    train(run)
    metrics, rollouts = run.reporter.log.read("metrics"), run.reporter.log.read("rollouts")
    assert len(metrics) == 2
    assert [r["advantage"] for r in rollouts] == [float(r["status"] == "correct") for r in rollouts]
    for line in metrics:
        here = [r for r in rollouts if r["step"] == line["step"]]
        signal = {r["problem"] for r in here if r["advantage"]}
        trained = {
            "signal": [r for r in here if r["problem"] in signal],
            "all": here,
            "chosen": [r for r in here if r["advantage"]],
        }[trains_on]
        assert line["trained_tokens"] == sum(r["tokens"] for r in trained)
        assert line["grad_norm"] > 0


def test_a_loss_that_is_added_trains(tmp_path, monkeypatch):
    """Its row is enough: algo.loss offers it, its arguments are settings, and its function makes the gradient."""
    calls = []

    def mine(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, clip_high: float) -> Tensor:
        calls.append(clip_high)
        return -advantages * ratio

    offered = "auto, clip, gspo, luspo, sequence, cispo, sapo, vespo, nll"
    with pytest.raises(ValueError, match=rf"algo\.loss 'mine': expected one of {offered}$"):
        AlgoConfig(loss="mine").check("algo.")
    monkeypatch.setitem(LOSSES, "mine", Loss("mine", "none", mine))
    settings = {setting.name: setting for setting in settings_of(AlgoConfig)}
    assert describe_type(settings["loss"].hint) == f"one of {offered}, mine"
    run = make_run(tmp_path, verifier=HasSeven(), run={"steps": 2}, algo={"loss": "mine"})
    assert settings["clip_high"].find_unmet(run.config) is None
    assert settings["clip_low"].find_unmet(run.config) is not None
    train(run)
    assert calls
    assert set(calls) == {run.config.algo.clip_high}
    assert all(line["grad_norm"] > 0 for line in run.reporter.log.read("metrics"))


def list_compared(tree: ast.AST) -> Iterator[str]:
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
        if path != TABLE and (names := ALGORITHMS.keys() & list_compared(ast.parse(path.read_text())))
    }
    assert not found


def test_a_row_is_all_that_a_new_algorithm_needs(monkeypatch, tmp_path, capsys):
    """`--algo NAME` knows it, its settings are AlgoConfig, and a run that used it is resumed."""
    row = Algorithm("halves", "nowhere", lambda groups: [[0.5] * len(group) for group in groups])
    monkeypatch.setitem(ALGORITHMS, "halves", row)
    config = Config(run=RunConfig(out_dir=Path("runs/never")), algo=AlgoConfig("halves"))
    config.check()
    assert read_config({"algo": {"name": "halves"}}).algo == AlgoConfig("halves")
    flags = ["--algo", "halves", "--algo.epochs", "0", "--run.out-dir", str(tmp_path / "run")]
    assert main(["train", "tiny_math", *flags]) == 2
    assert "algo.epochs 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "tiny_math", "--algo", "halves", "--help"])
    assert "halves" in capsys.readouterr().out
