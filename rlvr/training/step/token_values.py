"""Values of each token of a few rollouts of a step, for people to look at: what the update sees where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, compress, pairwise
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.batch import Batch
from rlvr.core.types import Completion, Group
from rlvr.distributed import gather

UNIT = 1000  # entropies and differences are logged in thousandths of a nat
LARGEST = 10**6  # of these; a logprob may be infinite
WINDOW = 16  # tokens that are decoded at once
Values = Mapping[str, Sequence[float]]


class TokenValues:
    """Keeps values of the first `most` rollouts of a step that are trained on.

    `keep` takes a microbatch of the step's first pass, before its update; `add_to` writes the values into the lines of
    rollouts.jsonl, and forgets them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._numbers: set[int] = set()
        self._kept: list[tuple[Batch, Tensor, Tensor | None]] = []

    def keep(self, micro: Batch, logprobs: Tensor, entropy: Tensor | None) -> None:
        """Keep the wanted rows, on their device. logprobs, entropy: (b, T), of the policy that is trained."""
        numbers = [] if micro.numbers is None else micro.numbers.tolist()
        wanted = [row for row, number in enumerate(numbers) if number < self.most and number not in self._numbers]
        if not wanted:
            return
        self._numbers.update(numbers[row] for row in wanted)
        rows, width = micro.rows(torch.tensor(wanted)), micro.lengths[wanted].max()
        present = logprobs.detach()[wanted, :width]
        difference = (present if rows.old_logprobs is None else rows.old_logprobs) - rows.sampler_logprobs
        self._kept.append((rows, difference, None if entropy is None else entropy.detach()[wanted, :width]))

    def add_to(
        self,
        records: Sequence[dict[str, Any]],
        groups: Sequence[Group],
        decode: Callable[[Sequence[int]], str],
        accelerator: Accelerator,
    ) -> None:
        """Add "token_values" to the records of the kept rollouts and of those with equal tokens. All ranks call it.

        records: of the rollouts of `groups`, in their order.
        """
        found = dict(gather([pair for kept in self._kept for pair in values_of_rows(*kept)], accelerator))
        self._kept, self._numbers = [], set()
        rollouts = [(group.prompt_ids, completion) for group in groups for completion in group.completions]
        for record, (prompt, completion) in zip(records, rollouts, strict=True):
            values = found.get((*prompt, *completion.token_ids))
            if values is not None:
                record["token_values"] = describe_tokens(completion, values, decode)


def values_of_rows(rows: Batch, difference: Tensor, entropy: Tensor | None) -> Iterable[tuple[tuple[int, ...], Values]]:
    """Yield the tokens of each row with its values; "advantage" only where tokens have their own."""
    measured = {"difference": difference} if entropy is None else {"difference": difference, "entropy": entropy}
    columns = {
        name: (grid * UNIT).nan_to_num(0).clamp(-LARGEST, LARGEST).round().int().cpu()
        for name, grid in measured.items()
    }
    if rows.advantages.dim() == 2:
        columns["advantage"] = rows.advantages.cpu()
    for row, length in enumerate(rows.lengths.tolist()):
        values = {name: column[row, :length].tolist() for name, column in columns.items()}
        yield tuple(rows.tokens[row, :length].tolist()), values


def describe_tokens(completion: Completion, values: Values, decode: Callable[[Sequence[int]], str]) -> dict[str, Any]:
    """Return the values of the tokens that the model sampled, in order, and how many characters each adds."""
    count, sampled = len(completion.token_ids), completion.train_mask()
    told = {name: list(compress(column[-count:], sampled)) for name, column in values.items()}
    if "advantage" in told:
        told["advantage"] = [float(f"{value:.3g}") for value in told["advantage"]]
    turns = zip(completion.turns, pairwise(accumulate((turn.length for turn in completion.turns), initial=0)))
    spans = [span for turn, span in turns if turn.sampled] if completion.turns else [(0, count)]
    lengths = [length for start, end in spans for length in count_characters(completion.token_ids[start:end], decode)]
    return {"lengths": lengths, **told}


def count_characters(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """Return how many characters each token adds to a text. One that ends within a character leaves it to a later one.

    Each token is decoded with at most some WINDOW before it, and at least one, since the first may lose its space.
    """
    found = list[int]()
    start, before, whole = 0, 0, True
    for place in range(len(ids)):
        text = decode(ids[start : place + 1])
        known = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
        found.append(max(known - before, 0))
        before, begins_whole, whole = known, whole, known == len(text)
        if place - start >= WINDOW and begins_whole and whole:
            start, before = place, len(decode(ids[place : place + 1]))
    return found
