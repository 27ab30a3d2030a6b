"""A teacher on a server: the same numbers as in this process, and nothing is trained on what did not arrive."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.core.types import RunError
from rlvr.launch import launch
from rlvr.model.load.policy import Policy, load_policy
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.rollout.rollout import collect
from rlvr.training.step.distillation.teacher import Teacher, open_teacher
from rlvr.training.step.distillation.teacher_batch import compare_rows, consult_teacher
from rlvr.training.step.update import to_batch
from tests.helpers.files import lines
from tests.helpers.models import shake
from tests.helpers.openai_like import Answer, Body, Handler, openai_like
from tests.helpers.resuming import check_same, results, small
from tests.helpers.runs import CHARACTERS, make_run, with_settings


def teacher_model(config: Config, corpus: list[str]) -> Policy:
    """Another model with the same tokenizer."""
    policy = load_policy(config.model, corpus=corpus, seed=5)
    shake(policy, 0.05, 5)
    return policy


def answers_of(policy: Policy, noise: float = 0.0) -> Answer:
    """The prompt logprobs of a policy, as vLLM gives them; noise: as of a server whose batches differ."""
    computing = threading.Lock()

    def answer(body: Body) -> Body:
        ids = policy.tokenizer(body["prompt"]).input_ids if isinstance(body["prompt"], str) else body["prompt"]
        with computing, torch.no_grad():
            rows = policy.model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        entries: list[dict | None] = [None]
        for token, row in zip(ids[1:], rows):
            best = row.topk(body["prompt_logprobs"]).indices.tolist()
            shown = {i: min(float(row[i]) + noise * random.random(), 0.0) for i in dict.fromkeys([token, *best])}
            entries.append({str(i): {"logprob": value, "rank": 1} for i, value in shown.items()})
        return {"text": "", "finish_reason": "length", "prompt_token_ids": ids, "prompt_logprobs": entries}

    return answer


def make_settings(url: str, **teacher) -> dict[str, dict]:
    """The settings of a run with a served teacher."""
    quick = {"retry_seconds": 0.2, "request_seconds": 5.0, "requests": 4}
    return {"algo": {"name": "opd"}, "teacher": {"kind": "server", "name": "m", "url": url, **quick, **teacher}}


@pytest.mark.parametrize("teacher", [{}, {"loss": "js", "beta": 0.5, "top_k": 3}])
def test_a_served_teacher_says_what_the_same_model_says_here(tmp_path, teacher):
    """Log-probabilities, divergence, agreement and mass outside, of rows that are asked for once each."""
    run = make_run(tmp_path, algo={"name": "opd"})
    own = teacher_model(run.config, [CHARACTERS])
    with openai_like(answers_of(own)) as server:
        config = with_settings(run.config, **make_settings(server.url, **teacher))
        run.learner.config = config
        run.learner.teacher = open_teacher(config, run.learner.policy, None, Accelerator(cpu=True))
        groups = collect(run.worker, 0)
        groups.append(groups[0])
        batch = to_batch(run.learner, groups, [[0.0] * 4] * len(groups))
        there = consult_teacher(run.learner, 1, groups, batch)[0]
        found = compare_rows(run.learner, there)
        assert len(server.bodies) - 1 == len({tuple(body["prompt"]) for body in server.bodies[1:]}) < len(batch)
    run.learner.teacher = Teacher(config.teacher, own)
    here = compare_rows(run.learner, consult_teacher(run.learner, 1, groups, batch)[0])
    assert torch.allclose(there.teacher_logprobs, here.teacher_logprobs, atol=1e-4)
    assert torch.allclose(found.divergence, here.divergence, atol=1e-4)
    assert torch.allclose(found.agreement, here.agreement)
    assert torch.allclose(found.outside * bool(teacher), here.outside, atol=1e-4)


def raise_last(choice: Body) -> None:
    """Make the last log-probabilities positive."""
    choice["prompt_logprobs"][-1] = {key: {"logprob": 0.5} for key in choice["prompt_logprobs"][-1]}


FAULTS: dict[str, tuple[Callable[[Body], object] | None, str]] = {
    "other ids": (lambda choice: choice["prompt_token_ids"].reverse(), "answered for other tokens than were sent"),
    "no logprobs": (lambda choice: choice.pop("prompt_logprobs"), "does not follow vLLM's schema"),
    "too few": (lambda choice: choice["prompt_logprobs"].pop(), "does not follow vLLM's schema"),
    "no log-probabilities": (raise_last, "numbers that are no log-probabilities"),
    "late": (lambda choice: time.sleep(1.5), "1 s"),
    "failing": (None, "500"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_trained_on_what_does_not_arrive(tmp_path, name):
    """The run ends in the step whose answers lack, with one line; the steps before it stay."""
    break_answer, line = FAULTS[name]
    config = small(tmp_path, steps=4, save_every=1)
    good = answers_of(teacher_of_small(config))
    broken = threading.Event()

    def answer(body: Body) -> Body:
        choice = good(body)
        if broken.is_set() and break_answer is not None and not isinstance(body["prompt"], str):
            break_answer(choice)
        return choice

    def fail_once_told(number: int, handler: Handler) -> bool:
        fails = broken.is_set() and number > told_apart
        if fails:
            handler.send_json({}, 500)
        return fails

    with openai_like(answer) as server:
        if name == "failing":
            server.fault = fail_once_told
        config = with_settings(config, **make_settings(server.url, request_seconds=1.0 if name == "late" else 5.0))
        launch(with_settings(config, run={"steps": 2}))
        told_apart = len(server.bodies) + 1  # the text that tells the tokenizer
        broken.set()
        with pytest.raises(RunError) as caught:
            launch(config)
    told = str(caught.value)
    assert told.startswith("stopped in step 3, which trained on nothing: the teacher did not answer: ")
    assert "\n" not in told
    assert line in told
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert not checkpoint_folder(tmp_path, 3).exists()


def teacher_of_small(config: Config) -> Policy:
    """A teacher for `small` runs, with their tokenizer."""
    from rlvr.commands.task import build_task, collect_corpus

    return teacher_model(config, collect_corpus(build_task(config)))


def test_a_step_that_is_repeated_gets_the_same_answers(tmp_path):
    """Byte for byte, though the server's answers differ each time: those since the last checkpoint are kept."""
    config = small(tmp_path, steps=4, save_every=2)
    with openai_like(answers_of(teacher_of_small(config), noise=0.1)) as server:
        config = with_settings(config, **make_settings(server.url))
        launch(config)
        wanted, asked = results(tmp_path, 4), len(server.bodies)
        kept = sorted(path.name for path in (tmp_path / "teacher").iterdir())
        assert kept == ["step-000003.jsonl", "step-000004.jsonl"]
        undo(tmp_path, 4)
        launch(config)
        assert len(server.bodies) == asked + 1  # the text that tells the tokenizer
    check_same(wanted, results(tmp_path, 4))


def undo(out_dir: Path, step: int) -> None:
    """Remove a checkpoint, as if the run had been killed before it was there."""
    folder = checkpoint_folder(out_dir, step)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"owner": "other"}, "expected a server of vLLM"),
        ({"model": "n"}, "serves no model 'm'"),
        (
            {"reads": "other"},
            "reads a text as other tokens than the policy; a teacher must have the policy's tokenizer",
        ),
        ({"reads": "nothing"}, "does not follow vLLM's schema"),
    ],
)
def test_a_server_that_cannot_teach_is_refused_before_anything_is_sampled(tmp_path, change, line):
    run = make_run(tmp_path, algo={"name": "opd"})
    good = answers_of(teacher_model(run.config, [CHARACTERS]))

    def answer(body: Body) -> Body:
        choice = good(body)
        if change.get("reads") == "other":
            choice["prompt_token_ids"][0] += 1
        return choice if change.get("reads") != "nothing" else {"text": "", "finish_reason": "length"}

    about = {key: value for key, value in change.items() if key != "reads"}
    with openai_like(answer, **about) as server:
        config = with_settings(run.config, **make_settings(server.url))
        with pytest.raises(ValueError, match=line):
            open_teacher(config, run.learner.policy, None, Accelerator(cpu=True))
