"""A verifier as other programs use it: problems by id or from a reference, verdicts from worker processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlvr.registry import make_task, make_verifier
from rlvr.seeding import derive_seed
from rlvr.types import Environment, Pair, Problem, Prompt, Reply, Verdict, Verifier
from rlvr.verifiers.runner import Runner


class Unscored(RuntimeError):
    """The verifier failed, or the reference cannot be read: there is no score, and 0 would be a wrong one."""


class Judge:
    """A verifier with its worker processes, started by the first verdict, and the problems of a pack by id.

    workers, timeout (seconds of a verdict): see rlvr.verifiers.Runner. It can be pickled, and called from several
    threads; a copy in another process has workers of its own. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        verifier: Verifier,
        train: Iterable[Problem] = (),
        test: Iterable[Problem] = (),
        *,
        environment: Environment | None = None,
        workers: int = 2,
        timeout: float = 10.0,
    ) -> None:
        self.verifier = verifier
        self.environment = environment
        self.parts: Mapping[str, Sequence[Problem]] = {"train": list(train), "test": list(test)}
        self._problems = {problem.id: problem for part in self.parts.values() for problem in part}
        self._settings: dict[str, Any] = {"workers": workers, "timeout": timeout}
        self._runner: Runner | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_runner": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def part(self, name: str) -> Sequence[Problem]:
        """Return the problems of a part, train or test. Raise ValueError where there are none."""
        if not self.parts.get(name):
            raise ValueError(f"no problems in the part {name!r}; expected train or test of a judge with a task")
        return self.parts[name]

    def problem(self, key: str | None, prompt: Prompt = "", reference: Any = None) -> Problem:
        """Return the pack's problem of that id; without one a problem of this prompt and reference.

        Raise LookupError for an id that the pack does not have.
        """
        if key is None:
            return Problem("", prompt, reference)
        if key not in self._problems:
            raise LookupError(f"no problem {key!r} in this pack; were its rows made with other options?")
        return self._problems[key]

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each (problem, completion), in order."""
        with self._lock:
            if self._runner is None:
                self._runner = Runner(self.verifier, **self._settings)
        return self._runner.verify(pairs)

    def scores(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return the scores, None for a verdict without one."""
        return [verdict.score for verdict in self.verdicts(pairs)]

    def verdict(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion."""
        return self.verdicts([(problem, completion)])[0]

    def score(self, problem: Problem, completion: str) -> float:
        """Return the score of one completion. Raise Unscored where there is none."""
        return scored(self.verdict(problem, completion))

    def close(self) -> None:
        """End the worker processes; a further verdict starts others."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class World:
    """One rollout of a problem in the environment of its pack; where the pack has none, of a single turn.

    seed: of the environment's random numbers.
    """

    def __init__(self, pack: Judge, problem: Problem, *seed: int | str) -> None:
        self.pack, self.problem = pack, problem
        self._turns = None
        if pack.environment is not None:
            self._turns = pack.environment(problem, random.Random(derive_seed(*seed, problem.id)))
            next(self._turns)

    def say(self, text: str) -> Reply | Verdict:
        """Take a turn of the model. Return the reply to it, or at the end the verdict."""
        if self._turns is None:
            return self.pack.verdict(self.problem, text)
        try:
            return self._turns.send(text) or Reply("", "user")
        except StopIteration as ended:
            return ended.value or self.pack.verdict(self.problem, text)

    def close(self) -> None:
        """End the environment."""
        if self._turns is not None:
            self._turns.close()


def scored(verdict: Verdict) -> float:
    """Return the score of a verdict. Raise Unscored where there is none."""
    if verdict.score is None:
        raise Unscored(f"{verdict.status}: {verdict.reason}")
    return verdict.score


def judge(
    verifier: str | None = None, *, task: str | None = None, workers: int = 2, timeout: float = 10.0, **options: Any
) -> Judge:
    """Return a judge of a verifier, or of the problems of a task pack, by name; `options` are that one's.

    Raise ValueError unless one of them is named, LookupError for an unknown name or option.
    """
    if (verifier is None) == (task is None):
        raise ValueError("judge(verifier) or judge(task=...): expected one of them")
    if verifier is not None:
        return Judge(make_verifier(verifier, **options), workers=workers, timeout=timeout)
    pack = make_task(str(task), **options)
    return Judge(
        pack.verifier,
        pack.train,
        pack.test,
        environment=pack.environment,
        workers=workers,
        timeout=timeout,
    )


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """Return a prompt as chat messages."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def said(completion: Any) -> str:
    """Return what the model said: a text, or of messages the content of the last one of the assistant."""
    if isinstance(completion, str):
        return completion
    spoken = [message for message in completion if message.get("role") == "assistant"]
    return str(spoken[-1].get("content") or "") if spoken else ""
