"""The weights for the engine: their names and values, how many are in memory at once, their files and folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.vllm.weights import (
    MEMORY,
    WEIGHT_FILES,
    delete_orphans,
    engine_weights,
    process_lives,
    process_space,
    shared_folder,
    write_weights,
)
from tests.helpers.families import make_models
from tests.helpers.files import ROOT
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


HOLD = """
import sys, time
from rlvr.sampling.vllm.weights import shared_folder
with shared_folder() as folder:
    (folder / "weights").write_bytes(b"1")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folder_is_gone_afterwards():
    """While it is there its name says whose it is."""
    with shared_folder() as folder:
        assert folder.name.startswith(f"rlvr-{process_space()}-{os.getpid()}-")
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.skipif(not MEMORY.is_dir(), reason="no /dev/shm here")
def test_folder_of_a_killed_process_goes_with_the_next_start():
    """One that lives keeps its own; once killed, the next start of any run deletes what it left."""
    command = [sys.executable, "-c", HOLD]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    left = Path(process.stdout.readline().strip())
    assert process_lives(process.pid)
    with shared_folder():
        assert (left / "weights").exists()
    process.kill()
    process.communicate()
    assert (left / "weights").exists()
    with shared_folder():
        assert not left.exists()


def test_other_folders_are_left_alone(tmp_path):
    """Those of another container's processes, and whatever else begins alike."""
    for name in (f"rlvr-{int(process_space()) + 1}-999999999-x", "rlvr-old", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / f"rlvr-{process_space()}-999999999-x").mkdir()
    delete_orphans(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        (f"rlvr-{int(process_space()) + 1}-999999999-x", "rlvr-old", "other")
    )
