"""Memory per process of a model that 1, 2 and 4 processes train, its weights in as many shards, beside the plan of it.

A random Qwen2 of 113M parameters (12 layers of 768, float32) is read from a folder, makes two AdamW steps on four
completions of 28 tokens, and samples four; gradient checkpointing is on. Measured is resident memory above what the
process had when two steps of a tiny model had run, the largest of all processes: "held" after the steps, the peak of
the second step (the first makes the optimizer's state), and the peak while it samples. Large blocks are given back to
the system when they are freed (MALLOC_MMAP_THRESHOLD_). "planned" is what `rlvr doctor --plan` says of the same run.
"expected" is, for float32, (weights + gradients + AdamW's two moments) / N.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.device_mesh import DeviceMesh

from rlvr.algo.batch import Batch
from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig
from rlvr.core.types import Sampling
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.memory.plan import Plan, make_plan, model_settings, shape_of_config
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.model.optim.sharding import make_mesh
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.sft.sft import accumulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.measuring import random_qwen
from tests.helpers.processes import run_processes

MB = 1e6
GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
PROMPT, ROWS = 4, 4
STAGES = ("training", "sampling")
KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "lora": {"dtype": "float32", "lora_rank": 16},
}


@dataclass(frozen=True)
class Sizes:
    """Layers, width and vocabulary of the model (0: as many words as the tokenizer has), tokens of a row."""

    layers: int
    hidden: int
    length: int
    vocabulary: int = 0


@dataclass(frozen=True)
class Found:
    """MB above the start: held after the steps, and the peaks of a step and of sampling."""

    held: float
    training: float
    sampling: float


def status(name: str) -> float:
    """Return an entry of this process's memory in MB."""
    found = re.search(rf"^{name}:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{name} in /proc/self/status; this script needs Linux")
    return int(found[1]) * 1024 / MB


def resident() -> float:
    """Return the MB that are held, after what was freed has been given back; the peak begins anew."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def write_model(folder: Path, sizes: Sizes) -> int:
    """Write a random model and its tokenizer; return the number of its parameters."""
    tokenizer = tiny_tokenizer(["0123456789+-= abcdefghijklmnopqrstuvwxyz"])
    more = {"intermediate_size": 4 * sizes.hidden, "num_key_value_heads": sizes.hidden // 64}
    model = random_qwen(tokenizer, sizes.hidden, sizes.layers, sizes.vocabulary, **more)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def settings(folder: Path, shards: int, length: int, kind: str) -> Config:
    """Return the settings of the run, in microbatches of one row."""
    model = ModelConfig(name=str(folder), device="cpu", gradient_checkpointing=True, shard=shards, **KINDS[kind])
    return Config(
        model=model,
        rollout=RolloutConfig(problems_per_step=1, group_size=ROWS, max_new_tokens=length - PROMPT),
        optim=OptimConfig(lr=1e-4, tokens_per_microbatch=length),
    )


def plan_of(config: Config) -> Plan:
    """Return the plan of a process."""
    shape = shape_of_config(model_settings(config))
    return make_plan(shape, config, memory=0, shards=config.model.shard, gpu=False)


def rows(length: int) -> Batch:
    """Return rows of so many tokens, each with a prompt of its own."""
    tokens = torch.randint(3, 30, (ROWS, length), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length).expand(ROWS, length) >= PROMPT
    ones = torch.ones(ROWS)
    lengths = torch.full((ROWS,), length)
    return Batch(tokens, mask, mask, torch.zeros(ROWS, length), ones, lengths, torch.arange(ROWS))


def run(config: Config, length: int, mesh: DeviceMesh | None) -> Found:
    """Train two steps on this process and sample once; return the MB above those before."""
    before = resident()
    policy = load_policy(config.model, mesh=mesh)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    accelerator = Accelerator(cpu=True)
    for _ in range(2):
        resident()
        optimizer.zero_grad()
        accumulate(policy, rows(length), accelerator, config.optim.tokens_per_microbatch)
        optimizer.step()
    training = status("VmHWM") - before
    held = resident() - before
    optimizer.zero_grad()
    resident()
    sampling = Sampling(max_new_tokens=length - PROMPT)
    TorchSampler(policy).generate([[3, 4, 5, 6]], sampling, [list(range(ROWS))])
    return Found(held, training, status("VmHWM") - before)


def measure(folder: Path, tiny: Path, processes: int, length: int, kind: str) -> Found:
    """Return what this process of so many takes, once a tiny model has run."""
    mesh = make_mesh(processes, torch.device("cpu"))
    run(settings(tiny, processes, 16, kind), 16, mesh)
    return run(settings(folder, processes, length, kind), length, mesh)


def compare(folder: Path, sizes: Sizes, counts: list[int], kind: str) -> None:
    """Print the table."""
    tiny = folder / "tiny"
    written = run_processes(1, lambda rank: write_model(folder / "model", sizes), timeout=600)[0]
    run_processes(1, lambda rank: write_model(tiny, Sizes(1, 64, 16)), timeout=600)
    print(f"{written / 1e6:.0f}M parameters, {kind}; MB a process, the largest of all")
    print(f"{'processes':>9} {'expected':>9} {'held':>9} {'stage':>9} {'planned':>9} {'measured':>9} {'ratio':>6}")
    for count in counts:

        def call(rank: int, count: int = count) -> Found:
            return measure(folder / "model", tiny, count, sizes.length, kind)

        found = run_processes(count, call, timeout=1200)
        plan, held = plan_of(settings(folder / "model", count, sizes.length, kind)), max(each.held for each in found)
        for stage in STAGES:
            planned, peak = plan.total(stage) / MB, max(getattr(each, stage) for each in found)
            start = f"{count:>9} {16 * written / count / MB:>9.0f} {held:>9.0f}"
            print(f"{start} {stage:>9} {planned:>9.0f} {peak:>9.0f} {planned / peak:>6.2f}", flush=True)


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--length", type=int, default=32, help="tokens of a row")
    parser.add_argument("--vocabulary", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), default="float32")
    args = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in GIVEN_BACK.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **GIVEN_BACK})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        compare(Path(name), Sizes(args.layers, args.hidden, args.length, args.vocabulary), args.processes, args.kind)


if __name__ == "__main__":
    main()
