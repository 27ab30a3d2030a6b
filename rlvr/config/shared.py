"""Settings that several groups and commands share, as base classes: task, model, sampling, verifier, pass@k, server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rlvr.core.printable import KEY_VARIABLE, is_plain

from .settings import (
    ADVANCED,
    COUNT,
    COUNT_OR_NONE,
    GREEDY_OR_TEMPERATURE,
    POSITIVE,
    POSITIVE_SHARE,
    RESUMABLE,
    SCORE,
    SECONDS,
    SEED,
    TEMPERATURE,
    WORKERS,
    WORKERS_OR_CORES,
    Group,
    Rules,
    Used,
)

DEVICES = "auto, cpu, mps, cuda or cuda:N"


@dataclass(frozen=True)
class TaskSettings(Group):
    """A task pack and the verifier of its answers."""

    task: str = "arithmetic"
    """Task pack: a registered name or module:attribute (see `rlvr list`)."""
    data: Path | None = None
    """Local file or folder to read the data set from, instead of the Hugging Face hub."""
    task_option: tuple[str, ...] = ()
    """Options of the task pack, as key=value."""
    verifier: str | None = None
    """Verifier to use instead of the pack's own."""
    verifier_option: tuple[str, ...] = ()
    """Options of the named verifier, as key=value; if none is named, of the pack's own."""


@dataclass(frozen=True)
class EnvironmentSettings(Group):
    """The environment that problems are played in."""

    environment: str | None = None
    """Environment to play the problems in, over several turns, instead of the pack's own (if it has one)."""
    environment_option: Annotated[tuple[str, ...], ADVANCED] = ()
    """Options of the named environment, as key=value; if none is named, of the pack's own."""


@dataclass(frozen=True)
class SeedSetting(Group):
    """The seed."""

    seed: Annotated[int, SEED] = 0
    """Seed of all random numbers."""


@dataclass(frozen=True)
class LoadSettings(Group):
    """How a model is loaded and how its prompts are rendered."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the computation; in a training the master weights stay float32. auto: bfloat16 on GPUs that support
    it, else float32."""
    device: Annotated[str, RESUMABLE] = "auto"
    """auto: cuda if available, else mps, else cpu."""
    system_prompt: Annotated[str | None, ADVANCED] = None
    """System message put before every prompt."""
    chat: Annotated[Literal["auto", "always", "never"], ADVANCED] = "auto"
    """Whether to apply the tokenizer's chat template. auto: if it has one."""
    revision: Annotated[str | None, ADVANCED] = None
    """Branch, tag or commit of a model on the hub."""
    trust_remote_code: Annotated[bool, ADVANCED, RESUMABLE] = False
    """Allow Python code from the model's repository to run on this machine."""

    def rules(self, at: str) -> Rules:
        known = re.fullmatch(r"auto|cpu|mps|(cuda|xpu|npu)(:\d+)?", self.device)
        return [*super().rules(at), (known is not None, f"{at}device {self.device!r}; expected {DEVICES}")]


@dataclass(frozen=True)
class AttentionSetting(Group):
    """The attention implementation."""

    attention: Annotated[str, ADVANCED, RESUMABLE] = "auto"
    """Attention implementation of transformers: sdpa, eager, flash_attention_2, ... auto: packed sequences without
    padding if the model supports them exactly, else transformers' default."""


@dataclass(frozen=True)
class ShardSetting(Group):
    """How the weights are sharded over ranks."""

    shard: Annotated[int, COUNT, ADVANCED, RESUMABLE] = 1
    """Number of ranks N over which weights, gradients and optimizer states are sharded (torch's FSDP2). 1: each rank
    holds all. If smaller than the world size, each group of N ranks holds one full copy (HSDP)."""


WITH_LORA = Used(lambda config: config.model.lora_rank > 0, "with --model.lora-rank above 0")


@dataclass(frozen=True)
class LoRASettings(Group):
    """LoRA adapters."""

    lora_rank: Annotated[int, COUNT_OR_NONE] = 0
    """Rank of the LoRA adapters. 0: train all weights."""
    lora_alpha: Annotated[float, POSITIVE, WITH_LORA] = 32.0
    """LoRA scaling: adapters are scaled by alpha / rank."""
    lora_targets: Annotated[str, WITH_LORA] = "all-linear"
    """Comma-separated names of the modules that get adapters."""

    def rules(self, at: str) -> Rules:
        empty = f"{at}lora_targets is empty; expected module names, or all-linear"
        return [*super().rules(at), (bool(self.lora_targets.strip()), empty)]


@dataclass(frozen=True)
class LengthSettings(Group):
    """How long completions may become, and their temperature."""

    max_new_tokens: Annotated[int, COUNT] = 256
    """Maximum number of tokens in a completion."""
    temperature: Annotated[float, TEMPERATURE] = 1.0
    """Sampling temperature; logprobs of the loss are computed at the same temperature."""


@dataclass(frozen=True)
class SamplingSettings(LengthSettings):
    """How completions are sampled."""

    max_prompt_tokens: Annotated[int | None, COUNT, ADVANCED] = None
    """Skip problems with longer prompts. None: an error if prompt and completion exceed the model's context."""
    top_p: Annotated[float, POSITIVE_SHARE, ADVANCED] = 1.0
    """Nucleus sampling: keep the smallest set of tokens with this probability mass. 1: off."""
    top_k: Annotated[int, COUNT_OR_NONE, ADVANCED] = 0
    """Sample from the k most likely tokens. 0: off."""
    stop: Annotated[tuple[str, ...], ADVANCED] = ()
    """Strings that end a completion; they stay part of it."""

    def rules(self, at: str) -> Rules:
        empty = f"{at}stop holds an empty text, which would end every completion at once; leave it out"
        return [*super().rules(at), ("" not in self.stop, empty)]


@dataclass(frozen=True)
class VerifierSettings(Group):
    """How verifiers are run."""

    workers: Annotated[int, WORKERS_OR_CORES, ADVANCED, RESUMABLE] = 0
    """Worker processes for the verifier. 0: one for each core, at least 2."""
    timeout: Annotated[float, SECONDS, ADVANCED, RESUMABLE] = 10.0
    """Seconds allowed to verify one completion; after that its worker is killed, and the score is 0. If the verifier
    hangs on the reference's own answer too, the verdict is an error without a score."""


FRAME = 64  # tokens that the note on a cut and the chat template may add to a reply


@dataclass(frozen=True)
class TurnSettings(Group):
    """Rollouts with an environment. max_new_tokens bounds all turns of a rollout together."""

    max_turns: Annotated[int, COUNT, ADVANCED] = 8
    """With an environment: maximum number of the model's turns in a rollout."""
    turn_tokens: Annotated[int | None, COUNT, ADVANCED] = None
    """With an environment: maximum number of tokens in one turn. None: what is left of max_new_tokens."""
    reply_tokens: Annotated[int, COUNT, ADVANCED] = 512
    """With an environment: maximum tokens of a reply. A longer one is cut, with a note of how much was left out."""
    context_tokens: Annotated[int | None, COUNT, ADVANCED] = None
    """With an environment: maximum tokens of a rollout, prompt and replies included. None: the context's size."""
    reply_seconds: Annotated[float, SECONDS, ADVANCED, RESUMABLE] = 60.0
    """With an environment: seconds for a reply; after that the rollout has no score, and counts as an error."""

    def longest_row(self, prompt: int, sampled: int, context: int | None) -> int:
        """Return the tokens of the longest rollout with an environment: prompt, what is sampled, and replies.

        sampled: tokens of all turns of the model. context: tokens that the model reads; None: no limit.
        """
        longest = prompt + sampled + (self.max_turns - 1) * (self.reply_tokens + FRAME)
        return min(tokens for tokens in (longest, context, self.context_tokens) if tokens)


Ks = Annotated[tuple[int, ...], COUNT]
Samples = Annotated[int, COUNT]


@dataclass(frozen=True)
class AnswerSettings(Group):
    """How the answers to measure are sampled and counted."""

    samples: Samples = 1
    """Completions sampled per problem (n of pass@k)."""
    temperature: Annotated[float, GREEDY_OR_TEMPERATURE] = 1.0
    """Sampling temperature. 0: greedy decoding."""
    threshold: Annotated[float | None, SCORE, ADVANCED] = None
    """For graded rewards: minimum score that counts as correct in pass@k. None: the verdict decides."""


@dataclass(frozen=True)
class PassKSettings(AnswerSettings):
    """What pass@k is measured with."""

    k: Ks = (1,)
    """Values of k for pass@k, each at most the number of samples."""

    def rules(self, at: str) -> Rules:
        most = max(self.k, default=0)
        return [
            *super().rules(at),
            (len(self.k) > 0, f"{at}k is empty; expected at least one k"),
            (most <= self.samples, f"pass@{most} from {self.samples} samples: {at}k must be at most {at}samples"),
        ]


@dataclass(frozen=True)
class BatchSizeSetting(Group):
    """The size of a decoding batch."""

    batch_size: Annotated[int, COUNT, RESUMABLE] = 512
    """Number of sequences decoded in parallel."""


# Settings of models that an OpenAI-compatible server holds.

WITH_URL = Used(lambda config: config.url is not None, "with --url")
WITHOUT_URL = Used(lambda config: config.url is None, "without --url")


def renders_here(config: Any) -> bool:
    """Return whether prompts become token ids in this process: the model is loaded here, or its tokenizer is."""
    return config.url is None or config.tokenizer is not None


@dataclass(frozen=True)
class ServedSettings(Group):
    """A model that is asked over HTTP."""

    url: str | None = None
    """OpenAI-compatible server that holds the model (http://HOST:PORT/v1); --model is its name there. None: load it."""
    api: Annotated[Literal["chat", "completions"], WITH_URL] = "chat"
    """Route to ask: chat sends messages; completions sends text, or token ids with --tokenizer."""
    concurrency: Annotated[int, WORKERS, WITH_URL] = 32
    """Requests that are under way at once; each is for one completion."""
    tokenizer: Annotated[str | None, WITH_URL] = None
    """Hub name or folder of the served model's tokenizer, for --api completions: prompts are then rendered and encoded
    in this process, as for a model that is loaded. None: the server encodes them."""
    key_env: Annotated[str, WITH_URL, ADVANCED] = KEY_VARIABLE
    """Environment variable that holds the server's key, if it wants one; the key itself is written nowhere."""
    retry_seconds: Annotated[float, POSITIVE, WITH_URL, ADVANCED] = 300.0
    """Seconds from a request's first failure (429, 5xx, timeouts, dropped connections) in which it is sent again. After
    that its answer is missing until the same command is run again."""
    request_seconds: Annotated[float, SECONDS, WITH_URL, ADVANCED] = 600.0
    """Seconds without a byte of the response after which a request has failed."""
    request_option: Annotated[tuple[str, ...], WITH_URL, ADVANCED] = ()
    """Further fields of each request, as key=JSON (such as reasoning_effort='"low"')."""
    tool_role: Annotated[Literal["tool", "user"], WITH_URL, ADVANCED] = "tool"
    """Role of tools' replies in chat messages; user for servers that take tool only after a call of their own form."""

    def rules(self, at: str) -> Rules:
        return [
            *super().rules(at),
            (self.url is None or is_plain(self.url), f"{at}url: {URL_EXPECTED}"),
            (
                self.tokenizer is None or self.api == "completions",
                f"{at}tokenizer is read by {at}api completions: {at}api chat sends messages; leave it out",
            ),
            (
                re.fullmatch(r"[A-Za-z_]\w*", self.key_env) is not None,
                f"{at}{'key-env' if at.startswith('--') else 'key_env'}: expected the name of an environment variable, "
                "such as OPENAI_API_KEY, and never the key",
            ),
        ]


URL_EXPECTED = "expected http://HOST:PORT/v1, or https, without a user or password (a key is read from the environment)"
