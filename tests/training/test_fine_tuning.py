"""Fine-tuning: demonstrations from a file, and resumes after kills, signals and damage."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import rlvr.training.sft.sft
from rlvr import Problem
from rlvr.commands.cli import main
from rlvr.config import Config, SFTConfig
from rlvr.core.types import RunError
from rlvr.launch import launch
from rlvr.model.load.policy import Policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.checkpoint.folders import list_checkpoints
from rlvr.training.sft.demonstrations import read_demonstrations, with_demonstrations
from rlvr.training.sft.sft import demonstration_batch
from tests.helpers import warm
from tests.helpers.models import TEMPLATE
from tests.helpers.resuming import Killed, kill, small, steps_of, wait_for_checkpoint
from tests.helpers.runs import tiny, with_settings
from tests.helpers.verifiers import sums

TUNED = "start.training"  # where checkpoints of a fine-tuning are
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
    assert read_demonstrations(path) == [(Problem("mine.jsonl:1", "1+1="), "2"), (Problem("mine.jsonl:3", CHAT), "3")]


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
    assert "read only with --sft.steps, --algo.ptx-coef or --teacher.off-policy above 0" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


pytestmark = pytest.mark.usefixtures("one_thread")


class AfterTuning(TrainerCallback):
    """Remembers the steps of the fine-tuning, and calls a function after one of them."""

    def __init__(self, step: int = 0, call: Callable[[], object] = lambda: None) -> None:
        self.at, self.call = step, call
        self.done: list[int] = []
        self.losses: list[float] = []

    def on_sft_step(self, step: int, loss: float) -> None:
        self.done.append(step)
        self.losses.append(loss)
        if step == self.at:
            self.call()


def fine_tune(out_dir: Path, *, steps: int = 10, every: int = 3, rl: int = 0, **groups) -> Config:
    """A fine-tuning of ten steps that is saved every three, and no RL unless `rl` steps are asked for."""
    config = with_settings(small(out_dir, steps=rl), **groups)
    return dataclasses.replace(
        config,
        sft=dataclasses.replace(config.sft, steps=steps, batch_size=4, **({"save_every": every} if every else {})),
    )


def tune(config: Config, step: int = 0, call: Callable[[], object] = kill) -> AfterTuning:
    """Launch, with a call after a step; return the steps that were done."""
    seen = AfterTuning(step, call)
    try:
        launch(config, callbacks=[seen])
    except Killed:
        assert step
    return seen


def model(out_dir: Path) -> dict[str, bytes]:
    folder = out_dir / "start"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


VARIANTS: dict[str, dict] = {
    "all weights": {},
    "adapters": {"model": {"lora_rank": 2}},
    "bfloat16 weights": {"model": {"weights": "bfloat16", "dtype": "bfloat16"}},
    "saved beside": {"run": {"async_save": True}},
}


@pytest.mark.parametrize("groups", VARIANTS.values(), ids=VARIANTS)
def test_a_killed_fine_tuning_goes_on_from_its_last_checkpoint(tmp_path, groups):
    """Killed after step 8 of 10: steps 7 to 10 follow, with the same losses; the same model, and the same RL after it.
    The checkpoints are gone then."""
    whole = tune(fine_tune(tmp_path / "whole", rl=1, **groups))
    tune(fine_tune(tmp_path / "parts", rl=1, **groups), 8)
    assert steps_of(tmp_path / "parts" / TUNED) == [3, 6]
    again = tune(fine_tune(tmp_path / "parts", rl=1, **groups))
    assert again.done == [7, 8, 9, 10]
    assert again.losses == whole.losses[6:]
    assert model(tmp_path / "parts") == model(tmp_path / "whole")
    assert (tmp_path / "parts" / "rollouts.jsonl").read_bytes() == (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    for run in ("whole", "parts"):
        assert not list((tmp_path / run).glob("start.*"))


def test_no_more_than_the_asked_number_is_kept(tmp_path):
    """Disk stays bounded: of ten checkpoints the last two, or as many as run.keep_checkpoints says."""
    tune(fine_tune(tmp_path / "two", every=1), 9)
    assert steps_of(tmp_path / "two" / TUNED) == [7, 8]
    tune(fine_tune(tmp_path / "one", every=1, run={"keep_checkpoints": 1}), 9)
    assert steps_of(tmp_path / "one" / TUNED) == [8]


def cut_state(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def half_written(folder: Path) -> None:
    folder.rename(folder.with_name(folder.name + ".partial"))


@pytest.mark.parametrize("harm", [cut_state, half_written])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys, harm):
    """As in RL: the one before it is taken, and the model is the same in the end."""
    tune(fine_tune(tmp_path / "whole"))
    tune(fine_tune(tmp_path / "parts"), 8)
    harm(list_checkpoints(tmp_path / "parts" / TUNED)[-1][1])
    capsys.readouterr()
    assert tune(fine_tune(tmp_path / "parts")).done[0] == 4
    assert "resuming the fine-tuning from step 3" in capsys.readouterr().out
    assert model(tmp_path / "parts") == model(tmp_path / "whole")


def test_where_all_are_damaged_it_is_said(tmp_path):
    """In one line, that names the folder and what to do."""
    tune(fine_tune(tmp_path), 8)
    for _, folder in list_checkpoints(tmp_path / TUNED):
        cut_state(folder)
    with pytest.raises(ValueError, match=r"every checkpoint of .*start\.training is damaged .*--run\.overwrite"):
        launch(fine_tune(tmp_path))
    assert tune(fine_tune(tmp_path, run={"overwrite": True})).done[0] == 1
    assert not list(tmp_path.glob("start.*"))


def test_checkpoints_of_another_fine_tuning_are_not_taken(tmp_path):
    """Other settings of the fine-tuning or another optimizer are refused, naming them; when it is saved may change."""
    pytest.importorskip("bitsandbytes", reason="another optimizer needs the extra bitsandbytes")
    tune(fine_tune(tmp_path), 8)
    for groups in ({"sft": {"lr": 1e-4}}, {"optim": {"name": "adamw8bit"}}, {"run": {"seed": 7}}):
        with pytest.raises(ValueError, match=f"other settings: {next(iter(groups))}"):
            launch(with_settings(fine_tune(tmp_path), **groups))
    assert steps_of(tmp_path / TUNED) == [3, 6]
    assert tune(fine_tune(tmp_path, every=2, optim={"lr": 2e-3})).done[0] == 7


def test_a_kill_while_the_model_is_saved(tmp_path, monkeypatch):
    """Between the last step and the model, and between the model and the end of its checkpoints."""
    tune(fine_tune(tmp_path / "whole"))
    for place in ("save_checkpoint", "discard"):
        with monkeypatch.context() as patch:
            patch.setattr(f"rlvr.training.saving.{place}", lambda *_: kill())
            with pytest.raises(Killed):
                launch(fine_tune(tmp_path / "parts"))
    assert steps_of(tmp_path / "parts" / TUNED)
    assert tune(fine_tune(tmp_path / "parts")).done == []
    assert model(tmp_path / "parts") == model(tmp_path / "whole")
    assert not list((tmp_path / "parts").glob("start.*"))


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch):
    """The checkpoint before it is named, and taken by the same command."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        seen = AfterTuning(4, lambda: patch.setattr("rlvr.training.checkpoint.checkpoint.save_file", full))
        with pytest.raises(RunError, match=r"cannot save .*step-000006: No space left .*step-000003, is safe"):
            launch(fine_tune(tmp_path), callbacks=[seen])
    assert tune(fine_tune(tmp_path)).done[0] == 4


def test_broken_gradients_are_counted_across_a_resume(tmp_path, monkeypatch):
    """Two broken steps before the kill and one after it are three in a row; the last good checkpoints stay."""

    def break_at(count_from: int) -> Callable[..., float]:
        real, calls = rlvr.training.sft.sft.optimizer_step, iter(range(1, 100))

        def step(optimizer, **settings) -> float:
            norm = real(optimizer, **settings)
            return float("nan") if next(calls) >= count_from else norm

        return step

    with monkeypatch.context() as patch:
        patch.setattr("rlvr.training.sft.sft.optimizer_step", break_at(5))
        tune(fine_tune(tmp_path, every=1), 6)
    assert steps_of(tmp_path / TUNED) == [3, 4, 5]
    with monkeypatch.context() as patch:
        patch.setattr("rlvr.training.sft.sft.optimizer_step", break_at(1))
        with pytest.raises(RunError, match="in 3 steps in a row, the first of them step 5"):
            launch(fine_tune(tmp_path, every=1))


FLAGS = (
    "sft tiny_math --sft.steps 60 --sft.batch-size 8 --sft.save-every 7 --run.task-option num_train=64 num_test=16 "
    "num_demonstrations=256 --eval.every -1 --model.device cpu"
).split()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_a_checkpoint(tmp_path, capsys, number):
    """After the step that is under way, whatever is due; the last line says that the same command resumes."""
    with pytest.raises(KeyboardInterrupt) as raised:
        launch(fine_tune(tmp_path / "parts"), callbacks=[AfterTuning(5, lambda: signal.raise_signal(number))])
    where = tmp_path / "parts" / "start.training" / "checkpoints" / "step-000005"
    assert f"by {number.name} after a checkpoint of the fine-tuning, {where}; run the same command" in str(raised.value)
    assert steps_of(tmp_path / "parts" / TUNED) == [3, 5]
    assert tune(fine_tune(tmp_path / "parts")).done[0] == 6
    tune(fine_tune(tmp_path / "whole"))
    assert model(tmp_path / "parts") == model(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["1", "2"])
def test_two_processes(tmp_path, shard):
    """Replicas or shards: both are killed some time after a checkpoint, and end with the bits of two that were not."""
    flags = [*FLAGS, "--model.shard", shard, "--sft.steps", "24", "--run.out-dir"]
    for done in warm.run_together(2, [*flags, str(tmp_path / "whole")]):
        assert done.returncode == 0, done.stderr[-3000:]
    processes = warm.start_together(2, [*flags, str(tmp_path / "parts")])
    try:
        wait_for_checkpoint(tmp_path / "parts" / TUNED, 14, processes[0])
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    assert not (tmp_path / "parts" / "start").exists()
    again = warm.run_together(2, [*flags, str(tmp_path / "parts")])
    assert [done.returncode for done in again] == [0, 0], again[0].stderr[-3000:]
    assert "resuming the fine-tuning from step" in again[0].stdout
    assert model(tmp_path / "parts") == model(tmp_path / "whole")
