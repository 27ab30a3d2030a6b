"""What the scripts of benchmarks share: random models, a part of a script alone in a process, peak memory."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM


def random_qwen(
    tokenizer: PreTrainedTokenizerBase, hidden: int, layers: int, vocabulary: int = 0, **more: Any
) -> Qwen2ForCausalLM:
    """Return a random Qwen2 with heads of 64, of which two share keys. more: of Qwen2Config."""
    heads = max(hidden // 64, 1)
    settings = {
        "vocab_size": max(vocabulary, len(tokenizer)),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**settings, **more}))


def run_alone(script: str, *arguments: object, **environment: str) -> Any:
    """Run a script in a process of its own; return what its last line says as JSON. SystemExit where it fails."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def peak_memory_growth(work: Callable[[], object]) -> float:
    """Return the MB by which the process's peak resident memory rises above what it holds before the work (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")

    def status(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]

    before = status("VmRSS")
    work()
    return (status("VmHWM") - before) / 1024
