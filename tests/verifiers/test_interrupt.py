"""Signals while a verifier loops."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.helpers.files import ROOT

WAITING = """
import os, signal, sys, threading, time
from rlvr.training.supervision.signals import StopRequest
from rlvr.core.types import Problem
from rlvr.verifiers import Runner

def loops(problem, completion):
    open({log!r}, "w").write("looping")
    while True:
        pass
loops.isolate = {isolate}
with StopRequest().handling_signals() as stop, Runner(loops, timeout=600) as runner:
    stop.work = "step 1"
    runner.verify([(Problem("1", "", ""), "")])
"""


@pytest.mark.parametrize("isolate", [True, False])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_run_whose_verifier_loops(tmp_path, isolate, number):
    """In workers and in the caller's own process: the first asks for the end of the step, the second ends it."""
    log = tmp_path / "log"
    text = WAITING.format(log=str(log), isolate=isolate)
    program = subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        while not (log.exists() and log.read_text()):
            assert program.poll() is None
            time.sleep(0.02)
        program.send_signal(number)
        time.sleep(0.3)
        assert program.poll() is None
        program.send_signal(number)
        _, told = program.communicate(timeout=120)
    finally:
        program.kill()
        program.wait()
    assert b"finishing step 1, then stopping" in told
    assert b"stopped now: step 1 is lost" in told
