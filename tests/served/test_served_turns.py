"""Environments with a served model: the same rollouts as in this process, and messages where there is no tokenizer."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.core.registry import register_environment
from rlvr.core.types import Reply, correct, error, incorrect
from rlvr.model.load.policy import Policy, load_policy
from tests.helpers.evaluations import evaluated_arithmetic
from tests.helpers.openai_like import Body, Handler, OpenAILike, chat_answer, openai_like, policy_answer

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SIZES = "--workers 1 --verifier exact --max-new-tokens 24 --turn-tokens 5 --max-problems 5 --samples 3 --k 1 3".split()


@register_environment("test_echo")
def echo(problem, rng):
    """Replies with how long each turn was, four times; the verdict is by the last one."""
    said = yield
    for number in range(4):
        if number % 2 and len(said) % 3 == 0:
            return correct(said[:1])
        role = "tool" if number % 2 else "user"
        said = yield Reply(f"{len(said)}{rng.randint(0, 9)}", role=role, calls=1, void=not said, reward=0.25)
    return incorrect("four replies")


@register_environment("test_failing")
def fail_sometimes(problem, rng):
    """Raises at the first turn of every other problem, and cannot work at the second."""
    yield
    if int(problem.id[-1]) % 2:
        raise RuntimeError("the world broke")
    yield Reply("1")
    return error("no tool")


@register_environment("test_slow")
def slow(problem, rng):
    """Takes its time for each reply."""
    yield
    for _ in range(3):
        time.sleep(0.3)
        yield Reply("1")


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "chat"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model, with a chat template or without."""
    path = tmp_path_factory.mktemp("model") / "m"
    policy = load_policy(ModelConfig(device="cpu"), corpus=["0123456789+-=> \\boxed{}[]usertoolassistant"], seed=3)
    if request.param:
        policy.tokenizer.chat_template = TEMPLATE
    policy.save(path)
    return path


@pytest.fixture
def policy(folder: Path) -> Policy:
    return load_policy(ModelConfig(name=str(folder), device="cpu"))


@pytest.fixture
def server(policy: Policy) -> Iterator[OpenAILike]:
    with openai_like(policy_answer(policy)) as running:
        yield running


@pytest.fixture
def talker() -> Iterator[OpenAILike]:
    """A chat model that says how many messages it was sent, and thinks."""

    def answer(body: Body) -> Body:
        text = f"{len(body['messages'])}{'!' * (body['seed'] % 3)}"
        return {**chat_answer(text, reasoning="hm"), "usage": {"completion_tokens": 4}}

    with openai_like(answer, owner="openai") as running:
        yield running


def evaluate(out: Path, *flags: str, code: int = 0) -> tuple[str, dict[str, Any]]:
    return evaluated_arithmetic(out, *SIZES, *flags, code=code)


def asks(server: OpenAILike, *flags: str) -> list[str]:
    return ["--url", server.url, "--model", "m", "--concurrency", "6", *flags]


def by_tokens(server: OpenAILike, folder: Path, *flags: str) -> list[str]:
    return asks(server, "--api", "completions", "--tokenizer", str(folder), *flags)


@pytest.mark.parametrize(
    ("temperature", "limit"), [("1", []), ("0", []), ("1", ["--context-tokens", "60"]), ("1", ["--max-turns", "2"])]
)
def test_equals_the_evaluation_in_process(folder, server, tmp_path, temperature, limit):
    """Token ids in, token ids out: the same turns, replies, limits and verdicts, byte for byte."""
    flags = ["--environment", "test_echo", "--temperature", temperature, *limit]
    here = evaluate(tmp_path / "here", "--model", str(folder), "--device", "cpu", *flags)
    there = evaluate(tmp_path / "there", *by_tokens(server, folder), *flags)
    assert there[0] == here[0]
    there[1].pop("identical", None)
    assert there[1] == here[1]
    rows = [json.loads(line) for line in here[0].splitlines()]
    assert {len(row["turns"]) for row in rows} & {3, 5, 7, 9}
    contexts = [tuple(body["prompt"]) for body in server.bodies]
    later = [c for c in contexts if any(c[: len(d)] == d and len(c) > len(d) for d in contexts)]
    assert later, "no context continues another"


def test_failures_lose_no_turn(folder, server, tmp_path):
    """Requests that fail now and then change nothing."""
    flags = by_tokens(server, folder, "--environment", "test_echo")
    calm = evaluate(tmp_path / "calm", *flags)

    def answer_with_fault(number: int, handler: Handler) -> bool:
        if number % 4 == 0:
            handler.drop()
        elif number % 4 == 2:
            handler.send_json({}, 503)
        return number % 2 == 0

    server.fault = answer_with_fault
    assert evaluate(tmp_path / "stormy", *flags) == calm


def test_a_lost_turn_loses_its_rollout_only(folder, server, tmp_path, capsys):
    """It is played from its beginning the next time; the file is then the same."""
    flags = by_tokens(server, folder, "--environment", "test_echo", "--retry-seconds", "0.2")
    whole = evaluate(tmp_path / "whole", *flags)
    contexts = Counter(tuple(body["prompt"]) for body in server.bodies)
    bad = next(c for c in contexts if contexts[c] == 1 and any(c[: len(d)] == d and c != d for d in contexts))
    broken = True

    def answer_with_fault(number: int, handler: Handler) -> bool:
        refuses = broken and tuple(handler.server.bodies[-1]["prompt"]) == bad
        if refuses:
            handler.send_json({"error": "busy"}, 500)
        return refuses

    server.fault = answer_with_fault
    out = tmp_path / "out"
    kept, _ = evaluate(out, *flags, "--concurrency", "1", code=2)
    assert "1 of 15 answers are missing" in capsys.readouterr().err
    assert len(kept.splitlines()) == 14
    broken = False
    assert evaluate(out, *flags) == whole


@pytest.mark.parametrize("role", ["tool", "user"])
def test_conversations_are_messages(talker, tmp_path, role):
    """Roles, texts and order; what the model thought is heard by the environment and not sent back."""
    flags = asks(talker, "--environment", "test_echo", "--tool-role", role, "--system-prompt", "Be short.")
    answers, result = evaluate(tmp_path / "out", *flags)
    rows = [json.loads(line) for line in answers.splitlines()]
    longest = max((body["messages"] for body in talker.bodies), key=len)
    roles = [message["role"] for message in longest]
    assert roles == ["system", "user", "assistant", "user", "assistant", role, "assistant", "user", "assistant", role]
    assert all(re.fullmatch(r"\d!*", m["content"]) for m in longest if m["role"] == "assistant")
    row = next(row for row in rows if len(row["turns"]) == 9)
    assert [turn["role"] for turn in row["turns"]][:4] == ["assistant", "user", "assistant", "tool"]
    assert row["turns"][0]["text"].startswith("<think>\nhm\n</think>\n\n2")
    assert row["tokens"] == 20
    assert [m["content"] for m in longest[3::2]] in [
        [turn["text"] for turn in row["turns"][1::2]] for row in rows if len(row["turns"]) == 9
    ]
    limits = {len(body["messages"]): body["max_tokens"] for body in talker.bodies}
    assert limits == {2: 5, 4: 5, 6: 5, 8: 5, 10: 5}
    assert result["num_samples"] == 15


def test_budgets_hold_without_a_tokenizer(talker, tmp_path):
    """The server's count of tokens is spent; the last turn gets what is left."""
    answers, _ = evaluate(tmp_path / "out", *asks(talker, "--environment", "test_slow", "--max-new-tokens", "11"))
    rows = [json.loads(line) for line in answers.splitlines()]
    assert {row["finish_reason"] for row in rows} == {"length"}
    assert {(len(b["messages"]), b["max_tokens"]) for b in talker.bodies} == {(1, 5), (3, 5), (5, 3)}


def test_a_context_that_is_full_ends_a_rollout(talker, tmp_path):
    """A later turn that the server refuses as too long; the reply that did not fit is left out."""

    def answer_with_fault(number: int, handler: Handler) -> bool:
        full = len(handler.server.bodies[-1]["messages"]) > 4
        if full:
            handler.send_json({"error": {"message": "This model's maximum context length is 64 tokens."}}, 400)
        return full

    talker.fault = answer_with_fault
    answers, _ = evaluate(tmp_path / "out", *asks(talker, "--environment", "test_slow"))
    rows = [json.loads(line) for line in answers.splitlines()]
    assert {(row["finish_reason"], len(row["turns"]), row["turns"][-1]["role"]) for row in rows} == {
        ("context", 3, "assistant")
    }


def test_environments_that_fail_are_unscored(talker, tmp_path):
    """As in this process: counted as errors, never 0."""
    answers, result = evaluate(tmp_path / "out", *asks(talker, "--environment", "test_failing"), code=2)
    rows = [json.loads(line) for line in answers.splitlines()]
    assert {row["status"] for row in rows} == {"error"}
    assert {row["score"] for row in rows} == {None}
    assert {"the environment raised RuntimeError: the world broke", "no tool"} >= {row["reason"] for row in rows} - {""}
    assert result == {}


def test_replies_are_made_beside_requests(talker, tmp_path):
    """Fifteen rollouts of three slow replies take less than the replies one after the other."""
    began = time.monotonic()
    evaluate(tmp_path / "out", *asks(talker, "--environment", "test_slow"))
    assert time.monotonic() - began < 15 * 3 * 0.3 * 0.8
    assert threading.active_count() < 200


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--api", "completions"], "needs --api chat, or --api completions with --tokenizer"),
        (["--api", "completions", "--tokenizer", "FOLDER"], "the server returns no token ids"),
        (["--environment", "no_such"], "no environment 'no_such'"),
    ],
)
def test_what_cannot_be_played_is_refused(folder, talker, tmp_path, capsys, flags, message):
    """One line and exit code 2."""
    talker.answer = lambda body: {"text": "2", "finish_reason": "stop"}
    shown = [str(folder) if flag == "FOLDER" else flag for flag in flags]
    command = ["eval", "--task", "arithmetic", "--out-dir", str(tmp_path / "out"), *SIZES, "--environment", "test_echo"]
    assert main([*command, *asks(talker), *shown]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
