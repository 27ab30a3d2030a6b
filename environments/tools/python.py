"""The tool `python`: programs in the sandbox. Their failures are text for the model, the sandbox's are not."""

from __future__ import annotations

from collections.abc import Mapping

from rlvr.environments.tools.tool import SandboxFailure, Tool, ToolError
from rlvr.sandbox import Limits, Result, RunStatus, run

DESCRIPTION = "Run a Python 3 program and return what it prints. Each call is a program of its own."
_ENDED: Mapping[RunStatus, str] = {
    RunStatus.TIMEOUT: "stopped: time limit",
    RunStatus.MEMORY: "stopped: memory limit",
    RunStatus.OUTPUT_LIMIT: "stopped: too much output",
}


def result_text(result: Result) -> str:
    """Return what a run printed. Raise ToolError with that and the reason where it failed; SandboxFailure where it
    could not be run.
    """
    if result.status is RunStatus.SANDBOX_ERROR:
        raise SandboxFailure(f"sandbox: {result.detail}")
    printed = result.stdout
    if result.status is RunStatus.OK:
        return printed or "(no output)"
    reason = _ENDED.get(result.status) or result.stderr.strip() or result.detail
    raise ToolError("\n".join(part for part in (printed.rstrip("\n"), reason) if part))


def python_tool(seconds: float = 5.0, memory_mb: int = 1024) -> Tool:
    """Return the tool with limits of each program: seconds of processor time, MB of memory. Raise ValueError for one
    that is not positive.
    """
    limits = Limits(seconds=seconds, memory_mb=memory_mb)

    def python(code: str) -> str:
        return result_text(run(code, limits=limits))

    return Tool("python", DESCRIPTION, python, {"code": str}, ("code",), languages=("py", "python3"))
