"""Programs in the sandbox find the packages of the environment wherever it lies, and `rlvr doctor` says where not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.commands import doctor
from rlvr.sandbox import level
from tests.helpers.files import ROOT

NOBODY = 65534
pytestmark = pytest.mark.skipif(level().number < 2, reason="needs a sandbox of level 2 or 3")

# What a program does: import, find its directory empty, write there and at no place of the environment.
PROGRAM = """
import os, sys, promised, concurrent.futures, encodings.cp437
IMPORTS
found = os.listdir(".")
open("written", "w").write("x")
if LEVEL == 3:
    open("/tmp/also", "w").write("x")
try:
    open(promised.__file__, "a")
except OSError:
    print(promised.ANSWER, found)
"""
SCRIPT = """
import sys
from rlvr.sandbox import Job, Limits, Pool, level
for number in range(level().number, 1, -1):
    with Pool(1, level=number, packages=sys.argv[2:]) as pool:
        result = pool.run(Job(sys.argv[1].replace("LEVEL", str(number)), limits=Limits(seconds=30)))
    print(number, result.status, result.stdout.strip(), result.stderr, result.detail)
"""


def environment(folder: Path, python: str) -> Path:
    """A virtual environment in `folder` that holds one package; the path of its interpreter."""
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "promised.py").write_text("ANSWER = 42\n")
    return folder / "venv" / "bin" / "python"


def run_in(python: Path, program: str, *packages: str, **options: object) -> list[str]:
    """What the program prints at each level that is to be had, run from that environment with `promised` visible."""
    command = [str(python), "-c", SCRIPT, program, "promised", *packages]
    settings = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "cwd": "/", "timeout": 120, **options}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **settings)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(params=["/tmp", "/var/tmp", "/dev/shm", "~"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of its own in one of the places where people keep environments."""
    parent = os.path.expanduser(request.param)
    if not os.access(parent, os.W_OK):
        pytest.skip(f"{parent} is not writable")
    folder = Path(tempfile.mkdtemp(prefix="rlvr-test-", dir=parent))
    yield folder
    shutil.rmtree(folder)


def test_the_environment_may_lie_anywhere(place):
    """Also where each run has its own empty directory: packages stay visible, and cannot be written to."""
    lines = run_in(environment(place, sys._base_executable), PROGRAM.replace("IMPORTS", ""))  # type: ignore[attr-defined]
    assert [line.split() for line in lines] == [
        [str(number), "ok", "42", "[]"] for number in range(level().number, 1, -1)
    ]


def test_an_environment_of_a_user_without_privileges():
    """Root builds the sandbox's root directory in another order than a user who needs a namespace for it."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user; the other tests are run by one without privileges")
    python = shutil.which("python3", path="/usr/bin") or "/usr/bin/python3"
    check = [python, "-c", "import sys, venv, rlvr; assert sys.version_info >= (3, 11)"]
    options = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "env": {"PYTHONPATH": str(ROOT), "HOME": "/tmp"}}
    try:
        subprocess.run(check, check=True, capture_output=True, cwd="/", **options)  # type: ignore[call-overload]
    except (OSError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"no interpreter or no tree that another user may read: {problem}")
    folder = Path(tempfile.mkdtemp(prefix="rlvr-test-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        lines = run_in(environment(folder, python), PROGRAM.replace("IMPORTS", ""), **options)
    finally:
        shutil.rmtree(folder)
    assert lines
    assert [line.split()[1:] for line in lines] == [["ok", "42", "[]"]] * len(lines)


def make_linked(folder: Path) -> Path:
    """An environment that has its packages from this one, by a .pth file."""
    python = environment(folder, sys._base_executable)  # type: ignore[attr-defined]
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    (packages / "real.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_packages_of_another_environment_by_a_pth_file(tmp_path):
    """numpy and sympy, as generated programs want them."""
    imports = "import numpy, sympy; assert int(numpy.ones(2).sum()) == sympy.Integer(2)"
    lines = run_in(make_linked(tmp_path), PROGRAM.replace("IMPORTS", imports), "sympy")
    assert [line.split()[1:] for line in lines] == [["ok", "42", "[]"]] * (level().number - 1)


def test_doctor_imports_in_the_sandbox_what_programs_may():
    """Here they can be imported: the level and the packages are told."""
    found = doctor.check_imports()
    assert (found.state, found.name) == ("ok", "sandbox imports")
    assert "numpy" in found.found
    assert "sympy" in found.found


def test_doctor_tells_when_programs_cannot_import(tmp_path):
    """A numpy that only PYTHONPATH leads to is not seen by programs: their answers would score wrong."""
    python = environment(tmp_path, sys._base_executable)  # type: ignore[attr-defined]
    (tmp_path / "elsewhere" / "numpy").mkdir(parents=True)
    (tmp_path / "elsewhere" / "numpy" / "__init__.py").write_text("")
    code = "from rlvr.commands import doctor; f = doctor.check_imports(); "
    code += "print(f.state, f.found, '|', f.advice, '|', doctor.has_failed([f]))"
    path = os.pathsep.join([str(tmp_path / "elsewhere"), str(ROOT)])
    done = subprocess.run(
        [str(python), "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("missing "), done.stderr
    assert "numpy" in done.stdout.split("|")[0]
    assert "not in site-packages" in done.stdout.split("|")[0]
    assert "site-packages" in done.stdout.split("|")[1]
    assert done.stdout.split("|")[2].strip() == "True"
