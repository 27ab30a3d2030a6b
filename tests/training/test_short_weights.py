"""Weights in bfloat16, offloaded states, 8-bit AdamW."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlvr.config import ModelConfig
from rlvr.launch import execute, launch
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim import optimizer as optim
from rlvr.model.optim.optimizer import Beside
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import make_run, with_settings

OFTEN = {"verifier_option": ("pattern=7", "match=search")}  # a reward that most groups earn in part
SHORT = {"model": {"weights": "bfloat16"}, "run": OFTEN}
bitsandbytes = pytest.param(
    {**SHORT, "optim": {"name": "adamw8bit"}},
    id="8-bit",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("bitsandbytes") is None, reason="the extra bitsandbytes is not installed"
    ),
)
CORPUS = ["0123456789+-= abc"]


class Away(Beside):
    """A place apart from the weights, as pinned memory is; counts what passes."""

    passed = 0

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Keep a copy."""
        return tensor.clone()

    def fetch(self, part: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Hand out a copy."""
        Away.passed += part.numel()
        return part.clone()

    def store(self, part: torch.Tensor, updated: torch.Tensor) -> None:
        """Take it back."""
        part.copy_(updated)


@pytest.fixture
def offloading(monkeypatch: pytest.MonkeyPatch) -> type[Away]:
    """optim.offload on a machine without a GPU: the state lies apart from the weights, in the same memory."""
    monkeypatch.setattr(optim, "Pinned", Away)
    for module in (optim, execute):
        monkeypatch.setattr(module, "check_optimizer", lambda config, device: None)
    monkeypatch.setattr(Away, "passed", 0)
    return Away


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(SHORT, id="bfloat16"),
        pytest.param({**SHORT, "algo": {"name": "ppo"}}, id="critic"),
        bitsandbytes,
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, settings: dict) -> None:
    """Weights, optimizer with masters, rollouts: byte for byte; the weights are the roundings of the masters."""
    for name, lengths in (("whole", [3]), ("parts", [2, 3])):
        for steps in lengths:
            launch(with_settings(small(tmp_path / name, steps=steps), **settings))
    check_same(results(tmp_path / "whole", 3), results(tmp_path / "parts", 3))
    folder = tmp_path / "parts" / "checkpoints" / "step-000003"
    weights = load_file(folder / "model.safetensors")
    state = load_file(folder / "optimizer.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    masters = [tensor for name, tensor in state.items() if name.endswith(".master")]
    assert {tensor.dtype for tensor in masters} == {torch.float32}
    assert sum(m.numel() for m in masters) == sum(w.numel() for w in weights.values())
    rounded = sum(float(master.bfloat16().double().sum()) for master in masters)
    assert rounded == pytest.approx(sum(float(weight.double().sum()) for weight in weights.values()))
    metrics = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["grad_norm"] > 0 for record in metrics) >= 2


@pytest.mark.parametrize("settings", [{}, SHORT])
def test_an_offloaded_state_changes_no_number(tmp_path: Path, offloading: type[Away], settings: dict) -> None:
    """Fine-tuning, updates and a resume of a run that was not offloaded."""
    launch(with_settings(small(tmp_path / "beside", steps=3), **settings))
    assert offloading.passed == 0
    launch(with_settings(small(tmp_path / "away", steps=2), **settings, optim={"offload": True}))
    assert offloading.passed > 0
    before = offloading.passed
    launch(with_settings(small(tmp_path / "away", steps=3), **settings))
    assert offloading.passed == before
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


def test_gradients_and_the_reference_are_as_short(tmp_path: Path) -> None:
    """One update: gradients have the weights' dtype, the frozen copy takes two bytes a weight."""
    run = make_run(tmp_path, model={"weights": "bfloat16", "dtype": "auto"}, reference=True)
    assert run.learner.reference is not None
    assert {weight.dtype for weight in run.learner.reference.model.parameters()} == {torch.bfloat16}
    tokens = torch.tensor([[3, 4, 5, 6]])
    token_logprobs(run.learner.policy, tokens, torch.arange(4)[None] > 1)[0].sum().backward()
    assert {weight.grad.dtype for weight in run.learner.policy.parameters()} == {torch.bfloat16}
