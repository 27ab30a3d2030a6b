"""Every family of models is computed as by its own eager forward, past its windows too, or is refused in one line.

The slow test compares all of them with the table of docs/explained/models.md.
"""

from __future__ import annotations

import dataclasses
import re
from functools import cache

import pytest
import torch
import transformers

from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.probe import check_causal
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.families import (
    FAMILIES,
    NEW,
    NOT_MADE,
    PROMPT,
    batch_of,
    make_models,
    make_rows,
    own_difference,
    sampling_difference,
    training_difference,
)
from tests.helpers.files import ROOT

ALPHABET = "0123456789+-= abcdefghijklmnopqrstu"
TOLERANCE = 1e-4

# How each is run: the pass in training ("padded": one row beside another, by the model's own forward) and the decoder.
PACKED, FAST, FASTEST = ("own", "SharedDecoder"), ("llama", "SharedDecoder"), ("llama", "PreparedDecoder")
PADDED = ("padded", "CacheDecoder")
EXPECTED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3", "mistral", "ministral3"), FASTEST),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "mixtral"), FAST),
    **dict.fromkeys(("gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "cohere2", "olmo3", "exaone4"), PACKED),
    **dict.fromkeys(("phi3", "phimoe", "gpt2"), PACKED),
    **dict.fromkeys(("llama4_text", "qwen3_next", "qwen3_5_text", "jamba", "lfm2", "falcon_h1"), PADDED),
    "nemotron_h": ("padded", "WholeDecoder"),
    "minimax": ("padded", "WholeDecoder"),
    "diffllama": ("own", "CacheDecoder"),
    "gpt_neo": PADDED,
    "rwkv": ("padded", "WholeDecoder"),
}
REFUSED = {
    "bert": "BertLMHeadModel gives a token another state where other tokens follow it",
    "deepseek_v32": "gives a token another state where other tokens follow it",
    "modernbert-decoder": "LOGIT_ADJUSTMENTS",
}


@dataclasses.dataclass
class Found:
    """How a family is run: pass and decoder. refused: the line that refuses it, or its sampling."""

    way: str
    decoder: str = ""
    refused: str = ""
    difference: float = 0.0
    own: float = 0.0  # of transformers' decoding, where ours is beyond the tolerance


def compute(family: str) -> Found:
    """Compare a family with its eager forward past its windows, and tell how it is run."""
    model, eager = make_models(family)
    try:
        check_causal(model)
        policy = Policy(model, tiny_tokenizer([ALPHABET]))
        difference = training_difference(policy, eager)
    except ValueError as error:
        return Found("refused", refused=str(error))
    way = model.rlvr_pass if policy.trial.packs(PROMPT + NEW) else "padded"
    try:
        sampler = TorchSampler(policy)
        difference = max(difference, sampling_difference(sampler, eager))
    except ValueError as error:
        return Found(way, refused=str(error), difference=difference)
    own = own_difference(sampler, eager) if difference > TOLERANCE else 0.0
    return Found(way, sampler.decoders.for_length(PROMPT + NEW).__name__, difference=difference, own=own)


@pytest.mark.parametrize("family", EXPECTED)
def test_a_family_is_computed_as_by_its_own_forward(family: str) -> None:
    """Training and sampling give the log-probabilities of the eager forward past the window, in the expected way."""
    found = compute(family)
    assert found.difference <= TOLERANCE
    assert (found.way, found.decoder, found.refused) == (*EXPECTED[family], "")


@pytest.mark.parametrize("family", REFUSED)
def test_a_model_that_is_no_causal_decoder_is_refused_in_one_line(family: str) -> None:
    """Encoders; attention that looks ahead among equal keys; heads whose logits are unknown."""
    found = compute(family)
    assert found.way == "refused"
    assert re.search(REFUSED[family], found.refused)
    assert "\n" not in found.refused


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss", "qwen2_moe"])
def test_gradients_of_the_packed_pass_are_those_of_single_rows(family: str) -> None:
    """Through windows, soft caps and sinks; most rows share a prompt."""
    model, eager = make_models(family)
    policy = Policy(model, tiny_tokenizer([ALPHABET]))
    assert policy.packs
    rows = make_rows()
    found, _ = token_logprobs(policy, *batch_of(rows))
    found.sum().backward()
    for row in rows:
        logprobs = eager(input_ids=torch.tensor([row]), use_cache=False).logits[0, :-1].float().log_softmax(-1)
        logprobs.gather(1, torch.tensor(row[1:])[:, None])[PROMPT - 1 :].sum().backward()
    for (name, a), b in zip(model.named_parameters(), eager.parameters(), strict=True):
        if b.grad is not None:
            assert a.grad is not None, name
            assert (a.grad - b.grad).abs().max() <= 1e-4 * max(1.0, float(b.grad.abs().max())), name


# The words of the table for decoders, and for the lines that refuse.
DECODERS = {
    "SharedDecoder": "one cache for the rows of a prompt",
    "PreparedDecoder": "one cache for the rows of a prompt",
    "CacheDecoder": "the model's cache, copied for the rows of a prompt",
    "WholeDecoder": "no cache: each token computes its row again",
    "": "refused",
}
REASONS = {
    "no causal decoder: a token's state depends on what follows it": "another state where other tokens follow",
    "its head is not known (rlvr/model/forward/passes.py)": "LOGIT_ADJUSTMENTS",
    "it does not name its hidden states": "base_model_prefix",
    "rows depend on the rows beside them, or on what follows": "cannot be trained on rows",
}


@cache
def table() -> dict[str, str]:
    """The families of the table in the guide: what its row says of them."""
    text = (ROOT / "docs" / "explained" / "models.md").read_text()
    rows = re.findall(r"^\| (packed|padded|refused) \| (.+) \| (`.+`) \|$", text, re.MULTILINE)
    return {family: f"{way}, {how}" for way, how, names in rows for family in re.findall(r"`([^`]+)`", names)}


def row_of(found: Found) -> str:
    """What the table says of a family that is run so."""
    if found.way == "refused":
        return "refused, " + next(words for words, line in REASONS.items() if line in found.refused)
    return f"{'padded' if found.way == 'padded' else 'packed'}, {DECODERS[found.decoder]}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_table_holds_every_family() -> None:
    """Of the transformers that it names, but those of which no tiny model can be made."""
    named = re.search(r"that\s+transformers\s+(\d+\.\d+)\s", (ROOT / "docs" / "explained" / "models.md").read_text())
    assert named
    if not transformers.__version__.startswith(f"{named[1]}."):
        pytest.skip(f"the table is of transformers {named[1]}, and {transformers.__version__} is installed")
    assert set(table()) == {*FAMILIES}
    assert not set(table()) & NOT_MADE


@pytest.mark.survey
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_family_differs_without_a_word(family: str) -> None:
    """Each is run as the table says, and then equals its plain forward, as far as transformers' own decoding does."""
    found = compute(family)
    assert found.difference <= max(TOLERANCE, 1.5 * found.own)
    assert "\n" not in found.refused
    assert row_of(found) == table()[family]
