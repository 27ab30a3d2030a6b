"""What the probe tries a model for: windows, rotary scalings, caches; and what a run is told about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

import rlvr.model.probe
from rlvr.config import ModelConfig
from rlvr.core.types import Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.probe import find_boundaries
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.families import eager_log_pi, make_models, training_difference

ALPHABET = "0123456789+-= abcdefghijklmnopqrstu"


def make_policy(family: str, **options: Any) -> tuple[Policy, Any]:
    """A policy of a tiny model, and the same model with eager attention."""
    model, eager = make_models(family, **options)
    return Policy(model, tiny_tokenizer([ALPHABET])), eager


def rope(kind: str, start: int = 16) -> dict[str, Any]:
    """Options of a rotary scaling that begins at so many tokens and depends on the length of the text."""
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 8.0}
    if kind == "longrope":
        parameters |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": start}
        return {"original_max_position_embeddings": start, "rope_parameters": parameters}
    return {"max_position_embeddings": start, "rope_parameters": parameters}


def test_a_window_is_tried_when_rows_first_pass_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text passes the window by an eighth, and rows beyond are packed; with no window in the pass they are not."""
    policy, eager = make_policy("mistral", sliding_window=64)
    tried: list[int] = []
    compare = rlvr.model.probe.packed_difference

    def note(causal: Any, size: int, tolerance: Any, least: int = 0) -> str:
        tried.append(size)
        return compare(causal, size, tolerance, least)

    monkeypatch.setattr(rlvr.model.probe, "packed_difference", note)
    assert [policy.trial.packs(n) for n in (40, 64, 65, 90)] == [True] * 4
    assert tried == [76]
    row = [5 + i * i % 31 for i in range(90)]
    mask = torch.ones(1, 90, dtype=torch.bool)
    mask[0, 0] = False
    found, _ = token_logprobs(policy, torch.tensor([row]), mask)
    torch.testing.assert_close(found[0, 1:], eager_log_pi(eager, row), atol=1e-4, rtol=0)
    drawn = TorchSampler(policy).generate([row[:50]], Sampling(max_new_tokens=40), [[1, 2, 3, 4]])[0]
    for completion in drawn:
        expected = eager_log_pi(eager, [*row[:50], *completion.token_ids])[49:]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)

    monkeypatch.setattr(rlvr.model.forward.packed.Windows, "read", lambda *_: None)
    policy, _ = make_policy("mistral", sliding_window=64)
    assert [policy.trial.packs(n) for n in (64, 65)] == [True, False]
    assert policy.check_rows(90, samples=True).startswith("sequences of up to 90 tokens: training pads them; sampling")


@pytest.mark.parametrize("lengths", [(90, 5), (45, 5, 90, 20), (5, 90, 30)])
@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_window_stays_known_when_shorter_rows_are_tried(family: str, lengths: tuple[int, ...]) -> None:
    """Whatever the order in which lengths are asked for: rows beyond the window are what they are alone."""
    policy, eager = make_policy(family, sliding_window=6)
    assert all(policy.trial.packs(length) for length in lengths)
    row = [5 + i * i % 31 for i in range(60)]
    mask = torch.arange(60)[None] > 0
    found, _ = token_logprobs(policy, torch.tensor([row]), mask)
    torch.testing.assert_close(found[0, 1:], eager_log_pi(eager, row), atol=1e-4, rtol=0)


@pytest.mark.parametrize("boundary", [4096, 32768])
def test_a_real_window_costs_a_few_rows(boundary: int) -> None:
    """Beyond LONG tokens the text is one row, an eighth longer than the window; a run of short rows costs none."""
    policy, _ = make_policy("mistral", sliding_window=boundary, max_position_embeddings=65536)
    assert policy.trial.boundaries == (boundary,)
    assert policy.trial.text_length(0) == rlvr.model.probe.SHORT
    assert policy.trial.text_length(1) == boundary + boundary // 8
    assert policy.trial.packs(2000)
    assert list(policy.trial.reasons) == [0]


def test_rotary_scaling_by_length_parts_long_rows_from_short_ones() -> None:
    """Short rows keep their angles beside long ones in training, packed; sampling past the change is refused."""
    policy, eager = make_policy("phi3", sliding_window=None, **rope("longrope"))
    assert policy.packs
    assert training_difference(policy, eager) <= 1e-4
    sampler = TorchSampler(policy)
    with pytest.raises(ValueError, match=r"beyond 16 tokens .*--rollout.max-new-tokens"):
        sampler.generate([[5, 6]], Sampling(max_new_tokens=15), [[1]])
    assert len(sampler.generate([[5, 6]], Sampling(max_new_tokens=14), [[1]])[0][0].token_ids) > 0


@pytest.mark.parametrize("start", [20, 64, 340, 400])
def test_rows_beyond_a_rotary_scaling_are_packed_wherever_it_begins(start: int) -> None:
    """The rows that are tried lie on the far side of it; sampling from one side to the other is refused."""
    policy, eager = make_policy("phi3", sliding_window=None, max_position_embeddings=4096, **rope("longrope", start))
    assert policy.trial.packs(start + 40)
    row = [5 + i * i % 31 for i in range(start + 40)]
    mask = torch.arange(len(row))[None] > 0
    found, _ = token_logprobs(policy, torch.tensor([row]), mask)
    torch.testing.assert_close(found[0, 1:], eager_log_pi(eager, row), atol=1e-4, rtol=0)
    with pytest.raises(ValueError, match=rf"beyond {start} tokens .*--rollout.max-new-tokens"):
        TorchSampler(policy).generate([row[:9]], Sampling(max_new_tokens=start), [[1]])


def test_rotary_scaling_that_remembers_is_refused_beyond_its_start() -> None:
    """Scaling 'dynamic' grows with the longest text so far, so that a row's probabilities have no one value."""
    policy, eager = make_policy("llama", **rope("dynamic"))
    with pytest.raises(ValueError, match="rows of up to 40 tokens: beyond 16 the rotary scaling 'dynamic'"):
        training_difference(policy, eager)
    with pytest.raises(ValueError, match="rows of up to 17 tokens"):
        TorchSampler(policy).generate([[5, 6]], Sampling(max_new_tokens=15), [[1]])
    with pytest.raises(ValueError, match="rows of up to 17 tokens"):
        policy.check_rows(17, samples=False)


def test_rows_that_depend_on_their_neighbours_are_refused_when_they_get_so_long() -> None:
    """Sparse attention among 64 keys is exact up to 64 tokens, and unreliable beyond."""
    policy, _ = make_policy("deepseek_v32", index_topk=64)
    policy.check_rows(64, samples=True)
    with pytest.raises(ValueError, match=r"cannot be trained on rows of 76 tokens: .* expected a causal"):
        policy.check_rows(65, samples=False)


def test_lengths_that_change_a_model_are_found_in_its_config() -> None:
    """Windows that are switched off, and numbers that are no lengths, do not count."""
    config = AutoConfig.for_model("qwen2", use_sliding_window=False, sliding_window=32, max_window_layers=28)
    holder = torch.nn.Module()
    holder.config = config
    assert find_boundaries(holder) == ()
    config = AutoConfig.for_model("mistral", sliding_window=32)
    holder.config = config
    holder.chunk_size = 48
    assert find_boundaries(holder) == (32, 48)
    holder.config = AutoConfig.for_model("gemma3", text_config={"sliding_window": 24})
    assert find_boundaries(holder) == (24, 48)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_lack_of_memory_is_not_taken_for_a_model_that_cannot(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """The trial ends with the allocator's error, and a slow way is not chosen for the whole run."""

    def no_room(*args: Any) -> None:
        if device == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(rlvr.model.probe, "hidden_states", no_room)
    with pytest.raises(RuntimeError, match="memory"):
        make_policy("llama")


def test_a_failure_of_the_packed_pass_is_named() -> None:
    """The start of a run says why rows are padded."""
    policy, _ = make_policy("jamba")
    assert "slower: it has layers of the type" in policy.describe()
    assert "slower" not in load_policy(ModelConfig(device="cpu"), corpus=[ALPHABET]).describe()


def test_a_cache_that_differs_is_not_used() -> None:
    """The rows are then computed whole at each step."""
    policy, _ = make_policy("rwkv")
    assert "computes every sequence again for each token" in policy.check_rows(40, samples=True)
