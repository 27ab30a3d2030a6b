"""`rlvr eval --url`: the answers and numbers of the in-process evaluation, through failures, kills and resumes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.config import ModelConfig
from rlvr.model.load.policy import Policy, load_policy
from tests.helpers import warm
from tests.helpers.evaluations import evaluated_arithmetic
from tests.helpers.openai_like import Handler, OpenAILike, chat_answer, openai_like, policy_answer

KEY = "sk-9f8e7d6c5b4a"
SIZES = ["--workers", "1", "--max-new-tokens", "8", "--max-problems", "6", "--samples", "4", "--k", "1", "4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random tiny model that can write numbers."""
    path = tmp_path_factory.mktemp("model") / "m"
    load_policy(ModelConfig(device="cpu"), corpus=["0123456789+-=> \\boxed{}"], seed=3).save(path)
    return path


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return load_policy(ModelConfig(name=str(folder), device="cpu"))


@pytest.fixture
def server(policy: Policy) -> Iterator[OpenAILike]:
    with openai_like(policy_answer(policy)) as running:
        yield running


def evaluate(out: Path, *flags: str, code: int = 0) -> tuple[str, dict[str, Any]]:
    return evaluated_arithmetic(out, *SIZES, *flags, code=code)


def asks(server: OpenAILike, *flags: str) -> list[str]:
    return ["--url", server.url, "--model", "m", "--api", "completions", "--concurrency", "8", *flags]


@pytest.mark.parametrize("temperature", ["0", "1"])
@pytest.mark.parametrize("ids", [True, False])
def test_equals_the_evaluation_in_process(folder, server, tmp_path, temperature, ids):
    """With token ids and with text, greedy and sampled: the same file, byte for byte, and the same numbers."""
    here = evaluate(tmp_path / "here", "--model", str(folder), "--device", "cpu", "--temperature", temperature)
    flags = asks(server, *(["--tokenizer", str(folder)] if ids else []))
    there = evaluate(tmp_path / "there", *flags, "--temperature", temperature)
    assert there[0] == here[0]
    same = there[1].pop("identical", None)
    assert there[1] == here[1]
    assert same == (None if temperature == "0" else 0)
    assert {type(body["prompt"]) for body in server.bodies} == {list if ids else str}
    assert 1 < server.most_at_once <= 8
    assert len({body["seed"] for body in server.bodies}) == len(server.bodies) == 24


def test_prompts_of_chat_are_messages(server, tmp_path):
    """A text is one user message; a system prompt comes before it."""
    server.answer = lambda body: {**chat_answer("so \\boxed{7}", reasoning="hm"), "usage": {"completion_tokens": 5}}
    flags = ["--url", server.url, "--model", "m", "--system-prompt", "Box it.", "--concurrency", "4"]
    answers, result = evaluate(tmp_path / "out", *flags)
    assert set(server.paths) == {"/v1/chat/completions"}
    first = json.loads(answers.splitlines()[0])
    assert first["completion"] == "<think>\nhm\n</think>\n\nso \\boxed{7}"
    assert (first["extracted"], first["tokens"], first["finish_reason"]) == ("7", 5, "stop")
    [system, user] = server.bodies[0]["messages"]
    assert (system, user["role"]) == ({"role": "system", "content": "Box it."}, "user")
    assert result["num_samples"] == 24


def faulty(number: int, handler: Handler) -> bool:
    """Four kinds of failure, for one request of twenty each as they come in: 20 % in all."""
    kind = number % 20
    if kind == 3:
        handler.send_json({"error": "slow down"}, 429, {"Retry-After": "0.1"})
    elif kind == 7:
        handler.send_json({"error": "oops"}, 500)
    elif kind == 11:
        handler.drop()
    elif kind == 15:
        time.sleep(0.7)
        handler.drop()
    return kind in (3, 7, 11, 15)


def test_failures_lose_nothing(server, tmp_path, folder):
    """The file is the same with requests that fail now and then."""
    calm = evaluate(tmp_path / "calm", *asks(server))
    server.bodies.clear()
    server.fault = faulty
    stormy = evaluate(tmp_path / "stormy", *asks(server, "--request-seconds", "0.5"))
    assert stormy == calm
    assert len(server.bodies) > 24


def test_lost_requests_are_not_written_and_asked_again(server, tmp_path, capsys):
    """One line and exit code 2, what was answered is kept; the same command asks for the rest only."""
    whole = evaluate(tmp_path / "whole", *asks(server))
    broken = {body["seed"] for body in server.bodies[5:8]}

    def answer_with_fault(number: int, handler: Handler) -> bool:
        lost = handler.server.bodies[-1]["seed"] in broken and refuses
        if lost:
            handler.send_json({"error": "broken"}, 500)
        return bool(lost)

    refuses, server.fault = True, answer_with_fault
    flags = asks(server, "--retry-seconds", "0.3", "--concurrency", "1")
    out = tmp_path / "out"
    kept, result = evaluate(out, *flags, code=2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "3 of 24 answers are missing" in error
    assert "the same command asks for the rest" in error
    assert (len(kept.splitlines()), result) == (21, {})
    refuses, asked = False, len(server.bodies)
    assert evaluate(out, *flags) == whole
    assert len(server.bodies) == asked + 3


def test_a_server_that_is_gone_ends_the_evaluation(server, tmp_path, capsys):
    """Not every request is tried for its whole time. One at a time, since an answer starts the count anew."""
    server.fault = lambda number, handler: number > 4 and (handler.drop(), True)[1]
    kept, _ = evaluate(tmp_path / "out", *asks(server, "--retry-seconds", "0.2", "--concurrency", "1"), code=2)
    error = capsys.readouterr().err
    assert re.search(r"8 requests in a row were lost.*the same command", error)
    assert (error.count("\n"), len(kept.splitlines())) == (1, 4)


def test_killed_and_resumed_the_file_is_the_same(server, tmp_path):
    """SIGKILL after some answers, thrice; no answer is asked for twice that was written."""
    whole = evaluate(tmp_path / "whole", *asks(server))
    out = tmp_path / "out"
    server.bodies.clear()
    server.fault = lambda number, handler: time.sleep(0.15) is not None
    flags = asks(server, "--concurrency", "2")
    command = ["eval", "--task", "arithmetic", "--out-dir", str(out), *SIZES, *flags]
    answers = out / "answers.jsonl"
    written: list[int] = []
    for wanted in (3, 9, 15):
        process = warm.start(command)
        while not (answers.exists() and len(answers.read_text().splitlines()) >= wanted):
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
        process.communicate(60)
        written.append(len(answers.read_text().splitlines()))
        assert not (out / "result.json").exists()
    server.fault = lambda number, handler: False
    assert evaluate(out, *flags) == whole
    assert 24 <= len(server.bodies) <= 24 + 3 * 4
    assert written == sorted(written)


def test_a_server_that_ignores_seeds_is_flagged(server, tmp_path, capsys):
    """A line, and the share of problems in the numbers; not where temperature is 0 or samples differ."""
    answer = server.answer
    server.answer = lambda body: answer({**body, "seed": 1})
    assert evaluate(tmp_path / "out", *asks(server))[1]["identical"] == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "identical for 100% of the problems: the server may ignore `seed`" in printed
    server.answer = answer
    assert evaluate(tmp_path / "good", *asks(server))[1]["identical"] == 0
    assert "may ignore" not in capsys.readouterr().out
    assert "identical" not in evaluate(tmp_path / "greedy", *asks(server, "--temperature", "0"))[1]


def test_keys_are_in_no_file_and_no_output(server, tmp_path, capfd, monkeypatch):
    """Not in settings, answers and numbers, and not where a server repeats it."""
    monkeypatch.setenv("OWN_KEY", KEY)
    evaluate(tmp_path / "out", *asks(server, "--key-env", "OWN_KEY"))
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    server.fault = lambda number, handler: (handler.send_json(handler.headers["Authorization"], 401), True)[1]
    more = ["eval", "--task", "arithmetic", "--out-dir", str(tmp_path / "more"), *SIZES]
    assert main([*more, *asks(server, "--key-env", "OWN_KEY")]) == 2
    printed = capfd.readouterr()
    assert "refused the request (401)" in printed.err
    assert KEY not in printed.out + printed.err
    for file in tmp_path.rglob("*"):
        assert file.is_dir() or KEY not in file.read_text()


def test_another_port_is_the_same_evaluation(policy, server, tmp_path):
    """A server that came back elsewhere goes on; another model or route does not, nor a model that is loaded."""
    out = tmp_path / "out"
    before = evaluate(out, *asks(server))
    with openai_like(policy_answer(policy)) as other:
        assert evaluate(out, *asks(other, "--concurrency", "3")) == before
        assert not other.bodies
        command = ["eval", "--task", "arithmetic", "--out-dir", str(out), *SIZES]
        assert main([*command, "--url", other.url, "--model", "m"]) == 2
        assert main([*command, "--model", "tiny"]) == 2


def test_profile_of_a_served_model(folder, server, tmp_path, capsys):
    """`rlvr profile --url`: the pass rates and the table of the profile in this process."""
    command = ["profile", "arithmetic", "--verifier", "length", "--verifier-option", "max=8", "--workers", "1"]
    command += ["--max-new-tokens", "8", "--max-problems", "5", "--samples", "4", "--group-size", "3"]
    files, tables = [], []
    for name, own in (("here", ["--model", str(folder), "--device", "cpu"]), ("there", asks(server))):
        assert main([*command, "--out-dir", str(tmp_path / name), *own]) == 0
        rows = [json.loads(line) for line in (tmp_path / name / "profile.jsonl").read_text().splitlines()]
        assert {row.pop("model") for row in rows} == {str(folder) if name == "here" else "m"}
        files.append(rows)
        tables.append(capsys.readouterr().out.partition("pass rates of")[2])
    assert files[0] == files[1]
    assert tables[0] == tables[1]
    assert len(server.bodies) == 20


def test_selected_answers_of_a_served_model(folder, server, tmp_path):
    """With --selector: the same best@k as in this process, and its scores beside each answer."""
    flags = ["--selector", "repetition", "--selector-option", "n=1", "--verifier", "length"]
    flags += ["--verifier-option", "max=8"]
    here = evaluate(tmp_path / "here", "--model", str(folder), "--device", "cpu", *flags)
    there = evaluate(tmp_path / "there", *asks(server), *flags)
    assert there[0] == here[0]
    assert there[1]["best@4"] == here[1]["best@4"]
    assert all(json.loads(line)["selector_score"] is not None for line in there[0].splitlines())


@pytest.mark.parametrize(
    "flags",
    [["--url", "http://user:secret@localhost/v1"], ["--url", "http://x/v1?key=secret"], ["--key-env", "sk-123-secret"]],
)
def test_a_secret_in_a_wrong_place_is_not_printed(tmp_path, capsys, flags):
    """Other settings that cannot work are in tests/golden/bad_input.txt."""
    url = [] if "--url" in flags else ["--url", "http://x/v1"]
    assert main(["eval", "--task", "arithmetic", "--model", "m", "--out-dir", str(tmp_path / "out"), *url, *flags]) == 2
    error = capsys.readouterr().err
    assert re.search(
        "--url: expected http|without a user or password|expected the name of an environment variable", error
    )
    assert error.count("\n") == 1
    assert "secret" not in error
