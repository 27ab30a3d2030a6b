"""The helper that measures processor time would see a call that is slow."""

from __future__ import annotations

import gc
import threading
import time

from tests.helpers.machine import processor_time


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_only_what_this_thread_computes_counts() -> None:
    """Not sleep, not another thread's work; the collector is on again afterwards."""
    with processor_time() as idle:
        other = threading.Thread(target=spin, args=(0.2,))
        other.start()
        other.join()
        time.sleep(0.1)
        assert not gc.isenabled()
    assert gc.isenabled()
    with processor_time() as busy:
        spin(0.2)
    assert idle.seconds < 0.1
    assert 0.2 <= busy.seconds < 0.4


def test_a_block_that_raises_leaves_the_collector_on() -> None:
    try:
        with processor_time() as taken:
            raise KeyError
    except KeyError:
        pass
    assert gc.isenabled()
    assert taken.seconds >= 0
