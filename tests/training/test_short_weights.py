"""Weights in bfloat16, offloaded states, 8-bit AdamW."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rlvr.algo.batch import Batch
from rlvr.config import ModelConfig
from rlvr.launch import execute, launch
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim import optimizer as optim
from rlvr.model.optim.optimizer import Slabs
from rlvr.training.run import Run
from rlvr.training.sft.sft import accumulate
from tests.helpers.processes import run_processes
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import make_run, with_settings

OFTEN = {"verifier_option": ("pattern=7", "match=search")}  # a reward that most groups earn in part
SHORT = {"model": {"weights": "bfloat16"}, "run": OFTEN}
CORPUS = ["0123456789+-= abc"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Slabs]:
    """Slabs that were made: optim.offload on a machine without a GPU, in memory that is not page-locked."""
    slabs: list[Slabs] = []

    def make() -> Slabs:
        slabs.append(Slabs(lambda size: torch.empty(size, dtype=torch.uint8)))
        return slabs[-1]

    monkeypatch.setattr(optim, "Slabs", make)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    for module in (optim, execute):
        monkeypatch.setattr(module, "check_optimizer", lambda config, device: None)
    return slabs


@pytest.mark.parametrize("settings", [{}, SHORT])
def test_an_offloaded_state_changes_no_number(tmp_path: Path, made: list[Slabs], settings: dict) -> None:
    """Fine-tuning, updates and a resume of a run that was not offloaded."""
    launch(with_settings(small(tmp_path / "beside", steps=3), **settings))
    assert not made
    launch(with_settings(small(tmp_path / "away", steps=2), **settings, optim={"offload": True}))
    assert [slabs.total > 0 for slabs in made] == [True, True]  # of the fine-tuning and of the updates
    launch(with_settings(small(tmp_path / "away", steps=3), **settings))
    assert len(made) == 2
    check_same(results(tmp_path / "beside", 3), results(tmp_path / "away", 3))


@pytest.mark.parametrize("kind", ["tiny", "folder", "adapter"])
def test_weights_are_stored_in_bfloat16(tmp_path: Path, kind: str) -> None:
    """Of the tiny model, a saved one, and an adapter that is merged; rotary frequencies stay in float32."""
    name = "tiny"
    if kind != "tiny":
        base = load_policy(ModelConfig(device="cpu", lora_rank=4 * (kind == "adapter")), corpus=CORPUS)
        with torch.no_grad():
            for weight in base.parameters():
                weight.add_(torch.full_like(weight, 1e-3))
        base.save(tmp_path)
        name = str(tmp_path)
    long = load_policy(ModelConfig(name=name, device="cpu"), corpus=CORPUS)
    short = load_policy(ModelConfig(name=name, device="cpu", weights="bfloat16"), corpus=CORPUS)
    assert "bfloat16, weights stored in bfloat16 on cpu" in short.describe()
    assert {weight.dtype for weight in short.model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in short.model.buffers()} == {torch.float32}
    for a, b in zip(short.parameters(), long.parameters(), strict=True):
        assert torch.equal(a, b.to(torch.bfloat16))
    tokens = torch.tensor([[3, 4, 5, 6, 7, 8]])
    mask = torch.arange(6)[None] > 1
    with torch.no_grad():
        ours, theirs = (token_logprobs(policy, tokens, mask)[0] for policy in (short, long))
    assert ours.dtype is torch.float32
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    assert short.packs


def test_the_reference_is_as_short(tmp_path: Path) -> None:
    """The frozen copy takes two bytes a weight."""
    run = make_run(tmp_path, model={"weights": "bfloat16", "dtype": "auto"}, reference=True)
    assert run.learner.reference is not None
    assert {weight.dtype for weight in run.learner.reference.model.parameters()} == {torch.bfloat16}


def accumulated(run: Run, tokens: torch.Tensor) -> list[torch.Tensor]:
    """The gradients of the negative log-likelihood of rows, each row a microbatch."""
    mask = torch.arange(tokens.shape[1]).expand_as(tokens) > 1
    count, width = tokens.shape
    zeros, lengths = torch.zeros(tokens.shape), torch.full((count,), width)
    batch = Batch(tokens, mask, mask, zeros, torch.ones(count), lengths, torch.arange(count))
    for weight in run.learner.policy.parameters():
        weight.grad = None
    accumulate(run.learner.policy, batch, run.learner.accelerator, tokens_per_microbatch=width)
    return [weight.grad.clone() for weight in run.learner.policy.parameters()]


def test_gradients_add_up_in_float32(tmp_path: Path) -> None:
    """Over 16 microbatches, on one process or two: the sum of those of single rows, without rounding to bfloat16."""
    tokens = torch.randint(3, 10, (16, 6), generator=torch.Generator().manual_seed(0))
    model = {"weights": "bfloat16", "dtype": "auto"}
    run = make_run(tmp_path, model=model)
    rows = [accumulated(run, row[None]) for row in tokens]
    expected = [torch.stack(parts).double().mean(0) for parts in zip(*rows, strict=True)]
    one = accumulated(run, tokens)
    assert {gradient.dtype for gradient in one} == {torch.float32}
    both = run_processes(2, lambda rank: accumulated(make_run(tmp_path, model=model), tokens))
    for found in (one, *both):
        for gradient, exact in zip(found, expected, strict=True):
            assert (gradient - exact).norm() < 1e-5 * exact.norm()
