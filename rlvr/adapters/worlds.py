"""Rollouts of a pack's problems, turn by turn, as other programs play them."""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from rlvr.adapters.judging import Judge
from rlvr.adapters.spoken import read_prompt
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Reply, Verdict
from rlvr.verifiers.runner.base import guarded, log_failure


class World:
    """One rollout of a problem in the environment of its pack; where the pack has none, of a single turn.

    seed: of the environment's random numbers. The environment starts with the first turn. What it raises ends the
    rollout with a verdict of status error, which has no score: the model is not to blame.
    """

    def __init__(self, pack: Judge, problem: Problem, *seed: int | str) -> None:
        self.pack, self.problem = pack, problem
        self.verdict: Verdict | None = None
        self.earned = 0.0
        """The rewards of the turns so far."""
        self.said = ""
        self._seed = seed
        self._turns: Generator[Reply | None, str, Any] | None = None

    def ask(self, prompt: Any) -> None:
        """Give the prompt of a problem that was made from a reference, before the first turn."""
        self.problem = replace(self.problem, prompt=read_prompt(prompt))

    def say(self, text: str) -> Reply | Verdict:
        """Take a turn of the model. Return the reply to it, or at the end the verdict, and from then on that."""
        if self.verdict is not None:
            return self.verdict
        self.said = text
        if self.pack.environment is None:
            return self.end()
        found, failure = guarded(self.pack.environment, lambda: self._reply(text))
        if failure is not None:
            log_failure(failure)
        if isinstance(found, Reply):
            self.earned += found.reward
            return found
        return self.end(found)

    def end(self, verdict: Verdict | None = None) -> Verdict:
        """End the rollout with this verdict; without one the pack's verifier judges what was said last."""
        self.verdict = verdict or self.judged()
        self.close()
        return self.verdict

    def judged(self) -> Verdict:
        """Return the verdict; of a rollout that has not ended, which goes on, the verifier's on what was said last."""
        return self.pack.verdict(self.problem, self.said) if self.verdict is None else self.verdict

    def close(self) -> None:
        """End the environment. What it raises then is logged: the rollout has ended."""
        turns, self._turns = self._turns, None
        if turns is not None:
            _, failure = guarded(self.pack.environment, turns.close)
            if failure is not None:
                log_failure(failure)

    def _reply(self, text: str) -> Reply | Verdict | None:
        """Return the environment's reply, or its verdict; None where it leaves that to the verifier."""
        assert self.pack.environment is not None
        try:
            if self._turns is None:
                self._turns = self.pack.environment(
                    self.problem, random.Random(derive_seed(*self._seed, self.problem.id))
                )
                if (opening := next(self._turns)) is not None:
                    raise TypeError(f"it began with {opening!r:.80}; expected a bare `yield` first, which gives a turn")
            reply = self._turns.send(text)
        except StopIteration as ended:
            return None if ended.value is None else Verdict.of(ended.value)
        if not isinstance(reply, Reply) or not isinstance(reply.text, str):
            raise TypeError(f"it yielded {reply!r:.80}; expected a Reply")
        return reply
