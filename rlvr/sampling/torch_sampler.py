"""Sampling with the trainer's own transformers model, by continuous batching.

Finished rows leave the batch, and waiting ones enter. What a row draws depends on its own seed and tokens alone, so the
order of entering changes nothing but rounding.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.batch import copy_to
from rlvr.core.heartbeat import beat
from rlvr.core.types import Ask, Completion, Sampler, Sampling
from rlvr.model.cpu.processor import use_one_thread_if_small, use_threads
from rlvr.model.cpu.threads import passes_at_once, run_at_once
from rlvr.model.decode import Decoder, SharedDecoder
from rlvr.model.load.policy import Policy
from rlvr.model.optim.health import NotFinite
from rlvr.model.probe import Decoders

# Prompts up to this many tokens together, padding included, always share a forward pass; more than MOST never do.
PADDED_PROMPTS, MOST_PROMPT_TOKENS = 2**14, 2**17
# Rows enter when this share of the places is free: each time they enter together, they cost a pass of their own.
FREE_SHARE = 0.25
# Rows from which a batch on a CPU is faster in a thread of its own: with fewer it reads the weights for too little.
ROWS_AT_ONCE = 16
# Drawn tokens between two looks of the host on a GPU, where each look waits for all that was queued.
STEPS_PER_LOOK = 8

Done = Callable[[int, int, Completion], None]
# Share of the GPU memory that is free when sampling starts which keys and values may take.
CACHE_SHARE = 0.6


def uniforms(seeds: Sequence[int], count: int, skips: Sequence[int] | None = None) -> Tensor:
    """Return (len(seeds), count) float32 numbers in [0, 1); row i is the Philox stream with the key seeds[i].

    They have 24 bits, so that rounding cannot turn one into a 1. A longer row begins with the shorter one. skips: row i
    begins after the first skips[i] numbers of its stream.
    """
    drawn = np.empty((len(seeds), count), dtype=np.float32)
    for row, seed, skip in zip(drawn, seeds, skips or [0] * len(seeds)):
        stream = np.random.Generator(np.random.Philox(key=seed))
        stream.random(skip, dtype=np.float32)
        stream.random(out=row, dtype=np.float32)
    return torch.from_numpy(drawn)


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens (B,) and their log-probabilities (B,) under the distribution that they are drawn from.

    logits (B, V) float32, uniform (B,). Temperature 0 takes the most likely token, with log-probability 0. Where a row
    has NaN, or its largest logit is not finite, the log-probability is NaN, for `check_finite`: nothing here makes the
    host wait for the device.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)  # it treats NaN as the largest
        best = logits.gather(1, tokens[:, None])[:, 0]
        return tokens, best - best
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    logprobs = truncate(scaled, sampling).log_softmax(-1)
    probs = logprobs.exp()
    cumulative = probs.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    # The first token whose cumulative mass exceeds u; if rounding leaves none, the last one with any mass.
    token = torch.searchsorted(cumulative, uniform[:, None] * total, right=True)
    token = torch.minimum(token, torch.searchsorted(cumulative, total)).clamp_(max=logits.shape[1] - 1)
    if logits.is_cuda:
        # The parallel sum of a GPU need not ascend where the mass is 0.
        token = torch.where(probs.gather(1, token) > 0, token, probs.argmax(-1, keepdim=True))
    return token[:, 0], logprobs.gather(1, token)[:, 0]


def check_finite(finite: Sequence[bool]) -> None:
    """Raise NotFinite unless the log-probabilities of the tokens drawn last are finite in all of B rows."""
    if not all(finite):
        raise NotFinite(
            f"the model's logits are NaN or infinite in {sum(not x for x in finite)} of {len(finite)} rows; "
            "its weights are broken, or the computation overflows (then --model.dtype float32 helps)"
        )


def truncate(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the logits (B, V) with those outside top-k, then outside top-p, set to -inf; ties at the border stay."""
    if 0 < sampling.top_k < logits.shape[1]:
        border = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < border, float("-inf"))
    if sampling.top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        mass = ordered.softmax(-1).cumsum(-1)
        # A token is kept if those before it hold less than top_p; the first always is.
        last = (mass < sampling.top_p).sum(-1, keepdim=True).clamp(max=logits.shape[1] - 1)
        logits = logits.masked_fill(logits < ordered.gather(1, last), float("-inf"))
    return logits


@dataclass(slots=True)
class Row:
    """Sample `sample` of prompt `prompt` in the making: up to `limit` tokens, which are kept in place `slot`."""

    prompt: int
    sample: int
    slot: int
    limit: int
    drawn: int = 0
    done: bool = False
    recent: list[int] = field(default_factory=list)
    """The last tokens, where stop strings are looked for."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a completion ended, an EOS token, a stop string or the limit of tokens, and after how many tokens."""

    kind: Literal["eos", "stop", "length"]
    length: int


class ContinuousBatch:
    """The completions of prompts (P lists of ids), one for each seed, at most `size` rows at once.

    decoder_for: returns the decoder class of prompt p. Rows of a SharedDecoder join a running batch of the same class;
    rows of any other class wait until the batch is empty.
    rows: pairs of a prompt p and its seed g, in the order in which they enter; all of them unless given.
    cache_bytes: how many bytes of keys and values a SharedDecoder may hold. Where they would not do, the youngest rows
    leave, and are drawn again later (as long as one row is left).
    steps_per_look: tokens drawn until the host looks at them.
    limits: tokens of a completion of each prompt; sampling.max_new_tokens unless given, which is the largest of them.
    skips: how many numbers of the seeds' streams were used before, for each prompt; 0 unless given.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        decoder_for: Callable[[int], type[Decoder]],
        *,
        size: int,
        rows: Sequence[tuple[int, int]] | None = None,
        cache_bytes: float = inf,
        steps_per_look: int | None = None,
        limits: Sequence[int] | None = None,
        skips: Sequence[int] | None = None,
    ) -> None:
        self.policy, self.prompts, self.seeds, self.sampling = policy, prompts, seeds, sampling
        self.decoder_for, self.cache_bytes = decoder_for, cache_bytes
        device, limit = policy.device, sampling.max_new_tokens
        self.limits = limits or [limit] * len(prompts)
        self.skips = skips or [0] * len(prompts)
        self.steps_per_look = steps_per_look or (1 if device.type == "cpu" else STEPS_PER_LOOK)
        self.waiting = deque(shortest_first(prompts, seeds) if rows is None else rows)
        self.size = min(size, len(self.waiting))
        self.free = list(range(self.size))[::-1]
        self.tokens = torch.zeros(self.size, limit, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(self.size, limit, device=device)
        self.numbers = torch.zeros(self.size, limit, device=device)
        self.rows: list[Row] = []  # in the decoder's order; finished ones stay for a while
        self.slots = torch.zeros(0, dtype=torch.long, device=device)
        self.drawn = torch.zeros(0, dtype=torch.long, device=device)
        self.eos = copy_to(torch.tensor(sorted(policy.eos_ids), dtype=torch.long), device)
        self.decoder: Any = None
        self.lengths = [0, 0]  # completions that are done, and their tokens
        self.stopped = False  # another thread sets it, to end `run` early

    def run(self, on_row: Done) -> None:
        """Draw all completions; call on_row(p, g, completion) for each when it is done."""
        with self.policy.computing():
            self._run(on_row)

    def _run(self, on_row: Done) -> None:
        if not self.waiting:
            return
        parts, wasted = self._enter(), 0
        logits = torch.cat(parts)
        while self.rows and not self.stopped:
            beat()
            pending: list[Tensor] = []
            for step in range(min(self.steps_per_look, self._until_limit())):
                if step:
                    logits = self.decoder.step(pending[-1])
                pending.append(self._draw(logits))
            self._look(pending, on_row)
            alive = sum(not row.done for row in self.rows)
            # Dropping rows copies the cache, which costs about one step: wait until finished rows have cost as much.
            wasted += (len(self.rows) - alive) * len(pending)
            last = pending[-1]
            if (
                wasted >= len(self.rows)
                or self._until_limit() == 0
                or alive == 0
                or (self.waiting and self._grows() and self._room(alive))
            ):
                last, wasted = self._keep([i for i, row in enumerate(self.rows) if not row.done], last), 0
            last = self._fit(last)
            parts = [*([self.decoder.step(last)] if self.rows else []), *self._enter()]
            logits = torch.cat(parts) if len(parts) > 1 else parts[0] if parts else logits

    def _until_limit(self) -> int:
        """Return the steps until the row with the most tokens, which is the first, has max_new_tokens."""
        return self.sampling.max_new_tokens - self.rows[0].drawn

    def _draw(self, logits: Tensor) -> Tensor:
        """Draw a token of each row."""
        with use_threads(logits.nbytes, logits.device):
            token, logprob = draw(logits, self.numbers[self.slots, self.drawn], self.sampling)
        self.tokens[self.slots, self.drawn], self.logprobs[self.slots, self.drawn] = token, logprob
        self.drawn = self.drawn + 1
        return token

    def _look(self, pending: list[Tensor], on_row: Done) -> None:
        """Count the tokens just drawn, k tensors (B,), and finish the rows that ended with one of them."""
        columns = torch.stack(pending)
        first = self.drawn - len(pending)
        steps = first + torch.arange(len(pending), device=first.device)[:, None]
        broken = ~self.logprobs[self.slots, steps].isfinite().all(0)
        ends = torch.isin(columns, self.eos).any(0)
        *tokens, signs = torch.cat([columns, (ends + 2 * broken)[None]]).tolist()  # at once: a GPU is waited for
        check_finite([sign < 2 for sign in signs])
        ended: list[tuple[Row, Ending]] = []
        for place, (row, sign) in enumerate(zip(self.rows, signs)):
            row.drawn += len(pending)
            if row.done or not (sign or row.drawn >= row.limit or self.sampling.stop):
                continue
            if ending := self._find_ending(row, [column[place] for column in tokens]):
                row.done = True
                ended.append((row, ending))
        if ended:
            longest = max(ending.length for _, ending in ended)
            slots = copy_to(torch.tensor([row.slot for row, _ in ended]), self.slots.device)
            tokens, logprobs = self.tokens[slots, :longest].tolist(), self.logprobs[slots, :longest].tolist()
            for (row, ending), ids, values in zip(ended, tokens, logprobs):
                self.lengths = [self.lengths[0] + 1, self.lengths[1] + ending.length]
                on_row(row.prompt, row.sample, self._completion(ids, values, ending))

    def _find_ending(self, row: Row, ids: list[int]) -> Ending | None:
        """Return how a row ended with one of its last tokens, if it did."""
        before = row.drawn - len(ids)
        stop, eos = self.sampling.stop, self.policy.eos_ids
        for i, token in enumerate(ids[: row.limit - before], start=1):
            if token in eos:
                return Ending("eos", before + i)
            if stop:
                # A stop string of n bytes lies within the last n tokens, the first of which may be a partial character.
                row.recent = [*row.recent, token][-(max(len(text.encode()) for text in stop) + 8) :]
                text = self.policy.decode(row.recent)
                if any(string in text for string in stop):
                    return Ending("stop", before + i)
        return Ending("length", row.limit) if row.drawn >= row.limit else None

    def _completion(self, tokens: list[int], logprobs: list[float], ending: Ending) -> Completion:
        length = ending.length
        text = self.policy.decode(tokens[: length - 1] if ending.kind == "eos" else tokens[:length])
        if ending.kind == "stop":
            ends = [text.find(string) + len(string) for string in self.sampling.stop if string in text]
            text = text[: min(ends)] if ends else text
        reason: Literal["stop", "length"] = "length" if ending.kind == "length" else "stop"
        return Completion(text, tuple(tokens[:length]), tuple(logprobs[:length]), reason)

    def _keep(self, kept: list[int], last: Tensor) -> Tensor:
        """Keep these rows; return their last tokens, of `last` (B,)."""
        if len(kept) == len(self.rows):
            return last
        index = copy_to(torch.tensor(kept, dtype=torch.long), last.device)
        if kept:
            self.decoder.keep(index)
        staying = set(kept)
        self.free += [row.slot for i, row in enumerate(self.rows) if i not in staying]
        self.rows = [self.rows[i] for i in kept]
        self.slots, self.drawn = self.slots[index], self.drawn[index]
        return last[index]

    def _fit(self, last: Tensor) -> Tensor:
        """Send the youngest rows back to the waiting ones until the next step's keys and values fit."""
        while len(self.rows) > 1 and self._grows() and self.decoder.bytes_at_step() > self.cache_bytes:
            newest = min(row.drawn for row in self.rows)
            youngest = [i for i, row in enumerate(self.rows) if row.drawn == newest]
            leaving = set(youngest[len(youngest) // 2 :])
            again = [self.rows[i] for i in sorted(leaving) if not self.rows[i].done]
            self.waiting.extendleft((row.prompt, row.sample) for row in reversed(again))
            last = self._keep([i for i in range(len(self.rows)) if i not in leaving], last)
        return last

    def _room(self, alive: int) -> bool:
        """Return whether enough places are free for rows to enter."""
        return self.size - alive >= max(1, FREE_SHARE * self.size)

    def _grows(self) -> bool:
        """Return whether rows can enter while others are decoded."""
        return isinstance(self.decoder, SharedDecoder)

    def _enter(self) -> list[Tensor]:
        """Let waiting rows enter while there are places; return their first logits."""
        found: list[Tensor] = []
        while self.waiting and self._room(len(self.rows)):
            rows = self._next()
            if not rows:
                break
            # Rows that were sent back may stand between those of another prompt: it is then read twice.
            runs = [(p, len(list(run))) for p, run in itertools.groupby(p for p, _ in rows)]
            prompts, counts = [self.prompts[p] for p, _ in runs], [count for _, count in runs]
            if self.rows:
                found.append(self.decoder.enter(prompts, counts))
            else:
                self.decoder = self.decoder_for(rows[0][0])(self.policy.causal)
                found.append(self.decoder.start(prompts, counts))
            self._add(rows)
        return found

    def _add(self, rows: list[tuple[int, int]]) -> None:
        """Give rows that entered their places."""
        made = [Row(p, g, self.free.pop(), self.limits[p]) for p, g in rows]
        slots = copy_to(torch.tensor([row.slot for row in made]), self.slots.device)
        skips = [self.skips[p] for p, _ in rows]
        numbers = uniforms([self.seeds[p][g] for p, g in rows], self.sampling.max_new_tokens, skips)
        self.numbers[slots] = copy_to(numbers, self.numbers.device)
        self.rows += made
        self.slots = torch.cat([self.slots, slots])
        self.drawn = torch.cat([self.drawn, torch.zeros_like(slots)])

    def _next(self) -> list[tuple[int, int]]:
        """Take the rows from the waiting ones that enter together; perhaps none."""
        make = self.decoder_for(self.waiting[0][0])
        shared = issubclass(make, SharedDecoder)
        if self.rows and not (shared and type(self.decoder) is make):
            return []
        taken: list[tuple[int, int]] = []
        budget = self._budget() if shared else inf
        widths: list[int] = []
        while self.waiting and len(taken) < len(self.free):
            p, _ = self.waiting[0]
            length = len(self.prompts[p])
            if not taken or p != taken[-1][0]:
                if taken and not self._joins(widths, length, make, self.decoder_for(p)):
                    break
                if taken and shared and not self.rows and self.cache_bytes < inf:
                    break  # the first prompt alone tells how many bytes a token takes
                budget -= length
                widths.append(length)
            budget -= self._expected_tokens()
            if budget < 0 and (taken or self.rows):
                break
            taken.append(self.waiting.popleft())
        return taken

    def _joins(self, lengths: list[int], length: int, make: type[Decoder], own: type[Decoder]) -> bool:
        """Return whether a prompt may be read with these: padding stays small."""
        if own is not make or not issubclass(make, SharedDecoder):
            return own is make and length == lengths[0]
        padded = (len(lengths) + 1) * max(*lengths, length)
        small = padded <= max(PADDED_PROMPTS, 2 * (sum(lengths) + length))
        return small and padded <= MOST_PROMPT_TOKENS

    def _expected_tokens(self) -> float:
        """Return the tokens that a completion may come to have: the mean so far; half of the limit at first."""
        count, tokens = self.lengths
        return tokens / count if count else self.sampling.max_new_tokens / 2

    def _budget(self) -> float:
        """Return for how many more tokens there is space, once the present rows have become as long as expected."""
        if not self.rows or self.cache_bytes == inf:
            return inf
        space = (self.cache_bytes - self.decoder.bytes_at_step()) / self.decoder.bytes_per_token()
        return space - sum(max(0.0, self._expected_tokens() - row.drawn) for row in self.rows)


def run_batches(batches: Sequence[ContinuousBatch], on_row: Done) -> None:
    """Run batches, several of them in threads at once; `on_row` is called in this thread."""
    if len(batches) == 1:
        batches[0].run(on_row)
        return
    done: SimpleQueue[tuple[int, int, Completion] | None] = SimpleQueue()

    def stop() -> None:
        for batch in batches:
            batch.stopped = True

    def run(batch: ContinuousBatch) -> None:
        try:
            batch.run(lambda *row: done.put(row))
        except BaseException:
            stop()
            raise
        finally:
            done.put(None)

    def pass_on() -> None:
        running = len(batches)
        try:
            while running:
                if (row := done.get()) is None:
                    running -= 1
                else:
                    on_row(*row)
        finally:
            stop()

    run_at_once([partial(run, batch) for batch in batches], pass_on)


def shortest_first(prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return all rows (p, g), by the length of their prompts."""
    order = sorted(range(len(prompts)), key=lambda p: len(prompts[p]))
    return [(p, g) for p in order for g in range(len(seeds[p]))]


def cut(rows: Sequence[tuple[int, int]], count: int) -> list[Sequence[tuple[int, int]]]:
    """Cut rows into `count` parts of about equal size, in their order."""
    ends = [len(rows) * number // count for number in range(count + 1)]
    return [rows[first:end] for first, end in itertools.pairwise(ends)]


class TorchSampler(Sampler):
    """Batched decoding with the policy's weights.

    At most `batch_size` rows are decoded at once; finished ones leave and others enter, as long as keys and values fit
    into `cache_gib` GiB (None: 60 % of the free memory of a GPU, no limit on a CPU). Token t of a completion is drawn
    with the t-th number of its seed's stream, so the other rows do not matter, up to the rounding of matmuls, which may
    depend on the number of rows. Raises ValueError for a model that no decoder samples correctly: at construction, or
    when rows first pass a window of the model (see rlvr.model.probe).
    """

    def __init__(self, policy: Policy, *, batch_size: int = 512, cache_gib: float | None = None) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size {batch_size}: expected at least 1")
        self.given, self.policy = policy, policy.gather(dtype=policy.dtype)
        self.batch_size, self.cache_gib = batch_size, cache_gib
        self.threads = torch.get_num_threads()
        self.decoders = Decoders(policy.trial_model, policy.trial, policy.packs, policy.dtype)

    def load_weights(self, policy: Any) -> None:
        """Gather the weights of a sharded policy. Otherwise do nothing: they are the trainer's own.

        Every rank must call this.
        """
        if policy.mesh is not None:
            self.policy = policy.gather(dtype=policy.dtype)

    def sleep(self) -> None:
        """Free the gathered weights of a sharded policy."""
        self.policy = self.given

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """Return len(seeds[p]) completions for each prompt. Raises ValueError as `stream`."""
        return self.stream(prompts, sampling, seeds, lambda place, completions: None)

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seeds: Sequence[Sequence[int]],
        on_group: Callable[[int, list[Completion]], None],
    ) -> list[list[Completion]]:
        """See Sampler. Raises ValueError for an empty prompt, and unless there is one list of seeds per prompt."""
        if len(prompts) != len(seeds):
            raise ValueError(f"{len(prompts)} prompts and {len(seeds)} lists of seeds; expected one list per prompt")
        if any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt without tokens cannot be continued; render it with at least one token")
        drawn: list[list[Completion | None]] = [[None] * len(group) for group in seeds]
        missing = [len(group) for group in seeds]

        def keep(p: int, g: int, completion: Completion) -> None:
            drawn[p][g] = completion
            missing[p] -= 1
            if missing[p] == 0:
                on_group(p, _complete(drawn[p]))

        self._draw(prompts, seeds, sampling, [sampling.max_new_tokens] * len(prompts), keep)
        return [_complete(group) for group in drawn]

    def sample_rows(self, asks: Sequence[Ask], on_row: Callable[[int, Completion], None]) -> None:
        """Sample a completion for each ask; see rlvr.core.types.Sampler. Those that differ in length only go together.

        Equal contexts are read once. Raises ValueError for an empty context.
        """
        if any(not ask.context for ask in asks):
            raise ValueError("a context without tokens cannot be continued; render it with at least one token")
        kinds = [replace(ask.sampling, max_new_tokens=1) for ask in asks]
        for kind in dict.fromkeys(kinds):
            members: dict[tuple[tuple[int, ...], int, int], list[int]] = {}
            for place, ask in enumerate(asks):
                if kinds[place] == kind:
                    members.setdefault((ask.context, ask.sampling.max_new_tokens, ask.drawn), []).append(place)
            places, limits = list(members.values()), [limit for _, limit, _ in members]

            def pass_on(p: int, g: int, made: Completion, places: list[list[int]] = places) -> None:
                on_row(places[p][g], made)

            self._draw(
                [context for context, _, _ in members],
                [[asks[place].seed for place in row] for row in places],
                replace(kind, max_new_tokens=max(limits)),
                limits,
                pass_on,
                [drawn for _, _, drawn in members],
            )

    @torch.no_grad()  # under inference_mode autocast would cast every weight again for every token
    def _draw(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        limits: Sequence[int],
        on_row: Callable[[int, int, Completion], None],
        skips: Sequence[int] | None = None,
    ) -> None:
        """Draw the completions of all prompts, of at most limits[p] tokens each; skips: of `uniforms`, by prompt."""
        if threading.current_thread() is not threading.main_thread():
            # Torch gives a new thread the number that any thread has set last.
            torch.set_num_threads(self.threads)
        rows = shortest_first(prompts, seeds)
        training = self.policy.model.training
        self.policy.model.eval()
        try:
            with use_one_thread_if_small(self.policy.model, self.policy.device):
                most = passes_at_once(self.policy.device) if self.policy.allows_threads else 1
                at_once = max(min(most, len(rows) // ROWS_AT_ONCE), 1)
                with self.policy.computing():  # a decoder is tried here, and not by several threads
                    decoders = [self.decoders.for_length(len(prompts[p]) + limits[p]) for p in range(len(prompts))]
                batches = [
                    ContinuousBatch(
                        self.policy,
                        prompts,
                        seeds,
                        sampling,
                        decoders.__getitem__,
                        size=max(self.batch_size // at_once, 1),
                        rows=part,
                        cache_bytes=self._cache_bytes() / at_once,
                        limits=limits,
                        skips=skips,
                    )
                    for part in cut(rows, at_once)
                ]
                run_batches(batches, on_row)
        finally:
            self.policy.model.train(training)

    def _cache_bytes(self) -> float:
        if self.cache_gib is not None:
            return self.cache_gib * 2**30
        if self.policy.device.type != "cuda":
            return inf
        torch.cuda.empty_cache()
        return CACHE_SHARE * torch.cuda.mem_get_info(self.policy.device)[0]


def _complete(group: list[Completion | None]) -> list[Completion]:
    return [completion for completion in group if completion is not None]
