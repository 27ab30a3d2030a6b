"""Functions in several processes of one group, forked from this one, so that nothing is imported again."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState


def run_processes(count: int, call: Callable[[int], Any], *, timeout: float = 100.0) -> list[Any]:
    """Return what `call(rank)` returns in each of so many processes; None for one that was killed.

    Raises RuntimeError with the traceback of a process that failed, while none was killed.
    """
    forked = multiprocessing.get_context("fork")
    with TemporaryDirectory() as folder:
        ends = [forked.Pipe(duplex=False) for _ in range(count)]
        started = [
            forked.Process(target=_run, args=(rank, count, call, Path(folder) / "store", ends[rank][1]))
            for rank in range(count)
        ]
        for process, (_, end) in zip(started, ends):
            process.start()
            end.close()
        try:
            answers = _answers([end for end, _ in ends], time.monotonic() + timeout)
            killed = any(answer is None for answer in answers)
        finally:
            for process in started:
                process.kill()
                process.join()
    for failed, _ in filter(None, answers):
        if failed and not killed:
            raise RuntimeError(failed)
    return [None if answer is None or answer[0] else answer[1] for answer in answers]


def _answers(ends: list[Any], deadline: float) -> list[tuple[str, Any] | None]:
    answers: list[tuple[str, Any] | None] = []
    for rank, end in enumerate(ends):
        if not end.poll(max(deadline - time.monotonic(), 0.1)):
            raise TimeoutError(f"process {rank} of {len(ends)} did not end")
        try:
            answers.append(torch.load(io.BytesIO(end.recv_bytes()), weights_only=False))
        except EOFError:
            answers.append(None)
    return answers


def _run(rank: int, count: int, call: Callable[[int], Any], store: Path, end: Any) -> None:
    import traceback

    signal.alarm(300)
    torch.set_num_threads(1)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "OMP_NUM_THREADS": 1}
    os.environ |= {name: str(number) for name, number in numbers.items()}
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    answer: tuple[str, Any]
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        answer = ("", call(rank))
        with suppress(RuntimeError):  # where one was killed
            if dist.is_initialized():  # a launched run ends its group by itself
                dist.barrier()  # one that has left would abort the others
    except BaseException:
        answer = (f"process {rank}:\n{traceback.format_exc()}", None)
    written = io.BytesIO()
    torch.save(answer, written)
    end.send_bytes(written.getvalue())
    os._exit(0)
