"""Tokens per second of vLLM, of TorchSampler and of transformers' generate on the same work, in one process.

Takes about 197 seconds on two cores.

The work: P prompts of 16 random tokens, G completions of each, N new tokens, temperature 1, none ending early; random
weights of two sizes. The three alternate; medians and ratios are printed. vLLM is left out where it is not installed.

    OMP_WAIT_POLICY=passive python tests/bench/sampling.py
    OMP_WAIT_POLICY=passive python tests/bench/sampling.py --sizes 0.9M --prompts 8 --rounds 5
"""

from __future__ import annotations

import argparse
import random
import statistics
import string
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.config import TorchSamplerConfig, VLLMConfig
from rlvr.core.types import Sampling
from rlvr.model.cpu.processor import tune_cpu
from rlvr.model.load.policy import Policy
from rlvr.model.load.pretrained import pick_device, pick_dtype
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.sampling.samplers import make_sampler

PROMPT_TOKENS = 16
SIZES = {
    "0.9M": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 384},
    "20M": {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 1408},
}


def make_policy(size: str) -> Policy:
    """A random Qwen2 of this size that never ends a completion by itself."""
    tokenizer = tiny_tokenizer([string.printable])
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
        num_key_value_heads=SIZES[size]["num_attention_heads"],
        **SIZES[size],
    )
    tokenizer.eos_token = None
    device = pick_device()
    return Policy(Qwen2ForCausalLM(config).eval().to(device), tokenizer, dtype=pick_dtype("auto", device))


@torch.inference_mode()
def generate(policy: Policy, prompts: list[list[int]], group_size: int, new_tokens: int) -> int:
    """transformers' own sampling of the same work; the number of tokens drawn."""
    ids = torch.tensor(prompts, device=policy.device).repeat_interleave(group_size, 0)
    with policy.computing():
        out = policy.causal.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
            pad_token_id=policy.pad_id,
        )
    return out[:, ids.shape[1] :].numel()


def measure(works: dict[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each work, `rounds` times in turn after one round that is not counted."""
    speeds: dict[str, list[float]] = {name: [] for name in works}
    for round_number in range(rounds + 1):
        for name, work in works.items():
            start = time.perf_counter()
            tokens = work()
            if round_number:
                speeds[name].append(tokens / (time.perf_counter() - start))
    return speeds


def compare(size: str, args: argparse.Namespace) -> None:
    """One size: a line for each engine."""
    policy = make_policy(size)
    draw = random.Random(0)
    prompts = [draw.choices(range(3, len(policy.tokenizer)), k=PROMPT_TOKENS) for _ in range(args.prompts)]
    seeds = [[p * args.group_size + g for g in range(args.group_size)] for p in range(args.prompts)]
    sampling = Sampling(max_new_tokens=args.new_tokens)
    works: dict[str, Callable[[], int]] = {}
    with ExitStack() as stack:
        samplers = {"TorchSampler": make_sampler(TorchSamplerConfig(), policy)}
        try:
            samplers["vLLM"] = stack.enter_context(closing(make_sampler(VLLMConfig(), policy)))
        except ValueError as why:
            print(f"without vLLM: {why}")
        for name, sampler in samplers.items():
            works[name] = lambda s=sampler: sum(
                len(c.token_ids) for g in s.generate(prompts, sampling, seeds) for c in g
            )
        works["HF generate"] = lambda: generate(policy, prompts, args.group_size, args.new_tokens)
        speeds = measure(works, args.rounds)
    base = statistics.median(speeds["HF generate"])
    print(f"{policy.describe()}; {args.prompts} prompts x {args.group_size} x {args.new_tokens} tokens")
    for name, values in speeds.items():
        middle = statistics.median(values)
        print(f"  {name:13} {middle:9,.0f} tokens/s  {middle / base:5.2f} x HF generate  (from {min(values):,.0f})")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=sorted(SIZES), default=list(SIZES))
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    tune_cpu()
    for size in args.sizes:
        compare(size, args)


if __name__ == "__main__":
    main()
