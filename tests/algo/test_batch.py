"""Collating, minibatches and microbatches lose and repeat nothing."""

from __future__ import annotations

import pytest
import torch

from rlvr.algo.batch import Batch, collate, minibatches, to_device
from rlvr.core.types import Completion, Group, Problem, correct, error
from tests.helpers.batches import split


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
        pieces = list(split(made, budget))
        assert torch.cat([index for index, _ in pieces]).tolist() == list(range(5))
        for index, micro in pieces:
            firsts = {int(made.groups[i]): i for i in reversed(index.tolist())}.values()
            prompts = sum(int(made.lengths[i] - made.mask[i].sum()) for i in firsts)
            assert len(index) == 1 or prompts + int(micro.mask.sum()) <= budget
            assert micro.tokens.shape[1] == int(micro.lengths.max())
    # prompts of 2 and 3 tokens, completions of 1 + 2 + 3 and 2 + 3
    assert [len(index) for index, _ in split(made, 8)] == [3, 2]
    assert [len(list(split(made, budget))) for budget in (15, 16)] == [2, 1]


def test_prompts_count_for_each_row_where_they_are_not_shared():
    """A model that does not pack reads a prompt with each of its rows; a row that is too long still goes alone."""
    made = batch()
    assert [len(index) for index, _ in split(made, 12, shared_prompts=False)] == [3, 2]
    assert [len(index) for index, _ in split(made, 11, shared_prompts=False)] == [2, 2, 1]
    assert [len(index) for index, _ in split(made, 1, shared_prompts=False)] == [1] * 5


def test_what_chooses_rows_stays_on_the_host():
    """On another device only what losses read is there: rows are chosen and laid out without asking it."""
    made = to_device(batch(), "meta")
    assert made.mask.device.type == made.advantages.device.type == "meta"
    for _, micro in split(made, 8):
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


def rows_of(plan, *, counted: bool = True) -> list[list[int]]:
    """The rows of each process's microbatches, of those that count or of the others."""
    return [[row for index, weight in part if bool(weight) == counted for row in index.tolist()] for part in plan]


@pytest.mark.parametrize("budget", [1, 8, 100])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_plans_hold_every_row_once(processes, budget):
    """Whatever is needed to make the counts equal does not count."""
    plan = batch().plan(processes, budget, equal=True)
    assert len(plan) == processes
    assert sorted(sum(rows_of(plan), [])) == list(range(5))
    assert len({len(part) for part in plan}) == 1
    for part in plan:
        assert [weight for _, weight in part] == sorted((weight for _, weight in part), reverse=True)


def test_plan_keeps_groups_whole():
    """Two groups on two processes; with more processes than groups their rows are divided."""
    made = batch()
    first = [int(group) for group in made.groups].count(int(made.groups[0]))
    assert sorted(rows_of(made.plan(2, 100))) == [list(range(first)), list(range(first, 5))]
    assert max(map(len, rows_of(made.plan(5, 100)))) == 1


def test_plan_is_filled_up_with_the_shortest_row():
    """A process without rows computes it as often as another has microbatches; without `equal` it has nothing to do."""
    made = batch()
    shortest = int(made.lengths.argmin())
    plan = made.plan(6, 1, equal=True)
    assert rows_of(plan, counted=False)[5] == [shortest]
    assert rows_of(plan)[5] == []
    assert made.plan(6, 1)[5] == []


def test_plan_balances_tokens():
    """Groups of 9, 8, 2, 2, 2 and 1 tokens: halves of the rows would have 19 and 5."""
    lengths = torch.tensor([9, 8, 2, 2, 2, 1])
    scored = torch.arange(9) < lengths[:, None]
    scored[:, 0] = False
    grid = torch.zeros(6, 9)
    made = Batch(grid.long(), scored, scored, grid, torch.zeros(6), lengths, torch.arange(6))
    loads = [sum(int(lengths[row]) for row in rows) for rows in rows_of(made.plan(2, 100))]
    assert loads == [12, 12]


def test_plan_of_nothing_is_empty():
    """A minibatch without rows has no microbatch on any process."""
    assert batch().rows(torch.arange(0)).plan(3, 10, equal=True) == [[], [], []]


@pytest.mark.parametrize(("budget", "parts"), [(23, [[0, 1, 2]]), (22, [[0, 1], [2]]), (16, [[0], [1, 2]])])
def test_a_masked_first_turn_is_not_shared(budget, parts):
    """Rows of 10, 7 and 8 tokens after a prompt of 2, the second's first 4 tokens masked: 2 + 8, 6 + 1, and 6."""
    lengths = torch.tensor([10, 7, 8])
    scored = torch.arange(10) < lengths[:, None]
    for row, start in enumerate([2, 6, 2]):
        scored[row, :start] = False
    grid = torch.zeros(3, 10)
    made = Batch(grid.long(), scored, scored, grid, torch.zeros(3), lengths, torch.zeros(3, dtype=torch.long))
    assert [index.tolist() for index, _ in split(made, budget)] == parts


def test_a_plan_of_microbatches_reads_the_mask_once() -> None:
    """Not once for each row: with 1,024 rows of 4,096 tokens that took seconds, while a GPU waits."""
    rows, width = 256, 512
    read = []

    class Counted(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            read.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    scored = torch.zeros(rows, width, dtype=torch.bool)
    scored[:, 100:] = True
    tokens, zeros = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width)
    batch = Batch(
        tokens=tokens,
        scored=scored.as_subclass(Counted),
        mask=scored,
        sampler_logprobs=zeros,
        advantages=zeros[:, 0],
        lengths=torch.full((rows,), width),
        groups=torch.arange(rows) // 8,
    )
    (plan,) = batch.plan(1, 8 * width)
    assert sum(len(index) for index, _ in plan) == rows
    assert read.count("argmax") == 1
