"""tasks/README.md: its tables name what there is."""

from __future__ import annotations

import importlib
import json
import re

from rlvr.core.registry import TASKS, make_task
from rlvr.tasks import BUILT_IN
from tests.helpers.files import ROOT

FOLDER = ROOT / "tasks"
README = (FOLDER / "README.md").read_text()


def test_every_pack_and_file_is_named():
    """The table is complete, and each pack is in the file, or one of the files, of its row."""
    found = re.findall(r"^\| (`[\w/]+\.py`(?:, `[\w/]+\.py`)*) \| (.*) \|$", README, re.MULTILINE)
    rows = [(name, text) for names, text in found for name in re.findall(r"`([\w/]+)\.py`", names)]
    files = {path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py")}
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
    for file in FOLDER.rglob("*.py"):
        importlib.import_module(".".join(("rlvr.tasks", *file.relative_to(FOLDER).with_suffix("").parts)))
    registered = {name: made.__module__ for name, made in TASKS._entries.items()}
    inside = {name: module for name, module in registered.items() if module.startswith("rlvr.tasks.")}
    assert inside == {name: f"rlvr.tasks.{module}" for name, module in BUILT_IN.items()}


def test_a_file_of_lines_is_enough(tmp_path):
    """The pack without code: a prompt and a reference in each line."""
    lines = [json.dumps({"prompt": f"What is {n} + 1?", "reference": n + 1}) for n in range(40)]
    (tmp_path / "problems.jsonl").write_text("\n".join(lines))
    task = make_task("jsonl", data=tmp_path / "problems.jsonl")
    assert len(task.train) + len(task.test) == 40
    assert len(task.train) > len(task.test) > 0
