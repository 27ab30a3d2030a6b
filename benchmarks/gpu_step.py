"""One GRPO step on a GPU: sampling by vLLM, reward, gradient, AdamW, weights sent to vLLM; beside TRL with vLLM.

The work: `--prompts` prompts of 128 tokens, `--group-size` completions of each, all of exactly `--tokens` tokens (EOS
is never drawn in practice), by a model with random weights in a shape of Qwen2.5. The reward is the parity of a
checksum of the text, so that groups have signal and no verifier takes time. Every side runs alone in a process of its
own; the first `--warm` steps are not counted.

    pip install trl==1.16.0
    python benchmarks/gpu_step.py --size 1.5B --tokens 512 2048 8192
    python benchmarks/gpu_step.py --size 7B --lora-rank 32 --tokens 1024 --peer none
    python benchmarks/gpu_step.py --size 7B --weights bfloat16 --offload 1 --sleep 1 --tokens 1024 --peer none
    python benchmarks/gpu_step.py --size tiny --tokens 16 --sampler torch --peer none    # on a CPU, to try it

Floor: what the same step would take at the rates that are measured first, of bare matmuls and copies. Training counts
6 FLOPs a weight and token (with LoRA 4), and attention; sampling reads all weights once a decoding step, and the keys
and values of all rows. Share: floor divided by what was measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.helpers import measuring

PROMPT, LR, VOCABULARY = 128, 1e-6, 151_936


@dataclass(frozen=True)
class Size:
    """A shape of Qwen2.5."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    tied: bool
    vocabulary: int = VOCABULARY


SIZES = {
    "tiny": Size(64, 2, 2, 1, 128, True, 512),
    "0.5B": Size(896, 24, 14, 2, 4864, True),
    "1.5B": Size(1536, 28, 12, 2, 8960, True),
    "3B": Size(2048, 36, 16, 2, 11008, True),
    "7B": Size(3584, 28, 28, 4, 18944, False, 152_064),
}


def write_model(folder: Path, size: Size) -> None:
    """Write random weights, and a tokenizer with one word a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = {"<eos>": 0, "<pad>": 1} | {f"w{i}": i for i in range(2, size.vocabulary)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w2"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>").save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        intermediate_size=size.mlp,
        tie_word_embeddings=size.tied,
        max_position_embeddings=32_768,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen2ForCausalLM._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)


def prompts(count: int, size: Size) -> list[str]:
    """Return prompts of PROMPT tokens."""
    random = Random(0)
    return [" ".join(f"w{random.randrange(2, size.vocabulary)}" for _ in range(PROMPT)) for _ in range(count)]


def reward(text: str) -> float:
    """Return 0 or 1."""
    return float(zlib.crc32(text.encode()) % 2)


class Clock:
    """Seconds of the named parts of steps, with all work of the device done."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is done within."""
        start = now()
        yield
        self.seconds.setdefault(name, []).append(now() - start)


def now() -> float:
    """Return the time when the device has done all it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_gib() -> float:
    """Return the most memory of the device that was in use (with vLLM's), or that torch held; 0.0 on a CPU."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return max(total - free, torch.cuda.max_memory_reserved()) / 2**30


def ours(args: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Run our side. Returns seconds by part, and memory."""
    from accelerate import Accelerator

    from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, TorchSamplerConfig, VLLMConfig
    from rlvr.core.traits import BatchVerifier
    from rlvr.core.types import Problem, Verdict
    from rlvr.model.load.policy import load_policy
    from rlvr.model.optim.optimizer import make_optimizer, optimizer_step
    from rlvr.sampling.samplers import make_sampler
    from rlvr.training.rollout.rollout import rollout, verify
    from rlvr.training.step.rewards import group_advantages, group_rewards
    from rlvr.training.step.update import accumulate_gradient, to_batch
    from tests.helpers.runs import assemble

    class Judge(BatchVerifier):
        def verify(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
            return [Verdict.of(reward(text)) for _, text in pairs]

    engine = TorchSamplerConfig() if args.sampler == "torch" else VLLMConfig(sleep=args.sleep, sync_check_every=0)
    config = Config(
        model=ModelConfig(
            name=args.model,
            lora_rank=args.lora_rank,
            weights=args.weights,
            gradient_checkpointing=tokens >= 1024,
        ),
        rollout=RolloutConfig(problems_per_step=args.prompts, group_size=args.group_size, max_new_tokens=tokens),
        optim=OptimConfig(
            lr=LR, tokens_per_microbatch=args.microbatch, name=args.optimizer, offload=bool(args.offload)
        ),
        sampler=engine,
    )
    policy = load_policy(config.model)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    problems = [Problem(str(i), text) for i, text in enumerate(prompts(args.prompts, SIZES[args.size]))]
    sampler = make_sampler(engine, policy)
    run = assemble(config, policy, optimizer, sampler, problems, Judge(), None, Accelerator())  # type: ignore[arg-type]
    clock = Clock()
    for step in range(args.warm + args.rounds):
        with clock.part("sampling"):
            seed = (0, "rollout", step)
            groups = rollout(policy, sampler, problems, config.sampling(), group_size=args.group_size, seed=seed)
            if args.sampler != "torch":
                sampler.sleep()
        with clock.part("training"):
            groups = verify(groups, run.worker.verifier)
            advantages = group_advantages(groups, group_rewards(groups, config.rollout), config.algo)
            accumulate_gradient(run.learner, to_batch(run.learner, groups, advantages))
            optimizer_step(optimizer, lr=LR, max_grad_norm=1.0)
        with clock.part("push"):
            sampler.load_weights(policy)
    drawn = sum(len(c.token_ids) for group in groups for c in group.completions)
    peak = peak_gib()  # before vLLM gives its memory back
    sampler.close()
    return {"seconds": clock.seconds, "peak_gib": peak, "tokens": drawn}


def trl(args: argparse.Namespace, tokens: int) -> dict[str, Any]:
    """Run TRL's side, with vLLM in the same process. Returns seconds of whole steps, and memory."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    clock = Clock()

    class Steps(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.seconds.setdefault("step", []).append(now() - self.start)

    engine = {} if args.sampler == "torch" else {"use_vllm": True, "vllm_mode": "colocate"}
    if args.sleep and engine:
        engine["vllm_enable_sleep_mode"] = True
    peft = None
    if args.lora_rank:
        from peft import LoraConfig

        peft = LoraConfig(r=args.lora_rank, lora_alpha=2 * args.lora_rank, target_modules="all-linear")
    rows = [{"prompt": text} for text in prompts(args.prompts, SIZES[args.size])] * (args.warm + args.rounds)
    rows_at_once = max(1, args.microbatch // (PROMPT + tokens))
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        per_device_train_batch_size=min(rows_at_once, args.prompts * args.group_size),
        gradient_accumulation_steps=max(1, args.prompts * args.group_size // rows_at_once),
        gradient_checkpointing=tokens >= 1024,
        num_generations=args.group_size,
        max_completion_length=tokens,
        beta=0.0,
        learning_rate=LR,
        max_steps=args.warm + args.rounds,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        **engine,
    )
    GRPOTrainer(
        model=args.model,
        reward_funcs=lambda completions, **_: [reward(text) for text in completions],
        args=settings,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(args.model),
        callbacks=[Steps()],
        peft_config=peft,
    ).train()
    drawn = args.prompts * args.group_size * tokens
    return {"seconds": clock.seconds, "peak_gib": peak_gib(), "tokens": drawn}


def measured_rates() -> tuple[float, float]:
    """Return FLOP/s of a large matmul (bfloat16; on a CPU float32), and bytes/s read and written by a copy."""
    cuda = torch.cuda.is_available()
    device, n = ("cuda", 8192) if cuda else ("cpu", 512)
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16 if cuda else torch.float32)
    source = torch.empty(2**30 if cuda else 2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def seconds(work: Any) -> float:
        times = []
        for _ in range(8):
            start = now()
            work()
            times.append(now() - start)
        return min(times)

    return 2 * n**3 / seconds(lambda: a @ a), 2 * source.nbytes / seconds(lambda: target.copy_(source))


def floors(args: argparse.Namespace, tokens: int, flops: float, bandwidth: float) -> tuple[float, float]:
    """Return the seconds of sampling and of training at these rates."""
    size, rows = SIZES[args.size], args.prompts * args.group_size
    head_dim = size.hidden // size.heads
    layer = size.hidden * (2 * size.hidden + 2 * size.kv_heads * head_dim + 3 * size.mlp)
    weights = size.layers * layer + size.hidden * size.vocabulary
    drawn, context = rows * tokens, PROMPT + tokens / 2  # mean number of keys that a token sees
    attention = 4 * size.layers * size.hidden * drawn * context
    kv = 4 * size.layers * size.kv_heads * head_dim * rows * context  # bytes in bfloat16
    sampling = max(tokens * (2 * weights + kv) / bandwidth, (2 * weights * drawn + attention) / flops)
    training = ((4 if args.lora_rank else 6) * weights * drawn + 3 * attention) / flops
    return sampling, training


def compare(args: argparse.Namespace) -> None:
    """Print a row for each length."""
    flops, bandwidth = measured_rates()
    print(f"rates measured: {flops / 1e12:.2f} TFLOP/s, {bandwidth / 1e9:.0f} GB/s")
    print(f"{'tokens':>7} {'s/step':>8} {'sampling':>9} {'training':>9} {'push':>6} {'tokens/s':>9} ", end="")
    print(f"{'share of floor':>15} {'peak GiB':>9} {'TRL s/step':>11} {'ratio':>6}")
    for tokens in args.tokens:
        found = run_alone(args, "ours", tokens)
        parts = {name: statistics.median(times[args.warm :]) for name, times in found["seconds"].items()}
        step = sum(parts.values())
        floor = sum(floors(args, tokens, flops, bandwidth))
        row = f"{tokens:7} {step:8.3f} {parts['sampling']:9.3f} {parts['training']:9.3f} {parts['push']:6.3f} "
        row += f"{found['tokens'] / step:9.0f} {floor / step:15.1%} {found['peak_gib']:9.1f} "
        if args.peer == "trl":
            peer = statistics.median(run_alone(args, "trl", tokens)["seconds"]["step"][args.warm :])
            row += f"{peer:11.3f} {peer / step:6.2f}"
        print(row, flush=True)


def run_alone(args: argparse.Namespace, side: str, tokens: int) -> dict[str, Any]:
    """Run a side in a process of its own."""
    given = [f"--{k.replace('_', '-')}={v}" for k, v in vars(args).items() if k not in ("tokens", "alone", "peer")]
    return measuring.run_alone(__file__, *given, f"--alone={side}", "--tokens", tokens)  # type: ignore[no-any-return]


def main() -> None:
    """Read the command line and run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--size", choices=list(SIZES), default="0.5B" if on_gpu else "tiny")
    lengths = [512, 2048] if on_gpu else [16]
    parser.add_argument("--tokens", type=int, nargs="+", default=lengths, help="of a completion")
    parser.add_argument("--prompts", type=int, default=16 if on_gpu else 2)
    parser.add_argument("--group-size", type=int, default=8 if on_gpu else 4)
    parser.add_argument("--microbatch", type=int, default=16_384, help="tokens in one forward pass of training")
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--weights", choices=["float32", "bfloat16"], default="float32", help="ours only")
    parser.add_argument("--optimizer", choices=["adamw", "adamw8bit"], default="adamw", help="ours only")
    parser.add_argument("--offload", type=int, choices=[0, 1], default=0, help="of the optimizer's state; ours only")
    parser.add_argument("--sampler", choices=["vllm", "torch"], default="vllm" if on_gpu else "torch")
    parser.add_argument("--sleep", type=int, choices=[0, 1, 2], default=0, help="free vLLM's memory while training")
    parser.add_argument("--peer", choices=["trl", "none"], default="trl" if on_gpu else "none")
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", help="folder of the model; written if it does not exist")
    parser.add_argument("--alone", choices=["ours", "trl"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.alone:
        print(json.dumps({"ours": ours, "trl": trl}[args.alone](args, args.tokens[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        args.model = args.model or folder
        if not (Path(args.model) / "config.json").exists():
            write_model(Path(args.model), SIZES[args.size])
        compare(args)


if __name__ == "__main__":
    main()
