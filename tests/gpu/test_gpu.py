"""The path on a GPU: what it computes against the CPU, what it holds, how often the host waits. See tests/gpu/run.

Without CUDA the CPU stands in where that shows anything, and the other tests are skipped.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from _pytest.config import parse_warning_filter
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.algo.batch import copy_to
from rlvr.config import ModelConfig, OptimConfig, VLLMConfig
from rlvr.core.types import Sampling
from rlvr.model.attention import flex, varlen
from rlvr.model.attention.rows import Spans
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.optimizer import make_optimizer, optimizer_step
from rlvr.model.probe import check_causal
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import optimizer_tensors
from tests.helpers.files import ROOT
from tests.helpers.gpu import Measured, now, tolerate_warnings
from tests.helpers.models import shake
from tests.helpers.runs import make_run, weights_of

CORPUS = ["0123456789+-= abcdefgh"]
PROMPTS = ["12+34=", "5-3=", "123+456=", "7="]
SEEDS = [[100 * p + g for g in range(8)] for p in range(len(PROMPTS))]


@pytest.fixture(autouse=True)
def exact_float32() -> Iterator[None]:
    """No TF32: float32 is compared."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def make_policy(device: torch.device, dtype: str = "float32") -> Policy:
    """The recipes' tiny model with weights that vary."""
    policy = load_policy(ModelConfig(device=str(device), dtype=dtype), corpus=CORPUS, seed=3)
    policy.model.cpu()
    shake(policy, 0.03, 1)
    policy.model.to(device)
    return policy


def large_policy(device: torch.device, dtype: str = "bfloat16") -> Policy:
    """About 90M parameters on a GPU; on a CPU 0.5M."""
    tokenizer = load_policy(ModelConfig(device="cpu"), corpus=CORPUS).tokenizer
    small = device.type == "cpu"
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=1024 if small else 32_000,
        hidden_size=64 if small else 768,
        num_hidden_layers=2 if small else 10,
        num_attention_heads=2 if small else 12,
        num_key_value_heads=1 if small else 4,
        intermediate_size=128 if small else 2048,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    return Policy(model.eval(), tokenizer, dtype={"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype])


def rows(policy: Policy, count: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens (count, length) and a mask without the first eight of each."""
    generator = torch.Generator().manual_seed(0)
    size = policy.causal.get_input_embeddings().num_embeddings
    tokens = torch.randint(2, size, (count, length), generator=generator).to(policy.device)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[:, :8] = False
    return tokens, mask


def gradient(policy: Policy, tokens: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The logprobs (n, T), and the gradient of their sum as one vector; both on the CPU."""
    logprobs = token_logprobs(policy, tokens, mask)[0]
    logprobs[mask].sum().backward()
    found = torch.cat([weight.grad.reshape(-1).cpu() for weight in policy.parameters()])
    for weight in policy.parameters():
        weight.grad = None
    return logprobs.detach().cpu(), found


def sample(policy: Policy, **options) -> list[list[tuple[int, ...]]]:
    prompts = [policy.render(prompt) for prompt in PROMPTS]
    groups = TorchSampler(policy, **options).generate(prompts, Sampling(max_new_tokens=40), SEEDS)
    return [[completion.token_ids for completion in group] for group in groups]


def test_logprobs_and_gradients_are_those_of_the_cpu(device, measured: Measured) -> None:
    """In float32, packed: the device's kernels against the CPU's."""
    here, there = make_policy(torch.device("cpu")), make_policy(device)
    tokens, mask = rows(here, 6, 33)
    expected, found = gradient(here, tokens, mask), gradient(there, tokens.to(device), mask.to(device))
    assert there.packs
    torch.testing.assert_close(found[0], expected[0], atol=1e-4, rtol=1e-4)
    error = float((found[1] - expected[1]).abs().max() / expected[1].abs().max())
    assert error < 1e-3
    measured("largest error of a gradient against the CPU, float32", f"{error:.1e} of the largest entry")


@pytest.mark.parametrize("settings", [{}, {"lora_rank": 4}, {"weights": "bfloat16"}])
def test_a_model_is_tried_where_it_runs(device, monkeypatch: pytest.MonkeyPatch, settings: dict) -> None:
    """All trials at the start compute on the device, and an adapter begins with the numbers that it has on a CPU."""
    tried = []

    def check(causal) -> None:
        tried.append(next(causal.parameters()).device.type)
        check_causal(causal)

    monkeypatch.setattr("rlvr.model.load.policy.check_causal", check)
    found = load_policy(ModelConfig(device=str(device), dtype="bfloat16", **settings), corpus=CORPUS, seed=3)
    expected = load_policy(ModelConfig(device="cpu", dtype="bfloat16", **settings), corpus=CORPUS, seed=3)
    assert tried == [device.type, "cpu"]
    pairs = zip(found.parameters(), expected.parameters(), strict=True)
    assert all(torch.equal(a.cpu(), b) and a.device.type == device.type for a, b in pairs)


def test_copies_arrive_whole(device) -> None:
    """Many copies in a row through pinned memory that is used again, none of them waited for, and read afterwards."""
    sources = [np.arange(100_003) * number for number in range(64)]
    copies = [copy_to(source, device) for source in sources]
    assert all(torch.equal(copied.cpu(), torch.from_numpy(source)) for copied, source in zip(copies, sources))


def test_bfloat16_stays_near_float32(device, measured: Measured) -> None:
    """The computation in bfloat16 with float32 weights."""
    tokens, mask = rows(make_policy(device), 6, 33)
    exact, short = (token_logprobs(make_policy(device, kind), tokens, mask)[0] for kind in ("float32", "bfloat16"))
    difference = (exact - short).detach()[mask].abs()
    assert 0 < float(difference.mean()) < 0.05
    measured("mean difference of a logprob, bfloat16 against float32", f"{difference.mean():.4f}")


def test_completions_depend_on_seeds_alone(device) -> None:
    """Twice, in other batches, within a small cache: the same tokens, and most of those that a CPU draws."""
    policy = make_policy(device)
    first = sample(policy)
    assert len({ids for group in first for ids in group}) > 20
    assert sample(policy) == first
    assert sample(policy, batch_size=5) == first
    assert sample(policy, cache_gib=2e-3) == first
    here = sample(make_policy(torch.device("cpu")))
    same = sum(a == b for x, y in zip(first, here) for a, b in zip(x, y)) / 32
    assert same > 0.9  # a number may fall beside the border of two tokens


def test_the_host_seldom_waits_while_it_samples(cuda, measured: Measured) -> None:
    """At most one wait for the device in two tokens, of a batch of 32 rows."""
    policy = large_policy(cuda)
    sample(policy)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            groups = sample(policy)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    steps = max(len(ids) for group in groups for ids in group)
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    measured("waits of the host in a decoding step of 32 rows", f"{waits / steps:.2f}")
    assert waits < 0.5 * steps


ROWS = np.array([70, 3, 1310, 90, 40, 1, 300, 5, 5]), np.array([0, 0, 0, 73, 0, 0, 73, 70, 0])
ROWS = *ROWS, np.array([0, 0, 0, 1310, 70, 70, 1310, 3, 70])  # of three prompts, in no order


def attention_tensors(device: torch.device, total: int, heads: int = 8, kv_heads: int = 2) -> list[torch.Tensor]:
    """Scaled queries, keys and values (N, heads, 64) in bfloat16."""
    generator = torch.Generator(device).manual_seed(0)
    made = (torch.randn(total, n, 64, device=device, generator=generator) for n in (heads, kv_heads, kv_heads))
    return [(x * scale).bfloat16().requires_grad_() for x, scale in zip(made, (0.125, 1, 1))]


def with_gradients(out: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output, and the gradients of a weighted sum of it."""
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, tensors, weights.to(out.dtype))]


def test_the_flash_kernel_computes_one_softmax_and_repeats(cuda) -> None:
    """Completions on their prompts, in bfloat16: near the same in float64, and twice the same bytes."""
    tensors = attention_tensors(cuda, int(ROWS[0].sum()))
    plan = varlen.VarlenPlan(ROWS, cuda)
    found, again = (with_gradients(varlen.attend(*tensors, plan), tensors) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(found, again))
    spans, place = Spans.of_rows(*ROWS), torch.arange(int(ROWS[0].sum()), device=cuda)
    own, first, end = (torch.from_numpy(x).to(cuda)[:, None] for x in (spans.own, spans.context, spans.context_end))
    seen = ((place >= own) & (place <= place[:, None])) | ((place >= first) & (place < end))
    exact = [x.detach().double().requires_grad_() for x in tensors]
    key, value = (x.repeat_interleave(4, dim=1) for x in exact[1:])
    scores = torch.einsum("qhd,khd->hqk", exact[0], key).masked_fill(~seen, float("-inf"))
    expected = with_gradients(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value), exact)
    for a, b in zip(found, expected):
        assert float((a.double() - b).abs().max()) < 0.02 * float(b.abs().max())


@pytest.mark.parametrize(("count", "length"), [(32, 512), (4, 4096), (1, 16_384)])
def test_attention_forward_and_backward(cuda, measured: Measured, count: int, length: int) -> None:
    """Milliseconds of the flash kernel and of flex_attention, for 16,384 tokens in rows of some length."""
    rows = np.full(count, length), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    tensors = attention_tensors(cuda, count * length, heads=14)
    short, general = varlen.VarlenPlan(rows, cuda), flex.FlexPlan(Spans.of_rows(*rows), cuda)
    for name, attend, plan in (("flash", varlen.attend, short), ("flex", flex.attend, general)):
        seconds = []
        for _ in range(6):
            start = now(cuda)
            with_gradients(attend(*tensors, plan), tensors)
            seconds.append(now(cuda) - start)
        measured(f"attention by {name}, {count} rows of {length:,}, both passes", f"{1e3 * min(seconds):.1f} ms")


def test_memory_grows_with_tokens_and_not_with_their_square(cuda, measured: Measured) -> None:
    """A training pass on rows of 8,192 tokens against one on twice as many rows of half the length."""
    policy = large_policy(cuda)
    peaks = []
    for count, length in ((4, 4096), (2, 8192)):
        tokens, mask = rows(policy, count, length)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradient(policy, tokens, mask)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    measured("memory of 2 rows of 8,192 tokens against 4 of 4,096", f"{peaks[1] / peaks[0]:.2f} times")
    assert peaks[1] < 1.3 * peaks[0]


def test_throughput(device, measured: Measured) -> None:
    """Tokens per second of the torch sampler and of a training pass; a second pass compiles nothing."""
    policy = large_policy(device)
    tokens, mask = rows(policy, 16, 64 if device.type == "cpu" else 1024)
    seconds = []
    for _ in range(3):
        start = now(device)
        gradient(policy, tokens, mask)
        seconds.append(now(device) - start)
    measured("training pass, tokens/s", f"{tokens.numel() / min(seconds):,.0f}")
    start = now(device)
    drawn = sum(len(ids) for group in sample(policy) for ids in group)
    measured("torch sampler, 32 rows, tokens/s", f"{drawn / (now(device) - start):,.0f}")
    assert seconds[2] < 2 * seconds[1] + 0.5


def test_runs_repeat(device, tmp_path: Path, measured: Measured) -> None:
    """Three steps twice, with equal seeds: on a CPU byte for byte; on a GPU whether they do is told."""
    found = []
    for name in ("a", "b"):
        # Random weights move far in a step, which would be a warning.
        run = make_run(tmp_path / name, model={"device": str(device)}, optim={"max_update_kl": 0.0})
        train(run)
        found.append(weights_of(run).cpu())
    same = torch.equal(*found)
    measured("two equal runs end with the same bytes", str(same))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-3)
    assert same or device.type == "cuda"


@pytest.mark.parametrize("name", ["adamw", "adamw8bit"])
def test_a_state_in_page_locked_memory_changes_no_number(device, name: str) -> None:
    """Weights in bfloat16 after six updates, and the state, are those of a state beside the weights; on a GPU only."""
    if name == "adamw8bit":
        pytest.importorskip("bitsandbytes")
    ends = []
    for offload in (False, device.type == "cuda"):
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(n, 512).to(device, torch.bfloat16)) for n in (3, 700, 1)]
        optimizer = make_optimizer(weights, OptimConfig(name=name, offload=offload))
        for step in range(6):
            for weight in weights:
                weight.grad = torch.randn(weight.shape).to(device, weight.grad_dtype)
            optimizer_step(optimizer, lr=1e-3 * (step + 1), max_grad_norm=1.0)
        state = {key: value.cpu() for key, value in optimizer_tensors(optimizer).items()}
        ends.append(state | {str(n): weight.detach().cpu() for n, weight in enumerate(weights)})
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


@contextmanager
def engine(policy: Policy, **settings) -> Iterator[object]:
    """vLLM in this process."""
    from rlvr.sampling.vllm.sampler import VLLMSampler

    sampler = VLLMSampler(policy, VLLMConfig(gpu_memory_utilization=0.2, **settings))
    try:
        yield sampler
    finally:
        sampler.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", [1, 2])
def test_vllm_sleeps_and_wakes_with_new_weights(cuda, measured: Measured, level: int) -> None:
    """Its memory is free for the trainer; after a push it samples from the pushed weights."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed")
    policy = large_policy(cuda)
    with engine(policy, sleep=level) as sampler:
        prompts = [policy.render(prompt) for prompt in PROMPTS]
        sampler.generate(prompts, Sampling(max_new_tokens=20), SEEDS)
        before = torch.cuda.mem_get_info()[0]
        sampler.sleep()
        freed = torch.cuda.mem_get_info()[0] - before
        measured(f"memory freed by vLLM's sleep {level}", f"{freed / 2**30:.2f} GiB")
        assert freed > 0.5 * 0.2 * torch.cuda.mem_get_info()[1]
        shake_on(policy, 0.02)
        sampler.load_weights(policy)
        assert sampler.check_sync().passes
        with torch.no_grad():
            next(iter(policy.parameters())).zero_()
        with pytest.raises(Exception, match="does not sample from the trainer's weights"):
            sampler.check_sync()


def shake_on(policy: Policy, size: float) -> None:
    """Noise on the weights, drawn where they are."""
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(torch.randn_like(weight), alpha=size)


def test_the_bench_of_a_step_runs(device, measured: Measured) -> None:
    """benchmarks/gpu_step.py at its smallest size: a row with the parts of the step."""
    command = [sys.executable, "benchmarks/gpu_step.py", "--size=tiny", "--tokens", "16", "--sampler=torch"]
    done = subprocess.run(
        [*command, "--peer=none", "--rounds=1"], capture_output=True, text=True, cwd=ROOT, timeout=240
    )
    assert done.returncode == 0, done.stderr
    tokens, step, sampling, training, push, rate, *_ = done.stdout.splitlines()[-1].split()
    assert (tokens, len(done.stdout.splitlines())) == ("16", 3)
    assert float(step) == pytest.approx(float(sampling) + float(training) + float(push), abs=2e-3)
    measured("tiny GRPO step of benchmarks/gpu_step.py", f"{step} s, {rate} tokens/s")


@pytest.mark.parametrize(
    ("module", "fails"),
    [("torch._inductor.compile_fx", False), ("triton.runtime", False), ("rlvr.model.forward.packed", True)],
)
def test_only_warnings_of_rlvr_are_errors_on_a_gpu(request: pytest.FixtureRequest, module: str, fails: bool) -> None:
    """The compiler's own would end the trial of flex_attention, and with it every test."""
    tolerate_warnings([request.node])
    mark = request.node.own_markers[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in mark.args:
            warnings.filterwarnings(*parse_warning_filter(text, escape=False))
        with pytest.raises(UserWarning) if fails else nullcontext():
            warnings.warn_explicit("told", UserWarning, "file", 1, module=module)


def test_the_script_says_what_it_needs(tmp_path: Path) -> None:
    """Without a driver: one line, exit code 2."""
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "tests/gpu/run"], capture_output=True, text=True, cwd=ROOT, env={"PATH": path, "HOME": str(tmp_path)}
    )
    if Path("/usr/bin/nvidia-smi").exists():
        pytest.skip("this machine has a driver")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no nvidia-smi found" in done.stderr
