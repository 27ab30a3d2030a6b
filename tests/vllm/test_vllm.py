"""vLLM in this process, on a CPU in float32: agreement with transformers, seeds, weight pushes, and what a push forgot.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, VLLMConfig
from rlvr.model.optim import make_optimizer
from rlvr.model.policy import Policy, load_policy
from rlvr.model.tiny import tiny_tokenizer
from rlvr.runs.log import RunLog
from rlvr.sampling.draw import truncated
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.checkpoint import checkpoint_folder, load_checkpoint
from rlvr.training.run import Run, assemble
from rlvr.types import Problem, RunError, Sampling
from rlvr.verifiers.runner import Runner

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
# vLLM warns of its own dependencies while it is imported and started
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
try:
    importlib.import_module("vllm")
    from rlvr.vllm.sampler import VLLMSampler
    from rlvr.vllm.sync import WeightsDiffer
    from rlvr.vllm.weights import engine_weights
    from rlvr.vllm.worker import reload
except ImportError as error:
    pytest.skip(f"vLLM cannot be imported: {error}", allow_module_level=True)

CORPUS = ["0123456789+-=*() abcdefghijklmnopqrstuvwxyz"]
PROMPTS = ["12+34=", "what is seven", "(1+2)*3=", "x"]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
    "bos_token_id": None,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 128}
FAMILIES: dict[str, tuple] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
}


def make_policy(family: str = "qwen3", *, tied: bool = True) -> Policy:
    """A random model of 0.1M parameters whose completions vary."""
    tokenizer = tiny_tokenizer(CORPUS)
    make_config, make_model = FAMILIES[family]
    torch.manual_seed(0)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    own = EXPERTS if family in ("qwen3_moe", "mixtral", "gpt_oss") else {}
    own = own | {"rope_parameters": YARN} if family == "gpt_oss" else own
    config = make_config(vocab_size=len(tokenizer), tie_word_embeddings=tied, **SIZES, **ids, **own)
    return Policy(make_model(config).eval(), tokenizer)


def with_lora() -> Policy:
    """The tiny model of the recipes with adapters whose second factor is no longer zero."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32", lora_rank=4), corpus=CORPUS)
    shake(policy, 0.02)
    return policy


def shake(policy: Policy, size: float = 0.05) -> None:
    """Random noise on every weight that is trained."""
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn_like(weight) * size)


def prompts_of(policy: Policy) -> list[list[int]]:
    return [policy.encode(text) for text in PROMPTS]


def seeds_of(count: int) -> list[list[int]]:
    return [[10 * p + g for g in range(count)] for p in range(len(PROMPTS))]


def greedy_tokens(sampler, policy: Policy) -> list[tuple[int, ...]]:
    groups = sampler.generate(prompts_of(policy), Sampling(max_new_tokens=24, temperature=0), [[0]] * len(PROMPTS))
    return [group[0].token_ids for group in groups]


@pytest.fixture(scope="module")
def held() -> Iterator:
    """The engine of `vllm_tied`, if it is open. Engines of one process share state: one ends before another starts."""
    samplers: list[VLLMSampler] = []
    yield samplers
    for sampler in samplers:
        sampler.close()


@pytest.fixture
def vllm_tied(held):
    """An engine that such tests share, with the weights of `make_policy()` pushed and checked."""
    if not held:
        held.append(VLLMSampler(make_policy(), VLLMConfig(sync_check_every=1)))
    held[0].load_weights(make_policy())
    return held[0]


@pytest.fixture
def open_vllm(held) -> Iterator:
    """Opens samplers; all but the last are closed when the next is opened, the last after the test."""
    opened: list[VLLMSampler] = held

    def close() -> None:
        while opened:
            opened.pop().close()

    def make(policy: Policy, **settings) -> VLLMSampler:
        close()
        opened.append(VLLMSampler(policy, VLLMConfig(**settings)))
        return opened[-1]

    yield make
    close()


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
    before a push and after; no tensor differs."""
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
    assert sampler.engine.differing(engine_weights(policy)) == []


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


def same_draws(some, others) -> bool:
    """Whether texts and tokens are equal; logprobs may differ in the last bits with the size of the matmuls."""
    pairs = [(a, b) for row, other in zip(some, others, strict=True) for a, b in zip(row, other, strict=True)]
    return all((a.text, a.token_ids, a.finish_reason) == (b.text, b.token_ids, b.finish_reason) for a, b in pairs)


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


def test_cache_that_is_not_reset_is_caught(vllm_tied, monkeypatch):
    """A push that leaves keys and values of the old weights in use fails the sync check."""
    policy, sampler = vllm_tied.policy, vllm_tied
    monkeypatch.setattr(sampler.engine, "reset_cache", lambda: None)
    shake(policy)
    with pytest.raises(WeightsDiffer, match="cached under older weights"):
        sampler.load_weights(policy)


def test_tied_head_that_is_not_pushed_is_caught_and_named(vllm_tied, monkeypatch):
    """With the head left out of a push the engine's logits come from the old one."""
    policy, sampler = vllm_tied.policy, vllm_tied
    push = sampler.engine.push
    monkeypatch.setattr(
        sampler.engine, "push", lambda weights: push((k, v) for k, v in weights if k != "lm_head.weight")
    )
    shake(policy)
    with pytest.raises(WeightsDiffer, match=r"tensors that differ: lm_head.weight \(1 tensors\)"):
        sampler.load_weights(policy)


def test_bad_calls_say_what_is_wrong(vllm_tied):
    """A prompt without tokens, one too long, missing seeds, an adapter or a GPU that is not there."""
    policy, sampler = vllm_tied.policy, vllm_tied
    with pytest.raises(ValueError, match="no adapter"):
        VLLMSampler(policy, VLLMConfig(lora="adapter"))
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
    assert dataclasses.asdict(VLLMConfig())["lora"] == "merge"


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


def test_sleeping_engine_wakes_up_around_a_push(vllm_tied, monkeypatch):
    """Asleep, then weights' memory, the weights, the cache's memory, a fresh cache, in this order; and it samples from
    what was pushed. On a CPU vLLM goes through the motions and frees nothing."""
    policy, sampler = vllm_tied.policy, vllm_tied
    llm, calls = sampler.engine.llm, []
    for name in ("sleep", "wake_up", "collective_rpc", "reset_prefix_cache"):
        monkeypatch.setattr(llm, name, recording(calls, name, getattr(llm, name)))
    monkeypatch.setattr(sampler, "config", dataclasses.replace(sampler.config, sleep=2))
    before = greedy_tokens(sampler, policy)
    shake(policy)
    sampler.sleep()
    assert llm.llm_engine.is_sleeping()
    sampler.load_weights(policy)
    assert not llm.llm_engine.is_sleeping()
    assert calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("collective_rpc", reload),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache",),
    ]
    after = greedy_tokens(sampler, policy)
    assert after == greedy_tokens(TorchSampler(policy), policy) != before


def recording(calls: list, name: str, call):
    """`call`, noted with its name, what it got by position, and level or tags."""

    def noted(*args, **settings):
        calls.append((name, *args, *(settings[key] for key in ("level", "tags") if key in settings)))
        return call(*args, **settings)

    return noted


@torch.no_grad()
def transformers_logprobs(policy: Policy, prompt, tokens, sampling: Sampling) -> torch.Tensor:
    """Logprobs (n) under the distribution at this temperature and top-p, from one plain forward pass."""
    logits = policy.model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    logprobs = truncated(logits / sampling.temperature, sampling).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(tokens)[:, None])[:, 0]


def test_batches_sampled_ahead_resume_exactly(tmp_path, vllm_tied):
    """The engine samples in a thread beside the training: six steps, against three, a resume and three more."""

    def run_in(folder: str, steps: int, start: int = 0) -> Run:
        sampling = {"problems_per_step": 6, "group_size": 4, "max_new_tokens": 12}
        config = Config(
            run=RunConfig(out_dir=tmp_path / folder, steps=steps, sample_every=0),
            rollout=RolloutConfig(**sampling),
            sampler=VLLMConfig(max_staleness=1),
            optim=OptimConfig(lr=1e-3),
        )
        config.check()
        policy, log = make_policy(), RunLog(tmp_path / folder)
        optimizer = make_optimizer(policy.parameters(), config.optim)
        if start:
            log.truncate_to(load_checkpoint(checkpoint_folder(log.out_dir, start), policy, optimizer)["log"], start)
        vllm_tied.load_weights(policy)
        verifier = Runner(lambda problem, text: sum(c.isdigit() for c in text) % 2 == 1)
        problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(40)]
        run = assemble(config, policy, optimizer, vllm_tied, problems, verifier, log, Accelerator(cpu=True))
        train(run, start)
        return run

    whole = run_in("whole", 6)
    run_in("parts", 3)
    again = run_in("parts", 6, start=3)
    assert again.reporter.log.path("rollouts").read_bytes() == whole.reporter.log.path("rollouts").read_bytes()
    rows = whole.reporter.log.read("metrics")
    assert [row["staleness"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert rows[0]["mismatch/mean"] < 1e-4 < rows[1]["mismatch/mean"]
    names = ("loss", "grad_norm", "importance", "mismatch/mean")
    assert [[row[n] for n in names] for row in again.reporter.log.read("metrics")] == [
        [row[n] for n in names] for row in rows
    ]
    for weight, other in zip(whole.learner.policy.parameters(), again.learner.policy.parameters(), strict=True):
        assert torch.equal(weight, other)


def test_one_stale_matrix_is_named(open_vllm, monkeypatch):
    """A single matrix that was not pushed, one of three that vLLM joins, is named as transformers names it."""
    policy = make_policy("llama", tied=False)
    sampler = open_vllm(policy, sync_check_every=1)
    push, stale = sampler.engine.push, "model.layers.1.self_attn.k_proj.weight"
    held = dict(engine_weights(policy))[stale].clone()
    monkeypatch.setattr(sampler.engine, "push", lambda weights: push({**dict(weights), stale: held}.items()))
    shake(policy)
    with pytest.raises(WeightsDiffer, match=rf"{stale} \(1 tensors\)"):
        sampler.load_weights(policy)


def test_in_bfloat16_a_stale_tensor_is_found_that_logprobs_do_not_show(open_vllm):
    """A norm that is 3 % off changes no logprob by more than bfloat16 does: the tensors are compared."""
    policy = make_policy("llama", tied=False)
    policy.dtype = torch.bfloat16
    sampler = open_vllm(policy, sync_check_every=1)
    name = "model.layers.1.post_attention_layernorm.weight"
    with torch.no_grad():
        policy.causal.get_parameter(name).mul_(1.03)
    with pytest.raises(WeightsDiffer, match=rf"{name} \(1 tensors\)"):
        sampler.check_sync()
    sampler.load_weights(policy)
    assert sampler.check_sync().passed


def test_weights_that_cannot_be_read_back_are_named_at_the_start(vllm_tied, monkeypatch):
    """In one line; afterwards they are left out of the comparison, and others still fail it."""
    sampler, names = vllm_tied, ["model.hidden.weight"]
    monkeypatch.setattr(sampler, "_unreadable", None)
    monkeypatch.setattr(sampler.engine, "differing", lambda weights: names)
    with pytest.warns(RuntimeWarning, match=r"checked by logprobs only: model.hidden.weight \(1 tensors\)"):
        sampler.check_sync()
    sampler.policy.dtype = torch.bfloat16
    assert sampler.check_sync().passed
    names.append("model.norm.weight")
    with pytest.raises(WeightsDiffer, match=r"differ: model.norm.weight \(1 tensors\)"):
        sampler.check_sync()


@pytest.mark.parametrize("lora", ["merge", "adapter"])
def test_adapter_pushed_twice_takes_effect_twice(open_vllm, lora):
    """Merged or applied by vLLM: greedy tokens are the trainer's after each push, and change with it."""
    policy = with_lora()
    sampler = open_vllm(policy, lora=lora, sync_check_every=1)
    seen = [greedy_tokens(sampler, policy)]
    assert seen[0] == greedy_tokens(TorchSampler(policy), policy)
    for _ in range(2):
        shake(policy, 0.03)
        sampler.load_weights(policy)
        seen.append(greedy_tokens(sampler, policy))
        assert seen[-1] == greedy_tokens(TorchSampler(policy), policy)
    assert seen[0] != seen[1] != seen[2]
