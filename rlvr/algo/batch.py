"""From groups of rollouts to tensors: batches, minibatches, microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.core.types import Completion, Group, Verdict

from .credit import Advantage, Steps

# Copies from the CPU to the device.


def copy_to(value: Tensor | np.ndarray[Any, Any], device: torch.device | str) -> Tensor:
    """Return a tensor or array on a device; on the CPU it is not copied.

    To a GPU it goes through pinned memory, and the CPU does not wait for the copy.
    """
    value = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    if value.device.type == "cpu" and torch.device(device).type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


# Tensors of a batch that stay on the CPU.
HOST = {"tokens", "scored", "lengths", "groups", "places", "numbers"}


@dataclass(frozen=True)
class Batch:
    """B rollouts, right-padded to T.

    | field | shape | meaning |
    |---|---|---|
    | tokens | (B, T) | prompt, completion (sampled tokens and an environment's replies), padding |
    | mask | (B, T) | True on sampled tokens that are trained on; `scored` is its copy on the CPU |
    | sampler_logprobs | (B, T) | of the sampling engine |
    | advantages | (B,) or (B, T) | of the rollout, or of each token |
    | lengths, groups | (B,) | tokens of prompt and completion; which group of the step the row belongs to |
    | numbers | (B,) | the row's number in the step's whole batch |
    | old_logprobs | (B, T) | None where the batch gets a single update: the present ones, detached, are the old ones |
    | ref_logprobs | (B, T) | None without a reference |
    | versions | (B, T) | of the weights that sampled each token, ascending in a row; None without slices |
    | values, returns | (B, T) | None without a critic |
    | kl | (B,) | KTO's estimate of the KL divergence, the same for all rows |
    | teacher_weights | (B,) | weight of the distillation; 0 if the teacher has no feedback. None without a teacher |
    | teacher_logprobs | (B, T) | of a served teacher |
    | teacher_top_ids, teacher_top_logprobs | (B, T, k) | a served teacher's likeliest tokens |

    teacher_prompts: B prompts with feedback, which the teacher reads in place of the first `prompt_lengths` tokens of
    the rows; () for a row without feedback. None: the teacher reads the rows themselves.

    HOST tensors stay on the CPU, where rows are chosen and laid out without waiting for the device. Consecutive
    `rows_per_pair` rows are never split (2: DPO's pairs).

    The rows are those that are computed. The loss averages over S sampled rollouts, which may be more: `sampled_tokens`
    (S) holds how many tokens of each are trained on (0: no score, or masked), and `places` (B,) the rollout of each
    row. None: the rows are all rollouts.
    """

    tokens: Tensor
    scored: Tensor
    mask: Tensor
    sampler_logprobs: Tensor
    advantages: Tensor
    lengths: Tensor
    groups: Tensor
    old_logprobs: Tensor | None = None
    ref_logprobs: Tensor | None = None
    versions: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None
    kl: Tensor | None = None
    teacher_weights: Tensor | None = None
    teacher_logprobs: Tensor | None = None
    teacher_top_ids: Tensor | None = None
    teacher_top_logprobs: Tensor | None = None
    teacher_prompts: tuple[tuple[int, ...], ...] | None = None
    rows_per_pair: int = 1
    places: Tensor | None = None
    numbers: Tensor | None = None
    sampled_tokens: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_completion_tokens(self) -> int:
        """The number of tokens that are computed and trained on."""
        return int(self.scored.sum())

    @cached_property
    def prompt_lengths(self) -> Tensor:
        """The number of tokens (B,) before the first that is trained on. It reads all of `scored`, and so only once."""
        return self.scored.int().argmax(-1) if len(self) else self.lengths

    @property
    def token_counts(self) -> tuple[int, ...]:
        """The number of tokens that are trained on, for each of the S rollouts that the loss averages over."""
        return tuple(self.scored.sum(-1).tolist()) if self.sampled_tokens is None else self.sampled_tokens

    def rows(self, index: Tensor) -> Batch:
        """Return the chosen rows (an index on the CPU), without the padding that none of them needs."""
        width = int(self.lengths[index].max()) if len(index) else 0
        there = copy_to(index, self.mask.device)
        picked: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Tensor):
                value = value[index if item.name in HOST else there]
                picked[item.name] = value[:, :width] if value.dim() >= 2 else value
        if self.teacher_prompts is not None:
            picked["teacher_prompts"] = tuple(self.teacher_prompts[row] for row in index.tolist())
        return replace(self, **picked)

    def of_sampled(self, index: Tensor) -> Batch:
        """Return the batch of the chosen ones of the S rollouts, in the order of `index` (on the CPU)."""
        counts = self.token_counts
        rows = torch.full((len(counts),), -1)
        rows[torch.arange(len(self)) if self.places is None else self.places] = torch.arange(len(self))
        rows = rows[index]
        computed = rows >= 0
        picked = self.rows(rows[computed])
        return replace(
            picked,
            places=computed.nonzero()[:, 0],
            sampled_tokens=tuple(counts[i] for i in index.tolist()),
        )

    def plan(
        self, processes: int, max_tokens: int, *, shared_prompts: bool = True, equal: bool = False
    ) -> list[list[tuple[Tensor, float]]]:
        """Return each process's microbatches of at most `max_tokens` tokens: indices of their rows, and weight.

        A row or pair that is longer is a microbatch of its own. Rows stay in order, so that a group stays together.
        With `shared_prompts` a prompt counts once in a microbatch, as it is computed by a model that packs.

        A group is not divided (a pair is not, where there are fewer groups than processes), and all processes get
        about the same number of tokens. The weight is 1. With `equal` all processes get the same number of
        microbatches: those that lack some run dummy ones, the shortest row or pair with weight 0.
        """
        pairs = [range(i, i + self.rows_per_pair) for i in range(0, len(self), self.rows_per_pair)]
        groups = self.groups.tolist()
        units = [[row for pair in run for row in pair] for _, run in groupby(pairs, lambda pair: groups[pair[0]])]
        if len(units) < processes:
            units = [list(pair) for pair in pairs]
        costs = [self._cost(unit, shared_prompts) for unit in units]
        parts: list[list[int]] = [[] for _ in range(processes)]
        loads = [0] * processes
        for unit in sorted(range(len(units)), key=lambda number: -costs[number]):
            least = loads.index(min(loads))
            parts[least].append(unit)
            loads[least] += costs[unit]
        plans = [
            self._cut([row for unit in sorted(part) for row in units[unit]], max_tokens, shared_prompts)
            for part in parts
        ]
        most = max(map(len, plans)) if equal else 0
        shortest = min(pairs, key=lambda pair: self._cost(pair, False), default=range(0)) if most else range(0)
        filler = (torch.tensor(shortest), 0.0)
        return [[(torch.tensor(rows), 1.0) for rows in plan] + [filler] * (most - len(plan)) for plan in plans]

    def _cost(self, rows: Sequence[int], shared_prompts: bool) -> int:
        """Return the tokens of some rows of one group."""
        lengths, prompts = self.lengths[list(rows)], self.prompt_lengths[list(rows)]
        return int((lengths - prompts).sum() + prompts.unique().sum()) if shared_prompts else int(lengths.sum())

    def _cut(self, rows: Sequence[int], max_tokens: int, shared_prompts: bool) -> list[list[int]]:
        """Return rows in parts of at most `max_tokens` tokens, in their order; pairs stay together."""
        lengths, groups = self.lengths.tolist(), self.groups.tolist()
        prompts = self.prompt_lengths.tolist() if shared_prompts else [0] * len(self)
        found: list[list[int]] = []
        shared: set[tuple[int, int]] = set()  # prompts of the part, by group and length: a masked turn lengthens one
        total = 0
        for i in range(0, len(rows), self.rows_per_pair):
            pair = rows[i : i + self.rows_per_pair]
            own, read = sum(lengths[row] - prompts[row] for row in pair), {(groups[row], prompts[row]) for row in pair}
            cost = own + sum(length for _, length in read - shared)
            if not found or total + cost > max_tokens:
                found.append([])
                total, shared, cost = 0, set(), own + sum(length for _, length in read)
            found[-1] += pair
            shared |= read
            total += cost
        return found


def is_trained(completion: Completion, verdict: Verdict, mask_truncated: bool, mask_void: bool = False) -> bool:
    """Return whether a rollout enters the batch: it has a score and tokens to train on, and is not masked for being
    truncated."""
    left_out = verdict.score is None or (mask_truncated and completion.cut_off)
    return not left_out and any(completion.train_mask(mask_void=mask_void))


def choose_rows(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    *,
    mask_truncated: bool,
    mask_void: bool = False,
) -> tuple[list[Group], list[list[Advantage]]]:
    """Return the groups reduced to the completions that raft or dpo chose: those whose advantage is not 0.

    A group without any is left out, and one with a chosen completion that cannot be trained on.
    """
    kept, kept_advantages = [], []
    for group, row in zip(groups, advantages, strict=True):
        rows = [(c, v, a) for c, v, a in zip(group.completions, group.verdicts, row, strict=True) if a]
        if rows and all(is_trained(c, v, mask_truncated, mask_void) for c, v, _ in rows):
            completions, verdicts, values = zip(*rows, strict=True)
            kept.append(replace(group, completions=completions, verdicts=verdicts))
            kept_advantages.append(list(values))
    return kept, kept_advantages


def collate(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[Advantage]],
    *,
    pad_id: int,
    device: torch.device | str = "cpu",
    mask_truncated: bool = False,
    mask_void: bool = False,
    rows_per_pair: int = 1,
    computed: Sequence[bool] | None = None,
) -> Batch:
    """Return the scored rollouts of groups as one batch. Advantages are (B, T) where any rollout has steps.

    Left out are rollouts without a score; with `mask_truncated` those that were cut off; and groups for which
    `computed` is False. They still count among the sampled rollouts. mask_void: void turns are not trained on.
    """
    rows, places = [], list[int]()
    owns: list[list[bool]] = []
    sampled: list[int] = []
    for number, (group, group_advantages) in enumerate(zip(groups, advantages, strict=True)):
        for completion, verdict, advantage in zip(group.completions, group.verdicts, group_advantages, strict=True):
            trained = is_trained(completion, verdict, mask_truncated, mask_void)
            own = completion.train_mask(mask_void=mask_void)
            if trained and (computed is None or computed[number]):
                rows.append((group.prompt_ids, completion, advantage, number))
                owns.append(own)
                places.append(len(sampled))
            sampled.append(sum(own) if trained else 0)
    lengths = [len(prompt) + len(completion.token_ids) for prompt, completion, _, _ in rows]
    shape = (len(rows), max(lengths, default=0))
    tokens, mask = np.full(shape, pad_id, dtype=np.int64), np.zeros(shape, dtype=bool)
    logprobs = np.zeros(shape, dtype=np.float32)
    for i, (prompt, completion, _, _) in enumerate(rows):
        start, end = len(prompt), lengths[i]
        tokens[i, :start], tokens[i, start:end] = prompt, completion.token_ids
        mask[i, start:end] = owns[i]
        logprobs[i, start:end] = completion.logprobs
    scored = torch.from_numpy(mask)
    logprobs *= mask
    batch = Batch(
        tokens=torch.from_numpy(tokens),
        scored=scored,
        mask=scored,
        sampler_logprobs=torch.from_numpy(logprobs),
        advantages=advantage_tensor([row[2] for row in rows], [len(row[0]) for row in rows], shape[1]),
        lengths=torch.tensor(lengths, dtype=torch.long),
        groups=torch.tensor([row[3] for row in rows], dtype=torch.long),
        rows_per_pair=rows_per_pair,
        places=torch.tensor(places, dtype=torch.long),
        numbers=torch.arange(len(rows)),
        sampled_tokens=tuple(sampled),
        versions=version_tensor([row[1] for row in rows], [len(row[0]) for row in rows], shape[1]),
    )
    return to_device(batch, device)


def version_tensor(completions: Sequence[Completion], starts: Sequence[int], width: int) -> Tensor | None:
    """Return the versions that sampled the tokens of rows (B, width), ascending; None if no row has several."""
    if not any(len(completion.versions) > 1 for completion in completions):
        return None
    table = np.zeros((len(completions), width), dtype=np.int64)
    for row, completion, start in zip(table, completions, starts, strict=True):
        versions, counts = zip(*completion.versions, strict=True) if completion.versions else ((0,), (0,))
        places = start + np.flatnonzero(completion.train_mask())[: sum(counts)]
        row[places] = np.repeat(versions, counts)[: len(places)]
    # Replies, and the padding, have the version of what was sampled before them.
    return torch.from_numpy(np.maximum.accumulate(table, axis=1))


def advantage_tensor(advantages: Sequence[Advantage], starts: Sequence[int], width: int) -> Tensor:
    """Return the advantages of rows as (B,); as (B, width) where any row has steps, from the row's start on."""
    if not any(isinstance(advantage, Steps) for advantage in advantages):
        return torch.tensor(advantages, dtype=torch.float32)
    table = torch.zeros(len(advantages), width, dtype=torch.float32)
    for row, advantage, start in zip(table, advantages, starts, strict=True):
        if isinstance(advantage, Steps):
            tokens = advantage.per_token()
            row[start : start + len(tokens)] = torch.tensor(tokens)
        else:
            row[start:] = advantage
    return table


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Return the batch with all but its HOST tensors on a device."""
    values = {item.name: getattr(batch, item.name) for item in fields(batch) if item.name not in HOST}
    moved: dict[str, Any] = {name: copy_to(v, device) for name, v in values.items() if isinstance(v, Tensor)}
    return replace(batch, **moved)


def minibatches(batch: Batch, *, count: int, epochs: int, seed: int) -> Iterator[Batch]:
    """Yield `epochs` passes over the S sampled rollouts, each cut into `count` minibatches without replacement.

    All sampled rollouts are divided (pairs stay together), so a minibatch may have no row to compute, and still makes
    an update. Sizes differ by one rollout or pair at most. A single minibatch keeps the order of the rows. With fewer
    rollouts or pairs than `count` there are as many minibatches as these.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = len(batch.token_counts) // batch.rows_per_pair  # or rollouts, where rows_per_pair is 1
    for _ in range(epochs if pairs else 0):
        if count == 1:
            yield batch
            continue
        for drawn in torch.randperm(pairs, generator=generator).tensor_split(min(count, pairs)):
            index = drawn.sort().values[:, None] * batch.rows_per_pair + torch.arange(batch.rows_per_pair)
            yield batch.of_sampled(index.flatten())
