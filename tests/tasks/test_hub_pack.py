"""The pack `hub`: columns by name, templates, splits, and bad input in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main as cli
from rlvr.core.registry import make_task

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
    "num_train: -1; expected a number of at least 0": ["prompt=problem", "reference=answer", "num_train=-1"],
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
    data = written(tmp_path / f"rows{suffix}", [whole, {**(whole if odd else {"id": 1}), **odd}])
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
    data = written(tmp_path / "rows.jsonl", [ROW])
    task = make_task("hub", data=data, reference="meta.gold", template=template, test_share=0.0, verifier="exact")
    assert [p.prompt for p in task.train] == [TEMPLATES[template]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"template": "{prompt} {options}"},
            r"\{options\} is a list; expected text or a number, such as \{options.0\}",
        ),
        ({"template": "{prompt} {meta}"}, "is the reference"),
        ({"template": "{prompt} {meta.gold}"}, "is the reference"),
        ({"reference": "meta", "template": "{prompt} {meta.gold}"}, "is the reference"),
        ({"reference": "options.0", "template": "{prompt} {meta}"}, "is an object; .*such as {meta.kind}"),
        ({"test_split": "test"}, "one file has no splits"),
        ({"split": "train", "test_split": "train"}, "one file has no splits"),
    ],
)
def test_templates_and_splits_that_are_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    """A list or a mapping, the reference or what holds it; one file, or one split, as both."""
    data = written(tmp_path / "rows.jsonl", [ROW])
    with pytest.raises(ValueError, match=message):
        make_task("hub", data=data, verifier="exact", **{"reference": "meta.gold", **options})


@pytest.mark.parametrize("pack", ["hub", "jsonl"])
@pytest.mark.parametrize("turns", [1, 3])
def test_chats_that_end_with_an_answer_are_refused(pack: str, turns: int, tmp_path: Path) -> None:
    """The model would be shown it."""
    chat = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}] * turns
    data = written(tmp_path / "rows.jsonl", [{"prompt": chat, "reference": "2"}])
    with pytest.raises(ValueError, match=r"1: the prompt ends with the assistant's message"):
        make_task(pack, data=data, test_share=0.0)


@pytest.mark.parametrize("same", [2, "2", "2 "])
def test_references_of_other_types_do_not_contradict(same: object, tmp_path: Path) -> None:
    """A number and the same as text are one reference; another number contradicts."""
    data = written(tmp_path / "rows.jsonl", [{"prompt": "1 + 1?", "reference": held} for held in ("2", same)])
    assert len(make_task("hub", data=data, test_share=0.0).train) == 1
    written(data, [{"prompt": "1 + 1?", "reference": held} for held in (same, "3")] + [{"prompt": "?", "reference": 1}])
    assert [p.prompt for p in make_task("hub", data=data, test_share=0.0).train] == ["?"]


def test_neither_data_nor_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And a split that a folder lacks."""
    assert cli(["audit", "hub"]) == 2
    assert "neither is given" in capsys.readouterr().err
    written(tmp_path / "train.jsonl", ROWS)
    options = ["prompt=problem", "reference=answer", "test_split=validation"]
    assert cli(["audit", "hub", "--data", str(tmp_path), "--task-option", *options]) == 2
    assert "no validation file" in capsys.readouterr().err
