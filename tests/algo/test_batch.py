"""Collating, minibatches and microbatches lose and repeat nothing."""

from __future__ import annotations

import torch

from rlvr.algo.batch import collate, minibatches, to_device
from rlvr.types import Completion, Group, Problem, correct, error


def groups():
    """Two groups of three; the second has an error and a truncated completion."""
    made = []
    for number, prompt in enumerate([(1, 2), (3, 4, 5)]):
        completions = tuple(
            Completion("x", tuple(range(10, 11 + i)), tuple(-float(i + j) for j in range(i + 1)), finish)
            for i, finish in enumerate(["stop", "stop", "length" if number else "stop"])
        )
        verdicts = (error("broken") if number else correct(), correct(), correct())
        made.append(Group(Problem(str(number), "?"), prompt, completions, verdicts))
    return made


def batch(**options):
    return collate(groups(), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], pad_id=0, **options)


def test_collate_places_tokens_mask_and_logprobs():
    """Prompt, completion, padding; the mask covers the completion; a rollout without score is left out."""
    made = batch()
    assert made.advantages.tolist() == [0, 1, 2, 4, 5]
    assert made.groups.tolist() == [0, 0, 0, 1, 1]
    assert made.lengths.tolist() == [3, 4, 5, 5, 6]
    assert made.tokens[1].tolist() == [1, 2, 10, 11, 0, 0]
    assert made.mask[1].tolist() == [False, False, True, True, False, False]
    assert made.sampler_logprobs[2].tolist() == [0, 0, -2, -3, -4, 0]


def test_truncated_completions_can_be_masked_out():
    """They leave the loss; their reward has already entered the group's baseline."""
    assert batch(mask_truncated=True).advantages.tolist() == [0, 1, 2, 4]


def test_microbatches_are_a_partition_within_the_budget():
    """Each row once; the prompt of a group is counted once in a microbatch; a row that is too long goes alone."""
    made = batch()
    for budget in (1, 5, 7, 8, 11, 100):
        pieces = list(made.split(budget))
        assert torch.cat([index for index, _ in pieces]).tolist() == list(range(5))
        for index, micro in pieces:
            firsts = {int(made.groups[i]): i for i in reversed(index.tolist())}.values()
            prompts = sum(int(made.lengths[i] - made.mask[i].sum()) for i in firsts)
            assert len(index) == 1 or prompts + int(micro.mask.sum()) <= budget
            assert micro.tokens.shape[1] == int(micro.lengths.max())
    # prompts of 2 and 3 tokens, completions of 1 + 2 + 3 and 2 + 3
    assert [len(index) for index, _ in made.split(8)] == [3, 2]
    assert [len(list(made.split(budget))) for budget in (15, 16)] == [2, 1]


def test_prompts_count_for_each_row_where_they_are_not_shared():
    """A model that does not pack reads a prompt with each of its rows; a row that is too long still goes alone."""
    made = batch()
    assert [len(index) for index, _ in made.split(12, shared_prompts=False)] == [3, 2]
    assert [len(index) for index, _ in made.split(11, shared_prompts=False)] == [2, 2, 1]
    assert [len(index) for index, _ in made.split(1, shared_prompts=False)] == [1] * 5


def test_what_chooses_rows_stays_on_the_host():
    """On another device only what losses read is there: rows are chosen and laid out without asking it."""
    made = to_device(batch(), "meta")
    assert made.mask.device.type == made.advantages.device.type == "meta"
    for _, micro in made.split(8):
        assert micro.tokens.device.type == micro.scored.device.type == "cpu"
        assert micro.mask.shape == micro.scored.shape
    assert made.num_completion_tokens == 11
    assert len(made.of_sampled(torch.tensor([0, 1]))) == 2


def test_minibatches_cover_every_row_once_an_epoch():
    """Two passes of three minibatches: another cut each time, a function of the seed."""
    made = batch()
    passes = [m.advantages.tolist() for m in minibatches(made, count=3, epochs=2, seed=1)]
    assert sorted(sum(passes[:3], [])) == sorted(sum(passes[3:], [])) == [0, 1, 2, 4, 5]
    assert passes == [m.advantages.tolist() for m in minibatches(made, count=3, epochs=2, seed=1)]
    assert passes != [m.advantages.tolist() for m in minibatches(made, count=3, epochs=2, seed=2)]


def test_one_minibatch_is_the_batch():
    """No copy, no other order."""
    made = batch()
    assert next(iter(minibatches(made, count=1, epochs=1, seed=0))) is made


def test_shares_are_a_partition():
    """Contiguous parts, so that groups stay together."""
    made = batch()
    parts = [made.share(rank, 2)[1].advantages.tolist() for rank in range(2)]
    assert sum(parts, []) == made.advantages.tolist()
