"""Fine-tuning on a user's own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr import Problem
from rlvr.commands.cli import main
from rlvr.config import SFTConfig
from rlvr.launch import launch
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.training.sft.demonstrations import read_demonstrations, with_demonstrations
from rlvr.training.sft.sft import demonstration_batch
from tests.helpers.models import TEMPLATE
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums

CHAT = [{"role": "system", "content": "es"}, {"role": "user", "content": "1+2="}]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_texts_and_messages_are_read(tmp_path: Path) -> None:
    """Blank lines and a byte-order mark are passed over; ids name the line."""
    rows = [
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": CHAT, "completion": [{"role": "assistant", "content": "3"}]},
    ]
    path = write(tmp_path / "mine.jsonl", *rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\n\n", 1))
    assert read_demonstrations(path) == [
        (Problem("mine.jsonl:1", "1+1="), "2"),
        (Problem("mine.jsonl:3", CHAT), "3"),
    ]


def test_messages_are_rendered_as_training_prompts_are(tmp_path: Path) -> None:
    """Through the chat template; the completion follows it and ends with the end token."""
    tokenizer = tiny_tokenizer(["[user]system assistant 12+3="])
    tokenizer.chat_template = TEMPLATE
    policy = Policy(tiny_model(tokenizer, 0), tokenizer)
    row = {"prompt": CHAT, "completion": [{"role": "assistant", "content": "3"}]}
    batch = demonstration_batch(policy, read_demonstrations(write(tmp_path / "a.jsonl", row)))
    prompt = policy.render(CHAT)
    assert batch.tokens[0].tolist() == [*prompt, *policy.encode("3"), policy.eos_id]
    assert batch.mask[0].tolist() == [False] * len(prompt) + [True, True]
    assert policy.decode(prompt) == "[system]es[user]1+2=[a]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no demonstrations"),
        (b'{"prompt": "a"}', "line 1: no 'completion'; it has prompt"),
        (b'{"prompt": "a", "completion": "b"}\n[1]', "line 2: a list"),
        (b'{"prompt": "a", "completion": "b"}\n{"prompt', "line 2: not JSON"),
        (b'{"prompt": "a", "completion": "\xe4"}', "line 1: not text in UTF-8"),
        (b'{"prompt": "a", "completion": "\\ud800"}', "line 1: not text in UTF-8"),
        (b'{"prompt": "a", "completion": ""}', "line 1: the completion is ''"),
        (b'{"prompt": "a", "completion": null}', "line 1: the completion is None"),
        (b'{"prompt": 3, "completion": "b"}', "line 1: the prompt is 3"),
        (b'{"prompt": [{"role": "user"}], "completion": "b"}', "line 1: the prompt is"),
        (
            b'{"prompt": "a", "completion": [{"role": "user", "content": "b"}]}',
            "messages of user; expected those of the assistant only",
        ),
        (b"null", "line 1: null"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    """File and line, and what was found."""
    path = tmp_path / "mine.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as refused:
        read_demonstrations(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_fine_tunes_on_the_file(tmp_path: Path) -> None:
    """A pack without demonstrations is fine-tuned on the file's; another content is another run."""
    path = write(tmp_path / "mine.jsonl", *({"prompt": f"{i}+{i}=", "completion": "7" * 5} for i in range(40, 48)))
    settings = {"steps": 60, "batch_size": 8, "lr": 1e-2, "data": path}
    config = tiny(tmp_path / "run", sft=settings, run={"steps": 0})
    evaluations = launch(config, task=sums())
    assert evaluations[0]["pass@1"] > 0.9  # its verifier asks for a 7
    launch(config, task=sums())
    write(path, {"prompt": "1", "completion": "2"})
    with pytest.raises(ValueError, match="fingerprint"):
        launch(config, task=sums())


def test_the_fingerprint_is_a_function_of_the_content(tmp_path: Path) -> None:
    """Not of the file's name; without a file the task stays as it is."""
    row = {"prompt": "a", "completion": "b"}
    one, two = (write(tmp_path / name, row) for name in ("one", "two"))
    task = sums()
    found = {with_demonstrations(task, SFTConfig(steps=1, data=path)).fingerprint for path in (one, two)}
    assert len(found) == 1
    assert with_demonstrations(task, SFTConfig(steps=1)) is task


def test_the_command_line_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No such file, and steps that are not set."""
    out = ["--run.out-dir", str(tmp_path / "run")]
    assert main(["sft", "tiny_math", "--sft.data", str(tmp_path / "none.jsonl"), *out]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert main(["train", "tiny_math", "--sft.data", "x.jsonl", "--sft.steps", "0", *out]) == 2
    assert "it is read only with --sft.steps or --algo.ptx-coef above 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
