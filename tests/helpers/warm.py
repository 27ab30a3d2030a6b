"""`rlvr ARGUMENTS` in processes of their own, forked from one that has torch and transformers imported already.

An interpreter that starts from nothing spends most of a short run's time with imports. Such a process does what
`python -m rlvr` does in a folder and an environment, except that hashes have the same seed in all of them, that
variables read by imports come too late (OMP_NUM_THREADS is 1), and that reports hold a small picture. A test for which
that matters starts an interpreter.
"""

from __future__ import annotations

import array
import atexit
import functools
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "RLVR_WARM_SOCKET"
_PRELOADED = (
    "rlvr.commands.cli",
    "rlvr.launch.execute",
    "rlvr.model.load.tiny",
    "rlvr.sampling.torch_sampler",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "safetensors.torch",
)


class Started:
    """A process of `start`; as subprocess.Popen where the names are the same."""

    def __init__(self, connection: socket.socket, args: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.args = args
        self.returncode: int | None = None
        self.pid = 0
        self._connection, self._out, self._errors = connection, stdout, stderr
        self._lines = b""
        self.pid = int(self._line(None) or 0)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises TimeoutExpired, and leaves the process running."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and return what was written to stdout and stderr, once."""
        self.wait(timeout)
        texts = []
        for file in (self._out, self._errors):
            with file:
                file.seek(0)
                texts.append(file.read().decode())
        return texts[0], texts[1]

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and (line := self._line(timeout)) is not None:
            self.returncode = int(line)
            self._connection.close()
        return self.returncode

    def _line(self, timeout: float | None) -> str | None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while b"\n" not in self._lines:
            left = None if deadline is None else max(deadline - time.monotonic(), 0)
            if not select.select([self._connection], [], [], left)[0]:
                return None
            received = self._connection.recv(64)
            if not received:
                raise EOFError(f"the process of {self.args} was lost")
            self._lines += received
        line, _, self._lines = self._lines.partition(b"\n")
        return line.decode()


def start(
    arguments: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: IO[Any] | None = None,
    stdout: IO[Any] | None = None,
    stderr: IO[Any] | None = None,
    code: str = "",
) -> Started:
    """Start `rlvr ARGUMENTS`, or the code of a program.

    Output goes to files of its own for `communicate`, or to those given. Without stdin there is nothing to read.
    """
    out, errors = (given or tempfile.TemporaryFile() for given in (stdout, stderr))  # noqa: SIM115
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(service())
    variables = dict(os.environ if env is None else env)
    request = {"argv": list(arguments), "cwd": str(cwd or Path.cwd()), "env": variables, "code": code}
    given = [] if stdin is None else [stdin.fileno()]
    descriptors = array.array("i", [*given, out.fileno(), errors.fileno()])
    data = json.dumps(request).encode() + b"\n"
    sent = connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    connection.sendall(data[sent:])
    return Started(connection, list(arguments), out, errors)


def run(
    arguments: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 240.0
) -> subprocess.CompletedProcess[str]:
    """Run `rlvr ARGUMENTS` to its end."""
    return _wait_for(start(arguments, cwd=cwd, env=env), timeout)


def start_together(processes: int, arguments: Sequence[str]) -> list[Started]:
    """Start `rlvr ARGUMENTS` in several processes of one group, with the variables that torchrun sets for each."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
    shared |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]
    return [start(arguments, env={**os.environ, **shared, **own}) for own in ranks]


def run_together(
    processes: int, arguments: Sequence[str], *, timeout: float = 240.0
) -> list[subprocess.CompletedProcess[str]]:
    """Run `rlvr ARGUMENTS` to its end in several processes, started as by `start_together`."""
    all_of_them = start_together(processes, arguments)
    deadline = time.monotonic() + timeout
    try:
        return [_wait_for(process, max(deadline - time.monotonic(), 0)) for process in all_of_them]
    finally:
        for process in all_of_them:
            process.kill()


def _free_port() -> int:
    """Return a port on which nobody listens, below those that Linux gives to whoever asks for any."""
    while True:
        port = random.SystemRandom().randrange(16_384, 32_768)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait_for(process: Started, timeout: float) -> subprocess.CompletedProcess[str]:
    try:
        out, errors = process.communicate(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode or 0, out, errors)


@functools.cache
def service() -> str:
    """Start the process that is forked, one for this process, and return the path of its socket.

    Programs that this process starts with the variable SOCKET share it.
    """
    if SOCKET in os.environ:
        return os.environ[SOCKET]
    folder = tempfile.TemporaryDirectory(prefix="rlvr-warm-")
    path = os.path.join(folder.name, "socket")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, __file__, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, cwd="/"
    )
    assert process.stdin
    assert process.stdout

    def end() -> None:
        process.kill()
        process.communicate()
        folder.cleanup()

    atexit.register(end)
    if process.stdout.readline() != b"ready\n":
        raise RuntimeError("the process to fork from did not start")
    return path


def serve(path: str) -> None:
    """Fork a process for each request, until stdin ends. Returns in the forked processes alone."""
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    for name in _PRELOADED:
        __import__(name)
    # What the requests' environment shall decide.
    sys.path[:] = [entry for entry in sys.path if entry != str(ROOT)]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(16)
        print("ready", flush=True)
        while sys.stdin.fileno() not in select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                break
            connection.close()
        else:
            os._exit(0)
    with connection:
        request, descriptors = _request(connection)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid:
            connection.sendall(b"%d\n" % pid)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            # Nobody may be there any more.
            try:
                connection.sendall(b"%d\n" % code)
            finally:
                os._exit(0)
    _become(request, descriptors)


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    data, rights, _, _ = connection.recvmsg(1 << 16, socket.CMSG_LEN(12))
    descriptors = array.array("i")
    for _, _, packed in rights:
        descriptors.frombytes(packed)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 16)
    return json.loads(data), list(descriptors)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take the place of an interpreter that was started for the request."""
    nothing = [os.open(os.devnull, os.O_RDONLY)] if len(descriptors) == 2 else []
    for there, descriptor in enumerate([*nothing, *descriptors]):
        os.dup2(descriptor, there)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    named = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:0] = [request["cwd"], *named]
    if not any(Path(entry) == ROOT for entry in named):
        sys.path.append(str(ROOT))
    sys.argv[:] = ["rlvr", *request["argv"]]
    try:
        if request["code"]:
            exec(compile(request["code"], "<program>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_module("rlvr", run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.exit(1)


def main() -> None:
    """Serve at a path; or as `rlvr ARGUMENTS`, with the output of this process."""
    if sys.argv[1] == "rlvr":
        sys.exit(start(sys.argv[2:], stdout=sys.stdout, stderr=sys.stderr).wait())
    serve(sys.argv[1])


if __name__ == "__main__":
    main()
