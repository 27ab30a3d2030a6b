"""Random tiny models of every family that transformers has as a causal LM, with windows shorter than the texts.

And how far training and sampling are from their plain forward.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from rlvr.core.types import Completion, Sampling
from rlvr.model.load.policy import Policy
from rlvr.model.load.pretrained import switch_off_dropout
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.torch_sampler import TorchSampler

WINDOW = 8
PROMPT, NEW = 9, 31  # tokens of most prompts and of completions
# Every family gets those that its config has.
SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "decoder_vocab_size": 40,
    "vocab_size_per_layer_input": 40,
    "unpadded_vocab_size": 40,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "initializer_range": 0.2,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": 2,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "word_embed_proj_dim", "lru_width"), 64),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layers", "n_layer"), 4),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_heads", "n_head"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "linear_num_value_heads"), 4),
    "num_key_value_heads": 2,
    "head_dim": 16,
    **dict.fromkeys(("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 96),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "attention_chunk_size", "window_size"), WINDOW),
    **dict.fromkeys(("attention_window_size", "local_attention", "index_topk", "rel_extent"), WINDOW),
    "use_sliding_window": True,
    "max_window_layers": 2,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), 3.0),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"), 32),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
    "q_lora_rank": 24,
    "index_head_dim": 32,
    "index_n_heads": 2,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "mamba_d_state", "mamba_d_head"), 16),
    **dict.fromkeys(("mamba_chunk_size", "mamba_head_dim", "ssm_state_size", "state_size"), 16),
    "linear_num_key_heads": 2,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 16,
    "mamba_n_heads": 8,
    "mamba_num_heads": 4,
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank", "hidden_size_per_layer_input", "rotary_dim"), 8),
}
MIXED = ["sliding_attention", "full_attention"] * 2
# These share keys of all heads, or need as many as queries.
FULL_HEADS = "axk1 axk2 deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_linear longcat_flash"
FULL_HEADS += " minicpm3 sarvam_mla youtu"
SPARSE = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 8}
SPARSE |= {"indexer_compress_ratio": 4}
VISION = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VISION |= {"image_size": 28, "patch_size": 14}
# These amplify rounding: with larger weights their own forward differs by more than 1e-4 when its input is rounded.
CALM = dict.fromkeys(("hrm_text", "qwen3_next", "qwen4_exp_text"), 0.1)
CALM |= dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text"), 0.05)
# No tiny model is made of these: sizes that no config has, or libraries that are not installed.
NOT_MADE = {"blt", "cpmant", "dots3_note", "dots3_note_text", "gemma3n", "gemma4_assistant", "gemma4_unified_assistant"}
NOT_MADE |= {"musicgen", "musicgen_melody"}
# Further options of a family; those of its text part under "text_config".
OPTIONS: dict[str, dict[str, Any]] = {
    **{family: {"num_key_value_heads": 4} for family in FULL_HEADS.split()},
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 32},
    "cohere2": {"layer_types": MIXED},
    "cohere_compass_text": {
        "layer_types": MIXED,
        "rope_parameters": {
            name: {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]} for name in MIXED
        },
    },
    "dbrx": {
        "max_seq_len": 128,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "hidden_size": 64, "moe_top_k": 2},
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4},
    "gemma3": {
        "vision_config": VISION | {"model_type": "siglip_vision_model"},
        "text_config": {"final_logit_softcapping": None},  # the model with a vision part leaves it out
    },
    "gemma3_text": {"layer_types": MIXED},
    "gemma3n_text": {"num_kv_shared_layers": 0, "layer_types": MIXED, "activation_sparsity_pattern": [0.0] * 4},
    "git": {"vision_config": VISION},
    "got_ocr2": {
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
        | {"image_size": 64, "patch_size": 16, "output_channels": 16, "window_size": 2, "global_attn_indexes": [0]}
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 2,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"], "block_ff_dim": 96},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"], "num_dense_layers": 1},
    "longcat_flash": {"num_key_value_heads": 4, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 32, "moe_topk": 2},
    "mamba2": {"num_heads": 8, "n_groups": 1, "chunk_size": 16},
    "minimax": {"block_size": 8},
    "mllama": {"text_config": {"cross_attention_layers": [1]}, "vision_config": VISION},
    "modernbert-decoder": {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 16},
    "moss_transcribe_diarize": {
        "audio_config": {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
        | {"num_mel_bins": 8, "max_source_positions": 16}
    },
    "nemotron_h": {"n_groups": 2},
    "phi4_multimodal": {
        "vision_config": VISION | {"crop_size": 28},
        "audio_config": {"hidden_size": 32, "num_blocks": 1, "num_attention_heads": 2, "intermediate_size": 32}
        | {"ext_pw_out_channel": 32, "nemo_conv_channels": 32},
    },
    "qwen4_exp": {"text_config": SPARSE},
    "qwen4_exp_text": SPARSE,
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [32, 32], "axial_pos_shape": [8, 16]},
    "roc_bert": {"pronunciation_vocab_size": 40, "shape_vocab_size": 40},
    "smollm3": {"layer_types": MIXED},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layer_types": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zaya": {"num_experts_per_tok": 1},
}
FAMILIES = sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} - NOT_MADE)
LARGEST = 20_000_000  # parameters


def tiny_family(family: str, **options: Any) -> Any:
    """Return the config of a tiny model."""
    default = AutoConfig.for_model(family)
    chosen = {name: value for name, value in SIZES.items() if name in vars(default)}
    # Both names of one setting would have to agree.
    chosen |= {
        name: SIZES[name] for name, own in (default.attribute_map or {}).items() if name in SIZES and own not in SIZES
    }
    own = {**OPTIONS.get(family, {}), **options}
    if family in CALM:
        own["initializer_range"] = CALM[family]
    for part in ("text_config", "decoder"):
        inner = getattr(default, part, None)
        if hasattr(inner, "model_type"):
            sizes = {name: value for name, value in SIZES.items() if name in vars(inner)}
            chosen[part] = {
                **sizes,
                "model_type": inner.model_type,
                **OPTIONS.get(inner.model_type, {}),
                **own.pop(part, {}),
            }
    return AutoConfig.for_model(family, **{**chosen, **own})


def make_models(family: str, **options: Any) -> tuple[Any, Any]:
    """Return the same random tiny model twice: as it is loaded, and with eager attention.

    Whatever transformers raises where a family cannot be made so is raised.
    """
    config = tiny_family(family, **options)
    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
    if size > LARGEST:
        raise MemoryError(f"a tiny {family} has {size} parameters")
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


def batch_of(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (B, T), True on what follows the prompts."""
    width = max(map(len, rows))
    tokens, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width).bool()
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = torch.tensor(row)
        mask[i, PROMPT : len(row)] = True
    return tokens, mask


def training_difference(policy: Policy, eager: Any) -> float:
    """The largest difference between token_logprobs of rows of several lengths and those of each row alone."""
    rows = make_rows()
    with torch.no_grad():
        found, _ = token_logprobs(policy, *batch_of(rows))
    return max(
        float((found[i, PROMPT : len(row)] - plain(eager, row)[PROMPT - 1 :]).abs().max()) for i, row in enumerate(rows)
    )


def drawn_rows(sampler: TorchSampler) -> list[tuple[list[int], Completion]]:
    """Prompts of two lengths, each with the completions that are drawn for it."""
    prompts = [row[: PROMPT + i // 2] for i, row in enumerate(make_rows())]
    drawn = sampler.generate(prompts, Sampling(max_new_tokens=NEW), [[1, 2, 3], [4], [5, 6], [7]])
    assert max(len(c.token_ids) for group in drawn for c in group) > 1
    return [(prompt, completion) for prompt, group in zip(prompts, drawn) for completion in group]


def sampling_difference(sampler: TorchSampler, eager: Any) -> float:
    """The largest difference between the sampler's logprobs of its completions and those of the whole row."""
    worst = 0.0
    for prompt, completion in drawn_rows(sampler):
        expected = plain(eager, [*prompt, *completion.token_ids])[len(prompt) - 1 :]
        worst = max(worst, float((torch.tensor(completion.logprobs) - expected).abs().max()))
    return worst


def own_difference(sampler: TorchSampler, eager: Any) -> float:
    """How far transformers' own decoding with the model's cache is from the whole row, for the same completions.

    Gated recurrences that are computed in another order, before a router, are off by more than 1e-4.
    """
    worst = 0.0
    for prompt, completion in drawn_rows(sampler):
        row, cache, found = [*prompt, *completion.token_ids], {}, []
        with torch.no_grad():
            for end in range(len(prompt), len(row)):
                start = end - 1 if cache else 0
                made = eager(input_ids=torch.tensor([row[start:end]]), use_cache=True, **cache)
                cache = {key: value for key, value in made.items() if "cache" in key or key == "past_key_values"}
                found.append(float(made.logits[0, -1].float().log_softmax(-1)[row[end]]))
        worst = max(worst, float((torch.tensor(found) - plain(eager, row)[len(prompt) - 1 :]).abs().max()))
    return worst
