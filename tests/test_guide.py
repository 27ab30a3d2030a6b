"""The guide: its blocks of code run and print what they say, names of the code exist, tables name everything."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from docs.names import COMMAND, DOTTED, SETTING, spans_of
from docs.reference.files import WRITTEN
from docs.reference.settings import places
from rlvr.algo.algorithms import ALGORITHMS
from rlvr.commands.cli import COMMANDS
from rlvr.launch import launch
from tests.helpers.files import ROOT, lines
from tests.helpers.guide import (
    DOCS,
    blocks_of,
    chains,
    compare,
    complaints,
    exists,
    marks_of,
    pages,
    run_page,
    run_pages,
)
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums

PAGES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in run_pages()]
CHAINS = [
    pytest.param(
        chain,
        id=str(chain[0].relative_to(ROOT)),
        marks=[pytest.mark.slow] if any("slow" in marks_of(path) for path in chain) else [],
    )
    for chain in chains()
    if any(block.language in ("python", "console", "bash") for path in chain for block in blocks_of(path))
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("chain", CHAINS)
def test_blocks_of_a_page_run(chain: list[Path], tmp_path: Path) -> None:
    """In order, in a folder; pages that go on where another one ends run after it."""
    for path in chain:
        run_page(path, tmp_path)


@pytest.mark.parametrize("path", PAGES)
def test_blocks_of_a_page_are_right(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that cannot run here: they compile, what they import exists, and `rlvr` takes the commands."""
    monkeypatch.chdir(tmp_path)
    assert [said for block in blocks_of(path) for said in complaints(block)] == []


@pytest.mark.parametrize("path", PAGES)
def test_names_of_a_page_exist(path: Path) -> None:
    """In inline code: names and files of rlvr, settings, commands, targets of the Makefile."""
    text = path.read_text("utf-8")
    wrong = []
    for span in spans_of(text):
        if found := DOTTED.fullmatch(span):
            wrong += [] if exists(found[1]) else [span]
        elif found := SETTING.fullmatch(span):
            wrong += [] if found[1].replace("_", "-") in places() else [span]
        elif found := COMMAND.fullmatch(span):
            wrong += [] if found[1] in COMMANDS else [span]
        elif re.fullmatch(r"(?:docs|tests|rlvr|verifiers|tasks|environments|sandbox|recipes)/[\w./-]+", span):
            wrong += [] if (ROOT / span).exists() else [span]
        elif found := re.fullmatch(r"make ([\w-]+)(?: .*)?", span):
            makefile = (ROOT / "Makefile").read_text("utf-8")
            wrong += [] if re.search(rf"^{found[1]}:", makefile, re.MULTILINE) else [span]
    assert not wrong, wrong


def test_every_page_is_in_the_navigation() -> None:
    """Zensical finds links that lead nowhere, and not pages that none leads to."""
    nav = (DOCS / "zensical.toml").read_text("utf-8")
    tomllib.loads(nav)
    named = set(re.findall(r'"([\w/.-]+\.md)"', nav))
    assert {str(path.relative_to(DOCS)) for path in pages()} - named == set()


def test_what_a_page_prints_is_compared() -> None:
    """Numbers may differ and words may not; lines may be left out, their order may not change."""
    printed = ["step 1  reward 0.25", "warning: x", "step 2  reward 0.50"]
    compare(["step 1  reward 0.10", "...", "step 2 ..."], printed, "here")
    for wrong in (
        ["step 1  score 0.25"],
        ["warning: x", "step 1  reward 0.25", "step 2 reward 0.5", "step 3 reward 1"],
    ):
        with pytest.raises(AssertionError, match="does not print"):
            compare(wrong, printed, "here")
    compare(["step 1  reward 0.25"], printed, "here", exact=True)
    with pytest.raises(AssertionError, match="does not print"):
        compare(["step 1  reward 0.10"], printed, "here", exact=True)


def test_a_wrong_block_would_be_found(tmp_path: Path) -> None:
    """A name that does not exist, a flag that does not, a block of no known language, a need of no known word."""
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nfrom rlvr.algo.losses import nothing\n```\n\n```python\nx =\n```\n\n```console\n"
        "$ rlvr train tiny_math --run.stebs 3\n```\n\n```py\n```\n\n<!-- needs: luck -->\n```bash\nrlvr list\n```\n"
    )
    said = "\n".join(line for block in blocks_of(page) for line in complaints(block))
    for words in ("has no nothing", "invalid syntax", "--run.steps", "language 'py'", "needs 'luck'"):
        assert words in said


def test_the_page_of_algorithms_names_all() -> None:
    """Rows are made from the table of the code, with a formula for each."""
    from docs.reference.algorithms import algorithm_row

    rows = [algorithm_row(row) for row in ALGORITHMS.values()]
    assert all(row[1] for row in rows)
    assert dict(zip(ALGORITHMS, (row[1] for row in rows)))["grpo"].startswith("(r - mean) / (std + 1e-4)")


TYPES = {
    "whole number": int,
    "number": (int, float),
    "text": str,
    "object": dict,
    "true or false": bool,
    "two numbers": list,
    "list of objects": list,
}


@pytest.mark.parametrize("name", ["rollouts.jsonl", "eval.jsonl", "events.jsonl"])
def test_lines_of_a_run_have_the_fields_of_their_page(name: str, tiny_run: Path) -> None:
    """Every field that a run writes is on the page, with its type; those that every line has are there."""
    _, fields = WRITTEN[name]
    patterns = {pattern_of(part): field for field in fields for part in field.name.split(", ")}
    for row in lines(tiny_run / name):
        assert {
            field.name for field in fields if field.always and "K" not in field.name and "NAME" not in field.name
        } <= {*row}
        for key, value in row.items():
            field = next((field for pattern, field in patterns.items() if re.fullmatch(pattern, key)), None)
            assert field is not None, f"{name}: {key} is not on the page of formats"
            kind = TYPES.get(field.type)
            assert kind is None or isinstance(value, kind), f"{name}: {key} {value!r}; the page says {field.type}"


def pattern_of(name: str) -> str:
    """Return a pattern of a field's name, in which K is a number and NAME any word."""
    return re.escape(name).replace("NAME", r"\S+").replace("@K", r"@\d+").replace(r"\^K", r"\^\d+")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run."""
    folder = tmp_path_factory.mktemp("run")
    launch(tiny(folder), task=sums())
    return folder
