"""The weights for the engine: their names and values, how many are in memory at once, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.vllm.weights import WEIGHT_FILES, engine_weights, write_weights
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


def adapted(family: str, folder: Path) -> Policy:
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
    policy = adapted(family, tmp_path)
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
    policy = adapted(family, tmp_path)
    merged = max(weight.nbytes for weight in policy.model.parameters())
    beyond = []
    with BytesAlive() as alive:
        for _, value in engine_weights(policy):
            del value
            beyond.append(alive.now())
    assert 0 < max(beyond) <= merged
    assert alive.peak <= 2 * merged  # peft scales the product of the factors into another tensor
    assert alive.now() == 0


def test_files_hold_whole_layers_and_replace_those_before(tmp_path: Path):
    """A file has at most the asked size, or one layer; read back, each tensor is the one that was written."""
    policy = tiny_policy(seed=1)
    weights = dict(engine_weights(policy))
    layer = sum(value.nbytes for name, value in weights.items() if name.startswith("model.layers.0."))
    for size, many in ((1, True), (2 * layer, True), (2**30, False)):
        write_weights(iter(weights.items()), tmp_path, torch.float32, size)
        files = [load_file(path) for path in sorted(tmp_path.glob(WEIGHT_FILES))]
        assert (len(files) > 1) == many
        assert all(sum(v.nbytes for v in file.values()) <= max(size, layer, largest(file)) for file in files)
        assert sum(any(name.startswith("model.layers.0.") for name in file) for file in files) == 1
        read = {name: value for file in files for name, value in file.items()}
        assert read.keys() == weights.keys()
        assert all(torch.equal(read[name], value) for name, value in weights.items())


def largest(weights: dict[str, Tensor]) -> int:
    """Return the bytes of the largest tensor."""
    return max(value.nbytes for value in weights.values())
