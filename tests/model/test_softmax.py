"""Log-probabilities of tokens, their gradient and the entropies, in pieces of any size."""

from __future__ import annotations

import pytest
import torch

from rlvr.model.logprobs import scoring as softmax
from rlvr.model.logprobs.scoring import TokenLogprobs


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("piece", [1, 14, 10**6])
def test_it_equals_the_plain_computation(monkeypatch: pytest.MonkeyPatch, piece: int, temperature: float) -> None:
    """Ten rows of seven tokens, one of which no draw can give: logprobs, entropies, gradient, checked numerically."""
    monkeypatch.setattr(softmax, "PIECE", piece)
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
    monkeypatch.setattr(softmax, "PIECE", 60)
    logits = torch.randn(9, 20, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    targets = torch.arange(9)
    found = []
    for given in (logits, logits.float()):
        logprobs, entropies = TokenLogprobs.apply(given, targets, temperature, True)
        assert logprobs.dtype is entropies.dtype is torch.float32
        found.append((logprobs, entropies, torch.autograd.grad(logprobs.square().sum(), logits)[0]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
