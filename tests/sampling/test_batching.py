"""Continuous batching: which rows are decoded together changes the cost, and no completion."""

from __future__ import annotations

import itertools
import math
from collections import deque
from pathlib import Path

import pytest
import torch

from rlvr.config import ModelConfig
from rlvr.core.types import Completion, Sampling
from rlvr.model.decode import CacheDecoder, SharedDecoder
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import ContinuousBatch, TorchSampler
from tests.helpers.models import make_model

CORPUS = ["0123456789+-= abcdefgh"]
PROMPTS = ["12+34=", "5-3=", "123+456=", "7=", "8+8=", "9-1="]
SEEDS = [[100 * p + g for g in range(8)] for p in range(len(PROMPTS))]
LONG = Sampling(max_new_tokens=120)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The tiny model, untrained: most rows end after some twenty tokens, a few late."""
    return load_policy(ModelConfig(device="cpu", dtype="float32"), corpus=CORPUS, seed=3)


class Watched(SharedDecoder):
    """Counts steps and entries, and the most bytes of keys and values."""

    steps = entries = peak = 0

    def enter(self, prompts, counts):
        type(self).entries += 1
        return super().enter(prompts, counts)

    def step(self, tokens):
        assert len(tokens) == sum(cache.rows for cache in self.caches)
        type(self).steps += 1
        type(self).peak = max(self.peak, self.bytes_at_step())
        return super().step(tokens)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    for name in ("steps", "entries", "peak"):
        monkeypatch.setattr(Watched, name, 0)
    monkeypatch.setattr("rlvr.sampling.torch_sampler.SharedDecoder", Watched)
    return Watched


@torch.inference_mode()
def run(policy: Policy, make: type = Watched, sampling: Sampling = LONG, **options) -> list[list[Completion]]:
    """All completions by one batch."""
    drawn: list[dict[int, Completion]] = [{} for _ in PROMPTS]

    def keep(p: int, g: int, completion: Completion) -> None:
        assert g not in drawn[p]  # handed over once
        drawn[p][g] = completion

    prompts = [policy.render(prompt) for prompt in PROMPTS]
    policy.model.eval()
    ContinuousBatch(policy, prompts, SEEDS, sampling, lambda p: make, **options).run(keep)
    return [[group[g] for g in range(len(SEEDS[0]))] for group in drawn]


def ids(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group] for group in groups]


def test_waiting_rows_enter_while_others_are_decoded(policy, watched):
    """Eight places for 48 rows: one long completion keeps nobody waiting."""
    together = run(policy, size=48)
    lengths = [len(completion.token_ids) for group in together for completion in group]
    assert max(lengths) > 3 * sum(lengths) / len(lengths)  # there are long ones
    assert (watched.entries, watched.steps) == (1, max(lengths) - 1)
    watched.steps = 0
    assert ids(run(policy, size=8)) == ids(together)
    in_turns = sum(max(lengths[i : i + 8]) for i in range(0, 48, 8))  # batch after batch
    assert sum(lengths) / 8 <= watched.steps < 0.6 * in_turns
    assert watched.entries > 6


@pytest.mark.parametrize("steps", [2, 8, 1000])
def test_the_host_may_look_seldom(policy, watched, steps):
    """Tokens drawn after a row's end are not part of it; the limit is never passed."""
    for sampling in (LONG, Sampling(max_new_tokens=9), Sampling(max_new_tokens=40, stop=("1", "ab"))):
        expected = run(policy, sampling=sampling, size=8)
        found = run(policy, sampling=sampling, size=8, steps_per_look=steps)
        for a, b in zip(itertools.chain(*expected), itertools.chain(*found), strict=True):
            assert (a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason)
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)


def test_keys_and_values_stay_within_their_bytes(policy, watched):
    """Rows that would not fit are sent back and drawn again: the same tokens. One row alone may always go on."""
    expected = ids(run(policy, size=48))
    whole = watched.peak
    for share in (0.5, 0.2):
        watched.peak = 0
        assert ids(run(policy, size=48, cache_bytes=share * whole)) == expected
        assert watched.peak <= share * whole
    watched.peak = 0
    assert ids(run(policy, size=48, cache_bytes=1)) == expected
    assert 0 < watched.peak < 0.2 * whole


@torch.inference_mode()
def test_rows_sent_back_may_come_again_in_any_order(policy, watched):
    """Rows of two prompts between each other, the longer prompt first: each completion is that of its own prompt."""
    expected = ids(run(policy, size=48))
    prompts = [policy.render(prompt) for prompt in PROMPTS]
    batch = ContinuousBatch(policy, prompts, SEEDS, LONG, lambda p: Watched, size=8)
    batch.waiting = deque([(2, 0), (3, 0), (2, 1), (0, 5), (3, 1), (2, 2)])
    drawn = {}
    batch.run(lambda p, g, completion: drawn.update({(p, g): completion.token_ids}))
    assert drawn == {(p, g): expected[p][g] for p, g in ((2, 0), (3, 0), (2, 1), (0, 5), (3, 1), (2, 2))}


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_decoders_that_take_nobody_in_are_used_in_turns(family, tmp_path: Path):
    """With transformers' own cache, prompts of one length share a batch, and the next begins when it is done."""
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu", dtype="float32"))
    sampling = Sampling(max_new_tokens=20)
    assert ids(run(policy, CacheDecoder, sampling, size=48)) == ids(run(policy, CacheDecoder, sampling, size=3))


def test_keys_and_values_have_the_type_of_the_computation(policy):
    """bfloat16 where the policy computes in bfloat16."""
    bf16 = load_policy(ModelConfig(device="cpu", dtype="bfloat16"), corpus=CORPUS, seed=3)
    for which, dtype in ((policy, torch.float32), (bf16, torch.bfloat16)):
        decoder = SharedDecoder(which.causal)
        with torch.inference_mode(), which.computing():
            token = decoder.start([which.render("1+2=")], [2]).argmax(-1)
            decoder.step(token)
        [cache] = decoder.caches
        assert {x.dtype for pair in [*cache.prompts.values(), *cache.own.values()] for x in pair} == {dtype}
        held = sum(x.nbytes for pair in [*cache.prompts.values(), *cache.own.values()] for x in pair)
        assert held == cache.bytes_at_step()


def test_the_sampler_limits_its_cache(policy, watched):
    """cache_gib is GiB; without it there is no limit on a CPU."""
    prompts = [policy.render(prompt) for prompt in PROMPTS]
    assert TorchSampler(policy)._cache_bytes() == math.inf
    sampler = TorchSampler(policy, cache_gib=6e-4)
    sampler.decoders.chosen = dict.fromkeys(sampler.decoders.chosen, Watched)
    assert ids(sampler.generate(prompts, LONG, SEEDS)) == ids(TorchSampler(policy).generate(prompts, LONG, SEEDS))
    assert 0 < watched.peak <= 6e-4 * 2**30
