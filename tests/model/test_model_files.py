"""What is said of a model that cannot be read, how fast, and which revision, code and attention are taken."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from rlvr.commands.cli import main
from rlvr.config import ModelConfig, VLLMConfig
from rlvr.core.files.models import find_model
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.critic import copy_of
from rlvr.reward_model.scorer import load_parts
from rlvr.sampling.vllm.engine import start_options
from tests.helpers.files import ROOT
from tests.helpers.models import are_equal, make_model, tiny_policy, weights

CLOSED = "http://127.0.0.1:9"

CONFIGURATION = """
from pathlib import Path
from transformers import Qwen2Config

Path(__file__).with_name("ran").touch()


class MineConfig(Qwen2Config):
    model_type = "mine"
"""
MODELING = """
from transformers import Qwen2ForCausalLM
from .configuration_mine import MineConfig


class MineForCausalLM(Qwen2ForCausalLM):
    config_class = MineConfig
"""


def refusal(name: Path | str, **settings: object) -> str:
    """The one line that loading raises."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        load_policy(ModelConfig(name=str(name), device="cpu", **settings))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500
    return str(refused.value)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "tiny_math", "--model.name"],
        ["train", "tiny_math", "--model.lora-rank=4", "--model.name"],
        ["sft", "tiny_math", "--model.name"],
    ],
)
def test_a_mistyped_folder_is_answered_before_anything_is_imported(command: list[str], tmp_path: Path) -> None:
    """One line with the nearest folder; torch is not loaded for it."""
    (tmp_path / "models" / "qwen").mkdir(parents=True)
    code = (
        "import sys; from rlvr.commands.cli import main; code = main(sys.argv[1:]);"
        "assert not {'torch', 'transformers', 'huggingface_hub'} & set(sys.modules); sys.exit(code)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "./models/qwem"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: model './models/qwem': no such folder (did you mean qwen?)")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["./no/such", "/no/such", "~/no/such/folder", "a/b/c", "../x", "runs/my run"])
def test_what_can_only_be_a_folder_is_never_asked_of_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A separator or dot at the start, more than one separator, characters that no hub name has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://never.asked.invalid")
    with pytest.raises(ValueError, match="no such folder") as refused:
        find_model(name)
    assert name in str(refused.value)


def test_other_commands_answer_a_mistyped_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Before the data is read and before the folder of the command is made."""
    for command in (
        ["eval", "--model", "./no/such", "--task", "arithmetic", "--out-dir", str(tmp_path / "out")],
        ["profile", "arithmetic", "--model", "./no/such", "--out-dir", str(tmp_path / "out")],
        ["rm", "rm_pairs", "--pairs.policy", "./no/such", "--run.out-dir", str(tmp_path / "out")],
        ["merge", "./no/such", str(tmp_path / "out")],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "'./no/such': no such folder" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_unreachable_hub_is_told_at_once(tmp_path: Path) -> None:
    """One line, without the client's own lines about its tries, which take half a minute."""
    program = "from rlvr.commands.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": CLOSED, "HF_HOME": str(tmp_path / "hf")}
    command = [sys.executable, "-c", program, "merge", "no-such/model", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert "error: model 'no-such/model' is neither a folder in" in done.stderr
    assert f"the hub ({CLOSED}) cannot be reached" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hub_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a bounded time."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", constants.ENDPOINT + "/{repo_id}/{filename}")
        monkeypatch.setattr("rlvr.core.files.models.HUB_SECONDS", 0.5)
        start = time.monotonic()
        with pytest.raises(ValueError, match="cannot be reached"):
            find_model("no-such/model")
        assert time.monotonic() - start < 60


def hub_cache(folder: Path, **revisions: Path) -> dict[str, str]:
    """A hub cache that holds the model me/model in some revisions; the environment in which it is used."""
    repository = folder / "hub" / "models--me--model"
    (repository / "refs").mkdir(parents=True)
    for number, (name, source) in enumerate(revisions.items()):
        commit = f"{number}" * 40
        (repository / "refs" / name).write_text(commit)
        shutil.copytree(source, repository / "snapshots" / commit)
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(folder), "HF_ENDPOINT": CLOSED}


def test_a_revision_is_what_is_loaded(tmp_path: Path) -> None:
    """Weights and tokenizer of a branch or tag; from the cache where the hub cannot be reached, without long tries."""
    one, two = make_model("llama", tmp_path / "one"), make_model("qwen3", tmp_path / "two")
    code = (
        "from rlvr.config import ModelConfig; from rlvr.model.load.policy import load_policy; "
        "from rlvr.reward_model.scorer import load_parts\n"
        "for revision in (None, 'v2'):\n"
        "    policy = load_policy(ModelConfig(name='me/model', device='cpu', revision=revision))\n"
        "    print(type(policy.causal).__name__, load_parts('me/model', revision=revision).config.model_type)\n"
        "try:\n    load_policy(ModelConfig(name='me/model', device='cpu', revision='v3'))\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=hub_cache(tmp_path / "hf", main=one, v2=two),
        cwd=tmp_path,
    )
    found = done.stdout.splitlines()
    assert found[:2] == ["LlamaForCausalLM llama", "Qwen3ForCausalLM qwen3"], done.stderr
    assert "cannot be reached" in found[2]
    assert "Retrying" not in done.stderr


def test_an_adapter_of_the_hub_is_loaded(tmp_path: Path) -> None:
    """From the cache where the hub cannot be reached; its base is the hub's too, and keeps that name when saved."""
    base = make_model("llama", tmp_path / "base")
    policy = load_policy(ModelConfig(name=str(base), device="cpu", lora_rank=4))
    policy.causal.name_or_path = "me/model"
    policy.save(tmp_path / "adapter")
    for path in (tmp_path / "adapter").glob("token*"):
        path.unlink()  # then the base's is taken
    environment = hub_cache(tmp_path / "hf", main=base)
    held = tmp_path / "hf" / "hub"
    shutil.copytree(held / "models--me--model", held / "models--me--adapter")
    snapshot = held / "models--me--adapter" / "snapshots" / ("0" * 40)
    shutil.rmtree(snapshot)
    shutil.copytree(tmp_path / "adapter", snapshot)
    code = (
        "import sys; from rlvr.config import ModelConfig; from rlvr.model.load.policy import load_policy\n"
        "for rank in (0, 4):\n"
        "    policy = load_policy(ModelConfig(name='me/adapter', device='cpu', lora_rank=rank))\n"
        "    print(type(policy.model).__name__)\n"
        "policy.save(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout.split() == ["LlamaForCausalLM", "PeftModelForCausalLM"], done.stderr
    saved = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == "me/model"
    assert "Retrying" not in done.stderr


def test_broken_files_are_named(tmp_path: Path) -> None:
    """Cut off, garbage, a pointer, a missing shard, no tokenizer: the file and what to do."""
    whole = make_model("llama", tmp_path / "whole")
    content = (whole / "model.safetensors").read_bytes()

    def break_file(name: str, change: dict[str, bytes | None]) -> Path:
        folder = shutil.copytree(whole, tmp_path / name)
        for file, data in change.items():
            (folder / file).unlink(missing_ok=True)
            if data is not None:
                (folder / file).write_bytes(data)
        return folder

    half = break_file("half", {"model.safetensors": content[: len(content) // 2]})
    assert re.search(r"model.safetensors has \d+ bytes and should have \d+; copy it again", refusal(half))
    assert "truncated" in refusal(break_file("start", {"model.safetensors": content[:100]}))
    assert "truncated" in refusal(break_file("nothing", {"model.safetensors": b""}))
    header = len(content[8:]).to_bytes(8, "little") + content[8:]
    assert "broken header" in refusal(break_file("header", {"model.safetensors": header}))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    assert "git lfs pull" in refusal(break_file("pointer", {"model.safetensors": pointer}))
    assert "config.json is not JSON" in refusal(break_file("garbage", {"config.json": b"{model"}))
    assert "config.json is not text" in refusal(break_file("binary", {"config.json": b"\xff\xfe\x00"}))
    assert "holds a list" in refusal(break_file("list", {"config.json": b"[]"}))
    assert "no config.json" in refusal(break_file("bare", {"config.json": None}))
    assert "model.safetensors" in refusal(break_file("empty", {"model.safetensors": None}))
    assert "no tokenizer" in refusal(break_file("mute", {"tokenizer.json": None, "tokenizer_config.json": None}))
    assert "tokenizer.json is not JSON" in refusal(break_file("torn", {"tokenizer.json": b'{"version": '}))
    index = json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()
    assert "model-1.safetensors is missing (1 of 1 files)" in refusal(
        break_file("shard", {"model.safetensors": None, "model.safetensors.index.json": index})
    )
    sizes = json.loads((whole / "config.json").read_text())
    other = json.dumps({**sizes, "hidden_size": 32}).encode()
    assert str(tmp_path / "sizes") in refusal(break_file("sizes", {"config.json": other}))
    assert "is a file" in refusal(whole / "config.json")


def test_a_checkpoint_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    """When weights are put back too."""
    policy = tiny_policy()
    policy.save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors has"):
        policy.load_weights(tmp_path)


def own_code(folder: Path) -> Path:
    """A model whose folder brings its Python code."""
    policy = tiny_policy()
    policy.save(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "architectures": ["MineForCausalLM"],
        "auto_map": {
            "AutoConfig": "configuration_mine.MineConfig",
            "AutoModelForCausalLM": "modeling_mine.MineForCausalLM",
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "configuration_mine.py").write_text(CONFIGURATION)
    (folder / "modeling_mine.py").write_text(MODELING)
    return folder


def test_code_of_a_model_runs_only_when_it_is_trusted(tmp_path: Path) -> None:
    """Without the setting one line names it; with it the model is loaded, saved with its code, and loaded again."""
    folder = own_code(tmp_path / f"own_{os.getpid()}")
    assert "--model.trust-remote-code" in refusal(folder)
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_parts(str(folder))
    policy = load_policy(ModelConfig(name=str(folder), device="cpu", trust_remote_code=True))
    assert type(policy.causal).__name__ == "MineForCausalLM"
    assert start_options(policy, VLLMConfig())["trust_remote_code"] is True
    assert "trust_remote_code" not in start_options(tiny_policy(), VLLMConfig())
    policy.save(tmp_path / "saved")
    again = load_policy(ModelConfig(name=str(tmp_path / "saved"), device="cpu", trust_remote_code=True))
    assert are_equal(weights(policy), weights(again))
    policy.load_weights(tmp_path / "saved")


def test_attention_is_the_one_that_is_named(tmp_path: Path) -> None:
    """auto packs where it can; a named implementation is used as transformers has it."""
    folder = make_model("llama", tmp_path)
    auto = load_policy(ModelConfig(name=str(folder), device="cpu"))
    assert auto.packs
    for name in ("eager", "sdpa"):
        for model in (str(folder), "tiny"):
            policy = load_policy(ModelConfig(name=model, device="cpu", attention=name), corpus=["0123"])
            assert policy.causal.config._attn_implementation == name
            assert not policy.packs
            assert not policy.reference().packs
            assert not copy_of(policy).packs
    assert "guess" in refusal(folder, attention="guess")
    assert "Flash" in refusal(folder, attention="flash_attention_2")


def test_weights_that_are_whole_pass(tmp_path: Path) -> None:
    """A header with metadata, an empty tensor, several files."""
    folder = make_model("llama", tmp_path / "model")
    held = load_file(folder / "model.safetensors")
    names = sorted(held)
    (folder / "model.safetensors").unlink()
    for number, part in enumerate((names[:3], names[3:])):
        save_file({n: held[n] for n in part}, folder / f"model-{number}.safetensors", metadata={"format": "pt"})
    places = {n: f"model-{int(i >= 3)}.safetensors" for i, n in enumerate(names)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    save_file({"none": torch.zeros(0)}, folder / "other.safetensors")
    assert load_policy(ModelConfig(name=str(folder), device="cpu")).packs
