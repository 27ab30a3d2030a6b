"""LoRA adapters as models: evaluated, profiled, trained further, merged, and used as reward models."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.launch import launch
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.reward_model.scorer import load_classifier
from rlvr.reward_model.text import Encoded
from rlvr.sampling.vllm.weights import engine_weights
from tests.helpers.files import ROOT, lines
from tests.helpers.models import CORPUS, are_equal, make_model, make_tokens, weights
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums


def adapter(folder: Path, base: str, *, targets: str = "all-linear", seed: int = 0) -> Policy:
    """A policy with an adapter of rank 4 that changes what the base computes, saved."""
    config = ModelConfig(name=base, device="cpu", lora_rank=4, lora_targets=targets)
    policy = load_policy(config, corpus=CORPUS, seed=3)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    policy.save(folder)
    return policy


def logprobs(policy: Policy) -> torch.Tensor:
    """Those of a fixed batch."""
    tokens, mask = make_tokens(20)
    with torch.no_grad():
        return token_logprobs(policy, tokens, mask)[0]


def plain_logprobs(folder: Path) -> torch.Tensor:
    """By transformers alone, of a fixed row."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(make_tokens(20)[0][:1]).logits.float().log_softmax(-1)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_model("llama", tmp_path / "model")


def test_an_adapter_is_loaded_merged_into_its_base(base: Path, tmp_path: Path) -> None:
    """The same logprobs to 1e-5, and every weight is trained."""
    trained = adapter(tmp_path / "adapter", str(base))
    loaded = load_policy(ModelConfig(name=str(tmp_path / "adapter"), device="cpu"))
    assert loaded.causal is loaded.model
    assert all(weight.requires_grad for weight in loaded.model.parameters())
    assert (logprobs(loaded) - logprobs(trained)).abs().max() < 1e-5
    assert (logprobs(loaded) - logprobs(load_policy(ModelConfig(name=str(base), device="cpu")))).abs().max() > 0.1


def test_an_adapter_is_trained_further_itself(base: Path, tmp_path: Path) -> None:
    """With its own rank and alpha it is taken up bit for bit; what its base was given stays frozen."""
    trained = adapter(tmp_path / "adapter", str(base))
    before = torch.get_rng_state()
    loaded = load_policy(ModelConfig(name=str(tmp_path / "adapter"), device="cpu", lora_rank=4))
    assert torch.equal(torch.get_rng_state(), before)
    assert are_equal(weights(trained), weights(loaded))
    assert all("lora_" in name for name, weight in loaded.model.named_parameters() if weight.requires_grad)
    assert len(loaded.parameters()) == len(trained.parameters())
    merged = load_policy(ModelConfig(name=str(tmp_path / "adapter"), device="cpu"))
    pushed = dict(engine_weights(loaded))
    for name, value in engine_weights(merged):
        assert (pushed[name] - value).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 8}, "has rank 4 and model.lora_rank is 8; set --model.lora-rank 4"),
        ({"lora_rank": 4, "lora_alpha": 16.0}, "has alpha 32 and model.lora_alpha is 16; set --model.lora-alpha 32"),
        ({"lora_rank": 4, "lora_targets": "q_proj"}, "leave lora_targets out"),
    ],
)
def test_an_adapter_of_another_shape_is_refused(
    base: Path, tmp_path: Path, settings: dict[str, object], message: str
) -> None:
    """The line says which setting differs and what to set."""
    adapter(tmp_path / "adapter", str(base))
    with pytest.raises(ValueError, match=message):
        load_policy(ModelConfig(name=str(tmp_path / "adapter"), device="cpu", **settings))  # type: ignore[arg-type]


def test_an_adapter_of_the_tiny_model_brings_its_base(tmp_path: Path) -> None:
    """Nothing else holds the weights it was made on; the folder may be moved, and trained further saves it again."""
    trained = adapter(tmp_path / "first", "tiny")
    (tmp_path / "elsewhere").mkdir()
    folder = Path(shutil.move(tmp_path / "first", tmp_path / "elsewhere" / "adapter"))
    loaded = load_policy(ModelConfig(name=str(folder), device="cpu"))
    assert (logprobs(loaded) - logprobs(trained)).abs().max() < 1e-5
    assert loaded.encode(CORPUS[0]) == trained.encode(CORPUS[0])
    further = load_policy(ModelConfig(name=str(folder), device="cpu", lora_rank=4))
    further.save(tmp_path / "second")
    shutil.rmtree(folder)
    again = load_policy(ModelConfig(name=str(tmp_path / "second"), device="cpu", lora_rank=4))
    assert are_equal(weights(again), weights(further))


def test_the_base_is_found_from_another_folder(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base that was named by a relative path."""
    monkeypatch.chdir(tmp_path)
    adapter(tmp_path / "adapter", "model")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert load_policy(ModelConfig(name="../adapter", device="cpu")).packs


def test_a_run_with_an_adapter_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a LoRA run saves is evaluated and profiled, trained further, and named by the run where it is not."""
    launch(tiny(tmp_path / "run", model={"lora_rank": 4}, eval={"every": -1}), task=sums())
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000003"
    quick = ["--model", str(checkpoint), "--device", "cpu", "--max-new-tokens", "3", "--max-problems", "2"]
    sizes = ["--task-option", "num_train=8", "num_test=8"]
    evaluation = ["eval", *quick, "--task", "arithmetic", *sizes, "--out-dir", str(tmp_path / "eval")]
    assert main(evaluation) == 0
    flags = ["--samples", "2", "--group-size", "2", "--out-dir", str(tmp_path / "profile")]
    assert main(["profile", "arithmetic", *quick, *sizes, *flags]) == 0
    capsys.readouterr()
    evaluation[evaluation.index(str(checkpoint))] = str(tmp_path / "run")
    evaluation[-1] = str(tmp_path / "another")
    assert main(evaluation) == 2
    assert "checkpoints/step-" in capsys.readouterr().err
    for name, rank in (("further", 4), ("whole", 0)):
        model = {"name": str(checkpoint), "lora_rank": rank}
        launch(tiny(tmp_path / name, model=model, eval={"every": -1}), task=sums())
        saved = tmp_path / name / "checkpoints" / "step-000003"
        assert (saved / "model.safetensors").exists() is (rank == 0)
        assert lines(tmp_path / name / "metrics.jsonl")[-1]["step"] == 3


def test_an_adapter_that_is_trained_further_has_no_reference(base: Path, tmp_path: Path) -> None:
    """Without its adapter it is not the policy that the run began with: KL would be held against the wrong one."""
    adapter(tmp_path / "adapter", str(base))
    model = {"name": str(tmp_path / "adapter"), "lora_rank": 4}
    config = tiny(tmp_path / "run", model=model, algo={"kl_coef": 0.1})
    with pytest.raises(ValueError, match="rlvr merge"):
        config.check()
    with pytest.raises(ValueError, match="rlvr merge"):
        load_policy(ModelConfig(device="cpu", **model)).reference()  # type: ignore[arg-type]
    dataclasses.replace(config, model=dataclasses.replace(config.model, lora_rank=0)).check()


def test_merge_writes_a_model_with_the_adapters_logprobs(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By transformers alone, to 1e-5, with the tokenizer."""
    trained = adapter(tmp_path / "adapter", str(base))
    out = tmp_path / "new" / "merged"
    assert main(["merge", str(tmp_path / "adapter"), str(out)]) == 0
    assert "float32" in capsys.readouterr().out
    with torch.no_grad():
        expected = trained.model(make_tokens(20)[0][:1]).logits.float().log_softmax(-1)
    assert (plain_logprobs(out) - expected).abs().max() < 1e-5
    assert AutoTokenizer.from_pretrained(out).decode([3, 4]) == trained.tokenizer.decode([3, 4])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["merged"]


def test_a_merge_that_is_not_the_adapter_is_refused(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base without its adapter has other logprobs: one line, and nothing is written."""
    adapter(tmp_path / "adapter", str(base))
    monkeypatch.setattr("rlvr.model.load.lora.merge_adapter", lambda adapted: adapted.unload())
    assert main(["merge", str(tmp_path / "adapter"), str(tmp_path / "merged")]) == 2
    assert "the merged model differs from the adapter: logprobs by" in capsys.readouterr().err
    assert not (tmp_path / "merged").exists()


def test_merge_of_a_tied_head_parts_it_from_the_embedding(tmp_path: Path) -> None:
    """An adapter on the head alone leaves the embedding as it was."""
    base = make_model("qwen3", tmp_path / "model")  # its head is tied
    model = AutoModelForCausalLM.from_pretrained(base)
    lora = LoraConfig(r=4, target_modules=["lm_head", "q_proj"], task_type="CAUSAL_LM", ensure_weight_tying=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of the tie
        adapted = get_peft_model(model, lora)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    adapted.eval()
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    with torch.no_grad():
        expected = adapted(make_tokens(20)[0][:1]).logits.float().log_softmax(-1)
    assert main(["merge", str(tmp_path / "adapter"), str(tmp_path / "merged")]) == 0
    assert (plain_logprobs(tmp_path / "merged") - expected).abs().max() < 1e-5


def test_merge_writes_the_type_that_is_asked_for(base: Path, tmp_path: Path) -> None:
    """bfloat16 on demand; unless asked, that of the base."""
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "half")
    for name, model, flags in (("a", base, ["--dtype", "bfloat16"]), ("b", tmp_path / "half", [])):
        adapter(tmp_path / f"{name}-adapter", str(model))
        assert main(["merge", str(tmp_path / f"{name}-adapter"), str(tmp_path / name), *flags]) == 0
        assert AutoModelForCausalLM.from_pretrained(tmp_path / name).dtype is torch.bfloat16


def test_merge_never_overwrites(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds something, a file, the adapter itself, its base; a whole model has nothing to merge."""
    adapter(tmp_path / "adapter", str(base))
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for out in ("held", "file", "adapter", "model"):
        assert main(["merge", str(tmp_path / "adapter"), str(tmp_path / out)]) == 2
        assert ("is a file" if out == "file" else "exists; name a folder that does not") in capsys.readouterr().err
    assert main(["merge", str(base), str(tmp_path / "new")]) == 2
    assert "is a full model, not an adapter" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_what_an_adapter_lacks_is_named(base: Path, tmp_path: Path) -> None:
    """Its base is gone, is another model, or is named nowhere: one line."""
    folder = tmp_path / "adapter"
    adapter(folder, str(base))
    config = json.loads((folder / "adapter_config.json").read_text())
    for name, message in (
        (str(tmp_path / "gone"), "no such folder"),
        (None, "names no base model"),
        (str(make_model("gpt2", tmp_path / "other")), "adapter"),
        (str(make_model("olmo2", tmp_path / "like")), "adapter"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": name}))
        if name == str(tmp_path / "like"):  # all its modules are there; a tensor of the adapter is not
            (folder / "adapter_model.safetensors").unlink()
        with pytest.raises(ValueError, match=message) as refused:
            load_policy(ModelConfig(name=str(folder), device="cpu"))
        assert "\n" not in str(refused.value)


def test_adapter_config_is_the_same_from_every_process(base: Path, tmp_path: Path) -> None:
    """peft keeps the names of modules in a set, whose order is another in each process."""
    code = (
        "import sys; from rlvr.config import ModelConfig; from rlvr.model.load.policy import load_policy;"
        "load_policy(ModelConfig(name=sys.argv[1], device='cpu', lora_rank=2)).save(sys.argv[2])"
    )
    found = set()
    for seed in "01":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code, str(base), str(tmp_path / seed)]
        subprocess.run(command, env=environment, check=True, capture_output=True, cwd=ROOT)
        found.add((tmp_path / seed / "adapter_config.json").read_bytes())
    assert len(found) == 1
    names = json.loads(found.pop())["target_modules"]
    assert len(names) >= 7
    assert names == sorted(names)


def test_adapters_are_reward_models(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of a classifier scores with the head that it brings, and is merged; a causal LM's becomes a trunk."""
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    lora = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="SEQ_CLS", modules_to_save=["score"])
    adapted = get_peft_model(model, lora).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if weight.requires_grad:
                weight.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(tmp_path / "scorer", save_embedding_layers=False)
    with torch.no_grad():
        expected = float(adapted(torch.tensor([[4, 5, 6, 7]])).logits[0, 0])
    text = Encoded((4, 5, 6, 7), (3,))
    assert main(["merge", str(tmp_path / "scorer"), str(tmp_path / "merged")]) == 0
    for folder in (tmp_path / "scorer", tmp_path / "merged"):
        classifier, _ = load_classifier(str(folder), device="cpu", dtype="float32")
        with torch.no_grad():
            assert float(classifier.logits([text])[0, 0]) == pytest.approx(expected, abs=1e-5)
    trained = adapter(tmp_path / "policy", str(base))
    trunk, _ = load_classifier(str(tmp_path / "policy"), device="cpu", dtype="float32", num_labels=1)
    ids = torch.tensor([[4, 5, 6, 7]])
    with torch.no_grad():
        ours = trunk.trunk(input_ids=ids).last_hidden_state
        theirs = trained.causal.base_model(input_ids=ids).last_hidden_state
    assert (ours - theirs).abs().max() < 1e-5
    with pytest.raises(ValueError, match="not trained to score"):
        load_classifier(str(tmp_path / "policy"), device="cpu", dtype="float32")
