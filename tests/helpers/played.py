"""Rollouts of several turns with random tokens, and environments for tests."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from random import Random

from rlvr.core.types import Completion, Group, Problem, Reply, Turn, Verdict, error, incorrect

Steps = Generator[Reply | None, str, Verdict | None]


def digits(problem: Problem, rng: Random) -> Steps:
    """Reply with a random digit to each of the first turns; the third ends it, and the task's verifier judges it."""
    said = yield None
    for _ in range(2):
        said = yield Reply(f"{rng.randrange(10)}=", role="user", reward=0.25 * ("1" in said), void="2" in said)
    return None


def slow_digits(problem: Problem, rng: Random) -> Steps:
    """Do as `digits`, each reply after a time that differs from rollout to rollout."""
    inner = digits(problem, rng)
    found: Reply | None = next(inner)
    while True:
        said = yield found
        time.sleep(random.random() / 50)
        try:
            found = inner.send(said)
        except StopIteration as stop:
            return stop.value


def played_completion(rng: Random, vocabulary: int, *, turns: int, void: bool = False) -> Completion:
    """Return a completion with random tokens: so many turns of the model, with replies between them."""
    ids: list[int] = []
    logprobs: list[float] = []
    made: list[Turn] = []
    for number in range(turns):
        length = rng.randint(1, 4)
        ids += [rng.randrange(3, vocabulary) for _ in range(length)]
        logprobs += [-2 - rng.random() for _ in range(length)]
        made.append(
            Turn(
                "assistant",
                f"said {number}",
                length,
                reward=rng.random(),
                void=void and rng.random() < (0.5 if number + 1 < turns else 0.2),
            )
        )
        if number + 1 < turns:
            length = rng.randint(0, 5)
            ids += [rng.randrange(3, vocabulary) for _ in range(length)]
            logprobs += [0.0] * length
            made.append(Turn(rng.choice(("tool", "user")), "reply", length))
    return Completion(made[-1].text, tuple(ids), tuple(logprobs), turns=tuple(made))


def played_groups(seed: int, vocabulary: int, *, groups: int = 3, size: int = 4, void: bool = False) -> list[Group]:
    """Return groups of rollouts of one to four turns, with scores; one rollout of all has none."""
    rng = Random(seed)
    made = []
    for number in range(groups):
        prompt = tuple(rng.randrange(3, vocabulary) for _ in range(rng.randint(2, 6)))
        completions = tuple(played_completion(rng, vocabulary, turns=rng.randint(1, 4), void=void) for _ in range(size))
        verdicts = [Verdict("partial", rng.random()) if rng.random() < 0.8 else incorrect() for _ in range(size)]
        if number == 1:
            verdicts[0] = error("lost")
        made.append(Group(Problem(f"p{number}", "?"), prompt, completions, tuple(verdicts)))
    return made
