"""What of the installed packages a program sees: an allow-list, and never this project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlvr.sandbox import Pool, level
from rlvr.sandbox import host as packages
from tests.helpers.files import ROOT, read_program
from tests.helpers.programs import LEVELS, available, outcome, prints_only

pytestmark = pytest.mark.skipif(level().number < 2, reason="needs a sandbox of level 2 or 3")

# Prints every name of a package that it can get hold of.
SEARCH = read_program("search_for_packages")


@pytest.mark.parametrize("number", LEVELS)
def test_only_allowed_packages_are_visible(number: int) -> None:
    """Neither this project nor any other package, by import, metadata, lists of names or their files."""
    available(number)
    program = SEARCH.replace("NAMES", repr(["rlvr", "torch", "datasets", "sympy", "yaml", "pytest", "pydantic"]))
    program = program.replace(
        "OTHERS", repr([*packages.sites(), str(ROOT), os.path.dirname(os.__file__) + "/site-packages"])
    )
    with Pool(1, level=number) as pool:
        prints_only(pool, program, "end\n")


@pytest.mark.parametrize("number", LEVELS)
def test_numpy_and_the_standard_library_are_visible(number: int) -> None:
    """The default. numpy's version is found as from anywhere else."""
    available(number)
    program = "import importlib.metadata, json, numpy, sqlite3\nassert numpy.linalg.det(numpy.eye(2)) == 1.0\n"
    program += "import inspect, xml.dom, concurrent.futures\nassert 'def dumps' in inspect.getsource(json)\n"
    program += "importlib.invalidate_caches()\nimport csv, email.message\n"
    with Pool(1, level=number) as pool:
        prints_only(pool, program + "print(importlib.metadata.version('numpy') == numpy.__version__)", "True\n")


@pytest.mark.parametrize("number", LEVELS)
def test_named_packages_come_with_their_dependencies(number: int) -> None:
    """sympy needs mpmath; preloading a module makes its package visible too."""
    available(number)
    with Pool(1, level=number, packages=["sympy"], preload=["yaml"]) as pool:
        prints_only(pool, "import mpmath, sympy, yaml\nprint(sympy.sqrt(4), yaml.safe_load('[1]'))", "2 [1]\n")
        assert "ModuleNotFoundError" in outcome(pool, "import torch").stderr


@pytest.mark.parametrize("name", ["rlvr", "RLVR", "rlvr.tasks", "no_such_package", "../lib", "a/b", ""])
def test_names_that_are_refused(name: str) -> None:
    """This project, what is not installed, and what is no name."""
    with pytest.raises(ValueError, match="package"):
        Pool(1, packages=[name])


@pytest.fixture
def installed() -> Iterator[Path]:
    """An environment with this project copied into it, as by an installation that is not editable."""
    folder = Path(tempfile.mkdtemp(prefix="rlvr-test-", dir="/tmp"))
    folder.chmod(0o755)
    base = sys._base_executable  # type: ignore[attr-defined]
    subprocess.run([base, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [site] = (folder / "venv" / "lib").glob("python*/site-packages")
    shutil.copytree(ROOT / "rlvr", site / "rlvr", ignore=shutil.ignore_patterns("__pycache__"))
    metadata = site / "rlvr-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rlvr\nVersion: 1\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": "file:///secret"}))
    (site / "answers.py").write_text("ANSWERS = [42]\n")
    (site / "answers.pth").write_text(str(ROOT) + "\n")
    yield folder / "venv" / "bin" / "python"
    shutil.rmtree(folder)


def test_answers_of_an_installed_project_cannot_be_imported(installed: Path) -> None:
    """Nor read: the environment lies in /tmp, its interpreter perhaps below /root."""
    [site] = (installed.parent.parent / "lib").glob("python*/site-packages")
    program = SEARCH.replace("NAMES", repr(["rlvr", "rlvr.tasks.generated.tiny_code", "answers"]))
    program = program.replace("OTHERS", repr([str(site), f"/environment{site}", str(site.parent), "/environment", "/"]))
    script = "import sys\nfrom rlvr.sandbox import Job, Pool, level\nfor n in range(level().number, 1, -1):\n"
    script += "    with Pool(1, level=n) as pool: print(n, pool.run(Job(sys.argv[1])).stdout.split())"
    done = subprocess.run([str(installed), "-c", script, program], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.splitlines() == [f"{number} ['end']" for number in range(level().number, 1, -1)]
