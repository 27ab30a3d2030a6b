"""The weights for the engine: their names and values, how many are in memory at once, their parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.vllm.weights import engine_folder, engine_weights, parts, write_config
from tests.helpers.families import make_models
from tests.helpers.models import shake, tiny_policy
from tests.helpers.tensors import BytesAlive


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "family",
    ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "deepseek_v3", "gpt_oss", "granitemoe", "jamba", "llama"],
)
def test_weights_go_to_the_engine_under_the_names_of_a_checkpoint(family: str, tmp_path: Path):
    """Names and values are those of the file that `save_pretrained` writes, experts one by one."""
    model, _ = make_models(family)
    model.save_pretrained(tmp_path)
    saved = {name: value for file in tmp_path.glob("*.safetensors") for name, value in load_file(file).items()}
    policy = Policy(model, tiny_tokenizer(["0123456789"]))
    pushed = dict(engine_weights(policy))
    assert set(pushed) - {"lm_head.weight"} == set(saved) - {"lm_head.weight"}
    assert all(torch.equal(pushed[name], value) for name, value in saved.items())
    assert "lm_head.weight" in pushed


def make_adapted(family: str, folder: Path) -> Policy:
    """Save a random model of a family, and load it with adapters that are not zero."""
    model, _ = make_models(family)
    model.save_pretrained(folder)
    tiny_tokenizer(["0123456789+-= abcdefghijklmnopqrstu"]).save_pretrained(folder)
    policy = load_policy(ModelConfig(name=str(folder), device="cpu", lora_rank=2))
    shake(policy, 0.1, seed=0)
    return policy


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_merged_adapters_go_under_the_names_of_a_checkpoint(family: str, tmp_path: Path):
    """As those of a merged model that is saved."""
    policy = make_adapted(family, tmp_path)
    pushed = dict(engine_weights(policy))
    policy.model.merge_and_unload().save_pretrained(tmp_path / "merged")
    saved = load_file(tmp_path / "merged" / "model.safetensors")
    assert set(pushed) == set(saved)
    for name, value in saved.items():
        torch.testing.assert_close(pushed[name], value, msg=name)


@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_one_merged_weight_is_in_memory_at_a_time(family: str, tmp_path: Path):
    """Beyond the model there is never more than the merged weight that was asked for; stacked experts are one."""
    policy = make_adapted(family, tmp_path)
    merged = max(weight.nbytes for weight in policy.model.parameters())
    beyond = []
    with BytesAlive() as alive:
        for _, value in engine_weights(policy):
            del value
            beyond.append(alive.now())
    assert 0 < max(beyond) <= merged
    assert alive.peak <= 2 * merged  # peft scales the product of the factors into another tensor
    assert alive.now() == 0


def test_parts_hold_whole_layers():
    """A part has at most the asked size, or one layer; together they hold each tensor once, in order."""
    weights = dict(engine_weights(tiny_policy(seed=1)))
    layer = sum(value.nbytes for name, value in weights.items() if name.startswith("model.layers.0."))
    for size, many in ((1, True), (2 * layer, True), (2**30, False)):
        made = list(parts(weights.items(), size))
        assert (len(made) > 1) == many
        for part in made:
            assert sum(value.nbytes for value in part.values()) <= max(size, layer, *(v.nbytes for v in part.values()))
        assert sum(any(name.startswith("model.layers.0.") for name in part) for part in made) == 1
        assert [name for part in made for name in part] == list(weights)


def test_a_model_in_shards_keeps_its_name_for_the_engine(tmp_path: Path):
    """FSDP2 gives a sharded model a class of its own, which vLLM does not know."""
    policy = tiny_policy()
    kind = type(policy.causal)
    policy.causal.__class__ = type(f"FSDP{kind.__name__}", (kind,), {})
    write_config(policy, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [kind.__name__]


def test_engines_of_a_model_start_from_one_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that vLLM finds what it compiled before, whatever the weights are."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    policy = tiny_policy()
    folder = engine_folder(policy)
    shake(policy, 0.1, 1)
    assert engine_folder(policy) == folder
    assert not list(folder.glob("*.safetensors"))
    policy.causal.config.rms_norm_eps = 0.5
    assert engine_folder(policy) != folder
