"""vLLM in this process, on a CPU in float32: agreement with transformers, seeds, endings, errors, resume.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import pytest
import torch

from rlvr.config import VLLMConfig
from rlvr.core.types import RunError, Sampling
from rlvr.model.load.policy import Policy
from rlvr.sampling.torch_sampler import TorchSampler, truncate
from rlvr.sampling.vllm.sampler import VLLMSampler
from tests.helpers.vllm_policies import greedy_tokens, make_policy, prompts_of, run_ahead, same_draws, seeds_of, shake

# vLLM warns of its own dependencies while it is imported and started
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
pytest.importorskip("vllm", exc_type=ImportError)


@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("qwen3", True),
        ("qwen3", False),
        ("llama", True),
        ("llama", False),
        ("qwen3_moe", False),
        ("gpt_oss", False),
        pytest.param("mixtral", False, marks=pytest.mark.slow),
    ],
)
def test_agrees_with_transformers(open_vllm, family, tied):
    """Groups of the asked sizes; logprobs within 1e-4 of transformers with top-p and without; greedy tokens equal,
    before a push and after."""
    policy = make_policy(family, tied=tied)
    sampler = open_vllm(policy)
    for shaken in (False, True):
        if shaken:
            shake(policy)
            sampler.load_weights(policy)
        assert greedy_tokens(sampler, policy) == greedy_tokens(TorchSampler(policy), policy)
        for top_p in (1.0, 0.9):
            sampling = Sampling(max_new_tokens=16, temperature=0.7, top_p=top_p)
            prompts, seeds = prompts_of(policy), [[1, 2, 3], [4], [], [5, 6, 7, 8]]
            groups = sampler.generate(prompts, sampling, seeds)
            assert [len(group) for group in groups] == [3, 1, 0, 4]
            for prompt, group in zip(prompts, groups):
                for completion in group:
                    expected = transformers_logprobs(policy, prompt, completion.token_ids, sampling)
                    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_seeds_decide_whatever_the_batch(vllm_tied):
    """Each completion is the same alone, in a batch of 64, in another order, and a second time."""
    policy, sampler = vllm_tied.policy, vllm_tied
    sampling = Sampling(max_new_tokens=20, temperature=1.0, top_p=0.95)
    prompts, seeds = prompts_of(policy), seeds_of(16)
    together = sampler.generate(prompts, sampling, seeds)
    assert sampler.generate(prompts, sampling, seeds) == together
    backwards = sampler.generate(prompts[::-1], sampling, [row[::-1] for row in seeds[::-1]])
    assert same_draws(together, [row[::-1] for row in backwards[::-1]])
    alone = [[sampler.generate([prompts[p]], sampling, [[seed]])[0][0] for seed in seeds[p][:4]] for p in range(4)]
    assert same_draws([row[:4] for row in together], alone)
    assert len({completion.token_ids for group in together for completion in group}) > 60


def test_endings_are_those_of_the_torch_sampler(vllm_tied):
    """An EOS stays among the ids and not in the text; a stop string ends the completion and stays in its text."""
    policy, sampler = vllm_tied.policy, vllm_tied
    sampling = Sampling(max_new_tokens=40, temperature=1.0, stop=("7", "ab"))
    completions = [c for g in sampler.generate(prompts_of(policy), sampling, seeds_of(24)) for c in g]
    eos = policy.tokenizer.eos_token_id
    ended_by_eos = [c for c in completions if c.token_ids[-1] == eos]
    ended_by_string = [c for c in completions if c.text.endswith(("7", "ab"))]
    assert ended_by_eos
    assert ended_by_string
    assert len(ended_by_eos) + len(ended_by_string) == sum(c.finish_reason == "stop" for c in completions)
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs) <= 40
        assert "<eos>" not in completion.text
        assert not any(string in completion.text[:-1] for string in ("7", "ab"))
        assert (completion.finish_reason == "length") == (completion not in ended_by_eos + ended_by_string)


def test_bad_calls_say_what_is_wrong(vllm_tied):
    """A prompt without tokens, one too long, missing seeds, a GPU that is not there."""
    policy, sampler = vllm_tied.policy, vllm_tied
    with pytest.raises(ValueError, match=r"sampler\.sleep 1 frees GPU memory, and the model is on cpu"):
        VLLMSampler(policy, VLLMConfig(sleep=1))
    sampling = Sampling(max_new_tokens=20)
    with pytest.raises(ValueError, match="expected one list per prompt"):
        sampler.generate([[5]], sampling, [])
    with pytest.raises(ValueError, match="without tokens"):
        sampler.generate([[]], sampling, [[1]])
    with pytest.raises(ValueError, match="started for 256 together"):
        sampler.generate([[5] * 250], sampling, [[1]])
    assert sampler.generate([], sampling, []) == []
    with pytest.raises(ValueError, match="did not start"):
        VLLMSampler(policy, VLLMConfig(max_model_len=10**6))


def test_groups_are_handed_over_as_they_finish(vllm_tied):
    """The same completions as without, each group once and complete; short ones come before long ones are drawn."""
    policy, sampler = vllm_tied.policy, vllm_tied
    prompts, sampling = prompts_of(policy), Sampling(max_new_tokens=30, stop=("7",))
    seeds = [[1, 2, 3], [4], [], [5, 6, 7, 8]]
    handed = []
    drawn = sampler.stream(prompts, sampling, seeds, lambda p, group: handed.append((p, group)))
    assert sorted(p for p, _ in handed) == [0, 1, 3]
    assert all(group == drawn[p] for p, group in handed)
    assert same_draws(drawn, sampler.generate(prompts, sampling, seeds))


def test_sampling_that_was_ended_leaves_nothing_behind(vllm_tied):
    """An exception of the consumer ends the sampling; the next answers are the next call's, and a push works."""
    policy, sampler = vllm_tied.policy, vllm_tied
    sampling = Sampling(max_new_tokens=24)
    expected = sampler.generate(prompts_of(policy), sampling, seeds_of(2))

    def refuse(place, group):
        raise RunError("enough")

    with pytest.raises(RunError, match="enough"):
        sampler.stream(prompts_of(policy), sampling, [*seeds_of(2)[:-1], [99]], refuse)
    sampler.load_weights(policy)
    assert same_draws(sampler.generate(prompts_of(policy), sampling, seeds_of(2)), expected)


def test_failing_engine_is_an_error_of_one_line(vllm_tied, monkeypatch):
    """What a step of the engine raises becomes a RunError that names it; afterwards the engine is free again."""
    policy, sampler = vllm_tied.policy, vllm_tied

    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    with monkeypatch.context() as patch:
        patch.setattr(sampler.engine.llm.llm_engine, "step", fail)
        with pytest.raises(RunError, match=r"while it sampled: OutOfMemoryError: CUDA out of memory\.$"):
            sampler.generate(prompts_of(policy), Sampling(max_new_tokens=4), seeds_of(1))
    assert greedy_tokens(sampler, policy) == greedy_tokens(TorchSampler(policy), policy)


@torch.no_grad()
def transformers_logprobs(policy: Policy, prompt, tokens, sampling: Sampling) -> torch.Tensor:
    """Logprobs (n) under the distribution at this temperature and top-p, from one plain forward pass."""
    logits = policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    logprobs = truncate(logits / sampling.temperature, sampling).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def test_batches_sampled_ahead_resume_exactly(tmp_path, vllm_tied):
    """The engine samples in a thread beside the training: six steps, against three, a resume and three more."""
    whole = run_ahead(vllm_tied, tmp_path / "whole", 6)
    run_ahead(vllm_tied, tmp_path / "parts", 3)
    again = run_ahead(vllm_tied, tmp_path / "parts", 6, start=3)
    assert again.reporter.log.path("rollouts").read_bytes() == whole.reporter.log.path("rollouts").read_bytes()
    rows = whole.reporter.log.read("metrics")
    assert [row["staleness"] for row in rows] == [0, 1, 1, 1, 1, 1]
