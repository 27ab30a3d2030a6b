"""Who may import whom, what a light import must not load, and what a wheel holds."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.files import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
LINKED = (
    "verifiers",
    "tasks",
    "environments",
    "sandbox",
    "recipes",
)  # folders of the top level that are packages within rlvr


def folder_of(package: str) -> Path:
    """The folder of a package: `rlvr.verifiers.math` is verifiers/math, `rlvr.model` is rlvr/model."""
    parts = package.split(".")
    return ROOT.joinpath(*(parts[1:] if len(parts) > 1 and parts[1] in LINKED else parts))


PACKAGES: dict[str, Path] = {name: folder_of(name) for name in SETTINGS["packages"]}
# One file is a module, and one folder a node of the graph below; those of rlvr/ itself are nodes of their own.
FOUNDATION = (
    "rlvr.core.types",
    "rlvr.core.turns",
    "rlvr.core.traits",
    "rlvr.core.registry",
    "rlvr.core.tracebacks",
    "rlvr.core.seeding",
    "rlvr.core.printable",
    "rlvr.core.files",
)
# What a package may import besides itself, the foundation and libraries. A package that is not named may import none.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "rlvr": FOUNDATION,
    "rlvr.core.types": ("rlvr.core.turns",),
    "rlvr.core.http": ("rlvr.core.files",),
    "rlvr.core.files": ("rlvr.core.types", "rlvr.core.printable", "rlvr.core.registry"),
    "rlvr.core.registry": ("rlvr.core.types", "rlvr.core.tracebacks"),
    "rlvr.adapters": (*FOUNDATION, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.config": (*FOUNDATION, "rlvr.algo"),
    "rlvr.runs": (*FOUNDATION, "rlvr.config"),
    "rlvr.algo": FOUNDATION,
    "rlvr.model": (*FOUNDATION, "rlvr.config", "rlvr.algo"),
    "rlvr.sampling.vllm": (*FOUNDATION, "rlvr.config", "rlvr.core.http", "rlvr.model"),
    "rlvr.sampling": (*FOUNDATION, "rlvr.config", "rlvr.model", "rlvr.sampling.vllm"),
    "rlvr.training": (*FOUNDATION, "rlvr", "rlvr.config", "rlvr.distributed", "rlvr.runs", "rlvr.algo", "rlvr.model"),
    "rlvr.core.endpoint": (*FOUNDATION, "rlvr.core.http"),
    "rlvr.served": (*FOUNDATION, "rlvr.config", "rlvr.core.http", "rlvr.core.endpoint", "rlvr.model", "rlvr.training"),
    "rlvr.train": (*FOUNDATION, "rlvr.config", "rlvr.distributed", "rlvr.runs", "rlvr.model", "rlvr.training"),
    "rlvr.reward_model": (
        *FOUNDATION,
        "rlvr.config",
        "rlvr.distributed",
        "rlvr.core.http",
        "rlvr.algo",
        "rlvr.model",
        "rlvr.training",
    ),
    "rlvr.sandbox": ("rlvr", "rlvr.core.types", "rlvr.core.printable", "rlvr.sandbox.inside"),
    "rlvr.sandbox.inside": (),
    "rlvr.verifiers.runner": (*FOUNDATION, "rlvr.sandbox"),
    "rlvr.verifiers.extract": FOUNDATION,
    "rlvr.verifiers.instructions": (*FOUNDATION, "rlvr.verifiers.extract"),
    "rlvr.verifiers.math": (*FOUNDATION, "rlvr.verifiers.extract", "rlvr.verifiers.runner"),
    "rlvr.verifiers.proof": (*FOUNDATION, "rlvr.verifiers.extract", "rlvr.sandbox", "rlvr.core.http"),
    "rlvr.verifiers.reasoning_gym": (*FOUNDATION, "rlvr.verifiers.extract", "rlvr.sandbox"),
    "rlvr.verifiers.code": (*FOUNDATION, "rlvr.verifiers.extract", "rlvr.sandbox", "rlvr.sandbox.inside"),
    "rlvr.verifiers": (*FOUNDATION, "rlvr.sandbox", "rlvr.verifiers", "rlvr.core.http", "rlvr.core.endpoint"),
    "rlvr.environments.tools": (*FOUNDATION, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.environments": (*FOUNDATION, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.tasks": (*FOUNDATION, "rlvr.verifiers"),
    "rlvr.tasks.published": (*FOUNDATION, "rlvr.tasks", "rlvr.verifiers"),
    "rlvr.tasks.generated": (*FOUNDATION, "rlvr.tasks", "rlvr.sandbox"),
    "rlvr.tasks.language": (*FOUNDATION, "rlvr.tasks", "rlvr.verifiers"),
    "rlvr.tasks.libraries": (*FOUNDATION, "rlvr.tasks", "rlvr.verifiers"),
    "rlvr.tasks.math": (*FOUNDATION, "rlvr.tasks", "rlvr.verifiers"),
}
# The command line knows everything: verifiers and packs too, which the trainer does not.
COMMAND_LINE = ("rlvr.commands", "rlvr.launch", "rlvr.pipeline", "rlvr.__main__", "rlvr.recipes")
NEVER_TORCH = ("rlvr.verifiers", "rlvr.tasks", "rlvr.environments", "rlvr.sandbox", "rlvr.core.files")
ENTRIES = 15  # in rlvr/, besides packages


def files(package: str) -> list[Path]:
    return sorted(PACKAGES[package].glob("*.py"))


def module_of(package: str, path: Path) -> str:
    return package if path.stem == "__init__" else f"{package}.{path.stem}"


MODULES: dict[str, Path] = {module_of(name, path): path for name in PACKAGES for path in files(name)}


@cache
def imported(path: Path) -> set[str]:
    """Modules that a file imports anywhere, for types alone too; of `from rlvr import x`, rlvr.x where it is one."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= full & set(MODULES)
            if not full <= set(MODULES):
                names.add(node.module)
    return names


def node_of(module: str) -> str:
    """The package of a module; a module of rlvr/ itself is a node of its own."""
    if module in PACKAGES:
        return module
    package = module.rpartition(".")[0]
    return module if package == "rlvr" else package


def graph() -> dict[str, set[str]]:
    """Which node imports which others."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        ours = {node_of(name) for name in imported(path) if name in MODULES}
        edges[node_of(module)] |= ours - {node_of(module)}
    return edges


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def test_packages_import_only_what_they_may():
    """Each package imports what stands below it, and nothing else; the command line may import all."""
    wrong = []
    for node, others in graph().items():
        if (
            within(node, COMMAND_LINE)
            or (node in FOUNDATION and node != "rlvr.core.files")
            or node == "rlvr.distributed"
        ):
            continue
        assert node in MAY_IMPORT, f"{node} has no line in MAY_IMPORT"
        allowed = MAY_IMPORT[node]
        exact = tuple(name for name in allowed if name == "rlvr")
        below = tuple(name for name in allowed if name != "rlvr")
        wrong += [f"{node} imports {other}" for other in others if other not in exact and not within(other, below)]
    assert not wrong, wrong


def test_graph_of_packages_has_no_circle():
    """No package imports, by any way, one that imports it: at run time, within a function or for types alone."""
    edges = graph()
    reached: dict[str, set[str]] = {}
    for start in list(edges):
        seen, left = set[str](), [start]
        while left:
            for other in edges.get(left.pop(), set()) - seen:
                seen.add(other)
                left.append(other)
        reached[start] = seen
    circles = sorted(f"{a} <-> {b}" for a in reached for b in reached[a] if a <= b and a in reached.get(b, set()))
    assert not circles, circles


def test_circle_would_be_found():
    """The graph sees imports for types alone and imports within functions: train.py's of the config, for example."""
    assert "rlvr.training" in graph()["rlvr.train"]
    assert "rlvr.core.types" in graph()["rlvr.core.files"]
    assert len(graph()) >= len(PACKAGES)


def test_few_files_lie_in_the_package_itself():
    """rlvr/ shows what there is: packages, and a dozen entries beside them."""
    others = [p.name for p in (ROOT / "rlvr").iterdir() if not p.is_dir() and not p.name.startswith(".")]
    assert len(others) <= ENTRIES, sorted(others)


@pytest.mark.parametrize("name", FOUNDATION)
def test_foundation_is_standard_library_only(name):
    """The foundation imports the standard library and itself; files asks the hub where it must."""
    for path in [path for module, path in MODULES.items() if within(module, (name,))]:
        found = {n.split(".")[0] for n in imported(path) if not within(n, FOUNDATION)}
        wrong = found - set(sys.stdlib_module_names) - ({"huggingface_hub"} if name == "rlvr.core.files" else set())
        assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_sandbox_is_standard_library_only():
    """What runs beside hostile programs has no dependencies; Ray is an extra, imported where it is used."""
    for path in [*files("rlvr.sandbox"), *files("rlvr.sandbox.inside")]:
        roots = {name.split(".")[0] for name in imported(path)} - {"rlvr"}
        if path.stem == "ray_executor":
            roots -= {"ray"}
        assert roots <= set(sys.stdlib_module_names), f"{path.name} imports {sorted(roots)}"


def test_sandbox_has_two_sides():
    """`inside` imports nothing from outside, and the caller's side of it only `plain`, the data that crosses over."""
    inside = "rlvr.sandbox.inside"
    for path in files(inside):
        ours = {name for name in imported(path) if within(name, ("rlvr",))}
        assert all(within(name, (inside,)) for name in ours), f"{path.name} imports {sorted(ours)}"
    for path in files("rlvr.sandbox"):
        ours = {name for name in imported(path) if within(name, (inside,))}
        assert ours <= {f"{inside}.plain"}, f"{path.name} imports {sorted(ours)}"


def test_rewards_and_packs_never_import_torch():
    """Grading starts in a fraction of a second and runs where no torch is."""
    for module, path in MODULES.items():
        if within(module, NEVER_TORCH):
            heavy = {name.split(".")[0] for name in imported(path)} & {"torch", "transformers", "accelerate"}
            assert not heavy, f"{path.name} imports {sorted(heavy)}"


def test_no_test_imports_another():
    """What two test files share lies in tests/helpers, so that each runs without the other."""
    found = {path.name: sorted(imported(path)) for path in (ROOT / "tests").rglob("*.py")}
    wrong = [f"{file} imports {name}" for file, names in found.items() for name in names if ".test_" in name]
    assert not wrong, wrong


LIGHT = (
    "rlvr",
    "rlvr.launch",
    "rlvr.verifiers",
    "rlvr.tasks",
    "rlvr.environments",
    "rlvr.sandbox",
    "rlvr.config",
    "rlvr.reward_model",
)


@pytest.mark.parametrize("module", [*LIGHT, "rlvr.commands.grade", "rlvr.commands.cli", "rlvr.commands.train"])
def test_light_imports_do_not_load_torch(module):
    """Importing these loads neither torch nor transformers, nor the HTTP client."""
    code = f"import {module}, sys; print(sorted({{'torch', 'transformers', 'httpx2'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_listed_for_the_wheel_are_those_of_the_tree():
    """The links, the package list and the folders agree: every folder with an __init__.py is a listed package."""
    assert SETTINGS["package-dir"] == {"rlvr": "rlvr", **{f"rlvr.{name}": name for name in LINKED}}
    for name in LINKED:
        assert (ROOT / "rlvr" / name).resolve() == ROOT / name
    folders = {p.parent for top in ("rlvr", *LINKED) for p in (ROOT / top).rglob("__init__.py")}
    folders = {p.resolve() for p in folders}
    assert folders == set(PACKAGES.values())
    modules = {p.resolve().parent for top in ("rlvr", *LINKED) for p in (ROOT / top).rglob("*.py")}
    assert modules == folders, "a folder with modules and no __init__.py"


@pytest.mark.slow
def test_wheel_holds_every_module(tmp_path):
    """A built wheel has exactly the tree's modules under their import names, and what the report is made with."""
    # A build folder left in the tree would hand its old files to the wheel.
    ignored = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    held = {n for n in names if ".dist-info/" not in n}
    expected = {f"{p.replace('.', '/')}/{f.name}" for p in PACKAGES for f in files(p)} | {"rlvr/py.typed"}
    expected |= {"rlvr/commands/report/report.css", "rlvr/commands/report/report.js"}
    assert held == expected
