"""The torch sampler: completions by their seeds alone, true logprobs, endings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlvr.commands.arguments import choose_classes
from rlvr.config import ModelConfig, TorchSamplerConfig
from rlvr.core.types import Completion, Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.samplers import make_sampler
from rlvr.sampling.torch_sampler import TorchSampler, draw, truncate, uniforms
from tests.helpers.models import make_model

CORPUS = ["0123456789+-= abcdefgh"]
PROMPTS = ["12+34=", "5-3=", "123+456=", "7="]
SEEDS = [[11, 12, 13, 14, 15], [21, 22], [31, 32, 33], [41]]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The tiny model, untrained: with some twenty tokens to choose from, rows end at many different lengths."""
    return load_policy(ModelConfig(device="cpu"), corpus=CORPUS, seed=3)


def sample(policy: Policy, sampling: Sampling, *, batch_size: int = 512) -> list[list[Completion]]:
    """The completions of PROMPTS and SEEDS."""
    prompts = [policy.render(prompt) for prompt in PROMPTS]
    return TorchSampler(policy, batch_size=batch_size).generate(prompts, sampling, SEEDS)


def ids(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    """Token ids alone."""
    return [[completion.token_ids for completion in group] for group in groups]


def logprobs_of(policy: Policy, prompt: list[int], completion: Completion, temperature: float) -> torch.Tensor:
    """The trainer's logprobs of a completion."""
    tokens = torch.tensor([[*prompt, *completion.token_ids]])
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, len(prompt) :] = True
    return token_logprobs(policy, tokens, mask, temperature=temperature)[0][mask].detach()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "bloom", "mamba"])
def test_a_completion_does_not_depend_on_its_neighbours(family: str, tmp_path: Path) -> None:
    """Alone, in a mixed batch, in batches that cut groups apart: the same seeds give the same tokens."""
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu"))
    sampling = Sampling(max_new_tokens=20)
    together = sample(policy, sampling)
    assert len({len(c.token_ids) for group in together for c in group}) >= 2  # rows left the batch on the way
    for batch_size in (1, 3, 4):
        assert ids(sample(policy, sampling, batch_size=batch_size)) == ids(together)
    sampler = TorchSampler(policy)
    for prompt, seeds, group in zip(PROMPTS, SEEDS, together):
        for seed, completion in zip(seeds, group):
            assert sampler.generate([policy.render(prompt)], sampling, [[seed]])[0][0].token_ids == completion.token_ids


@pytest.mark.parametrize("prepared", [True, False])
def test_weights_are_cast_once_for_all_tokens(prepared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, whether they are prepared, or cast by autocast as long as it sees that gradients are possible."""
    if not prepared:
        monkeypatch.setattr("rlvr.model.probe.can_prepare", lambda causal: False)

    class Casts(TorchDispatchMode):
        sizes: ClassVar[list[int]] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            sources = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}
            if func in sources and args[sources[func]].dtype is torch.float32:
                self.sizes.append(args[sources[func]].numel())
            return func(*args, **(kwargs or {}))

    policy = load_policy(ModelConfig(device="cpu", dtype="bfloat16"), corpus=CORPUS, seed=3)
    largest = max(module.weight.numel() for module in policy.model.modules() if isinstance(module, torch.nn.Linear))
    layers = sum(module.weight.numel() == largest for module in policy.model.modules() if hasattr(module, "weight"))
    sample(policy, Sampling(max_new_tokens=1))  # and tries the ways to decode, which casts them too
    with Casts() as casts:
        groups = sample(policy, Sampling(max_new_tokens=20))
    assert max(len(completion.token_ids) for group in groups for completion in group) > 2
    assert casts.sizes.count(largest) == layers


def test_different_seeds_differ_and_a_longer_limit_begins_the_same(policy: Policy) -> None:
    """Position t uses number t of the seed's stream, so the limit of tokens does not change what came before it."""
    short, long = sample(policy, Sampling(max_new_tokens=5)), sample(policy, Sampling(max_new_tokens=40))
    flat = list(itertools.chain(*ids(long)))
    assert len(set(flat)) == len(flat)
    for a, b in zip(itertools.chain(*ids(short)), flat):
        assert b[: len(a)] == a


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mamba"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_trainer(family: str, temperature: float, tmp_path: Path) -> None:
    """With nothing cut off, the sampler's logprobs are the trainer's at the same temperature."""
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu"))
    for prompt, group in zip(PROMPTS, sample(policy, Sampling(max_new_tokens=20, temperature=temperature))):
        for completion in group:
            expected = logprobs_of(policy, policy.render(prompt), completion, temperature)
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=2e-5, rtol=1e-5)


def test_adapter_is_sampled_from(tmp_path: Path) -> None:
    """With LoRA, samples come from the model with its adapter, and change when the adapter does."""
    folder = str(make_model("llama", tmp_path))
    policy = load_policy(ModelConfig(name=folder, device="cpu", lora_rank=4))
    plain = sample(load_policy(ModelConfig(name=folder, device="cpu")), Sampling(max_new_tokens=10))
    assert ids(sample(policy, Sampling(max_new_tokens=10))) == ids(plain)  # a fresh adapter changes nothing
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(0.05)
    changed = sample(policy, Sampling(max_new_tokens=10))
    assert ids(changed) != ids(plain)
    expected = logprobs_of(policy, policy.render(PROMPTS[0]), changed[0][0], 1.0)
    torch.testing.assert_close(torch.tensor(changed[0][0].logprobs), expected, atol=2e-5, rtol=1e-5)


def test_greedy_takes_the_likeliest_token(policy: Policy) -> None:
    """Temperature 0: the argmax of transformers' own logits at every position, with log-probability 0."""
    completion = sample(policy, Sampling(max_new_tokens=12, temperature=0))[0][0]
    tokens = policy.render(PROMPTS[0])
    for token, logprob in zip(completion.token_ids, completion.logprobs):
        assert token == int(policy.model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())
        assert logprob == 0.0
        tokens.append(token)


def test_eos_is_kept_in_the_ids_and_not_in_the_text(policy: Policy) -> None:
    """A completion that ends by itself ends with EOS; one that reaches the limit does not."""
    completions = list(itertools.chain(*sample(policy, Sampling(max_new_tokens=40))))
    stopped = [c for c in completions if c.finish_reason == "stop"]
    cut = [c for c in completions if c.finish_reason == "length"]
    assert stopped
    assert cut
    for completion in completions:
        assert len(completion.logprobs) == len(completion.token_ids)
        assert (completion.token_ids[-1] == policy.eos_id) == (completion.finish_reason == "stop")
        assert "<eos>" not in completion.text
    assert all(len(c.token_ids) == 40 for c in cut)


def test_every_eos_of_the_generation_config_ends_a_completion(policy: Policy, tmp_path: Path) -> None:
    """A second EOS id, named in generation_config.json alone, stops a completion at its first occurrence."""
    policy.save(tmp_path)
    second = policy.encode("7")[0]
    config = json.loads((tmp_path / "generation_config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({**config, "eos_token_id": [1, second]}))
    found = load_policy(ModelConfig(name=str(tmp_path), device="cpu"))
    assert found.eos_ids == {1, second}
    plain = itertools.chain(*sample(policy, Sampling(max_new_tokens=30)))
    ended = itertools.chain(*sample(found, Sampling(max_new_tokens=30)))
    met = 0
    for before, after in zip(plain, ended):
        if second in before.token_ids:
            met += 1
            assert after.token_ids == before.token_ids[: before.token_ids.index(second) + 1]
            assert after.finish_reason == "stop"
            assert "7" not in after.text
    assert met


def test_stop_strings_are_found_across_tokens_and_kept(policy: Policy) -> None:
    """A stop string of two characters, each a token of its own, ends the text right behind it."""
    plain = list(itertools.chain(*sample(policy, Sampling(max_new_tokens=30))))
    longest = max(plain, key=lambda c: len(c.text))
    stop = longest.text[4:6]
    for before, after in zip(plain, itertools.chain(*sample(policy, Sampling(max_new_tokens=30, stop=("@@", stop))))):
        if stop in before.text:
            assert after.text == before.text[: before.text.index(stop) + 2]
            assert after.token_ids == before.token_ids[: len(after.text)]
            assert after.finish_reason == "stop"
        else:
            assert (after.token_ids, after.finish_reason) == (before.token_ids, before.finish_reason)


def test_top_k_and_top_p_cut_the_distribution() -> None:
    """Worked by hand on probabilities .5 .25 .15 .1."""
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()

    def rows_kept(**settings: float) -> list[int]:
        return truncate(logits, Sampling(**settings)).isfinite().nonzero()[:, 1].tolist()  # type: ignore[arg-type]

    assert rows_kept(top_k=2) == [1, 3]
    assert rows_kept(top_p=0.5) == [1]
    assert rows_kept(top_p=0.51) == [1, 3]
    assert rows_kept(top_p=0.8) == [1, 2, 3]
    assert rows_kept(top_k=9) == [0, 1, 2, 3]
    assert rows_kept(top_k=3, top_p=0.6) == [1, 3]  # of the three kept, .5/.9 is below .6
    token, logprob = draw(logits, torch.tensor([0.9]), Sampling(top_k=2))
    assert token.tolist() == [3]
    assert logprob.item() == pytest.approx(np.log(0.25 / 0.75), abs=1e-6)


def test_draws_follow_the_distribution() -> None:
    """The inverse of the cumulative distribution: an even grid of numbers gives each token its share, in order."""
    probabilities = torch.tensor([0.1, 0.0, 0.5, 0.4])
    count = 1000
    grid = (torch.arange(count) + 0.5) / count
    tokens, logprobs = draw(probabilities.log().expand(count, 4), grid, Sampling())
    assert torch.bincount(tokens, minlength=4).tolist() == [100, 0, 500, 400]
    assert tokens.tolist() == sorted(tokens.tolist())
    torch.testing.assert_close(logprobs, probabilities.log()[tokens])


def test_largest_uniform_number_never_draws_an_impossible_token() -> None:
    """The numbers stop short of 1, and rounding at the end of the cumulative sum falls back on a possible token."""
    logits = torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))
    logits[:, -3:] = float("-inf")
    tokens, logprobs = draw(logits, torch.full((64,), 1 - 2**-24), Sampling())
    assert int(tokens.max()) < 997
    assert logprobs.isfinite().all()


def test_streams_depend_on_the_seed_alone() -> None:
    """Row i is a function of seeds[i], and a longer row begins with the shorter one."""
    first, second = uniforms([5, 9], 8), uniforms([9, 2**63 - 1], 20)
    assert torch.equal(first[1], second[0, :8])
    assert not torch.equal(first[0], first[1])
    assert 0 <= float(second.min()) <= float(second.max()) < 1


def test_wrong_input_is_refused(policy: Policy) -> None:
    """One line says what was found."""
    sampler = make_sampler(TorchSamplerConfig(), policy)
    with pytest.raises(ValueError, match="1 prompts and 2 lists of seeds"):
        sampler.generate([[3]], Sampling(), [[1], [2]])
    with pytest.raises(ValueError, match="without tokens"):
        sampler.generate([[]], Sampling(), [[1]])
    with pytest.raises(ValueError, match="--sampler 'vlm'; did you mean vllm"):
        choose_classes({"sampler": TorchSamplerConfig()}, ["--sampler", "vlm"])
    with pytest.raises(ValueError, match="batch_size 0"):
        make_sampler(TorchSamplerConfig(batch_size=0), policy)
