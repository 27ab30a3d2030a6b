"""Input that cannot be used, of many kinds: one line on stderr, exit code 2, and not a file written, changed or lost.

Each row of the tables is a command line of its own kind, and words that its message must hold: what was found, where,
and what was expected. They run through `rlvr.cli.main`, some in processes of their own.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import shlex
import stat
import sys
import unicodedata
import zipfile
from pathlib import Path

import pytest

from rlvr.cli import main

ROOT = Path(__file__).resolve().parent.parent

GOOD = b'{"id": "a", "prompt": "1+1", "reference": "2", "completion": "\\\\boxed{2}"}\n'
PAIR = b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n'


def line(**changes: object) -> bytes:
    """The good line with other fields; a field that is ... is left out."""
    fields = {**json.loads(GOOD), **changes}
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode() + b"\n"


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
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with all those files, in which the command is given; `sys.path` is put back afterwards."""
    for name, content in {**{f"data/{name}": content for name, content in FILES.items()}, **OTHERS}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    os.mkfifo(tmp_path / "data" / "pipe.jsonl")
    (tmp_path / "data" / "folder.jsonl").mkdir()
    with zipfile.ZipFile(tmp_path / "data" / "zipped.jsonl", "w") as archive:
        archive.writestr("good.jsonl", GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder with its bytes, and whatever else is there by its kind."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        found[str(path.relative_to(folder))] = path.read_bytes() if stat.S_ISREG(mode) else stat.filemode(mode)
    return found


def check_line(printed: str, words: tuple[str, ...]) -> None:
    """One line, an error, without a control character, that holds the words."""
    assert printed.count("\n") == 1, printed
    assert printed.startswith("error: ")
    assert "Traceback" not in printed
    assert not [c for c in printed.rstrip("\n") if unicodedata.category(c) in ("Cc", "Cs")], ascii(printed)
    for word in words:
        assert word in printed, printed


def row(command: str, *words: str) -> object:
    """A row of a table, named by its command."""
    return pytest.param(command, words, id=command.replace("train tiny_math ", "")[:80])


COMMAND_LINES = [
    row("trian", "no command 'trian'", "did you mean train?"),
    row("--verbose", "no command '--verbose'"),
    row("'\x1b[2Jtrain'", "no command", r"\x1b[2Jtrain"),
    row("train", "name a recipe first", "tiny_math"),
    row("train --run.steps 3", "name a recipe first"),
    row("train tiny_mth", "no recipe 'tiny_mth'", "did you mean tiny_math?"),
    row("train nowhere.py", "no recipe file nowhere.py"),
    row("train canary", "no recipe 'canary'"),
    row("train data/pipe.jsonl", "no recipe"),
    row("train syntax.py", "recipe syntax.py, line 1: "),
    row("train imports.py", "recipe imports.py cannot be imported", "no_such_package"),
    row("train no_config.py", "expected a Config", "named CONFIG"),
    row("train number_config.py", "expected a Config"),
    row("train rm_pairs", "another command: rlvr rm rm_pairs"),
    row("rm", "name a recipe first"),
    row("rm tiny_math", "another command: rlvr train tiny_math"),
    row("sft", "name a recipe first"),
    row("sft math_grpo", "fine-tunes for no steps", "--sft.steps"),
    row("sft tiny_math --sft.stpes 3", "did you mean --sft.steps?"),
    row("sft tiny_math --sft.lr nan", "sft.lr nan", "finite"),
    # flags: typos, other trainers' names, groups
    row("train tiny_math --lr 1e-4", "no flag --lr", "did you mean --optim.lr?"),
    row("train tiny_math --steps 4", "did you mean --run.steps?"),
    row("train tiny_math --run.stpes 4", "did you mean --run.steps?"),
    row("train tiny_math --run.Steps 4", "did you mean --run.steps?"),
    row("train tiny_math --algo.kl_ceof 0.1", "no flag --algo.kl_ceof", "did you mean --algo.kl-coef?"),
    row("train tiny_math --algo.lr 1", "did you mean --optim.lr?"),
    row("train tiny_math --learning-rate 1", "did you mean --optim.lr?"),
    row("train tiny_math --num_generations 4", "did you mean --rollout.group-size?"),
    row("train tiny_math --beta 0.1", "did you mean --algo.kl-coef?"),
    row("train tiny_math --output-dir x", "did you mean --run.out-dir?"),
    row("train tiny_math --eval 3", "a group of flags", "--eval.every"),
    row("train tiny_math -steps 3", "no flag -steps", "did you mean --run.steps?"),
    row("train tiny_math ---run.steps 3", "no flag ---run.steps", "did you mean --run.steps?"),
    row("train tiny_math --frobnicate", "no flag --frobnicate", "--help"),
    row("train tiny_math --run.no-steps", "no flag --run.no-steps"),
    row("train tiny_math '--\x1b[31mrun'", "no flag", r"\x1b[31m"),
    row("eval --modle tiny --task arithmetic", "no flag --modle", "did you mean --model?"),
    row("eval --model tiny --task arithmetic --max_problem 3", "did you mean --max-problems?"),
    row("profile arithmetic --model tiny --group 4", "did you mean --group-size?"),
    row("audit arithmetic --max-problem 4", "did you mean --max-problems?"),
    row("grade data/good.jsonl --verifer math", "no flag --verifer", "did you mean --verifier?"),
    row("compare run --output x.png", "no flag --output"),
    row("report run --ouput x", "no flag --ouput"),
    row("list --option", "did you mean --options?"),
    row("doctor --ofline", "did you mean --offline?"),
    row("rm rm_pairs --pairs.fiel x", "did you mean --pairs.file?"),
    # flags: values
    row("train tiny_math --run.steps", "--run.steps needs a value", "a whole number"),
    row("train tiny_math --run.steps --run.seed 3", "--run.steps needs a value"),
    row("train tiny_math --run.steps x", "--run.steps x", "expected a whole number"),
    row("train tiny_math --run.steps ''", "--run.steps ''", "expected a whole number"),
    row("train tiny_math --run.steps 1.5", "--run.steps 1.5", "expected a whole number"),
    row("train tiny_math --run.seed 1e3", "--run.seed 1e3", "expected a whole number"),
    row("train tiny_math --optim.lr fast", "--optim.lr fast", "expected a number"),
    row("train tiny_math --optim.lr 1,5", "--optim.lr 1,5", "expected a number"),
    row("train tiny_math --optim.betas 0.9", "--optim.betas 0.9", "2 values"),
    row("train tiny_math --optim.betas 0.9 b", "--optim.betas 0.9 b", "2 values"),
    row("train tiny_math --eval.k one", "--eval.k one", "each a whole number"),
    row("train tiny_math --algo.dual-clip wide", "--algo.dual-clip wide", "a number, or None"),
    row("train tiny_math --algo.advantage grop", "grop", "one of grpo, dr_grpo"),
    row("train tiny_math --vllm.sleep 3", "--vllm.sleep 3", "one of 0, 1, 2"),
    row("train tiny_math --run.overwrite yes", "--run.overwrite takes no value", "'yes'"),
    row("train tiny_math 3", "unexpected argument '3'"),
    row("train tiny_math --run.task-options num_train=4 --run.task-options num_test=2", "--run.task-options", "twice"),
    row("eval", "--model and --task must be given"),
    row("eval --model tiny", "--task must be given"),
    row("eval --model tiny --task arithmetic --k 1 b", "--k 1 b", "each a whole number"),
    row("eval --model tiny --task arithmetic --split dev", "--split dev", "one of test, train"),
    row("eval tiny --model tiny --task arithmetic", "unexpected argument 'tiny'"),
    row("profile --model tiny", "TASK must be given"),
    row("audit", "TASK must be given"),
    row("audit arithmetic countdown", "unexpected argument 'countdown'"),
    row("report", "RUN must be given"),
    row("report run run", "unexpected argument 'run'"),
    row("compare", "name at least one run"),
    row("list math exact", "unexpected argument 'exact'"),
    row("doctor --timeout soon", "--timeout soon", "expected a number"),
    row("grade --verifier math", "FILE.jsonl"),
    row("grade data/good.jsonl", "--verifier"),
    row("grade data/good.jsonl --verifier", "--verifier", "expected one argument"),
    row("grade data/good.jsonl --verifier math --workers many", "--workers", "'many'"),
    row("grade data/good.jsonl --verifier math data/good.jsonl", "data/good.jsonl"),
]

SETTINGS = [
    row("train tiny_math --run.steps -1", "run.steps -1", "expected a number from 0"),
    row("train tiny_math --run.steps 100000000000000000000", "run.steps", "1,000,000,000"),
    row("train tiny_math --run.seed 99999999999999999999999", "run.seed"),
    row("train tiny_math --run.save-every -5", "run.save_every -5"),
    row("train tiny_math --run.keep-checkpoints 0", "run.keep_checkpoints 0"),
    row("train tiny_math --run.sample-every -1", "run.sample_every -1"),
    row("train tiny_math --optim.lr nan", "optim.lr nan"),
    row("train tiny_math --optim.lr inf", "optim.lr inf", "finite"),
    row("train tiny_math --optim.lr -1e-5", "optim.lr -1e-05"),
    row("train tiny_math --optim.lr 30", "optim.lr 30"),
    row("train tiny_math --optim.betas 0.9 1.0", "optim.betas 1.0"),
    row("train tiny_math --optim.betas -0.1 0.9", "optim.betas -0.1"),
    row("train tiny_math --optim.max-grad-norm 0", "optim.max_grad_norm 0"),
    row("train tiny_math --optim.max-grad-norm -1", "optim.max_grad_norm -1"),
    row("train tiny_math --optim.warmup-steps -3", "optim.warmup_steps -3"),
    row("train tiny_math --optim.min-lr-ratio 2", "optim.min_lr_ratio 2"),
    row("train tiny_math --optim.weight-decay -1", "optim.weight_decay -1"),
    row("train tiny_math --optim.tokens-per-microbatch 0", "optim.tokens_per_microbatch 0"),
    row("train tiny_math --eval.every -5", "eval.every -5", "-1"),
    row("train tiny_math --eval.temperature nan", "eval.temperature nan", "finite"),
    row("train tiny_math --eval.temperature 1e-30", "eval.temperature 1e-30", "0.001"),
    row("train tiny_math --eval.max-new-tokens 0", "eval.max_new_tokens 0"),
    row("train tiny_math --eval.top-p 0", "eval.top_p 0"),
    row("train tiny_math --eval.k 0", "eval.k 0"),
    row("train tiny_math --eval.k 9", "eval.samples"),
    row("train tiny_math --eval.k", "eval.k is empty"),
    row("train tiny_math --eval.num-problems -1", "eval.num_problems -1"),
    row("train tiny_math --sft.steps -1", "sft.steps -1"),
    row("train tiny_math --sft.batch-size 0", "sft.batch_size 0"),
    row("train tiny_math --sft.lr inf", "sft.lr inf"),
    row("train tiny_math --sft.warmup-steps -1", "sft.warmup_steps -1"),
    row("train tiny_math --rollout.temperature nan", "rollout.temperature nan"),
    row("train tiny_math --rollout.temperature inf", "rollout.temperature inf"),
    row("train tiny_math --rollout.temperature 0", "rollout.temperature 0"),
    row("train tiny_math --rollout.timeout inf", "rollout.timeout inf", "finite"),
    row("train tiny_math --rollout.timeout nan", "rollout.timeout nan"),
    row("train tiny_math --rollout.timeout 0", "rollout.timeout 0"),
    row("train tiny_math --rollout.workers 1000000", "rollout.workers 1000000", "1,024"),
    row("train tiny_math --rollout.batch-size 0", "rollout.batch_size 0"),
    row("train tiny_math --rollout.group-size 1", "rollout.group_size 1", "every advantage would be 0"),
    row("train tiny_math --rollout.truncated punish --rollout.overlong-buffer 0", "rollout.overlong_buffer 0"),
    row("train tiny_math --rollout.length-penalty nan", "rollout.length_penalty nan"),
    row("train tiny_math --rollout.length-limit 5", "rollout.length_limit 5", "length_penalty"),
    row("train tiny_math --rollout.resample-rounds -1", "rollout.resample_rounds -1"),
    row("train tiny_math --rollout.stop ''", "rollout.stop", "empty text"),
    row("train tiny_math --rollout.sampler vlm", "rollout.sampler 'vlm'", "did you mean vllm"),
    row("train tiny_math --rollout.max-staleness 1", "rollout.max_staleness 1", "vllm"),
    row("train tiny_math --algo.advantage gae --algo.gamma nan", "algo.gamma nan"),
    row("train tiny_math --algo.clip-low 2", "algo.clip_low 2"),
    row("train tiny_math --algo.kl-coef inf", "algo.kl_coef inf"),
    row("train tiny_math --algo.importance-cap nan --algo.importance token", "algo.importance_cap nan"),
    row("train tiny_math --algo.advantage gdpo --algo.reward-weights a=nan", "algo.reward_weights 'a=nan'"),
    row("train tiny_math --model.lora-rank -1", "model.lora_rank -1"),
    row("train tiny_math --model.lora-rank 4 --model.lora-alpha nan", "model.lora_alpha nan"),
    row("train tiny_math --model.lora-rank 4 --model.lora-targets ''", "model.lora_targets is empty"),
    row("train tiny_math --model.device gpu", "model.device 'gpu'", "cuda"),
    row("train tiny_math --model.name ''", "model.name is empty"),
    row("train tiny_math --model.tiny-tokens '('", "model.tiny_tokens '('", "regular expression"),
    row("train tiny_math --run.task ''", "run.task is empty"),
    row("train tiny_math --run.verifier-options a=1", "set --run.verifier"),
    row("train tiny_math --run.trackers tensorbord", "did you mean tensorboard?"),
    row("train tiny_math --run.out-dir afile", "afile is a file"),
    row("train tiny_math --shadow.stop", "set --shadow.verifier"),
    row("train tiny_math --vllm.url http://localhost:1", "vllm.url is set", "vllm-server"),
    # settings that would change nothing
    row("train tiny_math --algo.dpo-beta 0.3", "algo.dpo_beta 0.3 would have no effect", "--algo.advantage dpo"),
    row("train tiny_math --algo.gamma 0.9", "algo.gamma 0.9 would have no effect", "gae"),
    row("train tiny_math --critic.kind head", "critic.kind head would have no effect"),
    row("train tiny_math --algo.advantage gae --critic.value-coef 0.5", "critic.value_coef 0.5 would have no effect"),
    row("train tiny_math --algo.advantage raft --algo.clip-high 0.3", "algo.clip_high 0.3 would have no effect"),
    row("train tiny_math --algo.kl-in reward", "algo.kl_in reward would have no effect", "--algo.kl-coef"),
    row("train tiny_math --rollout.overlong-buffer 8", "rollout.overlong_buffer 8 would have no effect"),
    row("train tiny_math --optim.schedule constant --optim.decay-steps 9", "optim.decay_steps 9 would have no effect"),
    row("train tiny_math --model.lora-alpha 8", "model.lora_alpha 8.0 would have no effect", "--model.lora-rank"),
    row("train tiny_math --shadow.window 3", "shadow.window 3 would have no effect"),
    row("train tiny_math --sft.steps 0 --sft.lr 1e-3", "sft.lr 0.001 would have no effect"),
    # the other commands' numbers
    row("eval --model tiny --task arithmetic --temperature nan", "--temperature nan"),
    row("eval --model tiny --task arithmetic --samples 0", "--samples 0"),
    row("eval --model tiny --task arithmetic --k 5", "pass@5 from 1 samples"),
    row("eval --model tiny --task arithmetic --max-problems 0", "--max-problems 0"),
    row("eval --model tiny --task arithmetic --timeout inf", "--timeout inf"),
    row("eval --model tiny --task arithmetic --workers 0", "--workers 0"),
    row("eval --model tiny --task arithmetic --top-k -1", "--top-k -1"),
    row("eval --model tiny --task arithmetic --sampler vlm", "--sampler 'vlm'", "did you mean vllm"),
    row("eval --model tiny --task arithmetic --device gpu", "--device 'gpu'"),
    row("eval --model '' --task arithmetic", "--model is empty"),
    row("eval --model tiny --task arithmetic --stop ''", "--stop holds an empty text"),
    row("eval --model tiny --task arithmetic --option a=1", "--option needs --verifier"),
    row("eval --model tiny --task arithmetic --out-dir afile", "afile is a file"),
    row("eval --model tiny --task arithmetic --out-dir evaluated", "evaluated/settings.json", "not JSON"),
    row("eval --model tiny --task arithmetic --out-dir listed", "listed/settings.json", "expected an object"),
    row("eval --model tiny --task arithmetic --out-dir foreign", "foreign holds result.json", "another --out-dir"),
    row("profile arithmetic --model tiny --group-size 1", "--group-size 1"),
    row("profile arithmetic --model tiny --group-size 16", "--group-size 16", "--samples"),
    row("profile arithmetic --model tiny --temperature inf", "--temperature inf"),
    row("audit arithmetic --max-problems -1", "--max-problems -1"),
    row("audit arithmetic --timeout nan", "--timeout nan"),
    row("audit arithmetic --workers 0", "--workers 0"),
    row("grade data/good.jsonl --verifier math --timeout nan", "--timeout nan"),
    row("grade data/good.jsonl --verifier math --timeout -1", "--timeout -1"),
    row("grade data/good.jsonl --verifier math --workers 99999", "--workers 99999"),
    row("doctor --timeout nan", "--timeout nan"),
    row("doctor --timeout -1", "--timeout -1"),
    row("rm rm_pairs --optim.lr nan", "optim.lr nan"),
    row("rm rm_pairs --pairs.held-out 1", "pairs.held_out 1"),
    row("rm rm_pairs --pairs.temperature inf", "pairs.temperature inf"),
    row("rm rm_pairs --pairs.timeout inf", "pairs.timeout inf"),
    row("rm rm_pairs --run.models 0", "run.models 0"),
    row("rm rm_pairs --model.device gpu", "model.device 'gpu'"),
    row("rm rm_pairs --optim.max-grad-norm nan", "optim.max_grad_norm nan"),
]

TRAIN = "train tiny_math --run.task jsonl --run.data data/"
DATA = [
    row("train tiny_math --run.task jsonl", "task 'jsonl' needs data", "--run.data PATH"),
    row("eval --model tiny --task jsonl", "needs data", "--data PATH"),
    row("audit jsonl", "needs data", "--data PATH"),
    row(TRAIN + "nowhere.jsonl", "data/nowhere.jsonl", "no such file"),
    row(TRAIN + "empty.jsonl", "data/empty.jsonl", "no rows"),
    row(TRAIN + "blank.jsonl", "data/blank.jsonl", "no rows"),
    row(TRAIN + "latin.jsonl", "data/latin.jsonl, line 2", "not text in UTF-8", "0xe9"),
    row(TRAIN + "binary.jsonl", "data/binary.jsonl, line 1", "NUL"),
    row(TRAIN + "nul.jsonl", "data/nul.jsonl, line 2", "NUL"),
    row(TRAIN + "utf16.jsonl", "data/utf16.jsonl", "UTF-16", "UTF-8"),
    row(TRAIN + "gzipped.jsonl", "data/gzipped.jsonl", "gunzip"),
    row(TRAIN + "zipped.jsonl", "data/zipped.jsonl", "zip archive"),
    row(TRAIN + "parquet.jsonl", "data/parquet.jsonl", "parquet"),
    row(TRAIN + "folder.jsonl", "data/folder.jsonl", "train.jsonl"),
    row(TRAIN + "pipe.jsonl", "data/pipe.jsonl", "no regular file"),
    row(TRAIN + "words.jsonl", "data/words.jsonl, line 2", "not JSON"),
    row(TRAIN + "cut.jsonl", "data/cut.jsonl, line 2", "not JSON"),
    row(TRAIN + "number.jsonl", "data/number.jsonl, line 2", "a int; expected an object"),
    row(TRAIN + "string.jsonl", "data/string.jsonl, line 1", "a str; expected an object"),
    row(TRAIN + "null.jsonl", "data/null.jsonl, line 1", "expected an object"),
    row(TRAIN + "list.jsonl", "data/list.jsonl, line 1", "no list around them"),
    row(TRAIN + "pretty.jsonl", "data/pretty.jsonl, line 1", "not JSON"),
    row(TRAIN + "deep.jsonl", "data/deep.jsonl, line 2", "nested too deeply"),
    row(TRAIN + "digits.jsonl", "data/digits.jsonl, line 2", "digits"),
    row(TRAIN + "nan.jsonl", "data/nan.jsonl, line 2", "NaN"),
    row(TRAIN + "infinity.jsonl", "data/infinity.jsonl, line 2", "-Infinity"),
    row(TRAIN + "overflow.jsonl", "data/overflow.jsonl, line 2", "1e999"),
    row(TRAIN + "twice.jsonl", "data/twice.jsonl, line 1", "'reference' is there twice"),
    row(TRAIN + "surrogate.jsonl", "data/surrogate.jsonl, line 2", "surrogate"),
    row(TRAIN + "no_prompt.jsonl", "data/no_prompt.jsonl, line 2", "no prompt", "its columns are id, reference"),
    row(TRAIN + "null_prompt.jsonl", "line 1", "no prompt"),
    row(TRAIN + "empty_prompt.jsonl", "line 1", "the prompt is ' '"),
    row(TRAIN + "number_prompt.jsonl", "line 1", "the prompt is 5"),
    row(TRAIN + "no_messages.jsonl", "line 1", "the prompt is []"),
    row(TRAIN + "half_message.jsonl", "line 1", "no role and content"),
    row(TRAIN + "text_message.jsonl", "line 1", "no role and content"),
    row(TRAIN + "parts_message.jsonl", "line 1", "content of a message", "a list; expected text"),
    row(TRAIN + "no_reference.jsonl", "data/no_reference.jsonl, line 2", "no reference"),
    row(TRAIN + "null_reference.jsonl", "line 1", "reference"),
    row(TRAIN + "empty_reference.jsonl", "data/empty_reference.jsonl, line 2", "reference"),
    row(TRAIN + "same_id.jsonl", "data/same_id.jsonl, line 2", "'a' is that of data/same_id.jsonl, line 1"),
    row(TRAIN + "list_id.jsonl", "line 1", "the id is [1]"),
    row(TRAIN + "empty_id.jsonl", "line 1", "the id is ''"),
    row(TRAIN + "null_id.jsonl", "line 1", "the id is None"),
    row(TRAIN + "object.json", "data/object.json", "expected a list of objects"),
    row(TRAIN + "lines.json", "data/lines.json", "not JSON", ".jsonl"),
    row(TRAIN + "mixed.json", "data/mixed.json, row 2", "expected an object"),
    row(TRAIN + "nothing.json", "data/nothing.json", "no rows"),
    row(TRAIN + "table.csv", "data/table.csv", "'.csv'", ".jsonl"),
    row(TRAIN + "broken.parquet", "data/broken.parquet", "no parquet file"),
    row(TRAIN + "train_only", "data/train_only/train.jsonl", "no rows"),
    row(TRAIN + "strangers", "data/strangers", "train.jsonl"),
    row(TRAIN + "both", "both/test.jsonl", "overlap"),
    row(TRAIN + "good.jsonl --run.task-options test_share=nan", "test_share nan"),
    row(TRAIN + "good.jsonl --run.task-options test_share=2", "test_share 2.0"),
    row(TRAIN + "good.jsonl --run.task-options test_share", "'test_share'", "expected key=value"),
    row(TRAIN + "good.jsonl --run.task-options =1", "'=1'", "expected key=value"),
    row(TRAIN + "good.jsonl --run.task-options seed=1 seed=2", "seed is given twice"),
    row(TRAIN + "good.jsonl --run.task-options test_shar=0.5", "did you mean test_share?"),
    row(TRAIN + "good.jsonl --run.task-options prompt_key=text", "no text; its columns are"),
    row(TRAIN + "good.jsonl --run.task-options verifier=maths", "did you mean math?"),
    row(TRAIN + "good.jsonl --run.task-options verifier_options=extract=no", "'no' is not one of strict"),
    row(TRAIN + "good.jsonl --run.verifier maths", "did you mean math?"),
    row(TRAIN + "good.jsonl --run.verifier countdown", "problem 'a'", "numbers"),
    row(TRAIN + "good.jsonl --run.task-options test_share=1", "no problems to train on"),
    row("train tiny_math --run.task arithmetc", "did you mean arithmetic?"),
    row("train tiny_math --run.task-options num_train=-1", "-1 problems asked for"),
    row("train tiny_math --run.task-options num_train=1000000000000", "problems asked for"),
    row("train tiny_math --run.task-options forget=nan", "forget nan"),
    row("train tiny_math --run.data data/good.jsonl", "'arithmetic' has no option 'data'"),
    row("train tiny_math --run.task mine:nothing", "no problems to train on"),
    row("train tiny_math --run.task mine:no_task", "gave a list", "expected a function that returns a Task"),
    row("train tiny_math --run.task mine:wants", "no options", "keyword-only"),
    row("train tiny_math --run.task mine:number", "is a int; expected a function"),
    row("train tiny_math --run.task mine:same_ids", "two problems have the id 'a'"),
    row("train tiny_math --run.task mine:shared", "overlap", "same prompt"),
    row("train tiny_math --run.task mine:sharde", "did you mean shared?"),
    row("train tiny_math --run.task mine.py:shared", "'mine.py' is no module's name", "mine:check"),
    row("train tiny_math --run.task ../mine:shared", "'../mine' is no module's name"),
    row("train tiny_math --run.task nowhere:shared", "no module 'nowhere'"),
    row("train tiny_math --run.verifier mine:one", "(problem, completion)"),
    row("eval --model tiny --task math500 --data data/one_pair.jsonl", "row 1", "no answer"),
    row("eval --model tiny --task gsm8k --data data/gsm", "no answer"),
    row("eval --model tiny --task gsm8k --data data/gsm/test.jsonl", "#### NUMBER"),
    row("eval --model tiny --task gsm8k --data data/gsm/test.jsonl --task-option num_test=-3", "num_test -3"),
    row("eval --model tiny --task math500 --data data/latin.jsonl", "data/latin.jsonl, line 2", "not text in UTF-8"),
    row("eval --model tiny --task mbpp --data data/mbpp.jsonl", "mbpp, row 1", "no test_list"),
    row("audit arithmetik", "did you mean arithmetic?"),
    row("audit jsonl --data data/nan.jsonl", "data/nan.jsonl, line 2"),
    row("profile jsonl --model tiny --data data/cut.jsonl", "data/cut.jsonl, line 2"),
]

GRADE = [
    row("grade --verifier math data/nowhere.jsonl", "data/nowhere.jsonl", "No such file"),
    row("grade --verifier math data/empty.jsonl", "data/empty.jsonl is empty"),
    row("grade --verifier math data/latin.jsonl", "data/latin.jsonl, line 2", "not text in UTF-8"),
    row("grade --verifier math data/nul.jsonl", "line 2", "NUL"),
    row("grade --verifier math data/utf16.jsonl", "UTF-16"),
    row("grade --verifier math data/gzipped.jsonl", "gunzip"),
    row("grade --verifier math data/folder.jsonl", "data/folder.jsonl is a folder"),
    row("grade --verifier math data/pipe.jsonl", "data/pipe.jsonl", "no regular file"),
    row("grade --verifier math /dev/zero", "/dev/zero", "no regular file"),
    row("grade --verifier math data/list.jsonl", "line 1", "no list around them"),
    row("grade --verifier math data/nan.jsonl", "line 2", "NaN"),
    row("grade --verifier math data/twice.jsonl", "line 1", "twice"),
    row("grade --verifier math data/deep.jsonl", "line 2", "nested too deeply"),
    row("grade --verifier math data/no_reference.jsonl", "line 2", "no reference (nor gold, answer)"),
    row("grade --verifier math data/no_completion.jsonl", "line 2", "no completion", "its fields are"),
    row("grade --verifier math data/null_completion.jsonl", "line 1", "completion is a NoneType"),
    row("grade --verifier math data/list_completion.jsonl", "line 1", "completion is a list"),
    row("grade --verifier math data/yes_expected.jsonl", "line 1", "expected is 'yes'"),
    row("grade --verifier math data/number_prompt.jsonl", "line 1", "the prompt is 5"),
    row("grade --verifier math data/list_id.jsonl", "line 1", "id is a list"),
    row("grade --verifier maths data/good.jsonl", "did you mean math?"),
    row("grade --verifier '' data/good.jsonl", "no verifier ''"),
    row("grade --verifier math data/good.jsonl --option extract", "--option 'extract'", "expected key=value"),
    row("grade --verifier math data/good.jsonl --option extrac=a", "did you mean extract?"),
    row("grade --verifier math data/good.jsonl --option extract=foo", "'foo' is not one of strict, marked, lenient"),
    row("grade --verifier math data/good.jsonl --option digits=two", "'two'"),
    row("grade --verifier math data/good.jsonl --option digits=2 digits=3", "digits is given twice"),
    row("grade --verifier regex data/good.jsonl --option 'pattern=('", "pattern"),
    row("grade --verifier mine:number data/good.jsonl", "is a int"),
    row("grade --verifier mine:one data/good.jsonl", "(problem, completion)"),
    row("grade --verifier mine.py:loud data/good.jsonl", "'mine.py' is no module's name"),
    row("grade --verifier mine: data/good.jsonl", "has no ''"),
    row("grade --verifier :loud data/good.jsonl", "'' is no module's name"),
    row("grade --verifier math data/good.jsonl --output data/good.jsonl", "is the input file"),
    row("grade --verifier math data/good.jsonl --output canary", "canary", "Is a directory"),
    row("grade --verifier math data/good.jsonl --output nowhere/out.jsonl", "nowhere/out.jsonl", "No such file"),
    row("list maths", "no verifier, task pack or recipe 'maths'", "did you mean math"),
    row("list tiny_mth", "did you mean tiny_math"),
    row("list nowhere:thing", "no module 'nowhere'"),
    row("report nowhere", "nowhere: no such folder"),
    row("report canary", "canary: neither metrics.jsonl nor eval.jsonl"),
    row("report afile", "afile: no such folder"),
    row("report run_binary", "run_binary/metrics.jsonl, line 1", "not text in UTF-8"),
    row("report run_list", "run_list/metrics.jsonl, line 1", "expected an object"),
    row("report run_words", "run_words/eval.jsonl, line 1", "not JSON"),
    row("report run_alarm", "run_alarm/alarms.jsonl, line 1", "signs is None"),
    row("compare nowhere", "nowhere: no metrics.jsonl"),
    row("compare run=", "expected label=FOLDER,FOLDER"),
    row("compare =run", "expected label=FOLDER,FOLDER"),
    row("compare run x=run x=run", "two conditions are labelled 'x'"),
    row("compare run --out canary", "canary is a folder"),
    row("compare run --out figure.xyz", "'.xyz'", ".png"),
    row("compare run_binary", "run_binary/metrics.jsonl, line 1", "not text in UTF-8"),
    row("compare run_alarm", "run_alarm/alarms.jsonl, line 1"),
    row("compare run --out afile/figure.png", "afile"),
    row("rm rm_pairs --model.name m --pairs.file data/nowhere.jsonl", "data/nowhere.jsonl", "No such file"),
    row("rm rm_pairs --model.name m --pairs.file data/empty.jsonl", "data/empty.jsonl has no pairs"),
    row("rm rm_pairs --model.name m --pairs.file data/latin.jsonl", "data/latin.jsonl"),
    row("rm rm_pairs --model.name m --pairs.file data/gzipped.jsonl", "gunzip"),
    row("rm rm_pairs --model.name m --pairs.file data/pipe.jsonl", "no regular file"),
    row(
        "rm rm_pairs --model.name m --pairs.file data/no_chosen.jsonl",
        "line 2",
        "no chosen",
        "its fields are prompt, rejected",
    ),
    row("rm rm_pairs --model.name m --pairs.file data/same_pair.jsonl", "line 1", "the same text"),
    row("rm rm_pairs --model.name m --pairs.file data/number_chosen.jsonl", "line 1", "chosen is a int"),
    row("rm rm_pairs --model.name m --pairs.file data/margin.jsonl", "line 1", "margin 'big'"),
    row("rm rm_pairs --model.name m --pairs.file data/nan_margin.jsonl", "line 1", "NaN"),
    row("rm rm_pairs --model.name m --pairs.file data/prompt_pair.jsonl", "line 1", "the prompt is"),
    row("rm rm_pairs --model.name m --pairs.file data/surrogate.jsonl", "line 1", "no chosen"),
    row("rm rm_pairs --pairs.task jsonl --pairs.policy tiny", "needs data"),
    row("rm rm_pairs --run.out-dir afile --pairs.policy tiny", "afile is a file"),
]


@pytest.mark.parametrize(("command", "words"), [*COMMAND_LINES, *SETTINGS, *DATA, *GRADE])
def test_one_line_and_nothing_touched(command, words, place, capsys):
    """Exit code 2, one line on stderr that says what was found, nothing on stdout, and every file as it was."""
    before = contents(place)
    assert main(shlex.split(command)) == 2
    printed = capsys.readouterr()
    check_line(printed.err, words)
    assert contents(place) == before


def test_there_are_enough_kinds():
    """The table holds at least 150 kinds, each once."""
    commands = [parameter.values[0] for parameter in (*COMMAND_LINES, *SETTINGS, *DATA, *GRADE)]
    assert len(set(commands)) == len(commands) >= 150


NO_CONFIG = Config(run=RunConfig(out_dir=Path("runs/never")))
NO_REWARD = RewardConfig(pairs=PairsConfig(policy="tiny"))
NO_EVAL = EvalArgs(model="tiny", task="arithmetic")


def changed(config, name: str, value: object):
    """The config with one setting changed."""
    group, _, leaf = name.rpartition(".")
    if not group:
        return dataclasses.replace(config, **{leaf: value})
    return dataclasses.replace(config, **{group: dataclasses.replace(getattr(config, group), **{leaf: value})})


def numeric(kind: type) -> dict[str, object]:
    """The numeric settings of a dataclass, as Python names them, with their types."""
    hints = {name.replace("-", "_"): hint for name, hint in flags_of(kind).items()}
    return {name: hint for name, hint in hints.items() if "int" in str(hint) or "float" in str(hint)}


@pytest.mark.parametrize(
    ("config", "bounds"),
    [(NO_CONFIG, BOUNDS), (NO_REWARD, REWARD_BOUNDS), (NO_EVAL, EVAL_BOUNDS)],
    ids=["train", "rm", "eval"],
)
def test_every_number_has_bounds(config, bounds):
    """NaN, both infinities, what is far too small and what is far too large are refused for each numeric setting."""
    config.check()
    names = {name for name, hint in numeric(type(config)).items() if "Literal" not in str(hint)}
    assert names == set(bounds)
    for name, hint in numeric(type(config)).items():
        for value in (math.nan, math.inf, -math.inf, -(10**30), 10**30) if name in bounds else ():
            whole = "tuple" in str(hint) or "list" in str(hint)
            given = ((value, value) if "tuple[float" in str(hint) else [value]) if whole else value
            with pytest.raises(ValueError, match=name.rpartition(".")[2].replace("_", "[_-]")):
                changed(config, name, given).check()


def test_settings_without_effect_name_settings_that_exist():
    """Each name of the table is a setting."""
    for names, is_read, _ in USES:
        assert isinstance(is_read(NO_CONFIG), bool)
        for name in names:
            setting(NO_CONFIG, name)


def test_settings_that_a_recipe_holds_for_later_are_no_mistake(place, capsys):
    """tiny_math sets the critic's learning rate, which grpo does not read; the next rule is what is told."""
    assert main(["train", "tiny_math", "--run.trackers", "tensorbord"]) == 2
    check_line(capsys.readouterr().err, ("tensorboard",))


LIBRARY = {
    "launch: nothing to sample": (
        lambda: rlvr.launch.launch(changed(NO_CONFIG, "rollout.group_size", 0)),
        "group_size 0",
    ),
    "launch: no such pack": (lambda: rlvr.launch.launch(changed(NO_CONFIG, "run.task", "sums")), "no task 'sums'"),
    "launch: a pack of its own without problems": (
        lambda: rlvr.launch.launch(NO_CONFIG, task=Task("mine", [], [], lambda problem, completion: True)),
        "no problems",
    ),
    "launch: one id twice": (
        lambda: rlvr.launch.launch(
            NO_CONFIG, task=Task("mine", [Problem("a", "x"), Problem("a", "y")], [], lambda problem, completion: True)
        ),
        "the id 'a'",
    ),
    "rm: no pairs": (lambda: RewardConfig().check(), "no pairs"),
    "read_pairs: no file": (lambda: read_pairs(Path("data/nowhere.jsonl")), "nowhere.jsonl"),
    "read_pairs: no text": (lambda: read_pairs(Path("data/latin.jsonl")), "latin.jsonl, line"),
    "read_file: a pipe": (lambda: read_file(Path("data/pipe.jsonl")), "no regular file"),
    "read_file: another format": (lambda: read_file(Path("data/table.csv")), "unknown format '.csv'"),
    "read_rows: not JSON": (lambda: read_rows(Path("data/words.jsonl")), "words.jsonl, line 2: not JSON"),
    "read_conditions: no run": (lambda: read_conditions(["canary"]), "canary: no metrics.jsonl"),
    "make_task: no data": (lambda: make_task("jsonl"), "needs data"),
    "make_task: no such option": (lambda: make_task("arithmetic", sede=3), "did you mean seed"),
    "make_task: not a number": (lambda: make_task("arithmetic", seed="one"), "seed: 'one'"),
    "make_verifier: no such name": (lambda: make_verifier("maths"), "did you mean math"),
    "make_verifier: no such choice": (lambda: make_verifier("math", extract="loose"), "loose"),
    "make_verifier: no module": (lambda: make_verifier("a b:c"), "'a b' is no module's name"),
    "build_task: no problems": (lambda: build_task("mine", train=[], test=[]), "the data set is empty"),
    "build_task: a reference that cannot be read": (
        lambda: build_task("mine", train=[Problem("a", "x", "")], test=[]),
        "problem 'a'",
    ),
    "Generated: fewer than none": (lambda: Generated(-1, str), "-1 problems"),
    "first: from the end": (lambda: first([{}, {}], -1, "num_test"), "num_test -1"),
    "key_values: no value": (lambda: key_values(["a"], "--option"), "expected key=value"),
    "key_values: twice": (lambda: key_values(["a=1", "a=2"], "--option"), "a is given twice"),
}


@pytest.mark.parametrize("kind", LIBRARY)
def test_library_entry_points(kind, place):
    """The same mistakes in Python raise ValueError, LookupError or OSError with one line, and write nothing."""
    call, words = LIBRARY[kind]
    before = contents(place)
    with pytest.raises((ValueError, LookupError, OSError)) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert contents(place) == before


def test_a_line_without_end_is_not_read_into_memory(place, capsys, monkeypatch):
    """A line beyond the limit is refused at the limit."""
    monkeypatch.setattr(json_lines, "LONGEST", 2**20)
    (place / "long.jsonl").write_bytes(GOOD + b'{"prompt": "' + b"x" * 2**21 + b'"}\n')
    assert main(["grade", "--verifier", "math", "long.jsonl"]) == 2
    check_line(capsys.readouterr().err, ("long.jsonl, line 2: longer than 1 MiB",))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("command", ["grade --verifier math {}", TRAIN.removesuffix("data/") + "{}", "report {}"])
def test_missing_permission(command, place, capsys):
    """The file is named."""
    for name, path in (("data/good.jsonl", place / "data" / "good.jsonl"), ("run", place / "run" / "metrics.jsonl")):
        if command.startswith("report") == (name == "run"):
            path.chmod(0)
            assert main(shlex.split(command.format(name))) == 2
            check_line(capsys.readouterr().err, ("Permission denied", str(Path(name).name)))


def run_rlvr(folder: Path, *command: str, **more) -> subprocess.CompletedProcess[str]:
    """`rlvr` in a process of its own, in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "rlvr", *command], capture_output=True, text=True, cwd=folder, env=environment, **more
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        row("trian tiny_math", "did you mean train?"),
        row("grade --verifier math data/latin.jsonl", "data/latin.jsonl, line 2", "not text in UTF-8"),
        row("grade --verifier math data/pipe.jsonl", "no regular file"),
        row("list maths", "did you mean math"),
        row("report run_binary", "run_binary/metrics.jsonl, line 1"),
        row("audit jsonl", "needs data"),
        row("eval --model tiny --task jsonl --data data/nan.jsonl", "data/nan.jsonl, line 2", "NaN"),
        row("train tiny_math --lr 1", "did you mean --optim.lr?"),
        row("train tiny_math --run.task jsonl", "needs data"),
        row("train tiny_math --run.task jsonl --run.data data/gzipped.jsonl", "gunzip"),
    ],
)
def test_in_a_process_of_its_own(command, words, place):
    """As a shell sees it: the exit code, one line on stderr, nothing on stdout, the files as they were."""
    before = contents(place)
    done = run_rlvr(place, *shlex.split(command), timeout=240)
    assert done.returncode == 2
    assert done.stdout == ""
    check_line(done.stderr, words)
    assert contents(place) == before


def test_a_folder_that_is_gone(place):
    """The current folder was deleted under the shell."""
    gone = place / "gone"
    gone.mkdir()
    script = (
        f"import os, sys; sys.path[:] = [p for p in sys.path if p]; os.rmdir({str(gone)!r}); import rlvr.cli as c; "
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script + "sys.exit(c.main(['grade', '--verifier', 'math', 'x.jsonl']))"],
        capture_output=True,
        text=True,
        cwd=gone,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2
    check_line(done.stderr, ("No such file",))


def test_text_that_is_fine_is_read(place, capsys):
    """A byte order mark, Windows line ends, blank lines, a number as id, an id used by several completions."""
    content = b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n") + b"\r\n" + line(id=7) + GOOD.strip()
    (place / "windows.jsonl").write_bytes(content)
    assert main(["grade", "--verifier", "math", "windows.jsonl"]) == 0
    assert [json.loads(text)["id"] for text in capsys.readouterr().out.splitlines()] == ["a", 7, "a"]
    assert len(read_file(place / "windows.jsonl")) == 3
    (place / "bom.json").write_bytes(b"\xef\xbb\xbf[" + GOOD.strip() + b"]")
    assert len(read_file(place / "bom.json")) == 1
    (place / "plain.jsonl").write_bytes(line(reference=..., completion="HELLO"))
    assert main(["grade", "--verifier", "mine:loud", "plain.jsonl"]) == 0
    assert main(["audit", "jsonl", "--data", "data/good.jsonl"]) == 0


def test_a_stream_that_is_open_is_read(place):
    """/dev/stdin is no regular file, and is not refused."""
    done = run_rlvr(place, "grade", "--verifier", "math", "/dev/stdin", input=GOOD.decode())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "correct"


@pytest.mark.parametrize("verifier", ["mine:fails", "mine:talks"])
def test_a_verifier_that_scores_nothing_ends_with_an_error(verifier, place, capsys):
    """The verdicts are written, and exit code and message say that none of them is a score."""
    assert main(["grade", "--verifier", verifier, "data/good.jsonl", "--output", "out.jsonl"]) == 2
    errors = [text for text in capsys.readouterr().err.splitlines() if text.startswith("error: ")]
    assert len(errors) == 1
    assert "no line could be scored" in errors[0]
    assert "\x1b" not in errors[0]
    assert len((place / "out.jsonl").read_text().splitlines()) == 2


def test_no_control_character_reaches_the_terminal(place, capsys):
    """Escape sequences of a completion, a prompt, an id or a file name are shown as text."""
    assert printable("a\x1b[2Jb\r\x07\x9b\u202e\ud800\n\té漢") == r"a\x1b[2Jb\r\x07\x9b\u202e\ud800" + "\n\té漢"
    assert in_one_line(" a\n\tb\x00 ") == r"a b\x00"
    evil = "\x1b]0;title\x07\x1b[2J[bold]x"
    record = {"step": 1, "problem": evil, "sample": 0, "prompt": evil, "completion": evil}
    display = Display()
    display.sample(record | {"status": "correct", "reason": evil, "advantage": 0.5})
    display.sample(
        record | {"prompt": [{"role": "user", "content": evil}], "status": "a", "reason": "", "advantage": 0}
    )
    display.say(evil)
    display.start(evil, 1)
    display.step(1, evil)
    main(["audit", "jsonl", "--data", "data/escape.jsonl", "--option", "verifier=exact"])
    main(["grade", "--verifier", "exact", "data/escape.jsonl", "--output", "out.jsonl"])
    main(["report", "run\x1b[2J"])
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not [c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"], ascii(text)
    assert "[bold]x" in printed.out
    assert r"\x1b[2J" in printed.err


def test_a_report_of_odd_rollouts(place, capsys):
    """Half of a surrogate pair, control characters, prompts and ids of other types; the file is UTF-8 and escaped."""
    rows = [
        {
            "step": 1,
            "problem": [1],
            "sample": 0,
            "prompt": None,
            "completion": "\x1b<b>\ud800\x00",
            "status": "correct",
        },
        {"step": 1, "problem": {"a": 1}, "prompt": [5], "completion": 7},
        {},
    ]
    (place / "run" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (place / "run" / "eval.jsonl").write_text('{"step": 0, "pass@1": 0.5, "pass@1_ci": "wide", "num_problems": 2}\n')
    (place / "run" / "config.json").write_bytes(b"\xff\x00")
    assert main(["report", "run"]) == 0
    page = (place / "run" / "report.html").read_text("utf-8")
    assert r"\x1b&lt;b&gt;\ud800\x00" in page
    assert not [c for c in page if unicodedata.category(c) == "Cc" and c not in "\n\t"]


def test_a_damaged_part_of_the_rollouts(place, capsys):
    """A compressed part that was cut off is named; the run's own files stay."""
    before = contents(place)
    assert main(["report", "run_gz"]) == 2
    check_line(capsys.readouterr().err, ("rollouts-0000.jsonl.gz is damaged",))
    after = contents(place)
    after.pop("run_gz/curves.png", None)
    assert after == before


def test_labels_of_a_comparison_are_no_markup(place, capsys):
    """Brackets and dollar signs of a label are shown as they are."""
    assert main(["compare", "[/red]$a_$=run", "--out", "figure.png"]) == 0
    assert "[/red]$a_$" in capsys.readouterr().out


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_setup_checks_the_version_of_python_first(tmp_path):
    """Python 3.10 is refused in one line, before an environment is made; so is one that is not there."""
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    code = 'import sys; sys.version_info = (3, 10, 4, "final", 0); exec(sys.argv[1])'
    fake.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c \'{code}\' "$2"\necho made an environment\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    for more, found in (((), "python3 is Python 3.10;"), (("PYTHON=python3.99",), "no python3.99 found;")):
        command = ["make", "--no-print-directory", "setup", f"VENV={tmp_path / 'venv'}", *more]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)
        assert done.returncode != 0
        errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
        assert len(errors) == 1
        for words in (found, "rlvr needs", "3.11 or newer", "make setup PYTHON=python3.12"):
            assert words in errors[0]
        assert "made an environment" not in done.stdout
    assert not (tmp_path / "venv").exists()
