"""Memory per process of a model that 1, 2 and 4 processes train, with the weights in as many shards.

A random Qwen2 of 113M parameters (12 layers of 768, float32) is read from a folder, and makes two AdamW steps on four
rows of 32 tokens; gradient checkpointing is on. "held" is what a process has above its memory before the model was
loaded, with weights, gradients and optimizer state there: anonymous memory of the operating system, after what was
freed has been given back. "expected" is (weights + gradients + AdamW's two moments) / N. The rest does not shrink:
buffers of gloo and of the allocator, and what a first pass imports.
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlvr.algo.batch import Batch
from rlvr.config import ModelConfig, OptimConfig
from rlvr.model.optim import make_optimizer
from rlvr.model.policy import load_policy
from rlvr.model.sharding import make_mesh
from rlvr.model.tiny import tiny_tokenizer
from rlvr.training.sft import accumulate
from tests.helpers.processes import run_processes

MB = 1e6


def memory() -> float:
    """Return the anonymous memory of this process in MB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / MB
    raise LookupError("RssAnon in /proc/self/status; this script needs Linux")


def write_model(folder: Path, layers: int, hidden: int) -> int:
    """Write a random model and its tokenizer; return the number of its parameters."""
    tokenizer = tiny_tokenizer(["0123456789+-= abcdefghijklmnopqrstuvwxyz"])
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def rows(count: int, length: int) -> Batch:
    """Return so many rows of so many tokens, each with a prompt of its own."""
    tokens = torch.randint(3, 30, (count, length), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length).expand(count, length) >= 4
    ones = torch.ones(count)
    lengths = torch.full((count,), length)
    return Batch(tokens, mask, mask, torch.zeros(count, length), ones, lengths, torch.arange(count))


def train(folder: Path, processes: int) -> float:
    """Train two steps on this process; return the MB that it then holds."""
    before = memory()
    mesh = make_mesh(processes, torch.device("cpu"))
    config = ModelConfig(name=str(folder), device="cpu", gradient_checkpointing=True)
    policy = load_policy(config, mesh=mesh)
    optimizer = make_optimizer(policy.parameters(), OptimConfig(lr=1e-4))
    accelerator = Accelerator(cpu=True)
    for _ in range(2):
        optimizer.zero_grad()
        accumulate(policy, rows(4, 32), accelerator, 64)
        optimizer.step()
    return memory() - before


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = run_processes(1, lambda rank: write_model(folder, args.layers, args.hidden), timeout=600)[0]
        print(f"{written / 1e6:.0f}M parameters, float32; MB a process, the largest of all")
        print(f"{'processes':>9} {'expected':>9} {'held':>9} {'held - expected':>16}")
        for count in args.processes:
            found = run_processes(count, lambda rank, count=count: train(folder, count), timeout=1200)
            held, expected = max(found), 16 * written / count / MB
            print(f"{count:>9} {expected:>9.0f} {held:>9.0f} {held - expected:>16.0f}", flush=True)


if __name__ == "__main__":
    main()
