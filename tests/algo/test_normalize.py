"""What the loss is divided by: what was sampled. Leaving rows without signal out changes the speed alone."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from rlvr.algo.batch import minibatches
from rlvr.algo.losses import loss_denominator
from rlvr.config import AlgoConfig, OptimConfig
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Completion, Group, Problem, Verdict, correct, error, incorrect
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.training.run import Run
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import accumulate_gradient, to_batch, update
from tests.helpers.batches import loss_of, make_batch
from tests.helpers.runs import make_short_run, rollouts_of, weights_of

T = torch.tensor
NORMALIZE = ("token", "sequence", "constant")


class SomeFlat:
    """Problems of even number teach nothing; the verifier fails on a completion that begins with "==".

    The others are right where the number of zeros is odd: about half of random text.
    """

    def verify(self, pairs):
        return [self.judge(problem, text) for problem, text in pairs]

    def judge(self, problem: Problem, text: str) -> Verdict:
        if text.startswith("=="):
            return error("broken")
        return correct() if int(problem.id) % 2 and text.count("0") % 2 else incorrect()


class NothingRight(SomeFlat):
    """Every group is flat."""

    def judge(self, problem: Problem, text: str) -> Verdict:
        return incorrect()


def with_momentum(run: Run) -> Run:
    """SGD with momentum: a zero gradient moves the weights, and rounding is not blown up as by AdamW's division."""
    run.learner.optimizer = torch.optim.SGD(run.learner.policy.parameters(), lr=0.01, momentum=0.9)
    run.config = dataclasses.replace(run.config, optim=OptimConfig(lr=0.01, max_update_kl=0.0))
    return run


# A KL term in the loss keeps every row; one as small as this adds nothing.
EVERY_ROW = {"kl_coef": 1e-30}
SIZES = {"problems_per_step": 6, "group_size": 4}


def make_run(tmp_path, *, verifier=None, truncated: str = "keep", **algo) -> Run:
    """24 rollouts a step of at most 3 tokens, by a small model."""
    algo = {**({} if algo.get("name") == "dpo" else {"kl_coef": 0.0}), **algo}
    return make_short_run(tmp_path, verifier=verifier or SomeFlat(), rollout={**SIZES, "truncated": truncated}, **algo)


@pytest.mark.parametrize("truncated", ["keep", "mask"])
@pytest.mark.parametrize(("count", "epochs"), [(1, 1), (1, 2), (3, 1), (12, 2)])
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_leaving_rows_out_changes_no_update(tmp_path, normalize, count, epochs, truncated):
    """Three steps through `update`, half of the groups flat and some rollouts without score: the same weights to 1e-6.

    Cut into twelve, some minibatches have no row to compute.
    """
    settings = {"normalize": normalize, "minibatches": count, "epochs": epochs, "truncated": truncated}
    some, every = (
        with_momentum(make_run(tmp_path / name, **settings, **more))
        for name, more in (("some", {}), ("every", EVERY_ROW))
    )
    start, empty = weights_of(some), 0
    for step in range(3):
        groups, advantages = rollouts_of(some, step)
        computed, whole = to_batch(some.learner, groups, advantages), to_batch(every.learner, groups, advantages)
        assert 0 < len(computed) < len(whole) < 24
        cut = minibatches(computed, count=count, epochs=epochs, seed=derive_seed(0, "minibatches", step))
        empty += sum(not len(minibatch) for minibatch in cut)
        found, expected = (update(run.learner, step, groups, advantages) for run in (some, every))
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
        assert found["grad_norm"] == pytest.approx(expected["grad_norm"], abs=1e-5)
        assert found["trained_tokens"] == epochs * computed.num_completion_tokens < expected["trained_tokens"]
    assert count < 12 or empty
    assert (weights_of(some) - start).abs().max() > 1e-3
    torch.testing.assert_close(weights_of(some), weights_of(every), atol=1e-6, rtol=0)


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_the_gradient_is_that_of_the_whole_batch(tmp_path, normalize):
    """Against the mean by hand over every rollout's own gradient, scaled by what was sampled."""
    run = make_run(tmp_path, normalize=normalize)
    groups, advantages = rollouts_of(run, 0)
    lengths = [len(c.token_ids) for group in groups for c in group.completions]
    scored = [v.score is not None for group in groups for v in group.verdicts]
    assert not all(scored)
    tokens = sum(n for n, s in zip(lengths, scored) if s)
    expected = torch.zeros_like(weights_of(run))
    for group, row in zip(groups, advantages, strict=True):
        for completion, advantage in zip(group.completions, row, strict=True):
            if not advantage:
                continue
            ids = T([[*group.prompt_ids, *completion.token_ids]])
            mask = torch.arange(ids.shape[1])[None] >= len(group.prompt_ids)
            size = len(completion.token_ids)
            divisor = {"token": tokens, "sequence": size * sum(scored), "constant": 24 * 3}[normalize]
            loss = -advantage * token_logprobs(run.learner.policy, ids, mask)[0].sum() / divisor
            expected += torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, run.learner.policy.parameters())])
    accumulate_gradient(run.learner, to_batch(run.learner, groups, advantages))
    found = torch.cat([weight.grad.reshape(-1) for weight in run.learner.policy.parameters()])
    assert expected.norm() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


def test_constant_is_constant(tmp_path):
    """Completions sampled times max_new_tokens: whatever is flat, without score, cut, or in the minibatch."""
    for verifier, truncated in itertools.product((SomeFlat(), NothingRight()), ("keep", "mask")):
        run = make_run(tmp_path, verifier=verifier, truncated=truncated)
        batch = to_batch(run.learner, *rollouts_of(run, 0))
        assert loss_denominator(batch, "constant", 3) == 24 * 3
        cut = list(minibatches(batch, count=6, epochs=2, seed=0))
        assert [loss_denominator(minibatch, "constant", 3) for minibatch in cut] == [4 * 3] * 12
        assert sum(len(minibatch) for minibatch in cut) == 2 * len(batch)


def test_what_a_denominator_counts_by_hand(tmp_path):
    """Completions of 2, 3, 4 (cut), 1 (without score) tokens, then a flat group of 5 and 6."""

    def group(name: str, sizes: list[int], verdicts: list[Verdict]) -> Group:
        completions = tuple(Completion("", (7,) * n, (0.0,) * n, "length" if n == 4 else "stop") for n in sizes)
        return Group(Problem(name, "?"), (5,), completions, tuple(verdicts))

    run = make_run(tmp_path, truncated="mask")
    groups = [
        group("a", [2, 3, 4, 1], [correct(), incorrect(), incorrect(), error("broken")]),
        group("b", [5, 6], [correct(), correct()]),
    ]
    advantages = group_advantages(groups, group_rewards(groups, run.config.rollout), run.config.algo)
    batch = to_batch(run.learner, groups, advantages)
    assert batch.mask.sum(-1).tolist() == [2, 3]
    assert batch.token_counts == (2, 3, 0, 0, 5, 6)
    assert [loss_denominator(batch, name, 10) for name in NORMALIZE] == [16.0, 4.0, 60.0]
    part = batch.of_sampled(T([0, 3, 4]))
    assert part.mask.sum(-1).tolist() == [2]
    assert [loss_denominator(part, name, 10) for name in NORMALIZE] == [7.0, 2.0, 30.0]


def test_a_flat_step_is_a_step_with_gradient_zero(tmp_path):
    """AdamW's momentum goes on moving the weights, as it does with every row computed; before any signal nothing does.

    Entropy and clip fraction of no token are not logged. (Epsilon is large, so that rounding is not blown up.)
    """
    flat = [[0.0] * SIZES["group_size"]] * SIZES["problems_per_step"]
    some, every = (
        make_run(tmp_path / name, minibatches=2, **more) for name, more in (("some", {}), ("every", EVERY_ROW))
    )
    for step in range(3):
        groups, advantages = rollouts_of(some, step)
        before = weights_of(some)
        for run in (some, every):
            run.learner.optimizer.param_groups[0]["eps"] = 1e-3
            stats = update(run.learner, step, groups, advantages if step == 1 else flat)
            assert (stats["grad_norm"] > 0) == (step == 1)
            assert ("entropy" in stats) == (step == 1 or run is every)
        assert torch.equal(weights_of(some), before) == (step == 0)
    torch.testing.assert_close(weights_of(some), weights_of(every), atol=1e-6, rtol=0)
    assert {int(state["step"]) for run in (some, every) for state in run.learner.optimizer.state.values()} == {6}


def test_where_nothing_was_chosen_there_is_no_step(tmp_path):
    """raft and dpo average over what was chosen; of nothing there is no average."""
    for advantage in ("raft", "dpo"):
        run = make_run(tmp_path / advantage, verifier=NothingRight(), name=advantage)
        assert update(run.learner, 0, *rollouts_of(run, 0))["loss"] == 0.0
        assert not run.learner.optimizer.state


def test_dr_grpo_is_unbiased(tmp_path):
    """By enumeration of all groups of two: the expected gradient is (G-1)/G of that of the mean reward over problems.

    Completions have one token, of five. One problem is mostly right and the other rarely, so that the share of groups
    without signal goes with what is drawn.
    """
    run = make_run(tmp_path, name="dr_grpo", normalize="constant")
    prompts = [tuple(run.learner.policy.render(text)) for text in ("0=", "=0")]
    chances = run.learner.policy.model(T(prompts)).logits[:, -1].softmax(-1)  # (2, 5)
    right = [set(range(5)) - {int(chances[0].argmin())}, {int(chances[1].argmin())}]
    passing = torch.stack([row[list(ids)].sum() for row, ids in zip(chances, right)])
    assert float(passing[1].detach()) < 0.25 < 0.5 < float(passing[0].detach())
    weights = run.learner.policy.parameters()
    wanted = torch.cat([g.reshape(-1) for g in torch.autograd.grad(-passing.mean() / 2, weights, retain_graph=True)])
    drawn = chances.detach().tolist()
    pulls = torch.zeros(2, 5)  # what the logprob of each completion is multiplied by, in expectation
    for tokens in itertools.product(range(5), repeat=4):
        groups = [
            Group(
                Problem(str(p), "?"),
                prompts[p],
                tuple(Completion("", (y,), (0.0,)) for y in tokens[2 * p : 2 * p + 2]),
                tuple(correct() if y in right[p] else incorrect() for y in tokens[2 * p : 2 * p + 2]),
            )
            for p in range(2)
        ]
        batch = to_batch(
            run.learner, groups, group_advantages(groups, group_rewards(groups, run.config.rollout), run.config.algo)
        )
        logprobs = torch.zeros(batch.mask.shape, requires_grad=True)
        loss_of(logprobs, batch, run.config.algo, loss_denominator(batch, run.config.algo.normalizer, 1))[0].backward()
        chance = math.prod(drawn[place // 2][y] for place, y in enumerate(tokens))
        for place, pull in zip(batch.places.tolist(), logprobs.grad.sum(-1)):
            pulls[place // 2, tokens[place]] += chance * pull
    found = torch.autograd.grad((pulls * chances.log()).sum(), run.learner.policy.parameters())
    found = torch.cat([g.reshape(-1) for g in found])
    assert wanted.norm() > 1e-3
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("loss", ["gspo", "sequence"])
def test_a_completion_weighs_the_same_whatever_its_length(loss):
    """With the ratio of a whole completion the loss is the mean of -A, of 2 tokens as of 8. By token it is 1 : 4."""
    batch = make_batch(torch.arange(8) < T([[2], [8]]), torch.ones(2, requires_grad=True), old=None)
    for normalize, shares in {"auto": [0.5, 0.5], "token": [0.2, 0.8]}.items():
        algo = AlgoConfig(loss=loss, normalize=normalize)
        value, _ = loss_of(torch.zeros(2, 8), batch, algo, loss_denominator(batch, algo.normalizer, 8))
        assert torch.autograd.grad(-value, batch.advantages)[0].tolist() == pytest.approx(shares)
