"""Every family of models is computed as by its own eager forward, past its windows too, or is refused in one line."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import rlvr.model.probe
from rlvr.config import ModelConfig
from rlvr.model.lm_head import check_logits
from rlvr.model.logprobs import token_logprobs
from rlvr.model.policy import Policy, load_policy, switch_off_dropout
from rlvr.model.probe import boundaries, check_causal
from rlvr.model.tiny import tiny_tokenizer
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.types import Sampling

ALPHABET = "0123456789+-= abcdefghijklmnopqrstu"
WINDOW = 8
PROMPT, NEW = 9, 31
W = {"sliding_window": WINDOW}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 16)
LINEAR |= {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
MLA = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
MLA |= {"head_dim": 16, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "n_routed_experts": 4}
MLA |= {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}

# How each is run: its pass in training (padded: the plain way) and its decoder; or the line that refuses it.
PLAIN = ("padded", "CacheDecoder")
FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (("llama", "SharedDecoder"), {}),
    "qwen2": (PLAIN, {"use_sliding_window": True, "max_window_layers": 2, **W}),
    "qwen3": (("llama", "SharedDecoder"), {}),
    "qwen3_moe": (PLAIN, {"use_sliding_window": True, "max_window_layers": 0, **W, **EXPERTS}),
    "mistral": (PLAIN, W),
    "mixtral": (PLAIN, {"num_local_experts": 4, **W}),
    "ministral": (PLAIN, W),
    "ministral3": (PLAIN, W),
    "phimoe": (PLAIN, {"num_local_experts": 4, **W}),
    "phi3": (PLAIN, W),
    "starcoder2": (PLAIN, W),
    "gemma2": (PLAIN, W),
    "gemma3_text": (PLAIN, W),
    "olmo3": (PLAIN, W),
    "cohere2": (PLAIN, W),
    "gpt_oss": (PLAIN, {"num_local_experts": 4, **W}),
    "gpt2": (("own", "SharedDecoder"), {"n_embd": 64, "n_layer": 4, "n_head": 4}),
    "gpt_neox": (("own", "SharedDecoder"), {}),
    "gpt_neo": (
        PLAIN,
        {"num_layers": 4, "attention_types": [[["global", "local"], 2]], "window_size": WINDOW, "num_heads": 4},
    ),
    "diffllama": (("own", "CacheDecoder"), {}),
    "hrm_text": (("own", "CacheDecoder"), {}),
    "qwen3_next": (PLAIN, {"shared_expert_intermediate_size": 32, **LINEAR, **EXPERTS}),
    "qwen3_5_text": (PLAIN, LINEAR),
    "jamba": (
        PLAIN,
        {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 8},
    ),
    "falcon_h1": (
        PLAIN,
        {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16},
    ),
    "lfm2": (PLAIN, {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_ff_dim": 96}),
    "nemotron_h": (
        PLAIN,
        {"mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "n_routed_experts": 4}
        | {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 32},
    ),
    "minimax": (("padded", "RepeatedDecoder"), {"num_local_experts": 2, "block_size": 8}),
    "llama4_text": ("base_model_prefix", {"attention_chunk_size": WINDOW, "num_local_experts": 2}),
    "modernbert-decoder": (
        "LOGIT_ADJUSTMENTS",
        {"bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 3, "local_attention": 16},
    ),
    "recurrent_gemma": ("LOGIT_ADJUSTMENTS", {"attention_window_size": WINDOW, "lru_width": 64}),
    "rwkv": ("--sampler vllm", {}),
}
DENSE = "phi olmo olmo2 cohere nemotron granite stablelm glm glm4 ernie4_5 arcee apertus seed_oss hunyuan_v1_dense doge"
DENSE += " helium persimmon jetmoe nanochat gemma bitnet falcon_mamba mamba olmo_hybrid internlm3 mpt"
MORE: dict[str, dict[str, Any]] = {
    **{family: {} for family in DENSE.split()},
    **dict.fromkeys(("exaone4", "granite_swa", "vaultgemma"), W),
    "smollm3": {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 2, **W},
    "afmoe": {**W, **EXPERTS},
    "bloom": {"n_layer": 4, "n_head": 4},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 16},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16},
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"] * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "num_local_experts": 2,
    },
}
SPARSE = {**MLA, "index_topk": WINDOW, "index_head_dim": 32, "index_n_heads": 2}
# These amplify rounding: their own eager forward differs by so much where a row is cut short.
TOLERANCE = {"hrm_text": 0.03, "nemotron_h": 0.02}


def make_models(family: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The same random tiny model twice: as it is loaded, and with eager attention."""
    sizes = {
        "vocab_size": 40,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "bos_token_id": None,
    }
    config = AutoConfig.for_model(family, **{**sizes, **options})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
        eager = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    for one in (model, eager):
        switch_off_dropout(one)
    return model, eager


def plain(eager: Any, row: list[int]) -> Tensor:
    """log pi(row[t] | row[:t]) for t >= 1 by the eager forward of this row alone."""
    with torch.no_grad():
        everything = eager(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return everything.gather(1, torch.tensor(row[1:])[:, None])[:, 0]


def make_rows() -> list[list[int]]:
    """Rows of three prompts, one of them with two completions; all but one pass the window."""
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randint(5, 40, (PROMPT + NEW,), generator=generator).tolist() for _ in range(3))
    return [a, a[:PROMPT] + b[PROMPT:30], b[:25], c[: PROMPT + 4]]


def check_training(policy: Policy, eager: Any, tolerance: float) -> None:
    """token_logprobs of rows of several lengths are those of each row alone."""
    rows = make_rows()
    tokens, mask = torch.zeros(len(rows), PROMPT + NEW, dtype=torch.long), torch.zeros(len(rows), PROMPT + NEW).bool()
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, PROMPT : len(row)] = True
    with torch.no_grad():
        found, _ = token_logprobs(policy, tokens, mask)
    for i, row in enumerate(rows):
        expected = plain(eager, row)[PROMPT - 1 :]
        torch.testing.assert_close(found[i, PROMPT : len(row)], expected, atol=tolerance, rtol=1e-4)


def check_sampling(policy: Policy, eager: Any, tolerance: float) -> None:
    """The sampler's logprobs of its completions are those of the whole row."""
    prompts = [row[: PROMPT + i // 2] for i, row in enumerate(make_rows())]  # of two lengths
    drawn = TorchSampler(policy).generate(prompts, Sampling(max_new_tokens=NEW), [[1, 2, 3], [4], [5, 6], [7]])
    assert max(len(c.token_ids) for group in drawn for c in group) > WINDOW
    for prompt, group in zip(prompts, drawn):
        for completion in group:
            expected = plain(eager, [*prompt, *completion.token_ids])[len(prompt) - 1 :]
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=tolerance, rtol=1e-4)


def compute(family: str, options: dict[str, Any]) -> tuple[str, str]:
    """Checks a family past its windows; how it is run. Raises ValueError where it is refused."""
    model, eager = make_models(family, options)
    check_logits(model)
    check_causal(model)
    policy = Policy(model, tiny_tokenizer([ALPHABET]))
    tolerance = TOLERANCE.get(family, 1e-3)
    check_training(policy, eager, tolerance)
    sampler = TorchSampler(policy)
    check_sampling(policy, eager, tolerance)
    return (model.rlvr_pass if policy.packs else "padded"), sampler.decoders.for_length(PROMPT + NEW).__name__


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_computed_as_by_its_own_forward_or_refused(family: str) -> None:
    """Training and sampling give the log-probabilities of the eager forward past the window, or one line refuses."""
    how, options = FAMILIES[family]
    if isinstance(how, str):
        with pytest.raises(ValueError, match=how) as caught:
            compute(family, options)
        assert "\n" not in str(caught.value)
    else:
        assert compute(family, options) == how


@pytest.mark.slow
@pytest.mark.parametrize("family", MORE)
def test_no_other_family_differs_without_a_word(family: str) -> None:
    """The same for the rest, whichever way each of them is run."""
    compute(family, MORE[family])


def test_a_model_that_looks_ahead_is_refused() -> None:
    """Sparse attention whose choice of keys, among equal ones, changes with what follows."""
    with pytest.raises(ValueError, match="gives a token another state where other tokens follow it"):
        compute("deepseek_v32", SPARSE)


def test_a_large_window_packs_up_to_it_and_runs_plain_beyond() -> None:
    """Rows within a window of 64 tokens are packed; those beyond it are padded, and sampled from the model's cache."""
    model, eager = make_models("mistral", {"sliding_window": 64})
    policy = Policy(model, tiny_tokenizer([ALPHABET]))
    assert policy.packs
    assert policy.trial.limit == 64
    assert "beyond 64 tokens" in policy.describe()
    check_training(policy, eager, 1e-3)
    sampler = TorchSampler(policy)
    assert [sampler.decoders.for_length(n).__name__ for n in (40, 64, 65)] == ["SharedDecoder"] * 2 + ["CacheDecoder"]
    row = [5 + i * i % 31 for i in range(90)]
    mask = torch.ones(1, 90, dtype=torch.bool)
    mask[0, 0] = False
    found, _ = token_logprobs(policy, torch.tensor([row]), mask)
    torch.testing.assert_close(found[0, 1:], plain(eager, row), atol=1e-3, rtol=1e-4)
    drawn = sampler.generate([row[:50]], Sampling(max_new_tokens=40), [[1, 2, 3, 4]])[0]
    assert max(len(c.token_ids) for c in drawn) > 20
    for completion in drawn:
        expected = plain(eager, [*row[:50], *completion.token_ids])[49:]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-3, rtol=1e-4)


def rope(kind: str) -> dict[str, Any]:
    """Options of a rotary scaling that begins at 16 tokens and depends on the length of the text."""
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 8.0}
    if kind == "longrope":
        parameters |= {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8, "original_max_position_embeddings": 16}
        return {"original_max_position_embeddings": 16, "rope_parameters": parameters}
    return {"max_position_embeddings": 16, "rope_parameters": parameters}


def test_rotary_scaling_by_length_parts_long_rows_from_short_ones() -> None:
    """Short rows keep their angles beside long ones in training; sampling past the change is refused."""
    model, eager = make_models("phi3", rope("longrope"))
    policy = Policy(model, tiny_tokenizer([ALPHABET]))
    check_training(policy, eager, 1e-3)
    with pytest.raises(ValueError, match=r"beyond 16 tokens .*--sampler vllm"):
        TorchSampler(policy)


def test_rotary_scaling_that_remembers_is_refused_beyond_its_start() -> None:
    """Scaling 'dynamic' grows with the longest text so far, so that a row's probabilities have no one value."""
    model, eager = make_models("llama", rope("dynamic"))
    policy = Policy(model, tiny_tokenizer([ALPHABET]))
    with pytest.raises(ValueError, match="rows of up to 40 tokens: beyond 16 the rotary scaling 'dynamic'"):
        check_training(policy, eager, 1e-3)
    with pytest.raises(ValueError, match="rows of up to 17 tokens"):
        TorchSampler(policy).generate([[5, 6]], Sampling(max_new_tokens=15), [[1]])


def test_lengths_that_change_a_model_are_found_in_its_config() -> None:
    """Windows that are switched off, and numbers that are no lengths, do not count."""
    config = AutoConfig.for_model("qwen2", use_sliding_window=False, sliding_window=32, max_window_layers=28)
    holder = torch.nn.Module()
    holder.config = config
    assert boundaries(holder) == ()
    config = AutoConfig.for_model("mistral", sliding_window=32)
    holder.config = config
    holder.chunk_size = 48
    assert boundaries(holder) == (32, 48)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_lack_of_memory_is_not_taken_for_a_model_that_cannot(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """The trial ends with the allocator's error, and a slow way is not chosen for the whole run."""

    def no_room(*args: Any) -> None:
        if device == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(rlvr.model.probe, "hidden_states", no_room)
    model, _ = make_models("llama", {})
    with pytest.raises(RuntimeError, match="memory"):
        Policy(model, tiny_tokenizer([ALPHABET]))


def test_a_failure_of_the_packed_pass_is_named() -> None:
    """The start of a run says why rows are padded."""
    model, _ = make_models("mistral", W)
    described = Policy(model, tiny_tokenizer([ALPHABET])).describe()
    assert "slower: Unsupported: sliding_window" in described
    assert "slower" not in load_policy(ModelConfig(device="cpu"), corpus=[ALPHABET]).describe()
