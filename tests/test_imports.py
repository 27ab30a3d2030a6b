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
LINKED = ("verifiers", "tasks", "environments", "sandbox", "recipes")  # top-level folders, packages within rlvr


def folder_of(package: str) -> Path:
    """The folder of a package: `rlvr.verifiers.math` is verifiers/math, `rlvr.model` is rlvr/model."""
    parts = package.split(".")
    return ROOT.joinpath(*(parts[1:] if len(parts) > 1 and parts[1] in LINKED else parts))


PACKAGES: dict[str, Path] = {name: folder_of(name) for name in SETTINGS["packages"]}
CORE = "rlvr.core"
BESIDE_PROGRAMS = ("rlvr.sandbox.jail", "rlvr.sandbox.wire", "rlvr.sandbox.testcode")
# What a package and its folders may import besides themselves. The rule of the innermost package named here holds.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "rlvr": (CORE,),
    "rlvr.core": (),
    "rlvr.sandbox": (CORE,),
    "rlvr.sandbox.jail": ("rlvr.sandbox.wire", "rlvr.sandbox.testcode"),
    "rlvr.sandbox.wire": (),
    "rlvr.sandbox.testcode": ("rlvr.sandbox.wire", "rlvr.sandbox.jail"),
    "rlvr.verifiers": (CORE, "rlvr.sandbox"),
    "rlvr.verifiers.extract": (CORE,),
    "rlvr.verifiers.runner": (CORE, "rlvr.sandbox"),
    "rlvr.verifiers.math": (CORE, "rlvr.verifiers.extract", "rlvr.verifiers.runner"),
    "rlvr.environments": (CORE, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.tasks": (CORE, "rlvr.verifiers", "rlvr.sandbox"),
    "rlvr.adapters": (CORE, "rlvr.sandbox", "rlvr.verifiers"),
    "rlvr.algo": (CORE,),
    "rlvr.config": (CORE, "rlvr.algo"),
    "rlvr.runs": (CORE, "rlvr.config"),
    "rlvr.distributed": (),
    "rlvr.model": (CORE, "rlvr.config", "rlvr.algo"),
    "rlvr.sampling": (CORE, "rlvr.config", "rlvr.distributed", "rlvr.algo", "rlvr.model"),
    "rlvr.training": (CORE, "rlvr.config", "rlvr.distributed", "rlvr.runs", "rlvr.algo", "rlvr.model"),
    "rlvr.train": (CORE, "rlvr.config", "rlvr.distributed", "rlvr.runs", "rlvr.model", "rlvr.training"),
    "rlvr.served": (CORE, "rlvr.config", "rlvr.model", "rlvr.training"),
    "rlvr.reward_model": (CORE, "rlvr.config", "rlvr.distributed", "rlvr.algo", "rlvr.model", "rlvr.training"),
}
# The command line knows everything: verifiers and packs too, which the trainer does not.
COMMAND_LINE = ("rlvr.commands", "rlvr.launch", "rlvr.pipeline", "rlvr.__main__", "rlvr.recipes")
NEVER_TORCH = ("rlvr.verifiers", "rlvr.tasks", "rlvr.environments", "rlvr.sandbox", "rlvr.core")
ROOMS = 12  # files and folders on one level of a package
ONE_FILE_A_NAME = ("rlvr.verifiers", "rlvr.tasks.generated", "rlvr.recipes", "rlvr.commands", "rlvr.verifiers.ifbench")


def files(package: str) -> list[Path]:
    return sorted(PACKAGES[package].glob("*.py"))


def module_of(package: str, path: Path) -> str:
    return package if path.stem == "__init__" else f"{package}.{path.stem}"


MODULES: dict[str, Path] = {module_of(name, path): path for name in PACKAGES for path in files(name)}
NAMES = {path: module for module, path in MODULES.items()}


@cache
def imported_modules(path: Path) -> set[str]:
    """Modules that a file imports anywhere, for types alone too; of `from rlvr import x`, rlvr.x where it is one."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = absolute(path, node)
            full = {f"{module}.{alias.name}" for alias in node.names}
            names |= full & set(MODULES)
            if not full <= set(MODULES):
                names.add(module)
    return names


def absolute(path: Path, node: ast.ImportFrom) -> str:
    """The absolute name of the module of a from-import."""
    if not node.level:
        return node.module or ""
    parts = NAMES[path].split(".")
    package = parts if path.stem == "__init__" else parts[:-1]
    return ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])


def node_of(module: str) -> str:
    """The package of a module; a module of rlvr/ itself is a node of its own."""
    if module in PACKAGES:
        return module
    package = module.rpartition(".")[0]
    return module if package == "rlvr" else package


def top_of(node: str) -> str:
    """The package of the first level in which a node lies: rlvr.model of rlvr.model.decode."""
    return ".".join(node.split(".")[:2])


def rule_of(node: str) -> str:
    """The innermost package of MAY_IMPORT in which a node lies."""
    while node not in MAY_IMPORT:
        node = node.rpartition(".")[0]
    return node


def graph() -> dict[str, set[str]]:
    """Which node imports which others. That a package's front door imports its own folders does not count."""
    edges: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        node = node_of(module)
        ours = {node_of(name) for name in imported_modules(path) if name in MODULES}
        edges[node] |= ours - {node}
    return edges


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(p + ".") for p in packages)


def find_circles(edges: dict[str, set[str]]) -> list[str]:
    """Pairs of nodes that reach each other."""
    reached: dict[str, set[str]] = {}
    for start in list(edges):
        seen, left = set[str](), [start]
        while left:
            for other in edges.get(left.pop(), set()) - seen:
                seen.add(other)
                left.append(other)
        reached[start] = seen
    return sorted(f"{a} <-> {b}" for a in reached for b in reached[a] if a < b and a in reached.get(b, set()))


def test_packages_import_only_what_they_may():
    """Each package imports what stands below it, and nothing else; the command line may import all."""
    wrong = []
    for node, others in graph().items():
        if is_within(node, COMMAND_LINE):
            continue
        rule = rule_of(node)
        assert rule != "rlvr" or node == "rlvr", f"{node} has no line in MAY_IMPORT"
        allowed = MAY_IMPORT[rule] if rule == "rlvr" else (rule, *MAY_IMPORT[rule])
        wrong += [f"{node} imports {other}" for other in others if not is_within(other, allowed) and other != "rlvr"]
    assert not wrong, wrong


def test_imports_within_a_package_are_relative():
    """Inside a package imports are relative, between packages absolute. Recipes are scripts: theirs are absolute."""
    wrong = []
    for module, path in MODULES.items():
        home = top_of(module)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                own = home in PACKAGES and home not in ("rlvr", "rlvr.recipes")
                same = own and is_within(absolute(path, node), (home,))
                bare = not node.level and (node.module or "").split(".")[0] in LINKED
                if same != bool(node.level) or bare:
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, wrong


def test_graph_of_packages_has_no_circle():
    """No package imports, by any way, one that imports it: at run time, within a function or for types alone."""
    edges = {a: {top_of(b) for b in bs} for a, bs in graph().items()}
    tops: dict[str, set[str]] = defaultdict(set)
    for node, others in edges.items():
        tops[top_of(node)] |= others - {top_of(node)}
    assert not find_circles(tops), find_circles(tops)


def test_modules_import_in_no_circle():
    """No module imports, by any way, one that imports it. Front doors aside: they only name what their folder has."""
    doors = set(PACKAGES)
    edges = {
        module: {name for name in imported_modules(path) if name in MODULES and name != module and name not in doors}
        for module, path in MODULES.items()
        if module not in doors
    }
    assert not find_circles(edges), find_circles(edges)


def test_circle_would_be_found():
    """The graph sees imports for types alone and imports within functions: train.py's of the config, for example."""
    assert any(is_within(name, ("rlvr.training",)) for name in graph()["rlvr.train"])
    assert find_circles({"a": {"b"}, "b": {"a"}}) == ["a <-> b"]
    assert len(graph()) >= len(PACKAGES)


def test_a_level_has_at_most_twelve_rooms():
    """A folder shows at most a dozen files and folders, except where each file is one registered name."""
    for package, folder in PACKAGES.items():
        rooms = {p.name for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
        few = len(rooms - {"__init__.py", "__main__.py"} - set(LINKED)) <= ROOMS
        assert few or package in (*ONE_FILE_A_NAME, "rlvr"), f"{package}: {len(rooms)} rooms"


def test_core_is_standard_library_only():
    """The core imports the standard library and itself; files ask the hub where they must, the HTTP client httpx2."""
    for path in [path for module, path in MODULES.items() if is_within(module, (CORE,))]:
        found = {n.split(".")[0] for n in imported_modules(path) if not is_within(n, (CORE,))}
        wrong = found - set(sys.stdlib_module_names) - {"huggingface_hub", "httpx2"}
        assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_sandbox_is_standard_library_only():
    """What runs beside hostile programs has no dependencies; Ray is an extra, imported where it is used."""
    for path in [path for module, path in MODULES.items() if is_within(module, ("rlvr.sandbox",))]:
        roots = {name.split(".")[0] for name in imported_modules(path)} - {"rlvr"}
        if path.stem == "ray_executor":
            roots -= {"ray"}
        assert roots <= set(sys.stdlib_module_names), f"{path.name} imports {sorted(roots)}"


def test_sandbox_has_two_sides():
    """What runs beside programs imports nothing of the caller's side, which imports of it only the values."""
    for module, path in MODULES.items():
        ours = {name for name in imported_modules(path) if is_within(name, ("rlvr",))}
        if is_within(module, BESIDE_PROGRAMS):
            assert all(is_within(name, BESIDE_PROGRAMS) for name in ours), f"{path.name} imports {sorted(ours)}"
        elif is_within(module, ("rlvr.sandbox",)):
            wrong = {name for name in ours if is_within(name, BESIDE_PROGRAMS)} - {"rlvr.sandbox.wire.values"}
            assert not wrong, f"{path.name} imports {sorted(wrong)}"


def test_rewards_and_packs_never_import_torch():
    """Grading starts in a fraction of a second and runs where no torch is."""
    for module, path in MODULES.items():
        if is_within(module, NEVER_TORCH):
            heavy = {name.split(".")[0] for name in imported_modules(path)} & {"torch", "transformers", "accelerate"}
            assert not heavy, f"{path.name} imports {sorted(heavy)}"


def test_no_test_imports_another():
    """What two test files share lies in tests/helpers, so that each runs without the other."""
    found = {path.name: sorted(imported_modules(path)) for path in (ROOT / "tests").rglob("*.py")}
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
    """A built wheel has exactly the tree's modules under their import names, and the data that they read."""
    # A build folder left in the tree would hand its old files to the wheel.
    ignored = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    source = shutil.copytree(ROOT, tmp_path / "source", symlinks=True, ignore=ignored)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    held = {n for n in names if ".dist-info/" not in n}
    expected = {f"{p.replace('.', '/')}/{f.name}" for p in PACKAGES for f in files(p)} | {"rlvr/py.typed"}
    for package, folder in PACKAGES.items():
        data = [path for ending in ("css", "html", "js", "lean", "toml", "txt") for path in folder.glob(f"*.{ending}")]
        data += [*folder.glob("templates/*"), *folder.glob("uplot/*")]
        expected |= {f"{package.replace('.', '/')}/{path.relative_to(folder)}" for path in data}
    assert held == expected
