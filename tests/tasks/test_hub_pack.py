"""The pack `hub`: columns by name, templates, splits, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main as cli
from rlvr.registry import make_task

ROWS = [
    {"problem": f"What is {n} + {n}?", "answer": str(2 * n), "meta": {"gold": 2 * n}, "hint": f"h{n}"}
    for n in range(40)
]


def written(path: Path, rows: list[dict[str, object]]) -> Path:
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
    data = written(tmp_path / f"rows{suffix}", ROWS)
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
    written(
        tmp_path / "all.jsonl", [{"prompt": chat, "label": "2"}, *({"prompt": f"{n}?", "label": "1"} for n in range(3))]
    )
    written(tmp_path / "dev.jsonl", [{"prompt": "2?", "label": "1"}])
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
    written(tmp_path / "set" / "train.jsonl", ROWS)
    task = make_task("hub", dataset=str(tmp_path / "set"), prompt="problem", reference="answer", test_share=0.0)
    assert [p.reference for p in task.train] == [row["answer"] for row in ROWS]


BAD = {
    "no column 'question'; there are problem, answer, meta, hint": ["prompt=question", "reference=answer"],
    "no column 'golden' in meta; there are gold": ["prompt=problem", "reference=meta.golden"],
    "has no {prompt}": ["prompt=problem", "reference=answer", "template=Answer this"],
    "no column 'tip'; there are": ["prompt=problem", "reference=answer", "template={prompt} {tip}"],
    "{answer} is the reference": ["prompt=problem", "reference=answer", "template={prompt} {answer}"],
    "test_share 2.0": ["prompt=problem", "reference=answer", "test_share=2"],
    "no verifier 'maths'": ["prompt=problem", "reference=answer", "verifier=maths"],
    "both are given": ["prompt=problem", "reference=answer", "dataset=org/name"],
    "none of 40 rows can be used for train": ["prompt=problem", "reference=hint", "verifier=choice"],
    "num_train -1": ["prompt=problem", "reference=answer", "num_train=-1"],
}


@pytest.mark.parametrize("message", sorted(BAD))
def test_bad_input_is_one_line(message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    data = written(tmp_path / "rows.jsonl", ROWS)
    assert cli(["audit", "hub", "--data", str(data), "--task-option", *BAD[message]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_neither_data_nor_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a split that a folder lacks."""
    assert cli(["audit", "hub"]) == 2
    assert "neither is given" in capsys.readouterr().err
    written(tmp_path / "train.jsonl", ROWS)
    options = ["prompt=problem", "reference=answer", "test_split=validation"]
    assert cli(["audit", "hub", "--data", str(tmp_path), "--task-option", *options]) == 2
    assert "no validation file" in capsys.readouterr().err
