"""The pretraining mix: its gradient, which demonstrations it reads, and what it does to their likelihood."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
import torch

from rlvr.commands.cli import main
from rlvr.core.types import Problem
from rlvr.launch import launch
from rlvr.train import train
from rlvr.training.sft.sft import accumulate_mix, add_gradient, demonstration_batch
from tests.helpers.files import lines
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import batch_of, gradient_of, make_run

DEMONSTRATIONS = [(Problem(f"d{i}", f"{i}="), f"{i}+0") for i in range(10)]


def mixed(out_dir, **groups):
    run = make_run(out_dir, **groups)
    if run.config.algo.ptx_coef:
        run.learner.mix = partial(accumulate_mix, run.learner, DEMONSTRATIONS, None)
    return run


def nll_gradient(run, demonstrations):
    """The gradient of the mean negative log-likelihood of their tokens, and that mean."""
    policy = run.learner.policy
    for weight in policy.parameters():
        weight.grad = None
    loss = add_gradient(policy, demonstration_batch(policy, demonstrations), run.learner.accelerator, 10**6)
    return torch.cat([weight.grad.reshape(-1) for weight in policy.parameters()]), loss


def test_the_gradient_is_the_sum_of_both(tmp_path):
    """Of the policy's loss, and ptx_coef times that of all demonstrations, where a batch holds each once."""
    run = mixed(tmp_path, algo={"ptx_coef": 0.25, "ptx_batch_size": 10})
    batch = batch_of(run)
    both = gradient_of(run, batch)
    run.config = dataclasses.replace(run.config, algo=dataclasses.replace(run.config.algo, ptx_coef=0.0))
    run.learner.mix = None
    own, (mix, _) = gradient_of(run, batch), nll_gradient(run, DEMONSTRATIONS)
    torch.testing.assert_close(both, own + 0.25 * mix, atol=1e-6, rtol=1e-4)
    assert mix.norm() > 1e-3


def test_each_update_reads_other_demonstrations(tmp_path):
    """Ten demonstrations in batches of five: two updates read each once."""
    run = mixed(tmp_path, algo={"ptx_coef": 1.0, "ptx_batch_size": 5})
    means = [run.learner.mix(number) for number in range(4)]
    assert means[0] != means[1]
    total = sum(len(run.learner.policy.encode(text)) + 1 for _, text in DEMONSTRATIONS)
    assert total == 10 * 4
    assert sum(means[:2]) / 2 == pytest.approx(nll_gradient(run, DEMONSTRATIONS)[1], rel=1e-5)


def test_the_mix_keeps_the_demonstrations_likely(tmp_path):
    """Eight steps towards sevens: the demonstrations' loss falls with the mix, and is logged."""
    ends = {}
    for coef in (0.0, 1.0):
        run = mixed(tmp_path / str(coef), run={"steps": 8}, algo={"ptx_coef": coef, "minibatches": 2})
        train(run)
        ends[coef] = nll_gradient(run, DEMONSTRATIONS)[1]
        logged = [line.get("ptx/loss") for line in run.reporter.log.read("metrics")]
        assert all(value is None for value in logged) == (coef == 0.0)
    assert ends[1.0] < ends[0.0] - 0.5
    assert logged[-1] < logged[0]


def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """The pack's demonstrations, by the number of the update: three steps, against two, a resume, and one more."""

    def config(name, steps):
        made = small(tmp_path / name, steps=steps, minibatches=2)
        return dataclasses.replace(made, algo=dataclasses.replace(made.algo, ptx_coef=0.5, ptx_batch_size=8))

    launch(config("whole", 3))
    launch(config("parts", 2))
    launch(config("parts", 3))
    check_same(results(tmp_path / "whole", 3), results(tmp_path / "parts", 3))
    assert len({line["ptx/loss"] for line in lines(tmp_path / "whole" / "metrics.jsonl")}) == 3


def test_a_pack_without_demonstrations_is_refused(tmp_path, capsys):
    """In one line that says where demonstrations may come from."""
    out = ["--run.out-dir", str(tmp_path / "run"), "--dry-run"]
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "1+1=", "reference": "2"}\n' * 4)
    task = ["--run.task", "jsonl", "--run.data", str(data), "--sft.steps", "0"]
    assert main(["train", "tiny_math", *task, "--algo.ptx-coef", "1", *out]) == 2
    assert "algo.ptx_coef is 1.0 and task 'jsonl' has no demonstrations" in capsys.readouterr().err
