"""The pack `hub`: columns by name, templates, splits, bad input; and a hub that cannot be reached."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import datasets
import pytest
from huggingface_hub import constants

from rlvr.commands.cli import main as cli
from rlvr.core.files import hub
from rlvr.core.files.models import find_model
from rlvr.core.registry import make_task
from rlvr.tasks.sources import cache_only, stream_hub
from tests.helpers.files import ROOT

ROWS = [
    {"problem": f"What is {n} + {n}?", "answer": str(2 * n), "meta": {"gold": 2 * n}, "hint": f"h{n}"}
    for n in range(40)
]


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_columns_and_templates(suffix: str, tmp_path: Path) -> None:
    """A field in a column as reference; the prompt within a template, with another column; boxes stay as they are."""
    data = write_rows(tmp_path / f"rows{suffix}", ROWS)
    template = r"{hint}: {prompt} Answer in \boxed{}."
    task = make_task("hub", data=data, prompt="problem", reference="meta.gold", template=template, test_share=0.25)
    first = next(p for p in (*task.train, *task.test) if p.reference == 6)
    assert first.prompt == r"h3: What is 3 + 3? Answer in \boxed{}."
    assert len(task.train) + len(task.test) == 40
    assert 3 <= len(task.test) <= 18
    assert task.verifier(first, r"\boxed{6}").correct


def test_chats_and_splits_of_a_folder(tmp_path: Path) -> None:
    """The template changes the last message; the test split is held out of training."""
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1 + 1?"}]
    write_rows(
        tmp_path / "all.jsonl", [{"prompt": chat, "label": "2"}, *({"prompt": f"{n}?", "label": "1"} for n in range(3))]
    )
    write_rows(tmp_path / "dev.jsonl", [{"prompt": "2?", "label": "1"}])
    task = make_task(
        "hub", data=tmp_path, reference="label", split="all", test_split="dev", template="Q: {prompt}", verifier="exact"
    )
    assert task.train[0].prompt == [chat[0], {"role": "user", "content": "Q: 1 + 1?"}]
    assert [p.prompt for p in task.train[1:]] == ["Q: 0?", "Q: 1?"]
    assert [p.prompt for p in task.test] == ["Q: 2?"]
    alone = make_task("hub", data=tmp_path, reference="label", split="none", test_split="dev")
    assert (len(alone.train), len(alone.test)) == (0, 1)


def test_hub_layout_of_a_local_folder(tmp_path: Path) -> None:
    """`dataset` goes through the library `datasets`, as on the hub."""
    write_rows(tmp_path / "set" / "train.jsonl", ROWS)
    task = make_task("hub", dataset=str(tmp_path / "set"), prompt="problem", reference="answer", test_share=0.0)
    assert [p.reference for p in task.train] == [row["answer"] for row in ROWS]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize(
    "odd",
    [{}, {"m": {}}, {"m": None}, {"problem": None}, {"problem": "  "}, {"hint": None}, {"hint": ""}],
    ids=["no columns", "no field", "null", "no prompt", "blank", "no hint", "empty hint"],
)
def test_rows_that_lack_something_are_left_out(
    odd: dict[str, object], suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same in every format, and counted; nothing is written for what is missing."""
    whole = {"problem": "1 + 1?", "m": {"gold": 2}, "hint": "two"}
    data = write_rows(tmp_path / f"rows{suffix}", [whole, {**(whole if odd else {"id": 1}), **odd}])
    options = {"prompt": "problem", "reference": "m.gold", "template": "{hint}: {prompt}", "test_share": 0.0}
    with caplog.at_level("WARNING"):
        task = make_task("hub", data=data, **options)
    assert [(p.prompt, p.reference) for p in task.train] == [("two: 1 + 1?", 2)]
    assert "1 of 2 rows are used for train; left out: 1 without" in caplog.text


ROW = {"prompt": "Which?", "options": ["x", "y"], "meta": {"kind": "bird", "gold": "a"}}
TEMPLATES = {
    "{prompt} {options.0} or {options.1}": "Which? x or y",
    "({meta.kind}) {prompt}": "(bird) Which?",
    r"{prompt} \boxed{} {meta.kind}": r"Which? \boxed{} bird",
}


@pytest.mark.parametrize("template", sorted(TEMPLATES))
def test_fields_in_templates(template: str, tmp_path: Path) -> None:
    """By dotted names, as in prompt and reference; what lies beside the reference may be shown."""
    data = write_rows(tmp_path / "rows.jsonl", [ROW])
    task = make_task("hub", data=data, reference="meta.gold", template=template, test_share=0.0, verifier="exact")
    assert [p.prompt for p in task.train] == [TEMPLATES[template]]


@pytest.mark.parametrize("same", [2, "2", "2 "])
def test_references_of_other_types_do_not_contradict(same: object, tmp_path: Path) -> None:
    """A number and the same as text are one reference; another number contradicts."""
    data = write_rows(tmp_path / "rows.jsonl", [{"prompt": "1 + 1?", "reference": held} for held in ("2", same)])
    assert len(make_task("hub", data=data, test_share=0.0).train) == 1
    write_rows(
        data, [{"prompt": "1 + 1?", "reference": held} for held in (same, "3")] + [{"prompt": "?", "reference": 1}]
    )
    assert [p.prompt for p in make_task("hub", data=data, test_share=0.0).train] == ["?"]


def test_neither_data_nor_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a split that a folder lacks."""
    assert cli(["audit", "hub"]) == 2
    assert "neither is given" in capsys.readouterr().err
    write_rows(tmp_path / "train.jsonl", ROWS)
    options = ["prompt=problem", "reference=answer", "test_split=validation"]
    assert cli(["audit", "hub", "--data", str(tmp_path), "--task-option", *options]) == 2
    assert "no validation file" in capsys.readouterr().err


PROGRAM = """
import sys
from rlvr.commands.cli import main
code = main(sys.argv[1:])
print(code, "torch" in sys.modules)
"""


class Silent:
    """A server that takes connections and never answers; it counts them."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                self.connections.append(self._listener.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Silent]:
    """The hub is such a server, and nothing is in its caches."""
    server = Silent()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(hub, "SECONDS", 0.3)
    monkeypatch.setattr(hub, "ANSWER_SECONDS", 1e9)
    hub._ask.cache_clear()
    yield server
    server.close()
    hub._ask.cache_clear()


def test_the_hub_is_asked_once_in_a_command(silent: Silent) -> None:
    """The model and each data set that are asked for after it; nothing else is tried."""
    with pytest.raises(ValueError, match=r"cannot be reached: .+"):
        find_model("no-such/model")
    told = r"data set 'no-such/rows' could not be loaded .* cannot be reached: .+\); give"
    for _ in range(2):
        with pytest.raises(OSError, match=told):
            list(stream_hub("no-such/rows", None, "train"))
    assert len(silent.connections) == 1


def test_the_libraries_may_ask_again_afterwards(silent: Silent) -> None:
    """They read their caches only while something is loaded, however that ends."""

    def fail() -> None:
        with cache_only(True):
            assert (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE) == (True, True)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not constants.HF_HUB_OFFLINE
    with cache_only(False):
        assert not constants.HF_HUB_OFFLINE


def test_nothing_is_asked_in_offline_mode(silent: Silent, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is the user's word that there is no network."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE keeps it from being downloaded"):
        find_model("no-such/model")
    with pytest.raises(OSError, match="could not be loaded"):
        make_task("gsm8k")
    assert silent.connections == []


@pytest.mark.parametrize("command", ["train math_grpo --dry-run", "audit gsm8k", "eval --model tiny --task svamp"])
def test_a_command_without_a_network_ends_with_one_line(command: str, tmp_path: Path) -> None:
    """None of the lines in which the hub's client counts its tries, and torch is not imported for it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command.split()], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-1] == "2 False"
    assert done.stderr.count("\n") == 1, done.stderr
    assert "could not be loaded (it is not in the cache, and the hub cannot be reached" in done.stderr
    assert "--data PATH" in done.stderr
