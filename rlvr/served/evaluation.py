"""pass@k of a served model: many requests at a time, and every answer is written as soon as it is verified."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlvr.core.endpoint import Endpoint, Generated, RequestLost
from rlvr.core.http import RequestRefused
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Ask, Completion, Problem, RunError, Sampling
from rlvr.training.evaluation.answers import Answers
from rlvr.training.evaluation.evaluate import check_problems, summarize, verify_answers
from rlvr.training.rollout.episodes import Background, Episode, Episodes, Seed, TurnPlan

from .speakers import Speaker

MOST_UNTAKEN = 1024  # outcomes; with more than these requests wait, because a verifier may be slower than the server


Row = tuple[Problem, int]
LOOK_EVERY = 0.2  # seconds between two looks at the environments, which may have taken too long
TOO_LONG = re.compile(r"context|too (long|large|many tokens)|maximum.{0,40}(length|tokens)", re.IGNORECASE)


class Single:
    """Rollouts of one turn, as rlvr.core.types.Conversations. done: takes each rollout that has ended."""

    def __init__(self, asks: Sequence[Ask], done: Callable[[int, Completion], None]) -> None:
        self._asks = list(enumerate(asks))
        self.add_turn = done

    def asks(self, *, every: bool) -> list[tuple[int, Ask]]:
        """Return all asks, once."""
        found, self._asks = self._asks, []
        return found

    def on_reply(self, wake: Callable[[], None]) -> None:
        """Do nothing: there are no replies."""

    def drop(self, row: int) -> None:
        """Do nothing: nothing is open."""

    def cut(self, row: int) -> bool:
        """Return that a rollout cannot end where its only turn is refused."""
        return False


@dataclass
class Served:
    """A model on a server, how prompts become requests, and how many requests are under way at once."""

    endpoint: Endpoint
    speaker: Speaker
    concurrency: int

    def complete(self, ask: Ask) -> Generated:
        """Return what is sampled for an ask. Raises what Endpoint.complete does."""
        return self.endpoint.complete(self.speaker.question(ask.context), ask.sampling, ask.seed)


@dataclass
class Losses:
    """Requests that were given up. most: how many in a row end the evaluation."""

    most: int
    total: int = 0
    in_a_row: int = 0
    reason: str = ""
    rows: set[int] = field(default_factory=set)

    def add(self, row: int, error: RequestLost) -> None:
        """Count a lost request. Raises RunError where so many in a row are lost that the server must be gone."""
        self.total += 1
        self.in_a_row += 1
        self.reason = str(error)
        self.rows.add(row)
        if self.in_a_row >= self.most:
            raise RunError(f"{self.in_a_row} requests in a row were lost; the last: {self.reason}{HOW_TO_CONTINUE}")

    def check(self, rows: int) -> None:
        if self.total:
            raise RunError(
                f"{self.total} of {rows} answers are missing, lost requests; the last: {self.reason}{HOW_TO_CONTINUE}"
            )


HOW_TO_CONTINUE = "; what was answered is kept, and the same command asks for the rest"


def evaluate_served(
    served: Served,
    problems: Sequence[Problem],
    verifier: BatchVerifier,
    *,
    sampling: Sampling,
    samples: int,
    ks: Sequence[int],
    threshold: float | None,
    seed: int,
    answers_file: Path,
    progress: Callable[[int], None],
    plan: TurnPlan | None = None,
    **others: BatchVerifier,
) -> dict[str, Any]:
    """Do as rlvr.training.evaluation.evaluate.evaluate: the same seeds, answers and numbers, and at the end the same
    order.

    A request that is lost leaves its answer out of the file; the next call repeats it. The result also has "identical",
    the share of problems whose samples all have the same text, where several were drawn at a temperature above 0.
    Raises RunError where answers are missing, RequestRefused where the server refuses a request.
    """
    check_problems(problems, ks, samples)
    rows = [(problem, i) for problem in problems for i in range(samples)]
    answers = Answers(answers_file)
    open_rows = [(problem, i) for problem, i in rows if (problem.id, i) not in answers.held]
    missing = defaultdict(int, {problem.id: 0 for problem in problems})
    for problem, _ in open_rows:
        missing[problem.id] += 1
    progress(sum(not left for left in missing.values()))

    def keep(ended: Sequence[tuple[int, Completion]]) -> None:
        played = [(*open_rows[row], completion) for row, completion in ended]
        answers.add(verify_answers(played, verifier, others))
        for problem, _, completion in played:
            served.speaker.forget(completion.token_ids)
            missing[problem.id] -= 1
        progress(sum(not left for left in missing.values()))

    losses = ask_all(served, open_rows, sampling, seed, keep, plan)
    losses.check(len(rows))
    answers.order([(problem.id, i) for problem, i in rows])
    ordered = [answers.held[problem.id, i] for problem, i in rows]
    result = summarize(ordered, ks, threshold)
    if samples > 1 and sampling.temperature > 0:
        result["identical"] = identical(ordered)
    return result


def ask_all(
    served: Served,
    rows: Sequence[Row],
    sampling: Sampling,
    seed: int,
    keep: Callable[[Sequence[tuple[int, Completion]]], None],
    plan: TurnPlan | None = None,
) -> Losses:
    """Have every row answered. `keep` gets those that have ended, several at a time. Return the losses."""
    ended: list[tuple[int, Completion]] = []

    def keep_rollout(row: int, completion: Completion) -> None:
        ended.append((row, completion))

    losses = Losses(max(served.concurrency, 8))
    left = len(rows)
    with ExitStack() as stack:
        rollouts = stack.enter_context(open_rollouts(served, rows, sampling, seed, plan, keep_rollout))
        # The request of the lowest row is sent first, so that rollouts that have begun end before others begin.
        requests: Background[Generated] = Background(math.inf, served.concurrency, untaken=MOST_UNTAKEN)
        stack.callback(requests.close)
        rollouts.on_reply(requests.notify)
        asked: dict[int, Ask] = {}
        while left > losses.total:
            for row, ask in rollouts.asks(every=False) or ():
                asked[row] = ask
                requests.submit(row, partial(served.complete, ask))
            if ended:
                left -= len(ended)
                keep(ended)
                ended.clear()
            else:
                for row, outcome in requests.collect(LOOK_EVERY):
                    take(row, asked.pop(row), outcome, served.speaker, rollouts, losses)
    return losses


@contextmanager
def open_rollouts(
    served: Served,
    rows: Sequence[Row],
    sampling: Sampling,
    seed: int,
    plan: TurnPlan | None,
    done: Callable[[int, Completion], None],
) -> Iterator[Single | Episodes]:
    """Yield the rollouts of all rows: of one turn, or played in an environment."""
    problems = {problem.id: problem for problem, _ in rows}
    prompts = {name: tuple(served.speaker.render(problem.prompt)) for name, problem in problems.items()}
    names: list[Seed] = [(seed, "eval", problem.id, i) for problem, i in rows]
    if plan is None:
        asks = [Ask(prompts[problem.id], sampling, derive_seed(*name)) for (problem, _), name in zip(rows, names)]
        yield Single(asks, done)
        return
    episodes = [Episode(problem, prompts[problem.id], name) for (problem, _), name in zip(rows, names)]
    with Episodes(served.speaker, episodes, sampling, plan, done) as running:
        yield running


def take(
    row: int,
    ask: Ask,
    outcome: Generated | BaseException,
    speaker: Speaker,
    rollouts: Single | Episodes,
    losses: Losses,
) -> None:
    """Pass on what was sampled for an ask, count what was lost, and raise anything else.

    A later turn that the server refuses as too long ends its rollout.
    """
    if isinstance(outcome, RequestLost):
        rollouts.drop(row)
        losses.add(row, outcome)
    elif isinstance(outcome, RequestRefused) and TOO_LONG.search(str(outcome)) and rollouts.cut(row):
        return
    elif isinstance(outcome, BaseException):
        raise outcome
    else:
        losses.in_a_row = 0
        # Here, not in the threads: a tokenizer is not for several at once.
        rollouts.add_turn(row, speaker.completion(outcome, ask.sampling))


def identical(answers: Iterable[Mapping[str, Any]]) -> float:
    """Return the share of problems with several answers that all have the same text; 0 without such problems."""
    texts: dict[str, list[str]] = {}
    for row in answers:
        texts.setdefault(row["id"], []).append(row["completion"])
    several = [found for found in texts.values() if len(found) > 1]
    return sum(len(set(found)) == 1 for found in several) / len(several) if several else 0.0


def identical_hint(result: Mapping[str, Any]) -> str:
    """Return a line where half of the problems or more have only identical samples; else ""."""
    share = result.get("identical", 0.0)
    if share < 0.5:
        return ""
    return (
        f"all samples of a problem are identical for {share:.0%} of the problems: the server may ignore `seed`, or the "
        "model is certain; pass@k then says no more than pass@1"
    )
