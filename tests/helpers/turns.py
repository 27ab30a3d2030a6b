"""Rollouts of several turns with random tokens, and environments for tests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import pytest

from rlvr.config import ModelConfig, RolloutConfig
from rlvr.core.types import (
    Ask,
    Completion,
    Environment,
    Group,
    Problem,
    Reply,
    Sampler,
    Sampling,
    Status,
    Turn,
    Verdict,
    error,
    incorrect,
)
from rlvr.model.load.policy import Policy, load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import rollout

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


# Rollouts with an environment whose rows depend on one another: only where none waits for the rest do they end.

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=") for i in range(5)]
LIMITS = RolloutConfig(max_turns=4, turn_tokens=6)
BUDGET = Sampling(max_new_tokens=24)


def play_rows(policy: Policy, sampler: Sampler, environment: Environment, **options) -> list[Group]:
    """Return groups of two rollouts of each of PROBLEMS. options: of `rollout`, and `limits` and `context`."""
    plan = TurnPlan(environment, options.pop("limits", LIMITS), options.pop("context", None))
    settings = {
        "problems": PROBLEMS,
        "group_size": 2,
        "seed": (0, "rollout", 3),
        "sampling": BUDGET,
        **options,
    }
    return rollout(policy, sampler, plan=plan, **settings)


def completions(groups: list[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def find_unscored(groups: list[Group]) -> set[str]:
    """The problems of which a rollout ended in an error."""
    failed = [(g.problem.id, c.verdict) for g in groups for c in g.completions if c.verdict is not None]
    return {name for name, verdict in failed if verdict.status is Status.ERROR}


@contextmanager
def in_rounds(sampler: Sampler) -> Iterator[None]:
    """Meanwhile a sampler plays in rounds, as Sampler does by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sampler), "converse", Sampler.converse)
        yield


class LastOfAll:
    """An environment in which the first reply to problem p0 comes after all rollouts of the others have ended."""

    def __init__(self, rows: int) -> None:
        self.missing, self.lock, self.all_ended = rows, threading.Lock(), threading.Event()

    def __call__(self, problem: Problem, rng: Random) -> Steps:
        if problem.id != "p0":
            verdict = yield from digits(problem, rng)
            with self.lock:
                self.missing -= 1
                if not self.missing:
                    self.all_ended.set()
            return verdict
        yield None
        self.all_ended.wait(60)
        yield Reply("1", role="user")
        return None


def interrupt_without_replies(policy: Policy, sampler: Sampler) -> None:
    """Interrupt a sampler that plays rows in which all replies are missing, and come after a minute.

    Raises what playing them raises; TimeoutError where that takes longer than 20 s.
    """
    asked, release = threading.Semaphore(0), threading.Event()

    def hangs(problem: Problem, rng: Random) -> Steps:
        yield None
        asked.release()
        release.wait(60)
        return None

    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play_rows, policy, sampler, hangs)
        for _ in range(2 * len(PROBLEMS)):
            assert asked.acquire(timeout=60)
        sampler.interrupt()
        try:
            playing.result(20)
        finally:
            release.set()


# Rollouts of several turns in which the model says given texts.


def talking_policy() -> Policy:
    """Return a tiny model whose tokens are characters of sums, of the parts of special tokens, and a few letters."""
    return load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)


class Says(Sampler):
    """Says the same texts in turn, one token for each character and an end token, and keeps what was asked."""

    def __init__(self, policy: Policy, *texts: str) -> None:
        self.policy, self.texts = policy, texts
        self.asked: list[Ask] = []

    def generate(self, prompts, sampling, seeds):
        made = []
        for prompt, row in zip(prompts, seeds, strict=True):
            text = self.texts[sum(ask.context[:1] == tuple(prompt[:1]) for ask in self.asked) % len(self.texts)]
            self.asked += [Ask(tuple(prompt), sampling, seed) for seed in row]
            ids = (*self.policy.encode(text), self.policy.eos_id)[: sampling.max_new_tokens]
            ended = ids[-1] == self.policy.eos_id
            made.append([Completion(text, ids, (-1.0,) * len(ids), "stop" if ended else "length") for _ in row])
        return made

    def load_weights(self, policy) -> None:
        return


def play(policy: Policy, environment: Environment, *, sampler: Sampler | None = None, **options) -> list[Group]:
    """Return the groups of `play_rows`; by default of the torch sampler."""
    return play_rows(policy, sampler or TorchSampler(policy), environment, **options)


def one(policy: Policy, environment: Environment, *texts: str, **options) -> Completion:
    """A rollout in which the model says these texts in turn."""
    sampler = Says(policy, *texts)
    (made,) = completions(play(policy, environment, sampler=sampler, problems=PROBLEMS[:1], group_size=1, **options))
    return made


def forever(problem, rng):
    said = yield
    while True:
        said = yield Reply(f"{len(said)}?", reward=0.5, void=said == "0")
