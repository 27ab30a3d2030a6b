"""Loading, rendering, saving and freezing policies."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

import rlvr.model.forward.passes
from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.scoring import token_logprobs
from tests.helpers.models import CORPUS, TEMPLATE, are_equal, make_model, make_tokens, tiny_policy, weights


def test_tiny_model_is_a_function_of_the_seed() -> None:
    """The same seed gives the same weights whatever ran before, another seed others, and the global state is left."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = weights(tiny_policy(seed=5))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(10)
    assert are_equal(first, weights(tiny_policy(seed=5)))
    assert not are_equal(first, weights(tiny_policy(seed=6)))


def test_tiny_model_has_the_documented_size() -> None:
    """Four layers of 128, four heads, tied embeddings: 854,656 parameters and 128 for each token."""
    policy = tiny_policy()
    assert policy.causal.config.tie_word_embeddings
    assert sum(p.numel() for p in policy.parameters()) == 854_656 + 128 * len(policy.tokenizer)
    assert "0.86M parameters, float32 on cpu" in policy.describe()


@pytest.mark.parametrize("pattern", [".", " ?[a-z]+|."])
def test_tiny_tokenizer_gives_every_text_of_its_corpus_back(pattern: str, tmp_path: Path) -> None:
    """Newlines and spaces included, before and after saving."""
    tokenizer = tiny_tokenizer(CORPUS, pattern)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in CORPUS:
        ids = tokenizer(text).input_ids
        assert loaded(text).input_ids == ids
        assert loaded.decode(ids) == tokenizer.decode(ids) == text
        assert tokenizer.unk_token_id not in ids
    assert len(tokenizer("and another").input_ids) == (2 if "a-z" in pattern else 11)
    assert (loaded.pad_token, loaded.eos_token) == ("<pad>", "<eos>")


def test_a_saved_policy_reads_text_as_before(tmp_path: Path) -> None:
    """Newlines and spaces included, though the model beside the tokenizer has a tokenizer class of its own."""
    policy = tiny_policy()
    policy.save(tmp_path)
    loaded = load_policy(ModelConfig(name=str(tmp_path), device="cpu"))
    for text in CORPUS:
        assert loaded.encode(text) == policy.encode(text)
        assert loaded.decode(loaded.encode(text)) == text


def test_tiny_tokenizer_needs_a_corpus() -> None:
    """An empty one is refused."""
    with pytest.raises(ValueError, match="corpus is empty"):
        tiny_tokenizer([])


def test_save_and_load_round_trip(tmp_path: Path) -> None:
    """What `save` writes, transformers loads, and `load_weights` puts back bit for bit."""
    policy = tiny_policy()
    policy.save(tmp_path)
    saved = weights(policy)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert are_equal(saved, dict(loaded.state_dict()))
    assert (tmp_path / "model.safetensors").exists()
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.5)
    policy.load_weights(tmp_path)
    assert are_equal(saved, weights(policy))
    head, embedding = policy.causal.get_output_embeddings(), policy.causal.get_input_embeddings()
    assert head.weight is embedding.weight


def test_adapter_round_trip_and_reference(tmp_path: Path) -> None:
    """LoRA: only adapters are trained and saved; the reference is the same model with its adapter off."""
    folder = make_model("llama", tmp_path / "base")
    policy = load_policy(ModelConfig(name=str(folder), device="cpu", lora_rank=4))
    base = load_policy(ModelConfig(name=str(folder), device="cpu"))
    assert all("lora_" in name for name, p in policy.model.named_parameters() if p.requires_grad)
    reference = policy.reference()
    assert reference.model is policy.model
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.03)
    tokens, mask = make_tokens(20)
    trained, _ = token_logprobs(policy, tokens, mask)
    frozen, _ = token_logprobs(reference, tokens, mask)
    expected, _ = token_logprobs(base, tokens, mask)
    assert torch.equal(frozen, expected)
    assert not torch.allclose(trained, expected, atol=1e-2)
    assert all(p.requires_grad for p in policy.parameters())
    assert policy.parameters()

    policy.save(tmp_path / "adapter")
    adapters = [p.detach().clone() for p in policy.parameters()]
    with torch.no_grad():
        for weight in policy.parameters():
            weight.zero_()
    policy.load_weights(tmp_path / "adapter")
    assert all(torch.equal(a, b) for a, b in zip(adapters, policy.parameters(), strict=True))


def test_adapter_is_a_function_of_the_seed(tmp_path: Path) -> None:
    """Its initial weights do not depend on what ran before."""
    config = ModelConfig(name=str(make_model("llama", tmp_path)), device="cpu", lora_rank=2)
    first = weights(load_policy(config, seed=4))
    torch.rand(3)
    assert are_equal(first, weights(load_policy(config, seed=4)))


def test_reference_of_a_fully_trained_policy_stays_as_it_was() -> None:
    """A frozen copy, made once, whose logprobs are at first those of the policy."""
    policy = tiny_policy()
    reference = policy.reference()
    assert policy.reference() is reference
    assert not reference.parameters()
    tokens, mask = make_tokens(20)
    before, _ = token_logprobs(policy, tokens, mask)
    assert torch.equal(before, token_logprobs(reference, tokens, mask)[0])
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.1)
    assert torch.equal(before, token_logprobs(reference, tokens, mask)[0])
    assert not torch.allclose(before, token_logprobs(policy, tokens, mask)[0])


def test_chat_template_is_applied_once() -> None:
    """A string becomes a user message, the system prompt comes first, messages are taken as they are."""
    tokenizer = tiny_tokenizer(["[user]system assistant 12+3="])
    model = copy.deepcopy(tiny_policy().model)
    model.resize_token_embeddings(len(tokenizer))  # type: ignore[operator]
    tokenizer.chat_template = TEMPLATE
    policy = Policy(model, tokenizer, system_prompt="es")
    assert policy.chat
    assert tokenizer.decode(policy.render("1+2=")) == "[system]es[user]1+2=[a]"
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    assert tokenizer.decode(policy.render(messages)) == "[system]es[user]1[assistant]2[a]"
    assert tokenizer.decode(Policy(model, tokenizer, chat="never").render("1+2=")) == "1+2="


def test_without_a_template_prompts_are_plain_text() -> None:
    """auto: no template, no chat; messages and `always` are refused."""
    policy = tiny_policy()
    assert policy.decode(policy.render("12+34=")) == "12+34="
    assert [*policy.encode("46"), policy.eos_id] == [*policy.tokenizer("46").input_ids, 1]
    with pytest.raises(ValueError, match="chat is off"):
        policy.render([{"role": "user", "content": "1"}])
    with pytest.raises(ValueError, match="no chat template"):
        tiny_policy(chat="always")


def test_missing_pad_token_is_replaced(tmp_path: Path) -> None:
    """Many base models have none; the end token serves, since padding is never looked at."""
    folder = make_model("llama", tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(folder)
    policy = load_policy(ModelConfig(name=str(folder), device="cpu"))
    assert policy.pad_id == policy.eos_id == 1


def test_dropout_is_off(tmp_path: Path) -> None:
    """Two passes agree even in training mode, whatever the model's config says."""
    folder = make_model("gpt2", tmp_path)  # its config has dropout .1
    policy = load_policy(ModelConfig(name=str(folder), device="cpu", gradient_checkpointing=True))
    assert policy.model.training
    tokens, mask = make_tokens(20)
    assert torch.equal(token_logprobs(policy, tokens, mask)[0], token_logprobs(policy, tokens, mask)[0])


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """One line, with the name."""
    with pytest.raises(ValueError, match="no/such-model-here") as missing:
        load_policy(ModelConfig(name="no/such-model-here", device="cpu"))
    assert "\n" not in str(missing.value)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    tiny_policy().tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is not a causal LM"):
        load_policy(ModelConfig(name=str(tmp_path), device="cpu"))
    with pytest.raises(ValueError, match="device 'gpu'"):
        load_policy(ModelConfig(device="gpu"), corpus=CORPUS)


@pytest.mark.parametrize(
    ("family", "reason"),
    [("bert", "BertLMHeadModel gives a token another state"), ("bart", "is an encoder-decoder (bart)")],
)
def test_models_that_are_no_decoder_end_the_command_in_one_line(
    family: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An encoder, and an encoder with a decoder, of which transformers would load the decoder: exit code 2."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20}
    config = AutoConfig.for_model(family, **sizes, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    if family == "bart":
        AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path / "model")
    else:
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer(["0123456789+-= abc"]).save_pretrained(tmp_path / "model")
    arguments = ["train", "tiny_math", "--model.name", str(tmp_path / "model"), "--run.out-dir", str(tmp_path / "run")]
    assert main(arguments) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert reason in said[-1]
    assert not [line for line in said if line.startswith("Traceback")]
    assert not (tmp_path / "run").exists()


def test_unknown_logits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose logits are not those of its head raises, rather than train on wrong probabilities."""
    folder = make_model("gemma2", tmp_path)
    monkeypatch.delitem(rlvr.model.forward.passes.LOGIT_ADJUSTMENTS, "final_logit_softcapping")
    with pytest.raises(ValueError, match="adjusts its logits"):
        load_policy(ModelConfig(name=str(folder), device="cpu"))
