"""vLLM in this process: prompts as token ids, weights pushed in place.

With several training processes each has an engine on its own GPU, which samples the process's share of the prompts. The
engines are independent of each other; all processes gather sharded weights together while they push them.
"""

from __future__ import annotations

import gc
import importlib
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlvr.config import VLLMConfig
from rlvr.core.types import RunError
from rlvr.distributed import count_ranks
from rlvr.model.load.policy import Policy

from .engine import (
    LOOK_AGAIN,
    Batch,
    Engine,
    Interrupted,
    Output,
    Request,
    Requests,
    cache_salt,
    first_line,
    import_vllm,
    prompt_logprobs,
    start_failure,
    start_options,
)
from .weights import engine_folder, engine_weights
from .worker import reload

T = TypeVar("T")


class EngineThread:
    """A thread that makes all calls into vLLM. It ends with `close`, or with the process.

    vLLM keeps the CUDA stream of the thread that sampled first, and a run samples in its main thread and beside it.
    """

    def __init__(self, device: torch.device) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, args=(device,), name="rlvr-engine", daemon=True).start()

    def _run(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # a thread begins with the first GPU
        while (call := self._calls.get()) is not None:
            future, work = call
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            del call, future, work  # or a model would be held until the next call

    def call(self, work: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
        """Return work(), run in the thread after the calls before it.

        stop: called if the waiting thread is interrupted, to end `work` early; the thread then waits for that end.
        """
        future: Future[T] = Future()
        self._calls.put((future, work))
        try:
            # A signal may reach another thread: Python handles it here once this one is awake.
            while wait([future], LOOK_AGAIN).not_done:
                pass
            return future.result()
        except BaseException:
            if stop is not None and not future.done():
                stop()
                wait([future])
            raise

    def close(self) -> None:
        """End the thread after its last call."""
        self._calls.put(None)


class LocalEngine(Engine):
    """vLLM in this process, in a thread of its own, which also calls the methods of `Requests`."""

    def __init__(self, policy: Policy, config: VLLMConfig) -> None:
        self.config = config
        self.pushes = 0
        self.sleeping = False
        self._interrupted = threading.Event()
        self._thread = EngineThread(policy.device)
        vllm = import_vllm()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # vLLM's, about torch's names
                self._thread.call(partial(self._start, vllm, policy))
            self.max_model_len = int(self.llm.llm_engine.model_config.max_model_len)
            self.load(policy)
        except BaseException:
            self.close()
            raise

    def _start(self, vllm: Any, policy: Policy) -> None:
        """Start the engine without weights. Raises ValueError with vLLM's reason where it does not start."""
        if policy.device.type == "cpu":
            # vLLM compiles small functions even when told to run eagerly; on a CPU that costs more than it saves.
            importlib.import_module("torch._dynamo").config.disable = True
        self._params = vllm.SamplingParams
        set_num_threads = torch.set_num_threads
        options = start_options(policy, self.config) | {"load_format": "dummy", "disable_log_stats": True}
        if count_ranks() > 1:
            # vLLM joins the group of the training processes, and takes the GPU of this one (LOCAL_RANK).
            options["distributed_executor_backend"] = "external_launcher"
        try:
            self.llm = vllm.LLM(model=str(engine_folder(policy)), **options)
        except (ValueError, RuntimeError, MemoryError, torch.OutOfMemoryError) as error:
            raise ValueError(start_failure(str(error))) from error
        finally:
            # vLLM's CPU worker replaces it with a function that does nothing.
            torch.set_num_threads = set_num_threads

    def sample(self, requests: Requests) -> None:
        stopped = threading.Event()
        self._thread.call(partial(self._sample, requests, stopped), stopped.set)

    def _sample(self, requests: Requests, stopped: threading.Event) -> None:
        engine, more = self.llm.llm_engine, threading.Event()
        under_way: dict[str, tuple[int, str]] = {}
        requests.on_more(more.set)
        try:
            while True:
                more.clear()
                taken = requests.take()
                if taken:
                    under_way |= self._enqueue(taken)
                if self._interrupted.is_set() or stopped.is_set():
                    raise Interrupted("sampling was interrupted")
                if under_way:
                    for request_output in step(engine):
                        if request_output.finished:
                            number, _ = under_way.pop(request_output.request_id)
                            requests.take_output(number, read_output(request_output))
                elif taken is None:
                    return
                else:
                    more.wait(LOOK_AGAIN)
        except BaseException:
            # Otherwise the next call would receive their outputs.
            engine.abort_request([name for _, name in under_way.values()], internal=True)
            raise

    def _enqueue(self, taken: Sequence[tuple[int, Request]]) -> dict[str, tuple[int, str]]:
        """Give requests to vLLM. Return (number, name in the engine) of each, by the name that its outputs have."""
        names = self.llm.enqueue(
            [
                {"prompt_token_ids": list(request.prompt), **cache_salt(self.config, request, self.pushes)}
                for _, request in taken
            ],
            [self._params(**request.parameters()) for _, request in taken],
            use_tqdm=False,
        )
        # The names are "number-random"; outputs have the number.
        return {name.partition("-")[0]: (number, name) for name, (number, _) in zip(names, taken, strict=True)}

    def sample_everywhere(self, request: Request) -> list[Output]:
        batch = Batch([request])
        self.sample(batch)
        return batch.in_order()

    def interrupt(self) -> None:
        self._interrupted.set()

    def load(self, policy: Policy) -> None:
        self.push(engine_weights(policy))

    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Load weights in place, each as it is asked for, and reset the prefix cache, unless sampler.in_flight is keep.

        A sleeping engine wakes up.
        """
        self._thread.call(partial(self._push, weights))

    def _push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        with self._waking():
            self.llm.collective_rpc(reload, args=(weights,))
        self.pushes += 1
        if self.config.in_flight == "rebuild":
            self.reset_cache()

    def sleep(self, level: int) -> None:
        """Free the GPU memory of the KV cache and the weights until the next push: 1 keeps a copy on the CPU, 2 none.

        Tested on CPUs only, where vLLM frees nothing.
        """
        self._thread.call(partial(self.llm.sleep, level=level))
        self.sleeping = True

    @contextmanager
    def _waking(self) -> Iterator[None]:
        """Wake a sleeping engine around a push: weights before it, the KV cache after it has freed its memory."""
        if self.sleeping:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # what the trainer's allocator keeps would not be there for vLLM
            self.llm.wake_up(tags=["weights"])
        yield
        if self.sleeping:
            self.llm.wake_up(tags=["kv_cache"])
            self.sleeping = False

    def reset_cache(self) -> None:
        """Reset the prefix cache. Raises RunError while requests are running."""
        if not self.llm.reset_prefix_cache():
            raise RunError("vLLM did not reset its prefix cache: requests are still running")

    def close(self) -> None:
        self._thread.call(self._end)
        self._thread.close()

    def _end(self) -> None:
        if hasattr(self, "llm"):
            self.llm.llm_engine.engine_core.shutdown()
            del self.llm
            gc.collect()


def step(engine: Any) -> Any:
    """Return the outputs of one step of vLLM's engine. Raises RunError with vLLM's reason where it fails."""
    try:
        return engine.step()
    except RuntimeError as error:
        raise RunError(f"vLLM failed while it sampled: {type(error).__name__}: {first_line(str(error))}") from error


def read_output(request_output: Any) -> Output:
    """Return vLLM's RequestOutput as ours. Raises RunError for one that was aborted."""
    output = request_output.outputs[0]
    if output.finish_reason not in ("stop", "length"):
        raise RunError(f"vLLM ended a request with {output.finish_reason!r}")
    logprobs = tuple(at[token].logprob for at, token in zip(output.logprobs, output.token_ids))
    of_prompt = prompt_logprobs(request_output.prompt_logprobs, lambda at: float(at.logprob))
    ended_by = output.stop_reason if output.finish_reason == "stop" else None
    return Output(tuple(output.token_ids), logprobs, ended_by, of_prompt)
