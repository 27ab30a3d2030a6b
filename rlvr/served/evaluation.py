"""pass@k of a served model: requests go out side by side, and every answer is kept as soon as it is verified."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlvr.files.write import write_whole
from rlvr.seeding import derive_seed
from rlvr.served.endpoint import Endpoint, RequestLost
from rlvr.served.requests import Outcome, Requests
from rlvr.served.speakers import Speaker
from rlvr.training.episodes import Seed
from rlvr.training.evaluate import append_answers, as_lines, check_problems, read_answers, summarize, verified
from rlvr.traits import BatchVerifier
from rlvr.types import Ask, Completion, Problem, RunError, Sampling

Row = tuple[Problem, int]
PROMPT_WAIT = 0.05  # seconds between two looks at the environments, while requests are under way


class Talk(Protocol):
    """Rollouts under way, numbered by row. waiting: those whose environment is making a reply."""

    @property
    def waiting(self) -> int: ...

    def ready(self) -> list[tuple[int, Ask]]:
        """Return the turns to be sampled that were not returned before, without waiting."""

    def heard(self, row: int, completion: Completion) -> None:
        """Take a turn of the model."""


class Single:
    """Rollouts of one turn. done: takes each rollout that has ended."""

    waiting = 0

    def __init__(self, asks: Sequence[Ask], done: Callable[[int, Completion], None]) -> None:
        self._asks = list(enumerate(asks))
        self.heard = done

    def ready(self) -> list[tuple[int, Ask]]:
        """Return all asks, once."""
        found, self._asks = self._asks, []
        return found


@dataclass
class Served:
    """A model on a server, how prompts become requests, and how many requests are under way at once."""

    endpoint: Endpoint
    speaker: Speaker
    concurrency: int

    def complete(self, ask: Ask) -> Completion:
        """Return what is sampled for an ask. Raises what Endpoint.complete does."""
        answer = self.endpoint.complete(self.speaker.question(ask.context), ask.sampling, ask.seed)
        return self.speaker.completion(answer, ask.sampling)


@dataclass
class Losses:
    """Requests that were given up: how many, how many in a row, and the last reason."""

    most: int
    total: int = 0
    in_a_row: int = 0
    reason: str = ""
    rows: set[int] = field(default_factory=set)

    def add(self, row: int, error: RequestLost) -> None:
        """Count a lost request. Raises RunError where so many in a row are lost that the server is gone."""
        self.total += 1
        self.in_a_row += 1
        self.reason = str(error)
        self.rows.add(row)
        if self.in_a_row >= self.most:
            raise RunError(f"{self.in_a_row} requests in a row were lost; the last: {self.reason}{AGAIN}")

    def check(self, rows: int) -> None:
        """Raise RunError where answers are missing."""
        if self.total:
            raise RunError(f"{self.total} of {rows} answers are missing, lost requests; the last: {self.reason}{AGAIN}")


AGAIN = "; what was answered is kept, and the same command asks for the rest"


def evaluate_served(
    served: Served,
    problems: Sequence[Problem],
    verifier: BatchVerifier,
    lenient: BatchVerifier | None = None,
    strict: BatchVerifier | None = None,
    *,
    sampling: Sampling,
    samples: int,
    ks: Sequence[int],
    threshold: float | None,
    seed: int,
    answers_file: Path,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Do as rlvr.training.evaluate.evaluate: the same seeds, answers and numbers, and at the end the same order.

    A request that is lost leaves its answer out of the file; the next call repeats it. The result also has "identical",
    the share of problems whose samples all have the same text, where several were drawn at a temperature above 0.
    Raises RunError where answers are missing, RequestRefused where the server refuses a request.
    """
    check_problems(problems, ks, samples)
    rows = [(problem, i) for problem in problems for i in range(samples)]
    held = read_answers(answers_file)
    open_rows = [(problem, i) for problem, i in rows if (problem.id, i) not in held]
    others = {name: other for name, other in (("lenient", lenient), ("strict", strict)) if other is not None}
    missing = defaultdict(int, {problem.id: 0 for problem in problems})
    for problem, _ in open_rows:
        missing[problem.id] += 1
    progress(sum(not left for left in missing.values()))

    def keep(ended: Sequence[tuple[int, Completion]]) -> None:
        played = [(*open_rows[row], completion) for row, completion in ended]
        answers = verified(played, verifier, others)
        append_answers(answers_file, answers)
        for answer in answers:
            held[answer["id"], answer["sample"]] = answer
            missing[answer["id"]] -= 1
        progress(sum(not left for left in missing.values()))

    losses = ask_all(served, open_rows, sampling, seed, keep)
    losses.check(len(rows))
    ordered = [held[problem.id, i] for problem, i in rows]
    wanted = {(problem.id, i) for problem, i in rows}
    write_whole(answers_file, as_lines([*ordered, *(row for key, row in held.items() if key not in wanted)]))
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
) -> Losses:
    """Have every row answered, and `keep` called with those that have ended, several at a time. Return the losses."""
    ended: list[tuple[int, Completion]] = []
    prompts = {problem.id: tuple(served.speaker.render(problem.prompt)) for problem, _ in rows}
    names: list[Seed] = [(seed, "eval", problem.id, i) for problem, i in rows]
    asks = [Ask(prompts[problem.id], sampling, derive_seed(*name)) for (problem, _), name in zip(rows, names)]
    talk: Talk = Single(asks, lambda row, completion: ended.append((row, completion)))
    losses = Losses(max(served.concurrency, 8))
    with Requests(served.complete, min(served.concurrency, max(1, len(rows)))) as requests:
        while True:
            for row, ask in talk.ready():
                requests.put(row, ask)
            if ended:
                keep(ended)
                ended.clear()
            elif not requests.open and not talk.waiting:
                return losses
            take(requests.take(PROMPT_WAIT if talk.waiting else None), talk, losses)


def take(outcomes: Iterable[tuple[int, Outcome]], talk: Talk, losses: Losses) -> None:
    """Pass on what was sampled, count what was lost, and raise anything else."""
    for row, outcome in outcomes:
        if isinstance(outcome, RequestLost):
            losses.add(row, outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            losses.in_a_row = 0
            talk.heard(row, outcome)


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
