"""KTO and REINFORCE++ in a run: what is trained on, KTO's estimate of the KL divergence, and that both learn."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlvr.config import AlgoConfig, OptimConfig
from rlvr.launch import launch
from rlvr.train import train
from tests.helpers.models import shake
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import batch_of, gradient_of, make_run
from tests.helpers.verifiers import HasSeven


def test_kto_reads_the_divergence_of_its_own_rollouts(tmp_path):
    """z is the mean of log pi/ref over the step's rollouts, not below 0: 0 at the reference."""
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, algo={"name": "kto"})
    assert float(batch_of(run).kl.abs().max()) < 1e-4
    shake(run.learner.policy, 0.1, 1)
    batch = batch_of(run)
    gains = ((batch.sampler_logprobs - batch.ref_logprobs) * batch.mask).sum(-1)
    assert float(gains.mean()) > 0.05
    torch.testing.assert_close(batch.kl, gains.mean().expand(24), atol=1e-3, rtol=0)
    assert set(batch.advantages.tolist()) == {1.0, -1.0}


@pytest.mark.parametrize("algo", [{"name": "kto", "minibatches": 2}, {"name": "reinforce_plus_plus", "kl_coef": 0.1}])
def test_gradients_do_not_depend_on_microbatches(tmp_path, algo):
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, algo=algo)
    shake(run.learner.policy, 0.1, 1)
    batch = batch_of(run)
    gradients = []
    for tokens in (10**6, 60, 1):
        run.config = dataclasses.replace(run.config, optim=OptimConfig(tokens_per_microbatch=tokens))
        gradients.append(gradient_of(run, batch))
    assert gradients[0].norm() > 1e-4
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-4)


def test_reinforce_plus_plus_whitens_tokens_with_their_kl_terms(tmp_path):
    """Advantages of tokens: mean 0 and deviation 1 over the batch; a token's includes the KL terms after it."""
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, algo={"name": "reinforce_plus_plus", "kl_coef": 0.5})
    shake(run.learner.policy, 0.1, 1)
    batch = batch_of(run)
    tokens = batch.advantages[batch.mask]
    assert batch.advantages.shape == batch.mask.shape
    assert abs(float(tokens.mean())) < 1e-5
    assert abs(float(tokens.std()) - 1) < 1e-4
    row = batch.advantages[0][batch.mask[0]]
    cost = (0.5 * (batch.old_logprobs - batch.ref_logprobs))[0][batch.mask[0]]
    # Neighbouring tokens differ by the cost of the first of them, scaled with the whole batch.
    scale = (row[0] - row[1]) / -cost[0]
    torch.testing.assert_close(row[:-1] - row[1:], -cost[:-1] * scale, atol=1e-4, rtol=1e-3)
    assert float(scale) > 0


@pytest.mark.parametrize("name", ["kto", "reinforce_plus_plus"])
def test_learns_a_simple_reward(tmp_path, name):
    """Twenty-five steps on "has a 7" raise the reward far beyond chance."""
    algo = {"name": name} | ({"beta": 0.3} if name == "kto" else {})
    run = make_run(tmp_path, verifier=HasSeven(), reference=name == "kto", run={"steps": 25}, algo=algo)
    train(run)
    records = run.reporter.log.read("metrics")
    assert sum(record["reward"] for record in records[:3]) / 3 < 0.7
    assert sum(record["reward"] for record in records[-3:]) / 3 > 0.8
    if name == "kto":
        last = [record for record in records if "kto/undesirable" in record and "kto/desirable" in record][-1]
        assert last["kto/desirable"] > last["kto/undesirable"]
        assert 0 <= records[0]["kto/good"] <= 1


@pytest.mark.parametrize("algo", [AlgoConfig("kto"), AlgoConfig("reinforce_plus_plus", kl_coef=0.05)])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, algo):
    """Three steps, against two, a resume, and one more."""

    def config(name, steps):
        return dataclasses.replace(small(tmp_path / name, steps=steps), algo=algo)

    launch(config("whole", 3))
    launch(config("parts", 2))
    launch(config("parts", 3))
    check_same(results(tmp_path / "whole", 3), results(tmp_path / "parts", 3))
