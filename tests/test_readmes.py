"""The READMEs: their Python runs, their commands and flags exist, links lead somewhere, tables are complete."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.cli import COMMANDS
from rlvr.core.registry import TASKS, VERIFIERS
from rlvr.core.traits import VerifierTraits
from rlvr.tasks import BUILT_IN
from tests.helpers.files import ROOT, find_blocks
from tests.helpers.printed_commands import Printed, complaint

SKIPPED = {"build", "dist", "runs", "node_modules"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def readmes() -> list[Path]:
    """The Markdown files that people read: each folder's README.md, and what .github holds."""
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name not in SKIPPED and not p.name.startswith(".")]
    found = [p for folder in folders for p in folder.rglob("README.md")]
    found += (ROOT / ".github").rglob("*.md")
    return [ROOT / "README.md", *sorted({p.resolve() for p in found})]


def parameters_of(paths: list[Path]) -> list[object]:
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in paths]


def blocks(path: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [text for kind, text in BLOCK.findall(path.read_text()) if kind == language]


def spans(path: Path) -> list[str]:
    """The inline code, outside fenced blocks."""
    return [s.replace("\n", " ") for s in re.findall(r"`([^`]+)`", BLOCK.sub("", path.read_text()))]


def run_python(code: str, folder: Path) -> None:
    """Run a program in a process of its own, in a folder, as a reader would who has installed rlvr."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, timeout=240
    )
    assert done.returncode == 0, done.stderr


# The front page is run as the guide is, by tests/test_guide.py; the example of tests/README.md is given to pytest.
OTHERS = (ROOT / "README.md", ROOT / "tests" / "README.md")
PROGRAMS = [path for path in readmes() if blocks(path, "python") and path not in OTHERS]


@pytest.mark.parametrize("path", parameters_of(PROGRAMS))
def test_python_of_a_readme_runs(path: Path, tmp_path: Path) -> None:
    """All Python blocks of a README, one after the other, as one program that is imported, not run as a script."""
    code = "\n\n".join(blocks(path, "python"))
    run_python(f"exec(compile({code!r}, {str(path)!r}, 'exec'), {{'__name__': 'readme'}})", tmp_path)


@pytest.mark.parametrize("path", parameters_of(readmes()))
def test_flags_of_a_readme_exist(path: Path) -> None:
    """Every `--group.field` is a setting of a run; which algorithm or sampler reads it is not asked here.

    Whole commands: tests/test_printed_commands.py.
    """
    flags = {span.split()[0].partition("=")[0] for span in spans(path) if re.match(r"--[a-z]+\.[a-z]", span)}
    said = {flag: complaint(Printed(f"rlvr train tiny_math {flag} 1", False)) for flag in flags if "*" not in flag}
    unknown = {flag: text for flag, text in said.items() if "no flag" in text or "did you mean" in text}
    assert not unknown, unknown


def anchors(path: Path) -> set[str]:
    """The headings of a Markdown file as GitHub names them in links."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", parameters_of(readmes()))
def test_links_and_paths_of_a_readme_exist(path: Path) -> None:
    """Relative links lead to a file, and to a heading in it; files that are named in the text are there."""
    text = BLOCK.sub("", path.read_text())
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (path.parent / file) if file else path
        if not target.exists() or (heading and heading not in anchors(target)):
            wrong.append(link)
    for name in re.findall(
        r"(?<![\w/.])(?:tests|rlvr|verifiers|tasks|sandbox|recipes)/[\w/]+\.(?:py|jsonl?|txt|md)\b", text
    ):
        if not (ROOT / name).exists():
            wrong.append(name)
    wrong += [f"make {target}" for target in re.findall(r"`make (\w+)", text) if not has_target(target)]
    assert not wrong, wrong


def has_target(name: str) -> bool:
    return re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("door", ["README.md", "rlvr/README.md"])
def test_readme_of_a_folder_is_linked_from_the_one_above(door: str) -> None:
    """So that a reader who starts at the top finds all of them; links of rlvr/ follow its folders."""
    above = ROOT / door
    links = re.findall(r"\]\(([^)\s]+)\)", above.read_text())
    linked = {(above.parent / link.partition("#")[0]).resolve() for link in links}
    below = {path for path in readmes() if path.name == "README.md" and path.parent.parent == above.parent}
    assert below
    assert below - linked == set()


def test_front_page_is_complete() -> None:
    """With a picture, every command of the command line, and every algorithm."""
    text = (ROOT / "README.md").read_text()
    assert re.search(r"^!\[.+\]\(\.github/assets/demo\.png\)$", text, re.MULTILINE)
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(ALGORITHMS)
    assert {name for name in COMMANDS if f"`rlvr {name} " not in text and f"`rlvr {name}`" not in text} == set()


def test_map_of_the_packages_is_that_of_the_import_rules() -> None:
    """The table of rlvr/README.md: what a package may import is what tests/test_imports.py lets it import."""
    rules = runpy.run_path(str(ROOT / "tests" / "test_imports.py"))
    text = (ROOT / "rlvr" / "README.md").read_text()
    for name, allowed in re.findall(r"^\| `([\w.]+)` \| .* \| ([^|]*) \|$", text, re.MULTILINE):
        expected = set(rules["MAY_IMPORT"][name]) - {rules["CORE"], name}
        found = {word if word == "rlvr" else f"rlvr.{word}" for word in re.findall(r"`([\w.]+)`", allowed)}
        assert found == expected, name
    for package in rules["PACKAGES"]:
        assert f"`{'.'.join(package.split('.')[:2])}`" in text, package


def test_the_example_passes(tmp_path):
    """Put into a file and run by pytest with this repository's settings."""
    (example,) = find_blocks(ROOT / "tests" / "README.md")
    (tmp_path / "test_example.py").write_text(example)
    options = ["-q", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_example.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_every_folder_is_named():
    """The table of folders is complete."""
    text = (ROOT / "tests" / "README.md").read_text()
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert [name for name in sorted(folders) if f"`{name}`" not in text and f"`{name}/`" not in text] == []


def test_every_file_of_the_sandbox_is_named():
    """The table of files is complete."""
    tables = "".join((ROOT / "sandbox" / path / "README.md").read_text() for path in (".", "wire"))
    named = set(re.findall(r"(\w+\.py)`", tables))
    assert {path.name for path in (ROOT / "sandbox").rglob("*.py")} - {"__init__.py"} - named == set()


def test_every_verifier_and_folder_is_named():
    """The tables are complete, and name nothing that is not there."""
    rows = [line for line in (ROOT / "verifiers" / "README.md").read_text().splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([\w/.]+)`", " ".join(row.split("|")[1] for row in rows)))
    folders = {f"{path.name}/" for path in (ROOT / "verifiers").iterdir() if (path / "__init__.py").exists()}
    ours = {name for name in VERIFIERS.names() if VERIFIERS.get(name).__module__.startswith("rlvr.verifiers")}
    assert ours | folders == named


def test_traits_that_the_page_names_are_declared():
    """Those of a verifier's own; the components of `combine` are left to rlvr/core/types.py."""
    page = (ROOT / "docs" / "how-to" / "verifier.md").read_text()
    listed = re.search(r"Optional attributes \((.*?)\)\s+are\s+declared", page, re.DOTALL)
    named = re.findall(r"`(\w+)`", listed[1])
    assert named == [item.name for item in fields(VerifierTraits)][: len(named)]
    assert len(named) == 9


TASK_FILES = ROOT / "tasks"


def test_every_pack_and_file_is_named():
    """The table is complete, and each pack is in the file, or one of the files, of its row."""
    found = re.findall(
        r"^\| (`[\w/]+\.py`(?:, `[\w/]+\.py`)*) \| (.*) \|$", (TASK_FILES / "README.md").read_text(), re.MULTILINE
    )
    rows = [(name, text) for names, text in found for name in re.findall(r"`([\w/]+)\.py`", names)]
    files = {path.relative_to(TASK_FILES).with_suffix("") for path in TASK_FILES.rglob("*.py")}
    assert {name for name, _ in rows} == {file.as_posix() for file in files if file.name != "__init__"}
    ours = {name: TASKS.get(name).__module__ for name in TASKS.names()}
    modules = {name: f"rlvr.tasks.{name.replace('/', '.')}" for name, _ in rows}
    places: dict[str, str] = {}
    for name, text in rows:
        for pack in re.findall(r"`(\w+)`", text):
            if pack in ours and places.get(pack) != ours[pack]:
                places[pack] = modules[name]
    assert places == {name: module for name, module in ours.items() if module.startswith("rlvr.tasks")}


def test_every_pack_is_built_in():
    """What a module of this folder registers is found by its name before the module is imported."""
    for file in TASK_FILES.rglob("*.py"):
        importlib.import_module(".".join(("rlvr.tasks", *file.relative_to(TASK_FILES).with_suffix("").parts)))
    registered = {name: made.__module__ for name, made in TASKS._entries.items()}
    inside = {name: module for name, module in registered.items() if module.startswith("rlvr.tasks.")}
    assert inside == {name: f"rlvr.tasks.{module}" for name, module in BUILT_IN.items()}
