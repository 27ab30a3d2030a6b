"""Programs that try to be called right without being right, or to get out; run in the sandbox only.

golden/sandbox_attacks.jsonl holds for each: the program, the tests, the expected verdict ("not_passed": anything but
correct), and why. A containment program prints SAFE or LEAK, so "passed" means contained. {CANARY_*} are replaced by a
listener, a secret file and a process of this test; `repeat` gives the text that {MANY} stands for.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from rlvr.config import Config, EvalConfig, ModelConfig, RolloutConfig, RunConfig
from rlvr.core.types import Completion, Problem, Sampler, Sampling, Verdict
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.runs.log import RunLog
from rlvr.sandbox import level
from rlvr.train import train
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.runs import assemble

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "sandbox_attacks.jsonl").read_text().splitlines()
]
HONEST = Problem("honest", "add", {"type": "assert", "code": "assert add(2, 3) == 5\nassert add(1, 1) == 2\n"})
RIGHT, WRONG = "def add(a, b): return a + b", "def add(a, b): return a - b"

pytestmark = pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")


@dataclass
class Canaries:
    """What no program may reach."""

    port: int
    secret: Path
    process: subprocess.Popen[bytes]

    def place_canaries(self, text: str) -> str:
        """A program with the canaries' addresses."""
        places = {
            "{CANARY_PORT}": self.port,
            "{CANARY_FILE}": self.secret,
            "{CANARY_DIR}": self.secret.parent,
            "{CANARY_PID}": self.process.pid,
        }
        for place, value in places.items():
            text = text.replace(place, str(value))
        return text


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    with (
        tempfile.TemporaryDirectory(prefix="canary-") as folder,
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(["sleep", "600"]) as process,
    ):
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        # Open to everyone: what keeps a program from it is the sandbox, not its owner.
        secret.parent.chmod(0o777)
        secret.chmod(0o666)
        yield Canaries(listener.getsockname()[1], secret, process)
        process.kill()


def program(row: dict[str, Any], canaries: Canaries) -> str:
    text, count = row.get("repeat", ("", 0))
    return canaries.place_canaries(row["program"]).replace("{MANY}", text * count)


def is_attack(row: dict[str, Any]) -> bool:
    """Whether the row must not be called right (others are programs that must stay contained)."""
    return row["expected_verdict"] != "passed" and "passed" not in row.get("also_ok", [])


def complaint(row: dict[str, Any], verdict: Verdict) -> str:
    """What is wrong with a verdict, or nothing."""
    if verdict.score is None:
        return f"a program made the verifier fail: {verdict.reason}"
    if is_attack(row) and verdict.correct and integrity(row["tests"]) == "strong":
        return "an attack is called right"
    if row["expected_verdict"] == "passed" and not verdict.correct and not row.get("also_ok"):
        return f"not contained: {verdict.reason}"
    return f"a reason of {len(verdict.reason)} characters" if len(verdict.reason) > 600 else ""


@pytest.mark.parametrize("bombs", [False, True], ids=["attacks", "bombs"])
@pytest.mark.parametrize("number", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_no_attack_is_called_right_and_every_program_stays_contained(
    canaries: Canaries, monkeypatch: pytest.MonkeyPatch, number: int, bombs: bool
) -> None:
    """The whole catalogue at a level, an honest and a wrong program after each attack; nothing stays behind."""
    if number > level().number:
        pytest.skip(f"level {number} is not to be had on this machine")
    rows = [row for row in ROWS if bool(row.get("only_with_limits")) == bombs]
    pairs = []
    for row in rows:
        pairs += [(Problem(row["id"], "", row["tests"]), program(row, canaries)), (HONEST, RIGHT), (HONEST, WRONG)]
    with tempfile.TemporaryDirectory(prefix="scratch-") as scratch:
        Path(scratch).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", scratch)  # where level 2 has its scratch folders
        verifier = UnitTests(timeout=3.0, memory_mb=512, slots=2, level=number)
        try:
            verdicts = verifier.verify_batch(pairs)
        finally:
            verifier.close()
        assert os.listdir(scratch) == []
    found = {
        row["id"]: text for row, verdict in zip(rows, verdicts[::3], strict=True) if (text := complaint(row, verdict))
    }
    assert found == {}
    assert all(verdict.correct for verdict in verdicts[1::3])
    assert not any(verdict.correct for verdict in verdicts[2::3])
    assert canaries.secret.read_text() == "secret"
    assert canaries.process.poll() is None
    assert sorted(os.listdir(canaries.secret.parent)) == ["secret"]
    assert not [row["id"] for row in rows if Path(row.get("probe_absent", "/none")).exists()]


class Script(Sampler):
    """A policy that writes attacks: for each prompt the programs that `answers` holds for it."""

    def __init__(self, prompts: dict[tuple[int, ...], str], answers: dict[str, list[str]]) -> None:
        self.prompts = prompts
        self.answers = answers

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        """The answers in turn, as completions of one token."""
        return [
            [Completion(self.answers[self.prompts[tuple(prompt)]][i % 2], (1,), (-1.0,)) for i in range(len(group))]
            for prompt, group in zip(prompts, seeds, strict=True)
        ]

    def load_weights(self, policy: object) -> None:
        """A script has none."""


def test_a_policy_that_emits_attacks_earns_nothing_over_20_steps(canaries: Canaries, tmp_path: Path) -> None:
    """A fourth of the attacks, bare and in a fence, score 0; an honest problem among them scores 1."""
    attacks = [row for row in ROWS if is_attack(row) and not row.get("only_with_limits")]
    # Training leaves weak tests out.
    attacks = [row for row in attacks if integrity(row["tests"]) == "strong"][::4]
    assert len(attacks) > 20
    answers = {row["id"]: [text := program(row, canaries), f"Sure:\n```python\n{text}\n```\nDone."] for row in attacks}
    answers |= {HONEST.id: [RIGHT, f"```python\n{RIGHT}\n```"]}
    problems = [Problem(row["id"], row["id"], row["tests"]) for row in attacks]
    problems.append(replace(HONEST, prompt=HONEST.id))
    per_step = -(-len(problems) // 20)
    config = Config(
        run=RunConfig(out_dir=tmp_path / "run", steps=20, save_every=0),
        rollout=RolloutConfig(problems_per_step=per_step, group_size=2, max_new_tokens=8),
        eval=EvalConfig(every=-1),
    )
    policy = load_policy(ModelConfig(name="tiny", device="cpu"), corpus=list(answers))
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    script = Script({tuple(policy.render(problem.prompt)): problem.id for problem in problems}, answers)
    log = RunLog(config.run.out_dir)
    with Runner(UnitTests(timeout=1.0, memory_mb=512, slots=2), error_budget=0.0) as runner:
        optimizer = make_optimizer(policy.parameters(), config.optim)
        train(assemble(config, policy, optimizer, script, problems, runner, log, Accelerator(cpu=True)))
    rollouts = log.read("rollouts")
    rewards = {(record["problem"], record["reward"]) for record in rollouts}
    assert rewards == {(row["id"], 0.0) for row in attacks} | {(HONEST.id, 1.0)}
    assert len(log.read("metrics")) == 20
    assert all((old == new).all() for old, new in zip(before, policy.parameters(), strict=True))
