"""The thread that drives vLLM in this process, with a stand-in for vLLM that records who calls it."""

from __future__ import annotations

import os
import signal
import threading
import types
from collections.abc import Callable, Iterator

import pytest

from rlvr.config import VLLMConfig
from rlvr.distributed import in_thread
from rlvr.model.load.policy import Policy
from rlvr.sampling.vllm import local
from rlvr.sampling.vllm.engine import Batch, Interrupted, Request
from rlvr.sampling.vllm.local import LocalEngine

CALLS = ("enqueue", "collective_rpc", "reset_prefix_cache", "sleep", "wake_up", "step", "abort_request", "shutdown")
REQUEST = Request([3, 4], seed=0, max_new_tokens=2, temperature=1.0, top_p=1.0, top_k=0)


class VLLMLike:
    """Answers each request with one token at its second step. callers: the threads of all calls, by name."""

    def __init__(self) -> None:
        self.callers: dict[str, set[int]] = {}
        self.waiting: list[str] = []
        self.answers = True

    def __getattr__(self, name: str) -> Callable:
        if name not in CALLS:
            raise AttributeError(name)
        return lambda *args, **options: self.record(name, args)

    def LLM(self, **options: object) -> VLLMLike:
        self.record("LLM", ())
        return self

    def SamplingParams(self, **parameters: object) -> dict:
        return parameters

    @property
    def llm_engine(self) -> VLLMLike:
        return self

    engine_core = llm_engine
    model_config = types.SimpleNamespace(max_model_len=64)

    def record(self, name: str, args: tuple) -> object:
        self.callers.setdefault(name, set()).add(threading.get_ident())
        if name == "enqueue":
            names = [f"{len(self.waiting) + i}-x" for i in range(len(args[0]))]
            self.waiting += names
            return names
        if name == "step":
            return self.finish() if self.answers else []
        if name == "abort_request":
            self.waiting.clear()
        if name == "collective_rpc":
            list(args[0] if args[0] is not local.reload else [])
        return True

    def finish(self) -> list:
        logprob = types.SimpleNamespace(logprob=-1.0)
        output = types.SimpleNamespace(finish_reason="length", token_ids=[7], logprobs=[{7: logprob}], stop_reason=None)
        done, self.waiting = self.waiting, []
        return [
            types.SimpleNamespace(
                finished=True, request_id=name.partition("-")[0], outputs=[output], prompt_logprobs=None
            )
            for name in done
        ]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> VLLMLike:
    """The stand-in that engines import as vLLM."""
    vllm = VLLMLike()
    monkeypatch.setattr(local, "import_vllm", lambda: vllm)
    return vllm


@pytest.fixture
def engine(vllm: VLLMLike, policy: Policy) -> Iterator[LocalEngine]:
    """An engine with the stand-in behind it."""
    engine = LocalEngine(policy, VLLMConfig())
    yield engine
    engine.close()


def test_one_thread_makes_all_calls_of_vllm(engine: LocalEngine, vllm: VLLMLike, policy: Policy) -> None:
    """Whoever samples, pushes or lets it sleep: the main thread, and a new one for each step that is sampled ahead."""
    for _ in range(2):
        outputs = in_thread(lambda: engine.sample_everywhere(REQUEST)).result()
        assert [output.token_ids for output in outputs] == [(7,)]
        engine.sample(Batch([REQUEST, REQUEST]))
        engine.sleep(1)
        engine.load(policy)
    engine._thread.call(lambda: vllm.shutdown())
    [driver] = set.union(*vllm.callers.values())
    assert driver != threading.get_ident()
    assert set(vllm.callers) == {"LLM", *CALLS} - {"abort_request"}


def test_a_signal_ends_what_is_being_sampled(engine: LocalEngine, vllm: VLLMLike) -> None:
    """Its requests are aborted before the exception goes on, and the next call finds nothing of them."""
    vllm.answers = False
    # A shell's background job ignores it.
    held = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            engine.sample(Batch([REQUEST]))
    finally:
        signal.signal(signal.SIGINT, held)
    assert not vllm.waiting
    vllm.answers = True
    assert len(engine.sample_everywhere(REQUEST)) == 1
    engine.interrupt()
    with pytest.raises(Interrupted):
        engine.sample(Batch([REQUEST]))
