"""Files that cannot be used, each in its own way, and a few that can: what `tests/golden/bad_input.txt` names."""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import zipfile
from pathlib import Path

from tests.helpers.files import GOLDEN

GOOD = b'{"id": "a", "prompt": "1+1", "reference": "2", "completion": "\\\\boxed{2}"}\n'
PAIR = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'

ANSWER = b'{"id": "a", "sample": 0, "score": 1.0, "correct": true, "status": "correct", "completion": "x"}\n'


def line(**changes: object) -> bytes:
    """The good line with other fields; a field that is ... is left out."""
    fields = {**json.loads(GOOD), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode() + b"\n"


def instructions(name: str, parameters: dict[str, object]) -> bytes:
    """A row of IFBench."""
    row = {"key": "1", "prompt": "x", "instruction_id_list": [name], "kwargs": [parameters]}
    return json.dumps(row).encode() + b"\n"


FILES = {
    "good.jsonl": GOOD + line(id="b", prompt="2+2", reference="4"),
    "empty.jsonl": b"",
    "blank.jsonl": b"\n  \n\r\n",
    "latin.jsonl": GOOD + line(id="b")[:-3] + b'\xe9"}\n',
    "binary.jsonl": bytes(range(256)) * 4,
    "nul.jsonl": GOOD + b'{"prompt": "a\0b"}\n',
    "utf16.jsonl": GOOD.decode().encode("utf-16"),
    "gzipped.jsonl": gzip.compress(GOOD),
    "parquet.jsonl": b"PAR1" + bytes(40),
    "words.jsonl": GOOD + b"hello there\n",
    "cut.jsonl": GOOD + GOOD[:20] + b"\n",
    "number.jsonl": GOOD + b"17\n",
    "string.jsonl": b'"text"\n',
    "null.jsonl": b"null\n",
    "list.jsonl": b"[" + GOOD.strip() + b"]\n",
    "pretty.jsonl": json.dumps(json.loads(GOOD), indent=2).encode(),
    "deep.jsonl": GOOD + b"[" * 100_000 + b"\n",
    "digits.jsonl": GOOD + b'{"prompt": "x", "reference": ' + b"9" * 5000 + b"}\n",
    "nan.jsonl": GOOD + line(id="b", prompt="x", reference=math.nan),
    "infinity.jsonl": GOOD + line(id="b", prompt="x", reference=-math.inf),
    "overflow.jsonl": GOOD + b'{"prompt": "x", "reference": 1e999, "completion": "y"}\n',
    "twice.jsonl": b'{"prompt": "x", "reference": "1", "reference": "2", "completion": "y"}\n',
    "surrogate.jsonl": GOOD + line(id="b", prompt="x \ud800"),
    "no_prompt.jsonl": GOOD + line(id="b", prompt=...),
    "null_prompt.jsonl": line(prompt=None),
    "empty_prompt.jsonl": line(prompt=" "),
    "number_prompt.jsonl": line(prompt=5),
    "no_messages.jsonl": line(prompt=[]),
    "half_message.jsonl": line(prompt=[{"role": "user"}]),
    "text_message.jsonl": line(prompt=["hello"]),
    "parts_message.jsonl": line(prompt=[{"role": "user", "content": [{"type": "text"}]}]),
    "no_reference.jsonl": GOOD + line(id="b", prompt="x", reference=...),
    "null_reference.jsonl": line(reference=None),
    "empty_reference.jsonl": GOOD + line(id="b", prompt="x", reference=""),
    "same_id.jsonl": GOOD + line(prompt="other"),
    "two_answers.jsonl": GOOD + line(id="b", reference="3"),
    "list_id.jsonl": line(id=[1]),
    "empty_id.jsonl": line(id=""),
    "null_id.jsonl": line(id=None),
    "no_completion.jsonl": GOOD + line(completion=...),
    "null_completion.jsonl": line(completion=None),
    "list_completion.jsonl": line(completion=["a"]),
    "yes_expected.jsonl": line(expected="yes"),
    "escape.jsonl": GOOD + line(id="\x1b[2Jb", prompt="\x1b]0;title\x07x", reference="\x1b[31m"),
    "one_list.json": b"[" + GOOD.strip() + b"]",
    "object.json": GOOD,
    "lines.json": GOOD * 2,
    "mixed.json": b'[{"prompt": "x"}, 3]',
    "nothing.json": b"[]",
    "table.csv": b"prompt,reference\n1+1,2\n",
    "broken.parquet": b"PAR1" + bytes(40) + b"PAR1",
    "train_only/train.jsonl": b"\n",
    "strangers/readme.md": b"nothing here",
    "both/train.jsonl": GOOD,
    "both/test.jsonl": line(id="z"),
    "gsm/test.jsonl": b'{"question": "a", "answer": "no number"}\n',
    "gsm/train.jsonl": b'{"question": "a"}\n',
    "mbpp.jsonl": b'{"task_id": 601, "text": "x"}\n',
    "no_chosen.jsonl": PAIR + b'{"prompt": "a", "rejected": "c"}\n',
    "same_pair.jsonl": b'{"prompt": "a", "chosen": "b", "rejected": "b"}\n',
    "number_chosen.jsonl": b'{"prompt": "a", "chosen": 5, "rejected": "b"}\n',
    "margin.jsonl": b'{"prompt": "a", "chosen": "b", "rejected": "c", "margin": "big"}\n',
    "nan_margin.jsonl": b'{"prompt": "a", "chosen": "b", "rejected": "c", "margin": NaN}\n',
    "prompt_pair.jsonl": b'{"prompt": {"role": "user"}, "chosen": "b", "rejected": "c"}\n',
    "one_pair.jsonl": PAIR,
    "rows.jsonl": b"".join(line(id=str(n), prompt=f"{n}+1?", reference=str(n + 1)) for n in range(9)),
    "ifb_unknown.jsonl": instructions("words:rhyme", {}),
    "ifb_kwargs.jsonl": instructions("count:numbers", {}),
}

# Files beside the data: modules and recipes of a user, runs, and what must stay as it is.
MINE = """
from rlvr import Problem, Task, register_task

number = 3


def loud(problem, completion):
    return completion.isupper()


def fails(problem, completion):
    raise RuntimeError("no \\x1b[31mverdict")


def talks(problem, completion):
    return "good"


def one(completion):
    return True


def no_task():
    return [1, 2]


def wants(data):
    return None


def same_ids():
    return Task("mine", [Problem("a", "x", "1"), Problem("a", "y", "1")], [], loud)


def shared():
    return Task("mine", [Problem("a", "x", "1")], [Problem("b", "X ", "1")], loud)


def nothing():
    return Task("mine", [], [], loud)
"""
OTHERS = {
    "mine.py": MINE.encode(),
    "syntax.py": b"CONFIG = (\n",
    "imports.py": b"import no_such_package\n",
    "no_config.py": b"x = 1\n",
    "number_config.py": b"CONFIG = 3\ndef main(config): pass\n",
    "canary/model.safetensors": b"weights",
    "canary/notes/thesis.txt": b"years of work",
    "canary/.hidden": b"x",
    "afile": b"a file where a folder was meant",
    "run/metrics.jsonl": b'{"step": 1, "reward": 0.5}\n',
    "run_binary/metrics.jsonl": b"\xff\xfe\x00\n",
    "run_list/metrics.jsonl": b"[1]\n",
    "run_words/eval.jsonl": b"hello\n",
    "run_alarm/metrics.jsonl": b'{"step": 1, "reward": 0.5}\n',
    "run_alarm/alarms.jsonl": b'{"step": 1}\n',
    "run_gz/metrics.jsonl": b'{"step": 1, "reward": 0.5}\n',
    "run_gz/rollouts-0000.jsonl.gz": gzip.compress(b'{"step": 1}\n' * 500)[:-12],
    "run_none/metrics.jsonl": b"",
    "evaluated/settings.json": b"{broken",
    "listed/settings.json": b"[1]",
    "foreign/result.json": b'{"mine": 1}',
    "run_settings/config.json": b"{broken",
    "run_settings/metrics.jsonl": b'{"step": 1, "reward": 0.5}\n',
    "run_settings/rollouts.jsonl": b'{"step": 1}\n',
    "adapter_text/adapter_config.json": b"{broken",
    "adapter_text/adapter_model.safetensors": b"weights",
    "adapter_gone/adapter_config.json": b'{"peft_type": "LORA", "base_model_name_or_path": "./nowhere", "r": 4}',
    "adapter_gone/adapter_model.safetensors": b"weights",
    "answers_a/answers.jsonl": ANSWER,
    "answers_twice/answers.jsonl": ANSWER * 2,
    "answers_text/answers.jsonl": b"hello\n",
    "answers_number/answers.jsonl": ANSWER.replace(b"true", b"5"),
    "answers_list/answers.jsonl": b"[1]\n",
    "answers_score/answers.jsonl": ANSWER.replace(b"1.0", b'"high"'),
    "answers_latin/answers.jsonl": ANSWER[:-3] + b'\xe9"}\n',
    "answers_none/answers.jsonl": b"",
    "answers_other/answers.jsonl": ANSWER.replace(b'"a"', b'"z"'),
    "answers_cut/answers.jsonl": ANSWER[:20],
    "answers_bare/answers.jsonl": b'{"id": "a", "sample": 0, "score": 1}\n',
}


def lay_out(folder: Path) -> None:
    """Writes all of them into a folder, the data into `data`."""
    for name, content in {**{f"data/{name}": content for name, content in FILES.items()}, **OTHERS}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.mkfifo(folder / "data" / "pipe.jsonl")
    (folder / "data" / "folder.jsonl").mkdir()
    with zipfile.ZipFile(folder / "data" / "zipped.jsonl", "w") as archive:
        archive.writestr("good.jsonl", GOOD)


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes, and whatever else is there by its kind."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path.relative_to(folder))] = path.read_bytes() if stat.S_ISREG(mode) else stat.filemode(mode)
    return found


def read_golden(name: str) -> list[tuple[str, str]]:
    """The rows of a table in tests/golden: command lines, each with the words that its error holds."""
    lines = (GOLDEN / name).read_text("utf-8").splitlines()
    return [text.partition(" => ")[::2] for text in lines if text and not text.startswith("#")]
