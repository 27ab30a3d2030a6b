"""Who may import whom, what a light import must not load, and what a wheel holds."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"rlvr": ROOT / "rlvr", **{f"rlvr.{p}": ROOT / p for p in ("verifiers", "tasks", "sandbox", "recipes")}}
# The command line knows everything; the trainer does not know where rewards and problems come from.
COMMAND_LINE = {
    "audit",
    "cli",
    "__main__",
    "doctor",
    "eval_command",
    "grade",
    "judges",
    "launch",
    "list_command",
    "profile_command",
    "prompt_command",
    "report",
    "rm_command",
    "train_command",
}
FOUNDATION = {"rlvr.types", "rlvr.registry", "rlvr.seeding", "rlvr.json_lines", "rlvr.printable"}
MAY_IMPORT = {
    "rlvr.sandbox": ("rlvr.types", "rlvr.sandbox"),
    "rlvr.verifiers": (*FOUNDATION, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.tasks": (*FOUNDATION, "rlvr.verifiers", "rlvr.tasks"),
}
OUTSIDE_TRAINER = ("rlvr.verifiers", "rlvr.tasks", "rlvr.sandbox", "rlvr.recipes")
NEVER_TORCH = ("rlvr.verifiers", "rlvr.tasks", "rlvr.sandbox")


def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere; `from rlvr import x` counts as rlvr.x too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            if node.module == "rlvr":
                names |= {f"rlvr.{alias.name}" for alias in node.names}
    return names


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def files(package: str) -> list[Path]:
    return sorted(PACKAGES[package].glob("*.py"))


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_rooms_import_only_what_they_may(package):
    """Sandbox, verifiers and packs stand below the trainer and know nothing of it."""
    for path in files(package):
        ours = {name for name in imported(path) if within(name, ("rlvr",))}
        wrong = {name for name in ours if not within(name, MAY_IMPORT[package]) and name != "rlvr"}
        assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_foundation_is_standard_library_only():
    """Types, registry and seeding import nothing but the standard library and each other."""
    for name in FOUNDATION:
        found = imported(ROOT / f"{name.replace('.', '/')}.py")
        wrong = {
            n for n in found if n.split(".")[0] not in sys.stdlib_module_names and not within(n, tuple(FOUNDATION))
        }
        assert not wrong, f"{name} imports {sorted(wrong)}"


def test_sandbox_is_standard_library_only():
    """What runs beside hostile programs has no dependencies; Ray is an extra, imported where it is used."""
    for path in files("rlvr.sandbox"):
        roots = {name.split(".")[0] for name in imported(path)} - {"rlvr"}
        if path.stem == "ray_executor":
            roots -= {"ray"}
        assert roots <= set(sys.stdlib_module_names), f"{path.name} imports {sorted(roots)}"


def test_trainer_does_not_know_verifiers_or_packs():
    """The loop gets its rewards and problems handed to it."""
    for path in files("rlvr"):
        if path.stem not in COMMAND_LINE:
            wrong = {name for name in imported(path) if within(name, OUTSIDE_TRAINER)}
            assert not wrong, f"rlvr/{path.name} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", NEVER_TORCH)
def test_rewards_and_packs_never_import_torch(package):
    """Grading starts in a fraction of a second and runs where no torch is."""
    for path in files(package):
        heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "transformers", "accelerate"}
        assert not heavy, f"{path.name} imports {sorted(heavy)}"


@pytest.mark.parametrize(
    "module", ["rlvr", "rlvr.verifiers", "rlvr.tasks", "rlvr.sandbox", "rlvr.grade", "rlvr.cli", "rlvr.reward_model"]
)
def test_light_imports_do_not_load_torch(module):
    """Importing these loads neither torch nor transformers."""
    code = f"import {module}, sys; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_listed_for_the_wheel_are_those_of_the_tree():
    """The links, the package list and the folders agree, and no folder has sub-folders that a wheel would miss."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(settings["packages"]) == sorted(PACKAGES)
    for name, folder in PACKAGES.items():
        assert settings["package-dir"][name] == folder.name
        below = [p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and p.name != "__pycache__"]
        assert not below, f"{folder.name}/ has sub-folders {below}; keep it flat"
        if name != "rlvr":
            assert (ROOT / "rlvr" / folder.name).resolve() == folder


@pytest.mark.slow
def test_wheel_holds_every_module(tmp_path):
    """A built wheel has exactly the tree's modules under their import names."""
    # A build folder left in the tree would hand its old files to the wheel.
    ignored = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "runs", "*.egg-info", "__pycache__", ".*_cache")
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    held = {n for n in names if ".dist-info/" not in n}
    expected = {f"{p.replace('.', '/')}/{f.name}" for p in PACKAGES for f in files(p)} | {"rlvr/py.typed"}
    assert held == expected
