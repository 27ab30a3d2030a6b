"""Memory of a step at sizes that no test machine has (fake tensors), and rows longer than a microbatch."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config import Config, CriticConfig, ModelConfig, OptimConfig
from rlvr.model.cpu.processor import PLAIN_ERROR, matmul_error, tune_cpu
from rlvr.model.forward.packed import PackedGroups, pack
from rlvr.model.forward.passes import hidden_states
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.critic import Critic
from rlvr.model.logprobs.scoring import _score, token_logprobs
from rlvr.model.memory.estimate import Estimate, Shape, fitting_tokens, shape_of, tokens_that_fit, usable_share
from rlvr.model.memory.plan import ENOUGH, choose_checkpointing
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.training.checkpoint.checkpoint import optimizer_tensors
from tests.helpers.models import make_model, make_tokens
from tests.helpers.shapes import QWEN_3B, QWEN_15B
from tests.helpers.tensors import LargestTensor

GPU = 85_000_000_000  # bytes of a GPU "of 80 GB"

CORPUS = ["0123456789+-= abc"]
QWEN_7B = {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
LAYERS, VOCABULARY = 2, 152_064


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors that have shapes and no data; large tiles, so that their bookkeeping takes seconds."""
    monkeypatch.setattr("rlvr.model.cpu.attention.TILE_SCORES", 2**23)
    with FakeTensorMode():
        yield


def held_by_a_step(tokens: int, *, checkpointing: bool) -> tuple[int, int]:
    """Bytes that a forward pass of two layers of a 7B model in bf16 keeps for the backward pass, weights left out.

    And the elements of the largest tensor that either pass makes.
    """
    config = Qwen2Config(vocab_size=VOCABULARY, num_hidden_layers=LAYERS, tie_word_embeddings=False, **QWEN_7B)
    causal = Qwen2ForCausalLM(config)
    causal.rlvr_pass = "llama"  # type: ignore[assignment]
    pack(causal)
    if checkpointing:
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        causal.train()
    weights = {weight.untyped_storage()._cdata for weight in causal.parameters()}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage._cdata not in weights and tokens in x.shape[:2]:
            kept[storage._cdata] = storage.nbytes()
        return x

    with LargestTensor() as watch:
        with torch.autocast("cpu", torch.bfloat16), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            layout = PackedGroups([[5] * 200], [[[5] * (tokens // 4 - 50)] * 4], torch.device("cpu"))
            hidden = hidden_states(causal, layout, layout.ids, layout.positions)
        with torch.autocast("cpu", torch.bfloat16):
            logprobs, entropies = _score(causal, hidden, layout.ids[0], 1.0, with_entropy=True)
        logprobs.sum().backward()
    assert hidden.shape == (tokens, 3584)
    assert entropies is not None
    assert entropies.shape == logprobs.shape == (tokens,)
    assert all(weight.grad is not None and weight.grad.shape == weight.shape for weight in causal.parameters())
    return sum(kept.values()), watch.elements


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_step_of_7b_holds_what_the_estimate_says(fake: None, checkpointing: bool) -> None:
    """Linear in the tokens; with checkpointing one input a layer; no tensor larger than a matrix of weights."""
    (short, _), (long, largest) = (held_by_a_step(tokens, checkpointing=checkpointing) for tokens in (260, 520))
    assert largest == VOCABULARY * 3584
    assert 1.9 * short <= long <= 2.1 * short
    model = ModelConfig(gradient_checkpointing=checkpointing, dtype="bfloat16")
    # The last norm keeps its input as a layer does.
    shape = Shape(7_615_616_512, LAYERS + checkpointing, 3584, 18944, 3584, 512, wide=0)
    none = dataclasses.replace(shape, layers=0)
    estimate = Estimate(shape, Config(model=model)).activations - Estimate(none, Config(model=model)).activations
    assert 0.9 * estimate <= long / 520 <= 1.1 * estimate, (long / 520, estimate)


def test_no_operation_of_a_training_pass_waits_for_the_device(fake: None) -> None:
    """Fake tensors have no data to wait for: a number that is read, or a count that decides a shape, would raise."""
    with pytest.raises(DataDependentOutputException):
        float(torch.ones(1).sum())
    held_by_a_step(260, checkpointing=False)


def test_microbatches_are_cut_by_memory() -> None:
    """A GPU of 80 GB takes the recipes' microbatches, one of 40 GB fewer tokens of a 3B model; a CPU sets no bound."""
    for name, shape in (("countdown_grpo", QWEN_3B), ("math_grpo", QWEN_15B)):
        config = importlib.import_module(f"rlvr.recipes.{name}").CONFIG
        config = choose_checkpointing(shape, config, memory=GPU)
        assert tokens_that_fit(shape, config, GPU, usable_share(config)) > ENOUGH
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, gradient_checkpointing=True))
    small = tokens_that_fit(QWEN_15B, config, 42_900_000_000)
    estimate = Estimate(QWEN_15B, config)
    assert estimate.fixed_bytes(42_900_000_000) + small * estimate.token <= 39_000_000_000
    assert small < tokens_that_fit(QWEN_15B, config, GPU)
    assert tokens_that_fit(QWEN_15B, config, GPU, 0.6) < tokens_that_fit(QWEN_15B, config, GPU)
    plain = dataclasses.replace(config, model=dataclasses.replace(config.model, gradient_checkpointing=False))
    assert tokens_that_fit(QWEN_15B, plain, GPU) < tokens_that_fit(QWEN_15B, config, GPU)
    assert tokens_that_fit(QWEN_3B, config, 10_000_000_000) == 1
    policy = load_policy(ModelConfig(device="cpu"), corpus=CORPUS)
    assert fitting_tokens(policy, config) is None
    shape = shape_of(policy)
    assert shape is not None
    assert shape.parameters == sum(weight.numel() for weight in policy.model.parameters())


def test_a_reference_in_bfloat16_gives_the_same_bits_in_less_memory(tmp_path: Path) -> None:
    """Its linear weights have the type that autocast gives the policy's at each use; norms and embeddings stay wide."""
    policy = load_policy(ModelConfig(name=str(make_model("qwen3", tmp_path)), device="cpu", dtype="bfloat16"))
    tokens, mask = make_tokens(20)
    expected, _ = token_logprobs(policy, tokens, mask)
    reference = policy.reference()
    assert reference.packs
    assert torch.equal(token_logprobs(reference, tokens, mask)[0], expected)
    dtypes = {name: weight.dtype for name, weight in reference.causal.named_parameters()}
    assert {dtypes[name] for name in dtypes if "_proj" in name} == {torch.bfloat16}
    assert {dtypes[name] for name in dtypes if "norm" in name or "embed" in name} == {torch.float32}
    assert all(weight.dtype is torch.float32 for weight in policy.parameters())
    assert load_policy(ModelConfig(device="cpu"), corpus=CORPUS).reference().causal.dtype is torch.float32


def test_float32_matmuls_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "medium" would turn TF32 on on a GPU, and on some CPUs round to bfloat16."""
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        tune_cpu()
        assert torch.get_float32_matmul_precision() == "highest"
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        tune_cpu()
        assert matmul_error() < PLAIN_ERROR  # as this machine multiplies
        for error, chosen in ((2e-3, "highest"), (6e-7, "medium")):
            torch.set_float32_matmul_precision("highest")
            monkeypatch.setattr("rlvr.model.cpu.processor.matmul_error", lambda error=error: error)
            tune_cpu()
            assert torch.get_float32_matmul_precision() == chosen
    finally:
        torch.set_float32_matmul_precision(precision)


def test_the_optimizer_is_saved_without_a_copy() -> None:
    """On the CPU the tensors that are written are the optimizer's own."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = make_optimizer([weight], OptimConfig())
    weight.grad = torch.ones(3)
    optimizer.step()
    state = optimizer.state[weight]
    assert {x.data_ptr() for x in optimizer_tensors(optimizer).values()} == {x.data_ptr() for x in state.values()}


@pytest.mark.parametrize("kind", ["head", "separate"])
def test_the_critic_is_saved_without_a_copy(kind: str) -> None:
    """Likewise."""
    critic = Critic(load_policy(ModelConfig(device="cpu"), corpus=CORPUS), CriticConfig(kind=kind), OptimConfig())
    own = {weight.data_ptr() for weight in critic.parameters()}
    assert {tensor.data_ptr() for tensor in critic.tensors().values()} == own
