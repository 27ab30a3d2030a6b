"""Rows of reasoning length: time and memory of a training pass, here and in TRL.

    OMP_WAIT_POLICY=passive python benchmarks/long_rows.py                    # a model of 30M parameters
    OMP_WAIT_POLICY=passive python benchmarks/long_rows.py --hidden 128 --layers 4 --parts mixed   # the demo's
    OMP_WAIT_POLICY=passive python benchmarks/long_rows.py --trl --lengths 1024 2048 --rows 4      # beside TRL 1.16

Forward and backward of the GRPO loss's logprobs and entropies on random tokens, no optimizer. Parts:
lengths: rows of each length, their memory above the model and processor time per token, against the first length's.
one: one row of 16,384 tokens. mixed: one row of 8,000 beside 33 of 250. What the long row adds to the time of the short
ones is compared with its share of the floating-point operations.
With --trl the same rows go through TRL's own loss, in its default configuration (gradient checkpointing) and in float32
as here, all rows at once, as its batch size has it. Each measurement is taken in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

from rlvr.algo.batch import Batch
from rlvr.model.cpu.processor import tune_cpu
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.scoring import token_logprobs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers.batches import split
from tests.helpers.measuring import peak_memory_growth, random_qwen, run_alone

ALPHABET = "0123456789+-= abc"
LONG, SHORT, SHORT_ROWS, ONE = 8000, 250, 33, 16384


def make_model(args: argparse.Namespace) -> tuple[Qwen2ForCausalLM, Any]:
    """A random model with its tokenizer: heads of 64 that share keys in pairs, or of 32 in a narrow model."""
    tokenizer = tiny_tokenizer([ALPHABET])
    heads = {} if args.hidden >= 512 else {"num_attention_heads": args.hidden // 32}
    heads |= {} if args.hidden >= 512 else {"num_key_value_heads": args.hidden // 64}
    model = random_qwen(tokenizer, args.hidden, args.layers, args.vocabulary, **heads)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight, dtype=weight.grad_dtype)
    return model, tokenizer


def make_batch(lengths: list[int], prompt: int) -> Batch:
    """Rows of these many completion tokens after one prompt."""
    generator = torch.Generator().manual_seed(0)
    width = prompt + max(lengths)
    tokens = torch.randint(3, 18, (len(lengths), width), generator=generator)
    tokens[:, :prompt] = tokens[0, :prompt].clone()
    ends = torch.tensor(lengths)[:, None] + prompt
    place = torch.arange(width)
    mask = (place >= prompt) & (place < ends)
    zeros = torch.zeros(len(lengths), dtype=torch.long)
    return Batch(tokens, mask, mask, torch.zeros(mask.shape), torch.ones(len(lengths)), ends[:, 0], zeros)


def ours(args: argparse.Namespace) -> Callable[[], None]:
    """Our training pass over the rows."""
    model, tokenizer = make_model(args)
    policy = Policy(model.eval(), tokenizer)
    assert policy.packs
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.train()
    batch = make_batch(args.alone, args.prompt)

    def work() -> None:
        for _, micro in split(batch, args.microbatch):
            logprobs, _ = token_logprobs(policy, micro.tokens, micro.scored, with_entropy=True)
            logprobs.sum().backward()

    return work


def trls(args: argparse.Namespace) -> Callable[[], None]:
    """TRL's loss of the same rows."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    model, tokenizer = make_model(args)
    count = len(args.alone)
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=count,
        num_generations=count,
        max_completion_length=max(args.alone),
        report_to="none",
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": "1"}] * count),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    batch, prompt = make_batch(args.alone, args.prompt), args.prompt
    if trainer.args.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    inputs = {
        "prompt_ids": batch.tokens[:, :prompt],
        "prompt_mask": torch.ones_like(batch.tokens[:, :prompt]),
        "completion_ids": batch.tokens[:, prompt:],
        "completion_mask": batch.mask[:, prompt:].long(),
        "advantages": batch.advantages,
        "num_items_in_batch": batch.mask.sum(),
    }
    return lambda: trainer.compute_loss(model, inputs).backward()


def operations(args: argparse.Namespace, lengths: list[int]) -> float:
    """Floating-point operations of forward and backward over rows after one prompt, without recomputation."""
    hidden, tokens = args.hidden, sum(lengths) + args.prompt
    weights = args.layers * hidden * (2 * hidden + hidden + 9 * hidden) + args.vocabulary * hidden
    pairs = sum(n * args.prompt + n * n / 2 for n in lengths) + args.prompt**2 / 2
    return 6 * weights * tokens + 12 * args.layers * hidden * pairs


def measure(args: argparse.Namespace, argv: list[str], lengths: list[int], side: str = "ours") -> tuple[float, float]:
    """Memory in MB above the model and processor time in seconds of a pass, in a process of its own."""
    memory, seconds = run_alone(__file__, *argv, "--side", side, "--alone", *lengths)
    return memory, seconds


def measure_here(args: argparse.Namespace) -> tuple[float, float]:
    """What `measure` returns, in this process."""
    work = {"ours": ours, "trl": trls}[args.side](args)
    start = time.process_time()
    memory = peak_memory_growth(work)
    return memory, time.process_time() - start


def main() -> None:
    """Reads the command line, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--vocabulary", type=int, default=32)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096], help="tokens of a completion")
    parser.add_argument("--rows", type=int, default=16, help="completions of each length")
    parser.add_argument("--prompt", type=int, default=50, help="tokens of the prompt, which all share")
    parser.add_argument("--microbatch", type=int, default=16384, help="tokens in one of our forward passes")
    parser.add_argument("--checkpointing", action="store_true", help="recompute our activations too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--parts", nargs="+", choices=["lengths", "one", "mixed"], default=["lengths", "one", "mixed"])
    parser.add_argument("--trl", action="store_true", help="measure TRL beside")
    parser.add_argument("--side", choices=["ours", "trl"], default="ours", help=argparse.SUPPRESS)
    parser.add_argument("--alone", type=int, nargs="+", help=argparse.SUPPRESS)
    args, argv = parser.parse_args(), sys.argv[1:]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(args.threads)
    tune_cpu()
    if args.alone:
        print(json.dumps(measure_here(args)))
        return
    for side in ["ours", *(["trl"] if args.trl else [])]:
        first: tuple[float, float] | None = None
        for length in args.lengths if "lengths" in args.parts else []:
            memory, seconds = measure(args, argv, [length] * args.rows, side)
            each = 1e3 * seconds / (args.rows * length)
            first = first or (memory, each)
            ratios = f"{memory / first[0]:.2f} and {each / first[1]:.2f} times those of {args.lengths[0]}"
            print(
                f"{side:5} {args.rows} rows of {length}: {memory:6.0f} MB, {each:.2f} ms a token: {ratios}", flush=True
            )
    if "one" in args.parts:
        memory, seconds = measure(args, argv, [ONE])
        print(f"ours  one row of {ONE}: {memory:6.0f} MB, {1e3 * seconds / ONE:.2f} ms a token", flush=True)
    if "mixed" in args.parts:
        short, every = [SHORT] * SHORT_ROWS, [LONG] + [SHORT] * SHORT_ROWS
        memory, both = measure(args, argv, every)
        _, apart = measure(args, argv, short)
        share = operations(args, every) / operations(args, short) - 1
        beside = f"{LONG} beside {SHORT_ROWS} of {SHORT}"
        print(f"ours  one row of {beside}: {memory:6.0f} MB, {both:.1f} s, {apart:.1f} s without")
        print(f"      the long one costs {(both / apart - 1) / share:.2f} times its share of the operations")


if __name__ == "__main__":
    main()
