"""Ctrl-C and SIGTERM, with real processes: what is said at once, what is waited for, what is left."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlvr.training.supervision.signals import Stopped, StopRequest
from tests.helpers import warm
from tests.helpers.files import ROOT, read_program

PACK = read_program("pack_that_waits")
TINY = (
    "train tiny_math --run.task mine:sums --run.out-dir out --model.device cpu --run.sample-every 0 "
    "--rollout.problems-per-step 1 --rollout.group-size 2 --rollout.max-new-tokens 4 --rollout.timeout 60 "
    "--eval.num-problems 1 --eval.samples 1 --eval.k 1"
).split()
WITHOUT_EVALUATION = [*TINY[: TINY.index("--eval.num-problems")], "--eval.every", "-1"]


class Process:
    """`rlvr ARGUMENTS` in a folder, its output in files."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "mine.py").write_text(PACK)
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors:
            self.process = warm.start(arguments, cwd=folder, stdout=out, stderr=errors, env=environment)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def wait(self, holds: Callable[[], bool], seconds: float = 120) -> float:
        """Waits until something holds and returns how long it took."""
        start = time.monotonic()
        while not holds():
            assert self.process.poll() is None or holds(), self.text("stderr")
            assert time.monotonic() - start < seconds, self.text("stdout") + self.text("stderr")
            time.sleep(0.02)
        return time.monotonic() - start

    def has_line(self, name: str) -> bool:
        """A file is there, and its first line is whole."""
        return (self.folder / name).exists() and "\n" in self.text(name)

    def said(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.text("stderr")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        return self.process.wait(timeout=60)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts processes; what still runs in the end is killed."""
    started: list[Process] = []

    def begin(*arguments: str) -> Process:
        started.append(Process(tmp_path, *arguments))
        return started[-1]

    yield begin
    for process in started:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "again"), [(signal.SIGINT, "press Ctrl-C again"), (signal.SIGTERM, "send a second signal")]
)
def test_a_step_is_finished_and_saved(start: Callable[..., Process], number: int, again: str) -> None:
    """The answer comes while the verifier is still waited for, names the step, and the exit code the signal."""
    run = start(*WITHOUT_EVALUATION, "--sft.steps", "0", "--run.steps", "5")
    run.wait(lambda: run.has_line("out/metrics.jsonl"))
    (run.folder / "slow").write_text("6")
    run.wait(lambda: (run.folder / "judging").exists())
    (run.folder / "slow").unlink()
    done = len(run.text("out/metrics.jsonl").splitlines())
    run.signal(number)
    line = f"finishing step {done + 1}, then stopping; {again} to stop now and lose steps 1 to {done + 1}"
    run.wait(run.said(line))
    assert run.process.poll() is None
    assert run.end() == 128 + number
    saved = f"out/checkpoints/step-{done + 1:06d}"
    assert (run.folder / saved / "state.json").exists()
    assert run.text("stderr").splitlines()[-2:] == [
        line,
        f"stopped by {signal.Signals(number).name} after a checkpoint, {saved}; run the same command to resume",
    ]


@pytest.mark.slow
def test_the_second_signal_ends_at_once(start: Callable[..., Process]) -> None:
    """One more line says what is lost and where the same command resumes; nothing of the step is waited for."""
    run = start(*WITHOUT_EVALUATION, "--sft.steps", "0", "--run.steps", "9", "--run.save-every", "1")
    run.wait(lambda: (run.folder / "out" / "checkpoints" / "step-000001" / "state.json").exists())
    (run.folder / "slow").write_text("50")
    run.wait(lambda: (run.folder / "judging").exists())
    run.signal(signal.SIGINT)
    run.wait(run.said("finishing step"))
    run.signal(signal.SIGINT)
    assert run.wait(run.said("stopped now: step ")) < 40  # the step itself takes 50
    began = time.monotonic()
    assert run.end() == 130
    assert time.monotonic() - began < 40
    last = run.text("stderr").splitlines()[-1]
    step = int(last.split("step ")[1].split()[0])
    assert f"is lost; run the same command to resume from step {step - 1} (out/checkpoints/step-{step - 1:06d})" in last
    assert "Traceback" not in run.text("stderr")


@pytest.mark.slow
def test_fine_tuning_and_evaluation_say_what_a_stop_waits_for(start: Callable[..., Process]) -> None:
    """Fine-tuning ends after a step and its checkpoint. Then the evaluation of step 0 is waited for."""
    run = start(*TINY, "--sft.steps", "8000", "--sft.batch-size", "2", "--run.steps", "5")
    run.wait(lambda: "fine-tuning " in run.text("stdout"))
    run.signal(signal.SIGINT)
    assert run.end() == 130
    line, last = run.text("stderr").splitlines()[-2:]
    assert re.fullmatch(
        r"finishing step \d+ of the fine-tuning, then stopping; press Ctrl-C again to stop now and lose "
        r"steps? .*\d of the fine-tuning",
        line,
    )
    saved = r"out/start\.training/checkpoints/step-\d+"
    assert re.fullmatch(
        rf"stopped by SIGINT after a checkpoint of the fine-tuning, {saved}; run the same command to resume", last
    )

    (run.folder / "slow").write_text("6")
    run = start(*TINY, "--sft.steps", "2", "--sft.batch-size", "2", "--run.steps", "5", "--run.overwrite")
    run.wait(lambda: (run.folder / "judging").exists())
    run.signal(signal.SIGTERM)
    run.wait(run.said("finishing the evaluation of step 0, then stopping; send a second signal"))
    assert not (run.folder / "out" / "eval.jsonl").exists()
    assert run.end() == 143
    assert "stopped by SIGTERM after the evaluation of step 0" in run.text("stderr").splitlines()[-1]
    assert len(run.text("out/eval.jsonl").splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "arguments", "left"),
    [
        (
            signal.SIGINT,
            [*TINY, "--sft.batch-size", "2", "--run.task-option", "slow=true"],
            "nothing was written; run the same command again",
        ),
        (
            signal.SIGTERM,
            "eval --model tiny --task mine:sums --task-option slow=true --out-dir evaluated".split(),
            "run the same command to resume; the answers so far are in evaluated",
        ),
    ],
)
def test_where_nothing_is_lost_one_signal_is_enough(
    start: Callable[..., Process], number: int, arguments: list[str], left: str
) -> None:
    """While the task is read the run ends at the first signal, with one line; so does `rlvr eval`."""
    run = start(*arguments)
    run.wait(lambda: (run.folder / "reading").exists())
    run.signal(number)
    assert run.end() == 128 + number
    assert run.text("stderr").splitlines() == [f"stopped while reading the task; {left}"]


@pytest.mark.slow
def test_an_evaluation_keeps_its_answers(start: Callable[..., Process]) -> None:
    """`rlvr eval` ends at the first signal, also while a verifier is waited for, and goes on where it was."""
    flags = (
        "eval --model tiny --task mine:sums --max-new-tokens 4 --device cpu --sampler.batch-size 1 --out-dir evaluated"
    )
    run = start(*flags.split(), "--timeout", "60")
    run.wait(lambda: run.has_line("evaluated/answers.jsonl"))
    run.process.kill()
    run.process.wait()
    kept = run.text("evaluated/answers.jsonl").splitlines()[:1]
    (run.folder / "evaluated" / "answers.jsonl").write_text(f"{kept[0]}\n")
    (run.folder / "slow").write_text("6")
    run = start(*flags.split(), "--timeout", "60")
    run.wait(lambda: (run.folder / "judging").exists())
    run.signal(signal.SIGINT)
    assert (
        run.wait(
            run.said("stopped while evaluating; run the same command to resume; the answers so far are in evaluated")
        )
        < 6
    )
    assert run.end() == 130
    (run.folder / "slow").unlink()
    run = start(*flags.split(), "--timeout", "60")
    assert run.end() == 0
    answers = run.text("evaluated/answers.jsonl").splitlines()
    assert answers[:1] == kept
    assert len(answers) == 4


def test_a_request_without_work_raises_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Its exit code is the signal's; within `busy` the first one waits, and the second raises."""
    stop = StopRequest()
    stop.doing = "loading the model"
    before = signal.getsignal(signal.SIGTERM)
    with stop.handling_signals(), pytest.raises(Stopped) as raised:
        signal.raise_signal(signal.SIGTERM)
    assert raised.value.exit_code == 143
    assert capfd.readouterr().err == "stopped while loading the model; run the same command to start again\n"
    stop = StopRequest()
    with stop.handling_signals(), stop.handling_signals():
        with stop.busy("step 3"):
            signal.raise_signal(signal.SIGINT)
            assert stop
            assert "finishing step 3, then stopping" in capfd.readouterr().err
        stop.unsaved = lambda: "steps 2 to 4"
        with stop.busy("step 4"), pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
    assert "stopped now: steps 2 to 4 are lost" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before
