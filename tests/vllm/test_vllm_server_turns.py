"""Rollouts of several turns by a real vLLM server that is killed in the middle of them. Minutes."""

from __future__ import annotations

import importlib
import os
import signal
import threading

import pytest

from rlvr.config import VLLMServerConfig
from rlvr.core.types import Sampling
from rlvr.sampling.torch_sampler import TorchSampler
from tests.helpers.turns import LastOfAll, completions, digits, play_rows, find_unscored
from tests.helpers.vllm_policies import make_policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
try:
    importlib.import_module("vllm")
    from rlvr.sampling.vllm.sampler import VLLMSampler
except ImportError as error:
    pytest.skip(f"vLLM cannot be imported: {error}", allow_module_level=True)


def test_killed_server_changes_no_turn():
    """Killed before the 13th reply, it is replaced, and gets the contexts so far; no row waits for another before."""
    policy, lock, left = make_policy(), threading.Lock(), [12]
    sampler = VLLMSampler(policy, VLLMServerConfig(max_restarts=1))
    (pid,) = [process.pid for process, _ in sampler.engine.starter.processes.values()]

    def kills(problem, rng):
        inner = digits(problem, rng)
        found = next(inner)
        while True:
            said = yield found
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(pid, signal.SIGKILL)
            try:
                found = inner.send(said)
            except StopIteration:
                return None

    greedy = Sampling(max_new_tokens=24, temperature=0.0)
    try:
        assert find_unscored(play_rows(policy, sampler, LastOfAll(8))) == set()
        whole = play_rows(policy, sampler, digits)
        assert [c.token_ids for c in completions(play_rows(policy, sampler, kills))] == [
            c.token_ids for c in completions(whole)
        ]
        assert sampler.engine.deaths == 1
        torch_rows = completions(play_rows(policy, TorchSampler(policy), digits, sampling=greedy))
        ours = completions(play_rows(policy, sampler, digits, sampling=greedy))
        assert [(c.token_ids, c.turns) for c in ours] == [(c.token_ids, c.turns) for c in torch_rows]
    finally:
        sampler.close()
