"""Rejection sampling and online DPO: which rollouts are trained on, their losses, pairs that stay together."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch

from rlvr.algo.batch import Batch, minibatches
from rlvr.algo.losses import loss_denominator
from rlvr.config import AlgoConfig
from rlvr.core.types import Completion, Group, Problem, correct, incorrect
from rlvr.train import train
from rlvr.training.rollout.rollout import collect
from rlvr.training.step.rewards import credited_advantages, credited_rewards
from rlvr.training.step.update import to_batch
from tests.helpers.batches import loss_of, make_batch, split
from tests.helpers.files import GOLDEN
from tests.helpers.runs import batch_of, gradient_of, make_run
from tests.helpers.verifiers import HasSeven

T = torch.tensor


def pairs(logprobs, ref, advantages, mask=None) -> Batch:
    mask = torch.ones_like(logprobs).bool() if mask is None else mask
    return make_batch(mask, advantages, ref=ref, groups=torch.arange(len(mask)) // 2, rows_per_pair=2)


def test_dpo_loss_by_hand():
    """Chosen gains .5 + .5, rejected loses .2 + .3, beta .1: -log sigmoid(.15) = .620957; the order does not matter."""
    logprobs, ref = T([[-1.0, -1.0], [-2.0, -2.0]]), T([[-1.5, -1.5], [-1.8, -1.7]])
    algo = AlgoConfig("dpo", beta=0.1)
    loss, stats = loss_of(logprobs, pairs(logprobs, ref, T([1.0, -1.0])), algo, 1.0)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-0.15)), abs=1e-6)
    assert float(stats["dpo/margin"]) == pytest.approx(0.15, abs=1e-6)
    assert [float(stats[f"dpo/{name}"]) for name in ("chosen", "rejected")] == pytest.approx([0.1, -0.05], abs=1e-6)
    swapped, _ = loss_of(logprobs.flip(0), pairs(logprobs, ref.flip(0), T([-1.0, 1.0])), algo, 1.0)
    assert float(swapped) == pytest.approx(float(loss))


def test_dpo_agrees_with_trl():
    """Loss, gradient, margin and accuracy of TRL 1.16's DPOTrainer on the tensors in the file, to 1e-5.

    tests/make_ppo_reference.py made it. TRL has the chosen rows first and then the rejected ones.
    """
    reference = json.loads((GOLDEN / "ppo_reference.json").read_text())
    t, expected = {name: T(values) for name, values in reference["tensors"].items()}, reference["dpo"]
    order = T([0, 3, 1, 4, 2, 5])
    logprobs = t["logprobs"].requires_grad_()
    batch = pairs(logprobs[order], t["ref_logprobs"][order], T([1.0, -1.0] * 3), t["mask"][order].bool())
    algo = AlgoConfig("dpo", beta=expected["beta"])
    loss, stats = loss_of(logprobs[order], batch, algo, loss_denominator(batch, "token", 0))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected["loss"], abs=1e-5)
    torch.testing.assert_close(logprobs.grad, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)
    for ours, theirs in (("margin", "margins"), ("accuracy", "accuracies"), ("chosen",) * 2, ("rejected",) * 2):
        assert float(stats[f"dpo/{ours}"]) / 3 == pytest.approx(expected[f"rewards/{theirs}"], abs=1e-5)


def test_raft_is_the_likelihood_of_the_chosen():
    """Mean over their tokens, whatever the ratio to the policy that sampled them."""
    mask = T([[True, True], [True, False]])
    logprobs = T([[-1.0, -2.0], [-6.0, 0.0]])
    batch = dataclasses.replace(pairs(logprobs, None, T([1.0, 1.0]), mask), rows_per_pair=1, old_logprobs=logprobs - 3)
    loss, _ = loss_of(logprobs, batch, AlgoConfig("raft"), loss_denominator(batch, "token", 2))
    assert float(loss) == pytest.approx(3.0)


def test_raft_trains_on_one_rollout_of_each_group_that_differs(tmp_path):
    """The first that is right; the other rows are not in the batch, where they would thin out the mean."""
    run = make_run(tmp_path, verifier=HasSeven(), algo={"name": "raft"})
    groups = collect(run.worker, 0)
    rights = [[v.correct for v in group.verdicts] for group in groups]
    best = [g.completions[r.index(True)].token_ids for g, r in zip(groups, rights) if any(r) and not all(r)]
    assert best
    batch = batch_of(run)
    assert [tuple(row[m].tolist()) for row, m in zip(batch.tokens, batch.mask)] == best
    assert batch.advantages.tolist() == [1.0] * len(best)


def test_dpo_trains_on_pairs(tmp_path):
    """Two rows for each group that differs, one of each sign, of one problem."""
    run = make_run(tmp_path, verifier=HasSeven(), algo={"name": "dpo"}, reference=True)
    batch = batch_of(run)
    assert len(batch) >= 4
    assert batch.advantages.view(-1, 2).sum(-1).tolist() == [0.0] * (len(batch) // 2)
    assert (batch.groups.view(-1, 2)[:, 0] == batch.groups.view(-1, 2)[:, 1]).all()


def group(*finishes: str) -> Group:
    """Completions that ended so; the first is right and the others wrong."""
    completions = tuple(Completion("x", (6, 7), (-1.0, -1.0), finish) for finish in finishes)
    return Group(Problem("0", "?"), (5,), completions, (correct(), *(incorrect() for _ in finishes[1:])))


def test_a_pair_without_one_of_its_two_is_left_out(tmp_path):
    """Where truncated completions are masked, best and worst are those of the rest; of one alone there is neither."""
    for advantage, counts in {"dpo": [2, 0, 0, 2, 0], "raft": [1, 0, 0, 1, 0]}.items():
        run = make_run(tmp_path, algo={"name": advantage}, rollout={"truncated": "mask"})
        two = (("stop", "stop"), ("length", "stop"), ("stop", "length"))
        three = (("stop", "length", "stop"), ("length", "stop", "stop"))
        for finishes, count in zip((*two, *three), counts, strict=True):
            groups = [group(*finishes)]
            rewards = credited_rewards(groups, run.config, run.learner.policy.decode)
            assert len(to_batch(run.learner, groups, credited_advantages(groups, rewards, run.config.algo))) == count


def test_pairs_stay_together():
    """In minibatches, microbatches of any size, and the shares of processes: rows 2i and 2i + 1 follow each other."""
    batch = pairs(torch.zeros(14, 3), torch.zeros(14, 3), torch.arange(14.0))

    def rows(parts):
        found = [part.advantages.long().tolist() for part in parts]
        assert all(a % 2 == 0 and b == a + 1 for part in found for a, b in zip(part[::2], part[1::2], strict=True))
        return sorted(row for part in found for row in part)

    assert rows(minibatches(batch, count=3, epochs=1, seed=0)) == list(range(14))
    for budget in (1, 6, 13, 1000):
        assert rows(micro for _, micro in split(batch, budget)) == list(range(14))
    for processes in (3, 20):
        plan = batch.plan(processes, 13)
        assert rows(batch.rows(index) for part in plan for index, _ in part) == list(range(14))
    assert len(list(minibatches(batch, count=20, epochs=1, seed=0))) == 7


@pytest.mark.parametrize("advantage", ["raft", "dpo"])
def test_gradient_does_not_depend_on_microbatches(tmp_path, advantage):
    """All at once, some, one unit at a time: the same gradient of the weights to 1e-6."""
    run = make_run(tmp_path, verifier=HasSeven(), algo={"name": advantage}, reference=advantage == "dpo")
    batch = batch_of(run)
    gradients = []
    for tokens in (10**6, 60, 1):
        optim = dataclasses.replace(run.config.optim, tokens_per_microbatch=tokens)
        run.config = dataclasses.replace(run.config, optim=optim)
        gradients.append(gradient_of(run, batch))
    assert gradients[0].norm() > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("advantage", ["raft", "dpo"])
def test_learns_a_simple_reward(tmp_path, advantage):
    """Twenty-five steps on "has a 7" raise the reward far beyond chance; DPO's pairs come apart."""
    run = make_run(
        tmp_path,
        verifier=HasSeven(),
        run={"steps": 25},
        algo={"name": advantage},
        optim={"lr": 2e-3},
        reference=advantage == "dpo",
    )
    train(run)
    records = run.reporter.log.read("metrics")
    assert sum(record["reward"] for record in records[:3]) / 3 < 0.7
    assert sum(record["reward"] for record in records[-3:]) / 3 > 0.85
    if advantage == "dpo":
        trained = [record for record in records if "dpo/margin" in record]
        assert trained[0]["dpo/margin"] == pytest.approx(0.0, abs=1e-5)
        assert trained[-1]["dpo/margin"] > 0.1
        assert all(0 <= record["dpo/accuracy"] <= 1 for record in trained)
