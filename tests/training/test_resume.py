"""A run that was interrupted ends as one that was not, byte for byte; and run.start_from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlvr.commands.cli import main as rlvr
from rlvr.commands.console import Display
from rlvr.commands.verify_resume import without_measured
from rlvr.config import Config, MonitorConfig, to_json
from rlvr.core.types import Problem, RunError
from rlvr.launch import launch
from rlvr.recipes.tiny_math import CONFIG
from rlvr.runs.folder import hold_lock
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.checkpoint.folders import checkpoint_folder, count_since_best
from rlvr.training.checkpoint.resume import find_checkpoint, find_difference, resolve_start_from
from tests.helpers import warm
from tests.helpers.files import lines
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import tiny, with_settings
from tests.helpers.sharded import are_equal
from tests.helpers.verifiers import sums

SMALL = (
    "--sft.steps 6 --rollout.problems-per-step 4 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--optim.lr 1e-3 --optim.warmup-steps 0 --run.task-option num_train=64 num_test=16 num_demonstrations=256 "
    "--run.verifier regex --run.verifier-option pattern=7.*7 match=search"
).split()


def check_learned(out_dir: Path) -> None:
    """The comparison would say nothing of weights that did not move."""
    metrics = lines(out_dir / "metrics.jsonl")
    assert sum(record["grad_norm"] > 0 for record in metrics) >= len(metrics) / 2


FOLLOWING = {"kl_target": 1e-4, "kl_horizon": 200, "entropy_target": 50.0, "entropy_coef_delta": 0.01}
PACKS = [f"{name}.num_{kind}={n}" for name in ("arithmetic", "hops") for kind, n in (("train", 12), ("test", 2))]
RESUMED: dict[str, dict[str, dict]] = {
    "one update a step": {},
    "four minibatches": {"algo": {"minibatches": 4}},
    "ppo, a head": {"algo": {"name": "ppo"}, "critic": {"kind": "head", "lr": 1e-3, "warmup": 1}},
    "ppo, a critic": {
        "algo": {"name": "ppo", "minibatches": 2},
        "critic": {"kind": "separate", "lr": 1e-3, "warmup": 1},
    },
    "kto": {"algo": {"name": "kto"}},
    "reinforce++": {"algo": {"name": "reinforce_plus_plus", "kl_coef": 0.05}},
    "pretraining mix": {"algo": {"minibatches": 2, "ptx_coef": 0.5, "ptx_batch_size": 8}},
    "self-distillation": {"algo": {"name": "sdpo", "minibatches": 2}, "teacher": {"rate": 0.5}},
    "a teacher and demonstrations": {
        "algo": {"name": "opd"},
        "teacher": {"kind": "start", "loss": "js", "beta": 0.5, "weight": 0.5, "off_policy": 0.3},
    },
    "adaptive": {"algo": {**FOLLOWING, "kl_coef": 0.1, "reference_every": 2, "reference_mix": 0.75}},
    "by signal": {"curriculum": {"draw": "signal", "half_life": 2}},
    "dynamic sampling": {"curriculum": {"draw": "signal", "half_life": 2}, "rollout": {"resample_rounds": 2}},
    "short weights": {"model": {"weights": "bfloat16"}},
    "short weights, ppo": {"model": {"weights": "bfloat16"}, "algo": {"name": "ppo"}},
    "short weights, 8-bit": {"model": {"weights": "bfloat16"}, "optim": {"name": "adamw8bit"}},
    "turns whose replies come at other times": {
        "run": {"environment": "tests.helpers.turns:slow_digits"},
        "rollout": {"max_turns": 3, "turn_tokens": 12, "mask_void": True},
    },
    "slices": {"sampler": {"slice_tokens": 10, "max_staleness": 2}},
    "turns in slices, whose replies come at other times": {
        "run": {"environment": "tests.helpers.turns:slow_digits"},
        "rollout": {"max_turns": 3, "turn_tokens": 12},
        "sampler": {"slice_tokens": 5, "max_staleness": 3, "max_versions": 4},
    },
    "a mixture, one of its packs with turns": {
        "run": {"task": "mixture", "task_option": ("packs=arithmetic:2,hops", f"options={','.join(PACKS)}")},
        "curriculum": {"draw": "signal", "half_life": 2},
    },
}


@pytest.mark.parametrize("name", RESUMED)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, name):
    """Five steps, against three, a resume, and two more: every file of the checkpoint, rollouts and metrics. Short
    weights are the roundings of the optimizer's copies."""
    if "8-bit" in name:
        pytest.importorskip("bitsandbytes", reason="the extra bitsandbytes is not installed")

    def config(folder, steps):
        return with_settings(small(tmp_path / folder, steps=steps, save_every=1), **RESUMED[name])

    for folder, steps in (("whole", 5), ("parts", 3), ("parts", 5)):
        launch(config(folder, steps))
    whole, parts = (checkpoint_folder(tmp_path / folder, 5) for folder in ("whole", "parts"))
    files = sorted(path.name for path in whole.iterdir() if path.name != "state.json")
    assert files == sorted(path.name for path in parts.iterdir() if path.name != "state.json")
    assert [file for file in files if (whole / file).read_bytes() != (parts / file).read_bytes()] == []
    assert (tmp_path / "whole" / "rollouts.jsonl").read_bytes() == (tmp_path / "parts" / "rollouts.jsonl").read_bytes()
    one, other = (
        [without_measured(row) for row in lines(tmp_path / folder / "metrics.jsonl")] for folder in ("whole", "parts")
    )
    assert one == other
    assert [row["step"] for row in one] == [1, 2, 3, 4, 5]
    check_learned(tmp_path / "whole")
    if "short weights" in name:
        weights, state = (load_file(parts / f"{file}.safetensors") for file in ("model", "optimizer"))
        copies = [tensor for key, tensor in state.items() if key.endswith(".master")]
        assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
        assert {tensor.dtype for tensor in copies} == {torch.float32}
        assert sum(copy.numel() for copy in copies) == sum(weight.numel() for weight in weights.values())
        rounded = sum(float(copy.bfloat16().double().sum()) for copy in copies)
        assert rounded == pytest.approx(sum(float(weight.double().sum()) for weight in weights.values()))


def test_an_evaluation_that_a_stop_came_before_is_made_up_for(tmp_path, monkeypatch):
    """A run that is stopped in a step after which held-out problems are due has the same evaluations in the end."""
    whole, parts = (
        dataclasses.replace(
            small(tmp_path / name, steps=3), eval=dataclasses.replace(CONFIG.eval, every=1, num_problems=4, samples=8)
        )
        for name in ("whole", "parts")
    )
    launch(whole)
    with pytest.raises(KeyboardInterrupt, match=r"run the same command without --run\.overwrite to resume"):
        launch(with_settings(parts, run={"overwrite": True}), callbacks=[InterruptAfter(2)])
    launch(parts)
    assert (tmp_path / "whole" / "eval.jsonl").read_bytes() == (tmp_path / "parts" / "eval.jsonl").read_bytes()


class InterruptAfter(TrainerCallback):
    """Sends SIGINT after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, step, metrics, rollouts) -> None:
        if step == self.step:
            signal.raise_signal(signal.SIGINT)


def arguments(out_dir: Path, *flags: str) -> list[str]:
    return ["train", "tiny_math", *SMALL, "--run.out-dir", str(out_dir), "--algo", "reinforce", *flags]


def interpreter(out_dir: Path, *flags: str) -> subprocess.Popen[str]:
    """A run in an interpreter of its own, which hashes with a seed of its own."""
    command = [sys.executable, "-m", "rlvr", *arguments(out_dir, *flags)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def run_forked(out_dir: Path, *flags: str) -> warm.Started:
    return warm.start(arguments(out_dir, *flags))


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str] | warm.Started) -> None:
    """Until a log has so many lines; fails where the process ends before."""
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


# Replies that come at other times in each run.
WITH_TURNS = ("--run.environment", "tests.helpers.turns:slow_digits", "--rollout.max-turns", "3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "minibatches", "more"), [(run_forked, "1", ()), (interpreter, "4", ()), (run_forked, "1", WITH_TURNS)]
)
def test_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, start, minibatches, more):
    """SIGKILL in the middle of a step after the last save: the steps since are repeated exactly."""
    flags = (
        "--run.steps",
        "8",
        "--run.save-every",
        "3",
        "--algo.minibatches",
        minibatches,
        "--optim.lr",
        "1e-4",
        *more,
    )
    whole = start(tmp_path / "whole", *flags)
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    process = start(tmp_path / "killed", *flags)
    wait_for_lines(tmp_path / "killed" / "metrics.jsonl", 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = start(tmp_path / "killed", *flags)
    printed, errors = again.communicate()
    assert again.returncode == 0, errors
    assert "resuming from step" in printed
    check_same(results(tmp_path / "whole", 8), results(tmp_path / "killed", 8))
    check_learned(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.timeout(900)  # twelve starts
@pytest.mark.parametrize("more", [(), WITH_TURNS], ids=["plain", "turns"])
def test_a_run_in_slices_is_killed_at_ten_moments(tmp_path, more):
    """SIGKILL while rows are cut, while they are sampled, while a checkpoint is written: nothing differs in the end."""
    flags = ("--run.steps", "10", "--run.save-every", "1", "--sampler.slice-tokens", "8", *more)
    flags += ("--sampler.max-staleness", "3", "--optim.lr", "1e-4")
    whole = run_forked(tmp_path / "whole", *flags)
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    moments, metrics = Random(7), tmp_path / "killed" / "metrics.jsonl"
    for kill in range(10):
        process = run_forked(tmp_path / "killed", *flags)
        wait_for_lines(metrics, min(kill, 9), process)
        time.sleep(moments.uniform(0.0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    again = run_forked(tmp_path / "killed", *flags)
    _, errors = again.communicate()
    assert again.returncode == 0, errors
    check_same(results(tmp_path / "whole", 10), results(tmp_path / "killed", 10))
    pending = [checkpoint_folder(tmp_path / name, 10) / "ahead.jsonl" for name in ("whole", "killed")]
    assert pending[0].read_bytes() == pending[1].read_bytes()
    assert b'"finish_reason": "cut"' in pending[0].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_step_saves_and_says_how_to_go_on(tmp_path, number):
    """Ctrl-C loses nothing, and the same command resumes from the very step."""
    process = run_forked(tmp_path, "--run.steps", "1000")
    wait_for_lines(tmp_path / "metrics.jsonl", 2, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert number.name in errors
    assert "run the same command to resume" in errors
    done = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (tmp_path / "checkpoints" / f"step-{done:06d}" / "state.json").exists()


def test_folder_of_another_run_is_refused(tmp_path):
    """Other settings in the same folder: one line that names the first difference; nothing is touched."""
    launch(small(tmp_path, steps=1))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"algo\.minibatches is 1 there and 2 here"):
        launch(small(tmp_path, steps=1, minibatches=2))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    launch(small(tmp_path, steps=1, minibatches=2, overwrite=True))


def test_only_the_last_checkpoints_are_kept_and_transformers_loads_them(tmp_path):
    """Saved every step, two kept, and the last one is a model folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    launch(small(tmp_path, steps=4, save_every=1))
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-000003", "step-000004"]
    folder = tmp_path / "checkpoints" / "step-000004"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size >= len(tokenizer.get_vocab()) > 10


# What rescues a run that ran out of memory, or that a limit ended.
RESCUE = {
    "model": {"gradient_checkpointing": True},
    "optim": {"tokens_per_microbatch": 200},
    "rollout": {"timeout": 20.0, "error_budget": 0.5, "workers": 1},
    "sampler": {"batch_size": 7, "cache_gib": 0.001},
    "run": {"save_every": 1, "keep_checkpoints": 3, "keep_best": False},
}


def test_a_run_is_resumed_with_what_rescues_it_and_keeps_the_history(tmp_path, capsys):
    """Memory, limits and evaluation may change; evaluations stay, and config.json says what changed at which step."""
    config = with_settings(small(tmp_path, steps=1), eval={"every": 0, "num_problems": 4, "samples": 8})
    launch(config)
    first = (tmp_path / "eval.jsonl").read_bytes()
    rescued = with_settings(config, **{**RESCUE, "eval": {"num_problems": 2, "samples": 4, "k": (1,)}})
    launch(with_settings(rescued, run={**RESCUE["run"], "steps": 2}))
    said = " ".join(capsys.readouterr().out.split())
    assert "resuming from step 1" in said
    assert "2 to 4 held-out problems" in said
    assert "at step 2, on 2 problems." in said  # what was measured otherwise is not compared
    assert (tmp_path / "eval.jsonl").read_bytes().startswith(first)
    record = json.loads((tmp_path / "config.json").read_text())
    assert record["optim"]["tokens_per_microbatch"] == 200
    (entry,) = record["history"]
    assert entry["step"] == 1
    assert entry["changed"]["optim.tokens_per_microbatch"] == [CONFIG.optim.tokens_per_microbatch, 200]
    assert entry["changed"]["eval.k"] == [[1, 8], [1]]
    assert entry["changed"]["run.steps"] == [1, 2]
    assert not any(name.startswith("algo.") for name in entry["changed"])
    launch(with_settings(rescued, run={**RESCUE["run"], "steps": 2}))
    assert json.loads((tmp_path / "config.json").read_text())["history"] == [entry]


def test_a_run_says_that_its_verifier_was_edited(tmp_path, capsys, monkeypatch):
    """The file of a verifier may change between two commands; not a word is said of one that did not."""
    monkeypatch.syspath_prepend(tmp_path)
    verifier = tmp_path / "own_verifier.py"

    def go_on(steps: int) -> str:
        sys.modules.pop("own_verifier", None)
        launch(small(tmp_path / "run", steps=steps), verifier="own_verifier:judge")
        return " ".join(capsys.readouterr().out.split())

    verifier.write_text("def judge(problem, completion):\n    return True\n")
    assert "own_verifier.py" not in go_on(1)
    assert "own_verifier.py" not in go_on(2)
    verifier.write_text("def judge(problem, completion):\n    return False\n")
    os.utime(verifier, (0, 0))  # so that Python does not take what it has compiled
    digest = hashlib.sha256(verifier.read_bytes()).hexdigest()[:16]
    assert f"-> {digest}" in go_on(3)
    assert digest in (tmp_path / "run" / "events.jsonl").read_text()


def test_microbatches_and_recomputation_change_rounding_alone(tmp_path):
    """What marks them as RESUMABLE, measured: the weights of two steps agree to 1e-5."""
    launch(small(tmp_path / "one", steps=2))
    launch(with_settings(small(tmp_path / "other", steps=1)))
    rescue = {name: RESCUE[name] for name in ("model", "optim", "rollout", "sampler")}
    launch(with_settings(small(tmp_path / "other", steps=2), **rescue))
    one, other = (load_file(checkpoint_folder(tmp_path / n, 2) / "model.safetensors") for n in ("one", "other"))
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5


def record_of(config: Config, **more) -> dict:
    return {**json.loads(to_json(config)), "fingerprint": "f", "versions": {}, **more}


def test_a_run_of_an_earlier_version_is_resumed():
    """Settings that it did not have count as their default, those that are gone are not asked for."""
    now = record_of(CONFIG)
    then = json.loads(json.dumps(now))
    del then["run"]["keep_best"], then["optim"]["betas"], then["critic"], then["sampler"]
    then["algo"]["gone"] = 3
    assert find_difference(then, now) is None


def test_settings_are_compared_by_what_they_do():
    """auto and what it stands for are the same; a setting of something that is off does not matter."""
    base = record_of(CONFIG)

    def run_against(**groups) -> str | None:
        return find_difference(base, record_of(with_settings(CONFIG, **groups)))

    assert run_against(algo={"loss": "clip", "advantage_scale": "none"}) is None
    assert run_against(algo={"kl_estimator": "k1", "kl_in": "reward"}) is None
    assert run_against(model={"lora_alpha": 1.0}, rollout={"overlong_buffer": 3}) is None
    assert run_against(algo={"loss": "cispo"}) == "algo.loss is 'auto' there and 'cispo' here"
    assert run_against(algo={"kl_coef": 0.1}) == "algo.kl_coef is 0.0 there and 0.1 here"
    assert run_against(sft={"lr": 1.0}) == f"sft.lr is {CONFIG.sft.lr} there and 1.0 here"
    assert run_against(sft={"steps": 0}) == f"sft.steps is {CONFIG.sft.steps} there and 0 here"
    assert (
        find_difference(base, record_of(dataclasses.replace(CONFIG, monitor=MonitorConfig("math"))))
        == "monitor.verifier is None there and 'math' here"
    )
    assert "fingerprint f there and g here" in (find_difference(base, {**base, "fingerprint": "g"}) or "")


def test_resume_falls_back_to_the_older_whole_checkpoint(tmp_path, capsys):
    """The newest has lost half of a file: a line says so, and the run ends as the one that was never interrupted."""
    launch(small(tmp_path / "whole", steps=4, save_every=1))
    launch(small(tmp_path / "parts", steps=3, save_every=1))
    newest = checkpoint_folder(tmp_path / "parts", 3) / "optimizer.safetensors"
    os.truncate(newest, newest.stat().st_size // 2)
    capsys.readouterr()
    launch(small(tmp_path / "parts", steps=4, save_every=1))
    said = capsys.readouterr().out
    assert "step-000003 is damaged (optimizer.safetensors has" in said
    assert "resuming from step 2" in said
    check_same(results(tmp_path / "whole", 4), results(tmp_path / "parts", 4))


def test_a_run_that_failed_before_its_first_checkpoint_leaves_the_folder_free(tmp_path, capsys):
    """Other settings begin anew there, a line says so, and the fine-tuned model is used again where it is the same."""
    with full_disk(tmp_path), pytest.raises(RunError, match=r"metrics\.jsonl: No space left on device"):
        launch(small(tmp_path, steps=2))
    tuned = (tmp_path / "start" / "model.safetensors").stat().st_mtime_ns
    (tmp_path / "notes.md").write_text("mine")
    capsys.readouterr()
    launch(small(tmp_path, steps=1, minibatches=2))
    assert f"{tmp_path} held a run without a checkpoint, which is replaced" in capsys.readouterr().out
    assert (tmp_path / "start" / "model.safetensors").stat().st_mtime_ns == tuned
    assert (tmp_path / "notes.md").read_text() == "mine"
    assert json.loads((tmp_path / "config.json").read_text())["history"] == []
    (tmp_path / "checkpoints" / "step-000001").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"sft\.steps is 6 there and 7 here"):
        launch(with_settings(small(tmp_path, steps=1, minibatches=2), sft={"steps": 7}))


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """From the end of the fine-tuning on metrics.jsonl is a device that is always full."""
    folder.mkdir(exist_ok=True)
    link = folder / "metrics.jsonl"

    def wait_and_link() -> None:
        deadline = time.monotonic() + 120
        while not (folder / "start" / "state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        link.symlink_to("/dev/full")

    thread = threading.Thread(target=wait_and_link)
    thread.start()
    yield
    thread.join()
    link.unlink()


def test_fewer_steps_than_were_done_are_refused(tmp_path):
    """The weights of step 2 would be measured as those of step 1."""
    config = with_settings(small(tmp_path, steps=2), eval={"every": 0, "num_problems": 4, "samples": 8})
    launch(config)
    before = [(tmp_path / name).read_bytes() for name in ("eval.jsonl", "config.json")]
    with pytest.raises(ValueError, match=r"holds a run that has done 2 steps, and run\.steps is 1"):
        launch(with_settings(config, run={"steps": 1}))
    assert [(tmp_path / name).read_bytes() for name in ("eval.jsonl", "config.json")] == before


def test_a_folder_in_which_another_run_writes_is_refused(tmp_path):
    """Before any model is loaded; nothing is touched."""
    launch(small(tmp_path, steps=1))
    with hold_lock(tmp_path):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        for overwrite in (False, True):
            with pytest.raises(ValueError, match=f"another run is writing in {tmp_path} .process {os.getpid()} on "):
                launch(small(tmp_path, steps=2, overwrite=overwrite))
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


SCORES = {0: 0.1, 1: 0.5, 2: 0.9, 3: 0.4, 4: 0.3, 5: 0.2, 6: 0.95, 7: 0.1}


def test_the_best_checkpoint_is_kept_and_named(tmp_path, monkeypatch, capsys):
    """An evaluation that is the best so far is saved at once and kept, through a resume too, until one is better."""
    step_of_evaluation = []
    begin = Display.start

    def measure(*_, progress, **__):
        return {"pass@1": SCORES[step_of_evaluation[-1]], "pass@1_ci": [0.0, 1.0], "num_problems": 4, "truncated": 0.0}

    def start(display, name: str, total: int, completed: int = 0) -> None:
        if name.startswith("evaluating step "):
            step_of_evaluation.append(int(name.rsplit(" ", 1)[1]))
        begin(display, name, total, completed)

    monkeypatch.setattr("rlvr.training.run.evaluate", measure)
    monkeypatch.setattr("rlvr.launch.execute.Display.start", start)
    config = with_settings(
        small(tmp_path, steps=4, keep_checkpoints=1), eval={"every": 1, "num_problems": 4, "samples": 8, "k": (1,)}
    )
    with pytest.raises(KeyboardInterrupt):
        launch(config, callbacks=[InterruptAfter(3)])
    assert checkpoints_kept(tmp_path) == [2, 3]
    launch(config)
    assert checkpoints_kept(tmp_path) == [2, 4]
    said = capsys.readouterr().out
    assert f"last checkpoint: {tmp_path}/checkpoints/step-000004, held-out pass@1 0.300" in said
    assert f"best checkpoint: {tmp_path}/checkpoints/step-000002, held-out pass@1 0.900" in said
    launch(with_settings(config, run={"steps": 7}))
    assert checkpoints_kept(tmp_path) == [6, 7]
    assert "best checkpoint" in capsys.readouterr().out


def checkpoints_kept(out_dir: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (out_dir / "checkpoints").iterdir())


def test_steps_without_a_checkpoint_are_repeated_and_it_is_said(tmp_path, capsys):
    """The same settings in a folder whose checkpoints are gone: the same logs again, each line once."""
    launch(small(tmp_path, steps=1))
    before = (tmp_path / "rollouts.jsonl").read_bytes()
    shutil.rmtree(tmp_path / "checkpoints")
    capsys.readouterr()
    launch(small(tmp_path, steps=1))
    assert "has no checkpoint yet: its steps are repeated, and its logs replaced" in capsys.readouterr().out
    assert (tmp_path / "rollouts.jsonl").read_bytes() == before


def never(problem: Problem, completion: str) -> bool:
    """Accept nothing."""
    return False


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    """Not with those that its own seed makes, nor with the other's optimizer; it is not fine-tuned; it resumes."""

    def weights(run: str, step: int) -> dict:
        return load_file(checkpoint_folder(tmp_path / run, step) / "model.safetensors")

    launch(tiny(tmp_path / "a", run={"steps": 2, "seed": 3}), task=sums())
    still = {"run": {"steps": 1, "start_from": tmp_path / "a"}, "optim": {"lr": 0.0}, "sft": {"steps": 5}}
    launch(tiny(tmp_path / "b", **still), task=sums())
    assert are_equal(weights("b", 1), weights("a", 2))
    assert not (tmp_path / "b" / "start").exists()
    launch(tiny(tmp_path / "c", run={"steps": 1}, optim={"lr": 0.0}), task=sums())
    assert not are_equal(weights("c", 1), weights("a", 2))
    launch(tiny(tmp_path / "b", **still | {"run": still["run"] | {"steps": 2}}), task=sums())
    assert [row["step"] for row in lines(tmp_path / "b" / "metrics.jsonl")] == [1, 2]
    state = load_file(tmp_path / "b" / "checkpoints" / "step-000001" / "optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("step")} <= {1.0}


def test_which_checkpoint_it_is(tmp_path: Path) -> None:
    """A checkpoint that is named; of a run the last whole one, else the fine-tuned model."""
    run = tmp_path / "a"
    launch(tiny(run, run={"steps": 2, "save_every": 1}), task=sums())
    first, last = (run / "checkpoints" / f"step-00000{step}" for step in (1, 2))
    assert find_checkpoint(first) == first
    assert find_checkpoint(run) == last
    config = resolve_start_from(tiny(tmp_path / "b", run={"start_from": run}))
    assert (config.run.start_from, config.model.name, config.sft.steps) == (last, str(last), 0)
    (last / "model.safetensors").write_bytes(b"damaged")
    assert find_checkpoint(run) == first
    with pytest.raises(ValueError, match="is damaged"):
        find_checkpoint(last)


def make_checkpoint(folder: Path, step: int) -> Path:
    """A folder that counts as a whole checkpoint of a step, or as the model before the first (0)."""
    place = folder / ("start" if step == 0 else f"checkpoints/step-{step:06d}")
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"step": step, "files": {}}))
    save_file({"w": torch.zeros(1)}, place / "model.safetensors")
    return place


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("asked", ["run", "checkpoint", "link"])
def test_a_resumed_run_keeps_what_it_began_with(tmp_path: Path, step: int, asked: str) -> None:
    """Though the other run has saved more since; where it is gone, the message says what is missing."""
    other, mine = tmp_path / "a", tmp_path / "b"
    began = make_checkpoint(other, step)
    (tmp_path / "l").symlink_to(other)
    place = {"run": other, "checkpoint": began, "link": tmp_path / "l"}[asked]
    settings = tiny(mine, run={"start_from": place})
    held_record(mine, resolve_start_from(settings))
    newer = make_checkpoint(other, 4)
    if asked != "checkpoint":
        assert resolve_start_from(settings).run.start_from == place / newer.relative_to(other)
    make_checkpoint(mine, 1)
    assert os.path.realpath(resolve_start_from(settings).run.start_from or "") == os.path.realpath(began)
    assert resolve_start_from(tiny(mine, run={"start_from": newer})).run.start_from == newer
    (began / "state.json").unlink()
    with pytest.raises(ValueError, match=r"began with .*cannot be resumed without it"):
        resolve_start_from(settings)
    if asked != "checkpoint":
        again = tiny(mine, run={"start_from": place, "overwrite": True})
        assert resolve_start_from(again).run.start_from == place / newer.relative_to(other)


def held_record(folder: Path, config: Config) -> None:
    """Write what a run records of its settings."""
    folder.mkdir()
    (folder / "config.json").write_text(to_json(config))


@pytest.mark.parametrize(
    "place, expected",
    [
        ("nowhere", "no such folder"),
        ("file", "a file; expected a checkpoint"),
        ("empty", "neither a checkpoint nor the folder of a run"),
        ("damaged", "the checkpoint is damaged"),
        ("org/name", "no such folder"),
    ],
)
def test_bad_places(
    tmp_path: Path, place: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.json").write_text("{")
    assert rlvr(["train", "tiny_math", "--run.start-from", place, "--run.out-dir", "out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--run.start-from {place}: " in error
    assert expected in error
    assert not (tmp_path / "out").exists()


def test_a_run_ends_when_it_gets_no_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a checkpoint, after `patience` evaluations; again it does nothing; without patience it goes on."""
    often = {"every": 1, "patience": 2, "num_problems": 2, "samples": 4}
    settings = {"run": {"steps": 4}, "eval": often}
    launch(tiny(tmp_path, **settings), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in lines(tmp_path / "eval.jsonl")] == [0, 1, 2]
    assert (tmp_path / "checkpoints" / "step-000002" / "state.json").exists()
    assert "ended early after step 2: the last 2 evaluations were no better" in " ".join(
        capsys.readouterr().out.split()
    )
    launch(tiny(tmp_path, **settings), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    launch(tiny(tmp_path, **settings | {"eval": often | {"patience": 0}}), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "values, expected", [([], 0), ([0.5], 0), ([0.1, 0.2, 0.3], 0), ([0.1, 0.3, 0.2], 1), ([0.3, 0.3, 0.3], 2)]
)
def test_evaluations_since_the_best(tmp_path: Path, values: list[float], expected: int) -> None:
    """Counted by hand; of equal ones the first is the best."""
    assert (
        count_since_best(tmp_path, [{"step": step, "pass@1": value} for step, value in enumerate(values)]) == expected
    )
