"""`rlvr eval --url` against a real vLLM server: the samples of the in-process evaluation. Minutes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.core.http import JSONClient, ServerLost
from rlvr.core.registry import register_environment
from rlvr.core.types import Reply, correct, incorrect
from rlvr.sampling.vllm.server import free_port, server_environment
from tests.helpers.vllm_policies import make_policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]
pytest.importorskip("vllm", exc_type=ImportError)

START_SECONDS = 900
TEMPLATE = (
    "{% for m in messages %}({{ m.role }}){{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}(assistant){% endif %}"
)
SIZES = ["--workers", "1", "--verifier", "exact", "--max-new-tokens", "24", "--max-problems", "8"]


@register_environment("test_vllm_echo")
def echo(problem, rng):
    """Replies with how long each turn was, three times."""
    said = yield
    for number in range(3):
        if len(said) % 5 == 4:
            return correct(said[:1])
        said = yield Reply(f"{len(said)}+{rng.randint(0, 9)}", role="tool" if number % 2 else "user")
    return incorrect("three replies")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m"
    policy = make_policy()
    policy.tokenizer.chat_template = TEMPLATE
    policy.save(path)
    return path


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM with the model's weights, as anybody would serve it."""
    port, log = free_port(), tmp_path_factory.mktemp("log") / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    command += [
        "--served-model-name",
        "m",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--enforce-eager",
    ]
    with log.open("w") as file:
        environment = server_environment(on_cpu=True, gpus=())
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
    client = JSONClient(f"http://127.0.0.1:{port}", timeout=5)
    try:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                client.get("/health")
                break
            except ServerLost:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def command(out: Path, *flags: str, sizes: list[str] = SIZES) -> list[str]:
    return ["eval", "--task", "arithmetic", "--out-dir", str(out), *sizes, *flags]


def evaluate(out: Path, *flags: str, sizes: list[str] = SIZES) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    assert main(command(out, *flags, sizes=sizes)) == 0
    rows = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    return rows, json.loads((out / "result.json").read_text())


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (["--chat", "never"], ["--api", "completions", "--tokenizer", "FOLDER", "--chat", "never"]),
        (["--chat", "never"], ["--api", "completions"]),
        (["--chat", "always"], ["--api", "completions", "--tokenizer", "FOLDER"]),
        (["--chat", "always"], ["--api", "chat"]),
        (["--stop", "1", "9"], ["--api", "chat", "--stop", "1", "9"]),
        (
            ["--environment", "test_vllm_echo", "--turn-tokens", "7"],
            ["--api", "completions", "--tokenizer", "FOLDER", "--environment", "test_vllm_echo", "--turn-tokens", "7"],
        ),
    ],
    ids=["ids", "text", "template", "chat", "stop", "environment"],
)
def test_greedy_samples_are_those_of_this_process(
    folder: Path, url: str, tmp_path: Path, here: list[str], there: list[str]
) -> None:
    """Sample for sample: texts, lengths, finish reasons, verdicts and numbers; turns too."""
    own = ["--model", str(folder), "--device", "cpu", "--temperature", "0", *here]
    served = [str(folder) if flag == "FOLDER" else flag for flag in there]
    expected = evaluate(tmp_path / "here", *own)
    found = evaluate(tmp_path / "there", "--url", url, "--model", "m", "--temperature", "0", *served)
    assert found == expected
    assert len({row["completion"] for row in found[0]}) > 1


def test_samples_have_the_distribution_of_this_process(folder: Path, url: str, tmp_path: Path) -> None:
    """First tokens of 600 samples of a problem, by a chi-squared test; seeds differ, and so do samples."""
    flags = ["--max-problems", "1", "--max-new-tokens", "1", "--samples", "600", "--chat", "never"]
    here, _ = evaluate(tmp_path / "here", "--model", str(folder), "--device", "cpu", *flags)
    served = ["--url", url, "--model", "m", "--api", "completions", "--tokenizer", str(folder)]
    there, result = evaluate(tmp_path / "there", *served, *flags)
    assert result["identical"] == 0
    a, b = (Counter(row["completion"] for row in rows) for rows in (here, there))
    assert len(a) > 5
    frequent = [text for text in a | b if a[text] + b[text] >= 20]
    cells = [(a[text], b[text]) for text in frequent]
    cells.append((600 - sum(x for x, _ in cells), 600 - sum(y for _, y in cells)))
    statistic = sum((x - y) ** 2 / (x + y) for x, y in cells if x + y)
    freedom = len([1 for x, y in cells if x + y]) - 1
    # Wilson and Hilferty's normal approximation of the 1 - 1e-4 quantile.
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_seeds_give_the_same_samples_again(url: str, tmp_path: Path) -> None:
    """At temperature 1 a second evaluation draws the same completions; another seed draws others."""
    served = ["--url", url, "--model", "m", "--api", "completions", "--samples", "4", "--max-new-tokens", "6"]
    first, _ = evaluate(tmp_path / "first", *served)
    again, _ = evaluate(tmp_path / "again", *served, "--concurrency", "3")
    other, _ = evaluate(tmp_path / "other", *served, "--seed", "1")
    assert again == first
    assert sum(a["completion"] == b["completion"] for a, b in zip(first, other)) < len(first) / 2
