"""Sampling with the trainer's own transformers model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from rlvr.model.decoding import Decoder, SharedDecoder
from rlvr.model.device import decoding_threads
from rlvr.model.policy import Policy
from rlvr.model.probe import Decoders
from rlvr.sampling.draw import draw, uniforms
from rlvr.types import Completion, Sampler, Sampling

# Prompts up to this many tokens together, padding included, always share a batch.
PADDED_PROMPTS = 2**14


class TorchSampler(Sampler):
    """Batched decoding with the policy's weights.

    `batch_size` rows are decoded at once; finished rows leave the batch. Token t of a completion is drawn with the t-th
    number of its seed's stream, so the other rows of a batch do not matter, up to the rounding of matmuls, which may
    depend on the number of rows. Raises ValueError for a model that no decoder samples correctly: at construction, or
    when rows first pass a window of the model (see rlvr.model.probe).
    """

    def __init__(self, policy: Policy, *, batch_size: int = 512) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: expected at least 1")
        self.policy = policy
        self.batch_size = batch_size
        self.decoders = Decoders(policy.causal, policy.trial, policy.packs)

    def load_weights(self, policy: Any) -> None:
        """Do nothing: the weights are the trainer's own."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Return len(seeds[p]) completions for each prompt; see rlvr.types.Sampler. Raises ValueError as `stream`."""
        return self.stream(prompts, sampling, seeds, lambda place, completions: None)

    @torch.inference_mode()
    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """Do as `generate`, and hand over each group as soon as it is complete; see rlvr.types.Sampler.

        Raises ValueError for an empty prompt, and unless there is one list of seeds per prompt.
        """
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} lists of seeds; expected one list per prompt")
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued; render it with at least one token")
        drawn: dict[tuple[int, int], Completion] = {}
        missing = [len(group) for group in seeds]

        def hand_over(rows: Sequence[tuple[int, int]], completions: Sequence[Completion]) -> None:
            drawn.update(zip(rows, completions, strict=True))
            for p, count in Counter(p for p, _ in rows).items():
                missing[p] -= count
                if missing[p] == 0:
                    on_group(p, [drawn[p, g] for g in range(len(seeds[p]))])

        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with decoding_threads(self.policy.model, self.policy.device), self.policy.computing():
                for batch in self._batches(prompts, seeds, sampling.max_new_tokens):
                    self._decode(batch.make(self.policy.causal), batch, sampling, hand_over)
        finally:
            self.policy.model.train(training)
        return [[drawn[p, g] for g in range(len(group))] for p, group in enumerate(seeds)]

    def _batches(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], more: int) -> Iterator[_Batch]:
        """Yield batches of at most batch_size rows, prompts of similar length together.

        Each prompt is continued by at most `more` tokens.
        """
        batch = _Batch(SharedDecoder)
        for p in sorted(range(len(prompts)), key=lambda p: len(prompts[p])):
            make = self.decoders.for_length(len(prompts[p]) + more)
            if batch.prompts and not batch.takes(prompts[p], make):
                yield batch
                batch = _Batch(make)
            batch = batch if batch.prompts else _Batch(make)
            taken = 0
            while taken < len(seeds[p]):
                count = min(self.batch_size - len(batch.rows), len(seeds[p]) - taken)
                if count:
                    batch.prompts.append(prompts[p])
                    batch.counts.append(count)
                    batch.rows.extend((p, g) for g in range(taken, taken + count))
                    batch.seeds.extend(seeds[p][taken : taken + count])
                    taken += count
                if len(batch.rows) == self.batch_size:
                    yield batch
                    batch = _Batch(make)
        if batch.rows:
            yield batch

    def _decode(
        self,
        decoder: Decoder,
        batch: _Batch,
        sampling: Sampling,
        hand_over: Callable[[Sequence[tuple[int, int]], Sequence[Completion]], None],
    ) -> None:
        """Sample the completions of a batch's rows (B); hand over those of a prompt when all of them are finished."""
        device, total = self.policy.device, len(batch.rows)
        eos = torch.tensor(sorted(self.policy.eos_ids), device=device)
        numbers = uniforms(batch.seeds, sampling.max_new_tokens).to(device)
        tokens = torch.zeros(total, sampling.max_new_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(total, sampling.max_new_tokens, device=device)
        lengths = [sampling.max_new_tokens] * total
        endings: list[_Ending] = [_Ending("length")] * total
        rows, alive = torch.arange(total, device=device), list(range(total))  # rows in the decoder; -1: finished
        unfinished, wasted = total, 0
        open_rows = Counter(p for p, _ in batch.rows)

        def finish(prompts: set[int]) -> None:
            rows = [row for row, (p, _) in enumerate(batch.rows) if p in prompts]
            ends, kinds = [lengths[row] for row in rows], [endings[row] for row in rows]
            hand_over([batch.rows[row] for row in rows], self._completions(tokens[rows], logprobs[rows], ends, kinds))

        logits = decoder.start(batch.prompts, batch.counts)
        for t in range(sampling.max_new_tokens):
            token, logprob = draw(logits, numbers[rows, t], sampling)
            tokens[rows, t], logprobs[rows, t] = token, logprob
            drawn = set()
            for i, ending in self._endings(token, eos, tokens, rows, alive, t, sampling.stop):
                lengths[alive[i]], endings[alive[i]] = t + 1, ending
                prompt, alive[i] = batch.rows[alive[i]][0], -1
                unfinished -= 1
                open_rows[prompt] -= 1
                if open_rows[prompt] == 0:
                    drawn.add(prompt)
            if drawn:
                finish(drawn)
            if unfinished == 0 or t + 1 == sampling.max_new_tokens:
                break
            # Dropping rows copies the cache, about one step's work; it waits until finished rows have cost as much.
            wasted += len(alive) - unfinished
            if wasted >= len(alive):
                wasted = 0
                kept = torch.tensor([i for i, row in enumerate(alive) if row >= 0], device=device)
                decoder.keep(kept)
                rows, token, alive = rows[kept], token[kept], [row for row in alive if row >= 0]
            logits = decoder.step(token)
        if unfinished:
            finish({p for p, count in open_rows.items() if count})

    def _endings(
        self, token: Tensor, eos: Tensor, tokens: Tensor, rows: Tensor, alive: list[int], t: int, stop: tuple[str, ...]
    ) -> list[tuple[int, _Ending]]:
        """Return which of the decoder's rows end with the token just drawn, and how."""
        ended = [(i, _Ending("eos")) for i in torch.isin(token, eos).nonzero()[:, 0].tolist() if alive[i] >= 0]
        if not stop:
            return ended
        by_eos = {i for i, _ in ended}
        # A stop string of n bytes lies within the last n tokens, whose first may be cut in mid-character.
        window = max(len(text.encode()) for text in stop) + 8
        recent = tokens[rows, max(0, t + 1 - window) : t + 1].tolist()
        for i, ids in enumerate(recent):
            if alive[i] >= 0 and i not in by_eos:
                text = self.policy.decode(ids)
                if any(string in text for string in stop):
                    ended.append((i, _Ending("stop", stop)))
        return ended

    def _completions(
        self, tokens: Tensor, logprobs: Tensor, lengths: list[int], endings: list[_Ending]
    ) -> list[Completion]:
        """Return rows of tokens and logprobs (B, T) as completions."""
        made = []
        for ids, values, length, ending in zip(tokens.tolist(), logprobs.tolist(), lengths, endings):
            text = self.policy.decode(ids[: length - 1] if ending.kind == "eos" else ids[:length])
            ends = [text.find(string) + len(string) for string in ending.stop if string in text]
            text = text[: min(ends)] if ends else text
            reason: Literal["stop", "length"] = "length" if ending.kind == "length" else "stop"
            made.append(Completion(text, tuple(ids[:length]), tuple(values[:length]), reason))
        return made


@dataclass(frozen=True, slots=True)
class _Batch:
    """Prompts, the number of rows of each, and for each row (problem, sample) and its seed; and the decoder to use."""

    make: type[Decoder]
    prompts: list[Sequence[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    rows: list[tuple[int, int]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def takes(self, prompt: Sequence[int], make: type[Decoder]) -> bool:
        """Return whether a prompt, no shorter than these, may join: same decoder, and padding stays small."""
        if make is not SharedDecoder or self.make is not SharedDecoder:
            return make is self.make and len(prompt) == len(self.prompts[0])
        padded = (len(self.prompts) + 1) * len(prompt)
        return padded <= max(PADDED_PROMPTS, 2 * (sum(map(len, self.prompts)) + len(prompt)))


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a completion ended: an EOS token, a stop string, or the limit of tokens."""

    kind: Literal["eos", "stop", "length"]
    stop: tuple[str, ...] = ()
