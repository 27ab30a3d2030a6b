"""Which level the sandbox has in a container without privileges: under a filter like Docker's default one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from rlvr.sandbox import level
from tests.helpers.files import ROOT

NOBODY = 65534
LEVELS = """
import json
from rlvr.commands.doctor import check_isolation
from rlvr.sandbox import SandboxUnavailable, level, run
found = {"level": level().number, "missing": level().missing, "doctor": check_isolation().found}
try:
    found["sum"] = run("print(1 + 1)").stdout
    found["file"] = run("print(open('/etc/hostname').read())").status
    found["namespaces"] = run("import os; os.unshare(os.CLONE_NEWUSER) if hasattr(os, 'unshare') else 1/0").status
except SandboxUnavailable as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


def run_filtered(*flags: str, python: str = sys.executable) -> dict:
    """Return what the sandbox says in a process with that filter."""
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "container.py"), *flags, python, "-c", LEVELS]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def other_python() -> str:
    """Return a Python that another user can run with this checkout; skip where there is none."""
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        script = [sys.executable, str(ROOT / "tests" / "helpers" / "container.py"), "--user", str(NOBODY)]
        test = "import sys, rlvr.commands.doctor; assert sys.version_info >= (3, 11)"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        if python and subprocess.run([*script, python, "-c", test], env=env, capture_output=True).returncode == 0:
            return python
    pytest.skip("no Python that another user can run with this checkout")


def check_level_2(found: dict) -> None:
    assert found["level"] == 2
    assert found["doctor"].startswith("level 2: Landlock, seccomp")
    assert "the container's seccomp profile" in " ".join(found["missing"])
    assert (found["sum"], found["file"], found["namespaces"]) == ("2\n", "crash", "crash")


def needs_landlock() -> None:
    if level().number < 2:
        pytest.skip("this machine has no Landlock")


def test_the_filter_refuses_namespaces_and_mounts() -> None:
    """As Docker's: the other tests would say nothing of a filter that lets them through."""
    script = [sys.executable, str(ROOT / "tests" / "helpers" / "container.py"), sys.executable, "-c"]
    attempts = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000):
    assert libc.unshare(flags) == -1 and ctypes.get_errno() == 1
assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1 and ctypes.get_errno() == 1
assert libc.syscall(435, None, 0) == -1 and ctypes.get_errno() == 38
assert os.fork() or os._exit(0) is None
"""
    assert subprocess.run([*script, attempts], capture_output=True, timeout=60).stderr == b""


def test_a_container_s_user_has_level_2() -> None:
    """An image with USER, as that of recipes/container: no capabilities, no namespaces."""
    needs_landlock()
    if os.getuid() == 0:
        check_level_2(run_filtered("--user", str(NOBODY), python=other_python()))
    else:
        check_level_2(run_filtered())


def test_a_container_s_root_has_level_2() -> None:
    """Root with the capabilities that Docker leaves it."""
    needs_landlock()
    if os.getuid() != 0:
        pytest.skip("needs root, to give up capabilities as Docker does")
    check_level_2(run_filtered())


def test_without_landlock_programs_are_refused() -> None:
    """As under profiles that do not know Landlock yet: level 1, which runs nothing unless it is asked for."""
    found = run_filtered("--landlock")
    assert found["level"] == 1
    assert "code rewards are refused" in found["doctor"]
    assert "programs could read this user's files" in found["refused"]
    assert "sum" not in found
