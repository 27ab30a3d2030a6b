"""One long completion beside many short ones: time and memory of a training pass against one row at a time.

    python tests/bench/long_rows.py [--long 8000 --short 250 --rows 33 --prompts 1 --threads 2]

Forward and backward of token_logprobs on the tiny model, in one process, in turn. Memory is what the process's peak
rises by in the first packed pass (Linux).
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from step_vs_trl import peak_memory_growth

from rlvr.config import ModelConfig
from rlvr.model.logprobs import token_logprobs
from rlvr.model.policy import Policy, load_policy

ALPHABET = "0123456789+-= abc"


def main() -> None:
    """Reads the command line and prints the times, their ratio, and the memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", type=int, default=8000, help="tokens of the long completion")
    parser.add_argument("--short", type=int, default=250, help="tokens of each short one")
    parser.add_argument("--rows", type=int, default=33, help="short completions")
    parser.add_argument("--prompt", type=int, default=50, help="tokens of a prompt")
    parser.add_argument("--prompts", type=int, default=1, help="distinct prompts; their lengths differ by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["highest", "medium"], default="medium")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.precision)
    policy = load_policy(ModelConfig(device="cpu"), corpus=[ALPHABET])
    tokens, mask = make_rows(args)

    def packed() -> None:
        train(policy, tokens, mask)

    def one_by_one() -> None:
        for row, scored in zip(tokens, mask):
            width = int(scored.nonzero().max()) + 1
            train(policy, row[None, :width], scored[None, :width])

    memory = peak_memory_growth(packed)
    times = [(seconds(packed), seconds(one_by_one)) for _ in range(args.rounds)]
    for name, values in zip(("together", "one row at a time"), zip(*times)):
        print(f"{name:18} {statistics.median(values):7.2f} s")
    print(f"one row at a time is {statistics.median(alone / both for both, alone in times):.2f} times as long")
    print(f"peak memory of the pass together: {memory:.0f} MB")


def make_rows(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and mask (B, T) of the long row and the short ones."""
    generator = torch.Generator().manual_seed(0)
    lengths = [args.long] + [args.short] * args.rows
    prompts = [torch.randint(3, 18, (args.prompt + p,), generator=generator) for p in range(args.prompts)]
    width = args.prompt + args.prompts + max(lengths)
    tokens = torch.randint(3, 18, (len(lengths), width), generator=generator)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, length in enumerate(lengths):
        prompt = prompts[row % args.prompts]
        tokens[row, : len(prompt)] = prompt
        mask[row, len(prompt) : len(prompt) + length] = True
    return tokens, mask


def train(policy: Policy, tokens: torch.Tensor, mask: torch.Tensor) -> None:
    """Forward and backward."""
    policy.model.zero_grad()
    token_logprobs(policy, tokens, mask)[0].sum().backward()


def seconds(work) -> float:
    """Wall-clock time of a piece of work."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
