"""Token logprobs against the plain transformers path, for several families of models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import rlvr.model.attention.rows
import rlvr.model.logprobs.scoring
from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.scoring import TokenLogprobs, logit_bytes, take, token_logprobs
from tests.helpers.models import FAMILIES, make_model, make_tokens

CORPUS = ["0123456789+-= abc"]


# Families by how they are run: in fewer passes, packed by their own forward, or padded (windows, recurrence, alibi).
def plain_logprobs(policy: Policy, tokens: Tensor, mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies by transformers' own forward, one row at a time, all logits held."""
    logprobs, entropies = [], []
    for row, scored in zip(tokens, mask):
        logits = policy.model(input_ids=row[None], use_cache=False).logits[0, :-1].float()
        everything = (logits / temperature).log_softmax(-1)
        chosen = everything.gather(1, row[1:, None])[:, 0]
        entropy = -(everything.exp() * everything).sum(-1)
        logprobs.append(torch.cat([chosen.new_zeros(1), chosen]) * scored)
        entropies.append(torch.cat([chosen.new_zeros(1), entropy]) * scored)
    return torch.stack(logprobs), torch.stack(entropies)


def gradients(policy: Policy, logprobs: Tensor) -> dict[str, Tensor]:
    """Gradients of a weighted sum, by parameter, scaled to a largest entry of 1 over all of them."""
    policy.model.zero_grad()
    weights = torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)
    (logprobs * weights).sum().backward()
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    scale = max(float(grad.abs().max()) for grad in found.values())
    return {name: grad / scale for name, grad in found.items()}


def assert_same(
    policy: Policy, tolerance: float = 1e-5, tokens: Tensor | None = None, mask: Tensor | None = None
) -> None:
    """token_logprobs and its gradients are those of the plain path."""
    if tokens is None or mask is None:
        tokens, mask = make_tokens(20)
    logprobs, entropies = token_logprobs(policy, tokens, mask, temperature=0.7, with_entropy=True)
    assert entropies is not None
    expected = plain_logprobs(policy, tokens, mask, 0.7)
    torch.testing.assert_close(logprobs, expected[0], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(entropies, expected[1], atol=tolerance, rtol=tolerance)
    assert not entropies.requires_grad
    found, wanted = gradients(policy, logprobs), gradients(policy, expected[0])
    assert found.keys() == wanted.keys()
    for name, grad in found.items():
        torch.testing.assert_close(grad, wanted[name], atol=tolerance, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_entropies_and_gradients_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    """Packed or padded, shared prompts or not: the numbers and the gradients of the model's own forward to 1e-5."""
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu"))
    how = FAMILIES[family][0]
    assert (policy.causal.rlvr_pass if policy.packs else "padded") == how
    assert_same(policy)


def test_padded_and_packed_paths_agree(tmp_path: Path) -> None:
    """The fallback for other models computes the same on a model that needs none."""
    policy = load_policy(ModelConfig(name=str(make_model("llama", tmp_path)), device="cpu"))
    policy.packs = False
    assert_same(policy)


def test_chunks_through_the_head_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven logits at a time, computed again in the backward pass."""
    policy = load_policy(ModelConfig(name=str(make_model("gemma2", tmp_path)), device="cpu"))
    monkeypatch.setattr(rlvr.model.logprobs.scoring, "LOGIT_BYTES", 4 * 7 * 20)
    assert_same(policy)


def test_chunks_of_logits_are_chosen_by_bytes() -> None:
    """128 MB on a CPU, a 128th of a GPU's memory: 16,384 tokens of a vocabulary of 152,000 in at most 20 chunks."""
    assert logit_bytes(None) == 2**27
    assert 16384 * 4 * 152_000 / logit_bytes(85_000_000_000) <= 20


def test_entropies_cost_no_memory_that_is_held_and_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors that autograd keeps are the same with entropies and without; a chunk's are not recomputed with it."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=CORPUS)
    tokens, mask = make_tokens(15)

    def memory_held(with_entropy: bool) -> list[int]:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
            token_logprobs(policy, tokens, mask, with_entropy=with_entropy)
        return kept

    assert memory_held(True) == memory_held(False)
    monkeypatch.setattr(rlvr.model.logprobs.scoring, "LOGIT_BYTES", 4 * 7 * 20)
    assert memory_held(True) == memory_held(False)
    logprobs, entropies = token_logprobs(policy, tokens, mask, with_entropy=True)
    assert entropies is not None
    before = entropies.clone()
    logprobs.sum().backward()
    assert torch.equal(entropies, before)


def test_recomputing_activations_changes_nothing(tmp_path: Path) -> None:
    """Gradient checkpointing gives the same gradients in the passes of llama-like models and in the model's own."""
    for family in ("llama", "olmo2"):
        folder = make_model(family, tmp_path / family)
        assert_same(load_policy(ModelConfig(name=str(folder), device="cpu", gradient_checkpointing=True)))


def test_adapters_get_the_gradients_of_the_plain_path(tmp_path: Path) -> None:
    """With LoRA the projections are peft's, and run in the same passes."""
    policy = load_policy(ModelConfig(name=str(make_model("llama", tmp_path)), device="cpu", lora_rank=4))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.02)
    assert policy.packs
    assert_same(policy)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    """bf16 rounds in the matmuls alone: weights, log-softmax and results are float32."""
    folder = str(make_model("qwen3", tmp_path))
    tokens, mask = make_tokens(20)
    exact, _ = token_logprobs(load_policy(ModelConfig(name=folder, device="cpu")), tokens, mask)
    policy = load_policy(ModelConfig(name=folder, device="cpu", dtype="bfloat16"))
    rounded, _ = token_logprobs(policy, tokens, mask)
    assert rounded.dtype is torch.float32
    assert all(weight.dtype is torch.float32 for weight in policy.parameters())
    assert 0 < (rounded - exact).abs().max() < 0.5
    assert (rounded - exact)[mask].abs().mean() < 0.05


def test_first_token_cannot_be_scored(tmp_path: Path) -> None:
    """Nothing precedes it, so the mask is refused."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=CORPUS)
    with pytest.raises(ValueError, match="first token"):
        token_logprobs(policy, torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 3, dtype=torch.bool))


def test_a_mask_without_tokens_gives_zeros_that_can_be_differentiated() -> None:
    """As when every completion of a microbatch was cut off and is masked."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=CORPUS)
    tokens = torch.zeros(2, 4, dtype=torch.long)
    logprobs, entropies = token_logprobs(policy, tokens, tokens.bool(), with_entropy=True)
    assert entropies is not None
    assert not logprobs.any()
    logprobs.sum().backward()
    assert all(weight.grad is None for weight in policy.parameters())


def test_groups_of_very_different_sizes() -> None:
    """One prompt with nine rows beside eight with one each: the numbers are those of the plain path."""
    policy = load_policy(ModelConfig(device="cpu"), corpus=CORPUS)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(20, (17, 10), generator=generator)
    tokens[:9, :4] = tokens[0, :4]
    mask = torch.zeros(17, 10, dtype=torch.bool)
    mask[:, 4:] = True
    assert_same(policy, tokens=tokens, mask=mask)


def make_ragged() -> tuple[Tensor, Tensor]:
    """One long row beside short ones, of three prompts of very different lengths."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(0, 3, 60), (0, 3, 4), (1, 40, 5), (1, 40, 2), (1, 40, 3), (2, 11, 7), (2, 11, 1), (0, 3, 6), (2, 11, 2)]
    prompts = [torch.randint(20, (40,), generator=generator) for _ in range(3)]
    tokens, mask = torch.zeros(9, 63, dtype=torch.long), torch.zeros(9, 63, dtype=torch.bool)
    for row, (prompt, start, count) in enumerate(shapes):
        tokens[row, :start] = prompts[prompt][:start]
        tokens[row, start : start + count] = torch.randint(20, (count,), generator=generator)
        mask[row, start : start + count] = True
    return tokens, mask


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
@pytest.mark.parametrize("held", [True, False], ids=["held", "recomputed"])
def test_rectangles_of_similar_rows_change_nothing(
    family: str, held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows cut into many rectangles, their scores held or computed again in pieces: the numbers of the plain path."""
    monkeypatch.setattr("rlvr.model.attention.rows.SMALL", 1)
    monkeypatch.setattr("rlvr.model.attention.rows.MAX_PADDING", 1.2)
    if not held:
        monkeypatch.setattr("rlvr.model.cpu.attention.MAX_SCORES", 0)
    tokens, mask = make_ragged()
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu"))
    assert policy.packs == (FAMILIES[family][0] != "padded")
    assert_same(policy, tokens=tokens, mask=mask)


def test_padded_rows_are_read_with_little_padding(tmp_path: Path) -> None:
    """A model that does not pack reads one row of 800 tokens beside 33 of 20 apart from them: 1.5 times the pairs."""
    policy = load_policy(ModelConfig(device="cpu", attention="sdpa"), corpus=CORPUS)
    assert not policy.packs
    lengths = [800] + [20] * 33
    tokens, mask = torch.ones(34, 800, dtype=torch.long), torch.zeros(34, 800, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, 5:length] = True
    read: list[tuple[int, int]] = []
    policy.causal.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    with torch.no_grad():
        token_logprobs(policy, tokens, mask)
    assert sum(rows for rows, _ in read) == 34
    assert (
        sum(rows * width**2 for rows, width in read)
        <= 1.5 * sum(n * n for n in lengths) + rlvr.model.attention.rows.SMALL
    )


def test_gradient_of_states_that_are_taken_often_is_the_same_each_time():
    """Threads that meet at one row do not add up in the order in which they come: a resumed run would differ."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 128, generator=generator, requires_grad=True)
    index = torch.randint(0, 16, (4000,), generator=generator)
    weights = torch.randn(4000, 128, generator=generator)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (expected,) = torch.autograd.grad(take(x, index), x, weights)
        for _ in range(100):
            (found,) = torch.autograd.grad(take(x, index), x, weights)
            assert torch.equal(found, expected)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("piece", [1, 14, 10**6])
def test_token_logprobs_of_logits_equal_the_plain_computation(
    monkeypatch: pytest.MonkeyPatch, piece: int, temperature: float
) -> None:
    """Ten rows of seven tokens, one of which no draw can give: logprobs, entropies, gradient, checked numerically."""
    monkeypatch.setattr(rlvr.model.logprobs.scoring, "PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(10, 7, dtype=torch.double, generator=generator)).requires_grad_()
    targets = torch.randint(0, 7, (10,), generator=generator)
    logprobs, entropies = TokenLogprobs.apply(logits, targets, temperature, True)
    plain = (logits / temperature).log_softmax(-1)
    expected = plain.gather(1, targets[:, None])[:, 0]
    assert torch.equal(logprobs, expected)
    torch.testing.assert_close(entropies, -(plain.exp() * plain).sum(-1).detach())
    assert not entropies.requires_grad
    weights = torch.randn(10, dtype=torch.double, generator=generator)
    [gradient] = torch.autograd.grad((weights * logprobs).sum(), logits)
    torch.testing.assert_close(gradient, torch.autograd.grad((weights * expected).sum(), logits)[0])
    assert torch.autograd.gradcheck(lambda x: TokenLogprobs.apply(x, targets, temperature, False)[0], (logits,))


def test_sure_tokens_and_no_tokens() -> None:
    """A logit far above all others, and no row at all."""
    logits = torch.tensor([[300.0, 0.0, -300.0]], requires_grad=True)
    for target, expected in ((0, 0.0), (2, -600.0)):
        logprobs, entropies = TokenLogprobs.apply(logits, torch.tensor([target]), 1.0, True)
        assert float(logprobs.detach()) == expected
        assert float(entropies) == 0.0
        assert bool(torch.autograd.grad(logprobs.sum(), logits)[0].isfinite().all())
    none = torch.zeros(0, 3, requires_grad=True)
    logprobs, entropies = TokenLogprobs.apply(none, torch.zeros(0, dtype=torch.long), 1.0, True)
    assert logprobs.shape == entropies.shape == (0,)
    assert torch.autograd.grad(logprobs.sum(), none)[0].shape == (0, 3)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_bfloat16_logits_are_read_as_float32(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    """The same numbers as of logits that were cast before, and the gradient that autograd would cast back."""
    monkeypatch.setattr(rlvr.model.logprobs.scoring, "PIECE", 60)
    logits = torch.randn(9, 20, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.arange(9)
    found = []
    for given in (logits, logits.float()):
        logprobs, entropies = TokenLogprobs.apply(given, targets, temperature, True)
        assert logprobs.dtype is entropies.dtype is torch.float32
        found.append((logprobs, entropies, torch.autograd.grad(logprobs.square().sum(), logits)[0]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
