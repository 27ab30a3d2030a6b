"""A pool of worker processes that can be killed.

One thread of the pool owns the processes. It hands out the items, reads the answers, and kills a worker whose item has
passed its deadline. Callers submit items from any thread and wait for their verdicts.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
import selectors
import socket
import threading
from collections import deque
from collections.abc import Sequence

from rlvr.core import after_fork
from rlvr.core.types import Verdict

from .base import Failure, log_failure, make_failure
from .blame import Blame
from .processes import Call, Ending, Item, PoolError, Submission, Worker, WorkerServer
from .worker import RETIRED, STARTED

logger = logging.getLogger("rlvr.verifiers")

# A worker gets items for about this much time in advance, so that it need not wait for the next message.
QUEUED_SECONDS = 0.05
MAX_QUEUED = 64


class WorkerPool:
    """Runs one verifier in worker processes.

    pickled: the result of `pickle_verifier`. timeout: seconds for an item, from its dispatch; time for which its worker
    was ready and had no processor does not count, since the machine may be busy with other work. memory_mb: address
    space that a worker may take beyond what it starts with. recycle_after: a worker is replaced after so many items,
    so that a leak cannot grow.
    """

    def __init__(self, pickled: bytes, *, workers: int, timeout: float, memory_mb: int, recycle_after: int) -> None:
        self._pickled = pickled
        self._num_workers = workers
        self._memory_bytes = memory_mb << 20
        self._recycle_after = recycle_after
        self._inbox: deque[Item] = deque()
        self._lock = threading.Lock()
        self._closing = False
        self._error = PoolError("the verifier pool is closed")
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        # Below: only the pool's thread uses these.
        self._pending: deque[Item] = deque()
        self._workers: dict[int, Worker] = {}
        self._next_number = 0
        self._server: WorkerServer | None = None
        self._failed_servers = 0
        self._mean_seconds = QUEUED_SECONDS
        self._has_warned_of_memory = False
        self._blame = Blame(timeout)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_out, selectors.EVENT_READ, None)
        # The server dies with the thread that starts it. So the pool's thread does that, whichever thread calls.
        self._thread = threading.Thread(target=self._run, name="rlvr-verifier-pool", daemon=True)
        self._thread.start()
        after_fork.register(self)

    def after_fork(self) -> None:
        """In a forked child: the processes and the thread are the parent's. Close the copies of its connections."""
        self._lock = threading.Lock()
        self._closing = True
        self._selector.close()
        for sock in (self._wake_in, self._wake_out, *(worker.sock for worker in self._workers.values())):
            sock.close()
        if self._server is not None:
            self._server.abandon()

    def submit(self, calls: Sequence[Call], caller: object) -> Submission:
        """Queue items. caller: the same object for all of one call. Raise PoolError if the pool is closed or broken."""
        submission = Submission([None] * len(calls), len(calls), caller)
        with self._lock:
            if self._closing:
                raise self._error
            self._inbox.extend(Item(call, submission, i) for i, call in enumerate(calls))
        self._wake()
        return submission

    def close(self) -> None:
        """Kill the processes and end the thread. Submissions in progress fail."""
        with self._lock:
            self._closing = True
        self._wake()
        # Garbage collection may drop the owner in any thread, also in this pool's.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        # If the buffer is full the thread wakes anyway; if the socket is closed the thread has ended.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_in.send(b"x")

    def _run(self) -> None:
        try:
            while not self._closing:
                if not self._busy():
                    self._blame.decide()  # before the next call, which may have come behind the last verdict
                self._take_inbox()
                self._kill_overdue()
                if self._pending:
                    self._dispatch()
                if not self._busy():
                    self._blame.decide()
                for key, events in self._selector.select(self._seconds_to_deadline()):
                    self._handle(key, events)
        except PoolError as error:
            self._error = error
        except Exception as error:
            self._error = PoolError(f"the verifier pool failed: {error!r}")
            logger.exception("the verifier pool failed")
        finally:
            with self._lock:
                self._closing = True
            self._stop_server()
            self._take_inbox()
            waiting = (item.submission for item in self._pending)
            for submission in {*waiting, *self._blame.submissions()}:
                submission.fail(self._error)
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()

    def _busy(self) -> bool:
        return bool(self._pending) or any(worker.queue for worker in self._workers.values())

    def _take_inbox(self) -> None:
        with self._lock:
            self._pending.extend(self._inbox)
            self._inbox.clear()

    def _seconds_to_deadline(self) -> float | None:
        left = [self._seconds_left(worker) for worker in self._workers.values() if worker.queue]
        return max(0.0, min(left)) if left else None

    def _seconds_left(self, worker: Worker) -> float:
        return worker.seconds_left(self._blame.seconds(worker.queue[0], not worker.answered))

    def _handle(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._wake_out:
            with contextlib.suppress(BlockingIOError):
                self._wake_out.recv(4096)
        elif self._server is not None and key.fileobj is self._server.control:
            self._read_reports()
        elif key.data.number in self._workers:
            worker = key.data
            if events & selectors.EVENT_WRITE:
                worker.send()
                self._watch(worker)
            if events & selectors.EVENT_READ and not self._receive(worker) and worker.number in self._workers:
                # The server's report says how it ended.
                self._selector.unregister(worker.sock)

    # Sending items, receiving answers

    def _dispatch(self) -> None:
        """Give items to the workers that have room, starting workers while there are fewer than allowed."""
        self._server = self._server or self._start_server()
        idle = sum(not worker.queue for worker in self._workers.values())
        for _ in range(min(self._num_workers - len(self._workers), len(self._pending) - idle)):
            self._spawn()
        share = -(-len(self._pending) // (2 * self._num_workers))
        room = max(1, min(share, MAX_QUEUED, int(QUEUED_SECONDS / max(self._mean_seconds, 1e-6))))
        for worker in sorted(self._workers.values(), key=lambda worker: len(worker.queue)):
            if worker.sock not in self._selector.get_map():
                continue  # it has ended; the server's report follows
            if worker.served >= self._recycle_after and not worker.queue:
                self._discard(worker)
                worker = self._spawn()
            if len(worker.queue) <= room // 2:
                self._give(worker, min(room - len(worker.queue), self._recycle_after - worker.served))

    def _give(self, worker: Worker, count: int) -> None:
        items: list[Item] = []
        while self._pending and len(items) < count:
            item = self._pending.popleft()
            if self._blame.is_control(item) or not (item.submission.abandoned or self._blame.settle_broken(item)):
                items.append(item)
        if not items:
            return
        worker.give(items)
        self._watch(worker)

    def _watch(self, worker: Worker) -> None:
        """Poll for writability only while data is unsent."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
        if worker.sock in self._selector.get_map() and self._selector.get_key(worker.sock).events != events:
            self._selector.modify(worker.sock, events, worker)

    def _receive(self, worker: Worker) -> bool:
        """Settle the items that the worker has answered; return False at the end of its stream."""
        answers, alive = worker.receive()
        for answer in answers:
            if answer.startswith(STARTED):
                worker.pid = int(answer.removeprefix(STARTED))
                continue
            if answer == RETIRED:
                self._warn_of_memory()
                self._discard(worker)
                return True
            verdict, failure, worker.waited = _unpickle_answer(answer, worker.waited)
            if failure is not None:
                log_failure(failure)
            if not worker.answered:
                worker.answered = True
                self._blame.report_start(verdict.seconds)
            item = worker.queue.popleft()
            if not self._blame.is_control(item):
                item.settle(verdict)
            self._pending.extendleft(self._blame.report_verdict(item, verdict.status))
            self._mean_seconds += 0.05 * (verdict.seconds - self._mean_seconds)
            self._failed_servers = 0
        return alive

    def _warn_of_memory(self) -> None:
        """Warn once that a completion scores 0 for its memory: imports in the verifier's first call count too."""
        if not self._has_warned_of_memory:
            self._has_warned_of_memory = True
            logger.warning(
                "a verifier raised MemoryError (limit: %d MB); that completion scores 0 (status limit). Import large "
                "packages at the top of its module or in its method warm_up: there they do not count",
                self._memory_bytes >> 20,
            )

    # Deadlines and deaths

    def _kill_overdue(self) -> None:
        for worker in list(self._workers.values()):
            if not worker.queue or self._seconds_left(worker) > 0:
                continue
            # This thread may be late, because the caller may hold the interpreter for long. So answers that have
            # arrived count, and items that were not sent yet have not started.
            worker.send()
            self._receive(worker)
            if worker.number not in self._workers or not worker.queue or self._seconds_left(worker) > 0:
                continue
            item, seconds = worker.queue.popleft(), worker.seconds()
            self._discard(worker)
            if (control := self._blame.report_deadline(item, seconds, not worker.answered)) is not None:
                self._pending.appendleft(control)

    def _discard(self, worker: Worker) -> None:
        """Kill a worker. Items that it has not begun go back to the front of the queue."""
        if self._server is not None:
            self._server.kill(worker.number)
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.number]
        if worker.sock in self._selector.get_map():
            self._selector.unregister(worker.sock)
        worker.sock.close()
        self._pending.extendleft(reversed(worker.queue))
        worker.queue.clear()

    def _read_reports(self) -> None:
        assert self._server is not None
        ended = self._server.reports()
        if ended is None:
            self._server_died()
            return
        for number, ending in ended:
            if number in self._workers:
                self._receive(self._workers[number])
            if number in self._workers:
                self._worker_died(self._workers[number], ending)

    def _worker_died(self, worker: Worker, ending: Ending) -> None:
        again = None
        if worker.queue:
            logger.debug("a verifier worker %s during an item", ending.text)
            again = self._blame.report_death(worker.queue.popleft(), ending, worker.seconds())
        self._forget(worker)
        if again is not None:
            self._pending.appendleft(again)

    # Processes

    def _start_server(self) -> WorkerServer:
        server = WorkerServer(self._pickled, self._memory_bytes)
        self._selector.register(server.control, selectors.EVENT_READ, None)
        return server

    def _spawn(self) -> Worker:
        assert self._server is not None
        number, self._next_number = self._next_number, self._next_number + 1
        worker = Worker(number, self._server.spawn(number))
        self._workers[number] = worker
        self._selector.register(worker.sock, selectors.EVENT_READ, worker)
        return worker

    def _server_died(self) -> None:
        """Forget the workers, which die with the server. The next items start another server.

        Raise PoolError at the third death without a verdict in between.
        """
        logger.warning("the verifier's server process died")
        for worker in list(self._workers.values()):
            self._receive(worker)
            if worker.number in self._workers:
                self._worker_died(worker, Ending("died with its server"))
        self._stop_server()
        self._failed_servers += 1
        if self._failed_servers >= 3:
            raise PoolError("the verifier's server process died three times without a verdict")

    def _stop_server(self) -> None:
        for worker in list(self._workers.values()):
            self._discard(worker)
        if self._server is not None:
            self._selector.unregister(self._server.control)
            self._server.stop()
            self._server = None


def _unpickle_answer(answer: bytes, waited: float) -> tuple[Verdict, Failure | None, float]:
    try:
        verdict, failure, waited = pickle.loads(answer)
    # Unpickling runs constructors of the objects in the verdict, which may raise anything.
    except Exception as error:
        return *make_failure(pickle.loads, error), waited
    return verdict, failure, waited
