"""A verifier as other programs use it: problems by id or from a reference, verdicts from worker processes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlvr.adapters.spoken import plain, read_prompt
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Environment, Pair, Problem, Verdict, Verifier
from rlvr.sandbox import forks
from rlvr.verifiers.runner import Runner


class Unscored(RuntimeError):
    """The verifier failed, or the reference cannot be read: there is no score, and 0 would be a wrong one."""


class Judge:
    """A verifier with its worker processes, started by the first verdict, and the problems of a pack by id.

    workers, timeout (seconds of a verdict), error_budget (the share of verdicts without score above which verdicts
    raise VerifierErrors): see rlvr.verifiers.Runner. It can be pickled, forked, and called from several threads; a
    process to which it is sent, however often, has one copy of it, with workers of its own. Close it, or use it as a
    context manager. Raise ValueError where two problems have one id, and for settings that the Runner refuses.
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
        error_budget: float | None = None,
    ) -> None:
        self.verifier = verifier
        self.environment = environment
        self.parts: Mapping[str, Sequence[Problem]] = {"train": list(train), "test": list(test)}
        self._problems: dict[str, Problem] = {}
        for problem in (problem for part in self.parts.values() for problem in part):
            if self._problems.setdefault(problem.id, problem) is not problem:
                raise ValueError(f"two problems have the id {problem.id!r}; expected unique ids")
        self._settings: dict[str, Any] = {"workers": workers, "timeout": timeout, "error_budget": error_budget}
        self._key = uuid.uuid4().hex
        self._lock = threading.Lock()
        # Started here, where what is wrong with settings or verifier is told; its workers start with a first verdict.
        self._runner: Runner | None = Runner(verifier, **self._settings)
        forks.register(self)

    def __reduce__(self) -> Any:
        state = {name: value for name, value in vars(self).items() if name not in ("_runner", "_lock")}
        return _arrived, (type(self), self._key, state)

    def after_fork(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    @property
    def named(self) -> bool:
        """Whether it has problems, which rows name by id. Without them rows bring references."""
        return bool(self._problems)

    @property
    def reads_prompt(self) -> bool:
        """Whether verdicts depend on the prompt."""
        return _has(self.verifier, "reads_prompt")

    def alone(self) -> Judge:
        """Return a judge of the same verifier and environment without the problems."""
        return Judge(self.verifier, environment=self.environment, **self._settings)

    def refuse_whole_batches(self, program: str) -> None:
        """Raise ValueError for a verifier whose verdicts depend on a batch, where `program` asks for one at a time."""
        if _has(self.verifier, "whole_batch"):
            raise ValueError(
                f"{program} asks for one verdict at a time, and those of this verifier depend on the whole batch "
                "(whole_batch; of combine: whiten); use a verifier that judges each completion by itself"
            )

    def part(self, name: str) -> Sequence[Problem]:
        """Return the problems of a part, train or test. Raise ValueError where there are none."""
        if not self.parts.get(name):
            raise ValueError(f"no problems in the part {name!r}; expected train or test of a judge with a task")
        return self.parts[name]

    def problem(self, key: Any, prompt: Any = "", reference: Any = None) -> Problem:
        """Return the pack's problem of that id; without id or pack a problem of this prompt and reference.

        Of a prompt's messages the text counts; arrays and numbers of numpy in a reference become lists and numbers.
        Raise LookupError for an id that the pack does not have, and where there is neither id nor reference for a pack,
        or an id and no reference without one.
        """
        if self.named and key is not None:
            if key not in self._problems:
                raise LookupError(f"no problem {key!r:.80} in this pack; were its rows made with other options?")
            return self._problems[key]
        if self.named and reference is None:
            raise LookupError("a row without the id of a problem of this pack, and without reference")
        if key is not None and reference is None:
            raise LookupError(
                f"no problem {key!r:.80} in this pack: it is a verifier alone, which needs references; "
                "judge(task=...) has problems"
            )
        return Problem("", read_prompt(prompt), plain(reference))

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each (problem, completion), in order."""
        with self._lock:
            if self._runner is None:
                self._runner = Runner(self.verifier, **self._settings)
        return self._runner.verify(pairs)

    def scores(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Return the rewards (see `rewarded`), None for a verdict without score."""
        return [rewarded(verdict) for verdict in self.verdicts(pairs)]

    def verdict(self, problem: Problem, completion: str) -> Verdict:
        """Return the verdict on one completion."""
        return self.verdicts([(problem, completion)])[0]

    def score(self, problem: Problem, completion: str) -> float:
        """Return the reward of one completion (see `rewarded`). Raise Unscored where there is no score."""
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


def rewarded(verdict: Verdict) -> float | None:
    """Return the reward of a whole completion: the score and the process rewards of its steps; None without score."""
    return None if verdict.score is None else verdict.score + sum(score for _, score in verdict.steps)


def scored(verdict: Verdict) -> float:
    """Return the reward of a verdict (see `rewarded`). Raise Unscored where there is no score."""
    reward = rewarded(verdict)
    if reward is None:
        raise Unscored(f"{verdict.status}: {verdict.reason}")
    return reward


def judge(
    verifier: str | None = None,
    *,
    task: str | None = None,
    workers: int = 2,
    timeout: float = 10.0,
    error_budget: float | None = None,
    **options: Any,
) -> Judge:
    """Return a judge of a verifier, or of the problems of a task pack, by name; `options` are that one's.

    workers, timeout, error_budget: see Judge. Raise ValueError unless one of them is named, LookupError for an unknown
    name or option.
    """
    if (verifier is None) == (task is None):
        raise ValueError("judge(verifier) or judge(task=...): expected one of them")
    if verifier is not None:
        return Judge(make_verifier(verifier, **options), workers=workers, timeout=timeout, error_budget=error_budget)
    pack = make_task(str(task), **options)
    return Judge(
        pack.verifier,
        pack.train,
        pack.test,
        environment=pack.environment,
        workers=workers,
        timeout=timeout,
        error_budget=error_budget,
    )


def _has(verifier: Any, trait: str) -> bool:
    """Whether a verifier, or a component of it, has a trait."""
    traits = VerifierTraits.of(verifier)
    return getattr(traits, trait) or any(_has(part, trait) for part in traits.components.values())


MOST_ARRIVED = 8
_judges: dict[str, Judge] = {}  # the copies that were sent to this process, the last one last


def _arrived(kind: type[Judge], key: str, state: dict[str, Any]) -> Judge:
    """Return this process's copy of a judge that was sent to it."""
    copied = _judges.pop(key, None)
    if copied is None:
        copied = kind.__new__(kind)
        vars(copied).update(state, _runner=None, _lock=threading.Lock())
        forks.register(copied)
    _judges[key] = copied
    while len(_judges) > MOST_ARRIVED:
        _judges.pop(next(iter(_judges)))
    return copied
