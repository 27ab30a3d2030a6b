"""The group sampler: a class of settings for each sampler, chosen by `--sampler NAME`."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from .settings import ADVANCED, COUNT_OR_NONE, POSITIVE, POSITIVE_SHARE, RESUMABLE, SECONDS, WORKERS, Group, Rules, Used
from .shared import BatchSizeSetting


def starts_engine(config: Any) -> bool:
    """Return whether the run starts the engine, and does not sample from a server that is already there."""
    return not isinstance(config.sampler, VLLMServerConfig) or not config.sampler.url


OWN_ENGINE = Used(starts_engine, "without --sampler.url")
AHEAD = Used(
    lambda config: config.sampler.slice_tokens > 0,
    "with --sampler vllm or vllm-server, or --sampler.slice-tokens above 0",
)
IN_SLICES = Used(lambda config: config.sampler.slice_tokens > 0, "with --sampler.slice-tokens above 0")


class Defaults:
    """Values of settings that are read from every sampler, for the classes that do not declare them."""

    batch_size: int = 512
    cache_gib: float | None = None
    max_staleness: int = 0
    max_model_len: int = 0
    has_own_weights: bool = True
    """Whether it can sample while the trainer changes the policy."""


@dataclass(frozen=True)
class SamplerSettings(Defaults, Group):
    """Settings of all samplers."""

    name: str = field(init=False)
    """Engine that samples: torch, vllm (in this process; in a training, in each process) or vllm-server (vLLM servers,
    here or on other machines)."""
    mismatch_alarm: Annotated[float, POSITIVE, ADVANCED, RESUMABLE] = 0.1
    """Warn if logprobs of trainer and sampler differ by more than this, averaged over a step."""
    slice_tokens: Annotated[int, COUNT_OR_NONE, ADVANCED] = 0
    """Partial rollouts: a completion that is not done after this many tokens is cut, and goes on in the next slice,
    under newer weights; its group trains when it is whole. A step waits for slices, not for its longest completion.
    Needs --sampler.max-staleness of 2 or more. 0: off."""
    max_versions: Annotated[int, COUNT_OR_NONE, ADVANCED, IN_SLICES] = 0
    """Maximum number of versions of the weights that sample one completion: the last one samples it to its end. 0: no
    limit."""

    def rules(self, at: str) -> Rules:
        return [
            *super().rules(at),
            (
                self.slice_tokens == 0 or self.max_staleness >= 2,
                f"{at}slice_tokens {self.slice_tokens} with {at}max_staleness {self.max_staleness}: a step would wait "
                f"for all groups in progress, and could leave none unfinished; set {at}max_staleness to 2 or more",
            ),
            (
                self.max_versions != 1,
                f"{at}max_versions 1 would sample every completion to its end; set 2 or more, or leave out "
                f"{at}slice_tokens",
            ),
        ]


@dataclass(frozen=True)
class TorchSamplerConfig(BatchSizeSetting, SamplerSettings):
    """Sampling in PyTorch from the model in this process; in training that is the policy itself."""

    name: str = field(default="torch", init=False)
    has_own_weights = False
    max_staleness: Annotated[int, COUNT_OR_NONE, ADVANCED, AHEAD] = 0
    """With slices: number of steps whose groups are still being sampled after a step has taken its own."""
    cache_gib: Annotated[float | None, POSITIVE, ADVANCED, RESUMABLE] = None
    """Limit in GiB for keys and values; if they would need more, fewer sequences are decoded at once. None: 60 % of
    the GPU memory that is free when sampling starts; no limit on a CPU."""


@dataclass(frozen=True)
class EngineSettings(SamplerSettings):
    """Settings of both vLLM engines."""

    max_staleness: Annotated[int, COUNT_OR_NONE] = 0
    """Maximum policy lag in steps. 1 overlaps sampling with training; larger values bring no further speed, unless
    --sampler.slice-tokens is set: then it is the number of steps whose groups are being sampled. --algo.importance
    corrects for the lag."""
    max_model_len: Annotated[int, COUNT_OR_NONE, RESUMABLE] = 0
    """Maximum tokens of prompt and completion together. 0: the model's own limit."""
    gpu_memory_utilization: Annotated[float | None, POSITIVE_SHARE, OWN_ENGINE, RESUMABLE] = None
    """Fraction of GPU memory for vLLM, weights included. None: 0.4 of the trainer's GPU, 0.9 of GPUs of
    its own."""
    in_flight: Annotated[Literal["rebuild", "keep"], ADVANCED, IN_SLICES] = "rebuild"
    """How a cut completion goes on after a push of weights. rebuild: its keys and values are computed again, under the
    new weights. keep: cached keys and values of older weights stay in use; this is faster with long completions, but a
    resumed run is not the same to the byte."""
    sync_check_every: Annotated[int, COUNT_OR_NONE, ADVANCED, RESUMABLE] = 25
    """Weight updates between checks that vLLM's logprobs match the trainer's. 0: check at start-up only."""

    def share(self, *, apart: bool) -> float:
        """Return the fraction of GPU memory for vLLM; apart: it has GPUs of its own."""
        return self.gpu_memory_utilization or (0.9 if apart else 0.4)


@dataclass(frozen=True)
class VLLMConfig(EngineSettings):
    """vLLM in each training process, with an engine on the process's own GPU."""

    name: str = field(default="vllm", init=False)
    tensor_parallel = 1
    sleep: Annotated[Literal[0, 1, 2], RESUMABLE] = 0
    """Free vLLM's GPU memory while the trainer trains. 1: move its weights to CPU memory; 2: drop them, as they are
    sent before each use. 0: off."""

    def rules(self, at: str) -> Rules:
        return [
            *super().rules(at),
            (
                self.sleep == 0 or self.max_staleness == 0,
                f"{at}sleep {self.sleep} needs {at}max_staleness 0: an engine that samples meanwhile cannot sleep",
            ),
        ]


@dataclass(frozen=True)
class VLLMServerConfig(EngineSettings):
    """vLLM servers: started by the run on its machine, or running ones, on this machine or others."""

    name: str = field(default="vllm-server", init=False)
    url: Annotated[tuple[str, ...], RESUMABLE] = ()
    """URLs of running servers, as `rlvr serve` prints them. Empty: start servers."""
    servers: Annotated[int, WORKERS, ADVANCED, OWN_ENGINE, RESUMABLE] = 1
    """Number of servers to start."""
    tensor_parallel: Annotated[int, WORKERS, ADVANCED, OWN_ENGINE, RESUMABLE] = 1
    """GPUs of each server that the run starts; its weights are split among them."""
    timeout: Annotated[float, SECONDS, ADVANCED, RESUMABLE] = 600.0
    """Seconds a server may take to start, or for a completion of up to 8,192 tokens, before it counts as lost. Longer
    completions have time in proportion: 16,384 tokens twice as long."""
    max_restarts: Annotated[int, COUNT_OR_NONE, ADVANCED, OWN_ENGINE, RESUMABLE] = 2
    """Number of lost servers that the run may replace, all together."""

    sleep = 0

    def __post_init__(self) -> None:
        if self.url is None or isinstance(self.url, str):  # one URL may be a plain text
            object.__setattr__(self, "url", (self.url,) if self.url else ())

    def rules(self, at: str) -> Rules:
        urls = [url.rstrip("/") for url in self.url]
        return [
            *super().rules(at),
            (all(urls), f"{at}url is empty; expected http://HOST:PORT"),
            (len(set(urls)) == len(urls), f"{at}url names a server twice: {' '.join(urls)}"),
        ]


EngineConfig = VLLMConfig | VLLMServerConfig
SamplerConfig = TorchSamplerConfig | EngineConfig
SAMPLERS: dict[str, type[SamplerConfig]] = {
    "torch": TorchSamplerConfig,
    "vllm": VLLMConfig,
    "vllm-server": VLLMServerConfig,
}
"""The settings' class of each sampler, by the word of `--sampler`."""


def fastest_sampler(gpu_memory_utilization: float | None = None) -> SamplerConfig:
    """Return the sampler that a recipe for GPUs takes: vLLM in this process where a GPU and vLLM are, else torch.

    vLLM sleeps while the trainer trains: a single engine moves its weights to CPU memory, several drop theirs.
    """
    if has_nvidia_gpu() and importlib.util.find_spec("vllm") is not None:
        alone = os.environ.get("WORLD_SIZE", "1") == "1"
        return VLLMConfig(sleep=1 if alone else 2, gpu_memory_utilization=gpu_memory_utilization)
    return TorchSamplerConfig()


def has_nvidia_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether this process may see a GPU, without the seconds that it takes to import torch."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    return not hidden and any(devices.glob("nvidia[0-9]*"))
