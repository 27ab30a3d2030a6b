"""What other verdicts change: who disagrees, and the rewards and advantages that the run would have had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from rlvr.algo.credit import Advantage, Steps
from rlvr.config import Config
from rlvr.core.turns import Turn
from rlvr.core.types import Completion, Group, Problem, Verdict
from rlvr.training.step.rewards import credited_advantages, credited_rewards, group_rewards

Record = Mapping[str, Any]
CLOSE = 1e-6  # difference of rewards and advantages that is rounding


@dataclass(frozen=True)
class Regraded:
    """A line of rollouts.jsonl and its verdict today; None where the stored one is kept."""

    record: Record
    verdict: Verdict | None


@dataclass
class Totals:
    """Sums over all rollouts of what changes."""

    rollouts: int = 0
    kept_verdicts: int = 0
    table: Counter = field(default_factory=Counter)  # (stored status, new status): rollouts
    disagreements: int = 0
    other_words: int = 0  # same verdict, but another reason or extracted answer
    rewards: list[float] = field(default_factory=lambda: [0.0, 0.0])
    rewarded: list[int] = field(default_factory=lambda: [0, 0])
    changed_rewards: int = 0
    advantages: int = 0
    changed_advantages: int = 0
    turned: int = 0  # advantages whose sign is another
    moved: float = 0.0  # sum of absolute differences
    signal: list[int] = field(default_factory=lambda: [0, 0])  # groups with an advantage that is not 0
    groups: int = 0
    gap: float = 0.0  # largest difference between stored advantages and those computed from the stored verdicts


class Changes:
    """Compares the stored verdicts of a run with other ones, step by step.

    Advantages are computed from both by the run's settings; those from the stored verdicts must be the stored ones
    (`gap`), else nothing is said about them. `why_not`: why they are not computed at all.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.totals = Totals()
        self.why_not = ""
        if config.run.shuffle_rewards:
            self.why_not = "the run's rewards are shuffled"
        elif config.algo.row.per_token:
            self.why_not = "they come from a critic" if config.algo.row.critic else "they belong to tokens"
        elif config.algo.credit == "step":
            self.why_not = "credit per step needs the run's tokenizer"

    def add(self, rows: Sequence[Regraded], problems: Mapping[str, Problem]) -> Iterator[dict[str, Any]]:
        """Count the rollouts of a step; yield a line for each whose verdict is another."""
        stored = [stored_verdict(row.record) for row in rows]
        new = [row.verdict or old for row, old in zip(rows, stored)]
        rewards, advantages = self._compared(rows, stored, new)
        for i, (row, old, verdict) in enumerate(zip(rows, stored, new)):
            self.totals.rollouts += 1
            self.totals.kept_verdicts += row.verdict is None
            self.totals.table[str(old.status), str(verdict.status)] += 1
            if is_same_verdict(row.record, verdict):
                self.totals.other_words += (old.reason, old.extracted) != (verdict.reason, verdict.extracted)
                continue
            self.totals.disagreements += 1
            record = row.record
            yield {
                **{name: record.get(name) for name in ("step", "problem", "sample", "completion")},
                "reference": printable_reference(problems[str(record["problem"])].reference),
                "stored": verdict_fields(old),
                "new": verdict_fields(verdict),
                "reward": [pair[i] for pair in rewards],
                "advantage": [as_logged(pair[i]) for pair in advantages] if advantages else None,
            }

    def _compared(
        self, rows: Sequence[Regraded], stored: Sequence[Verdict], new: Sequence[Verdict]
    ) -> tuple[list[list[float | None]], list[list[Advantage | None]]]:
        """Return rewards and advantages by the stored and by the new verdicts, and count what differs."""
        records, totals = [row.record for row in rows], self.totals
        groups = [groups_of(records, verdicts) for verdicts in (stored, new)]
        rewards = [[r for row in group_rewards(some, self.config.rollout) for r in row] for some in groups]
        for which, values in enumerate(rewards):
            scored = [value for value in values if value is not None]
            totals.rewards[which] += sum(scored)
            totals.rewarded[which] += len(scored)
        totals.changed_rewards += sum(differs(a, b) for a, b in zip(*rewards))
        if self.why_not:
            return rewards, []
        try:
            advantages = [self._advantages(some, records) for some in groups]
        except ValueError as error:  # a verifier without the named parts that the algorithm needs
            self.why_not = str(error)
            return rewards, []
        for record, old, other in zip(records, *advantages):
            if old is None or other is None:
                continue
            totals.gap = max(totals.gap, distance(old, record.get("advantage")))
            totals.advantages += 1
            totals.moved += abs(mean(old) - mean(other))
            totals.changed_advantages += distance(old, as_logged(other)) > CLOSE
            totals.turned += mean(old) * mean(other) < 0
        self._count_signal(groups[0], advantages)
        return rewards, advantages

    def _advantages(self, groups: Sequence[Group], records: Sequence[Record]) -> list[Advantage | None]:
        """Return the advantage of each rollout; None where its group was dropped."""
        kept = [group for group in groups if group.kept]
        if not kept:
            return [None] * len(records)
        costs: Any = None
        if any("kl_cost" in record for record in records):
            found = iter(record.get("kl_cost") for record in records)
            per_group = [[next(found) for _ in group.completions] for group in groups]
            costs = [row for row, group in zip(per_group, groups) if group.kept]
        rewards = credited_rewards(kept, self.config, decode=lambda ids: "")
        rows = iter(credited_advantages(kept, rewards, self.config.algo, costs))
        return [a for group in groups for a in (next(rows) if group.kept else [None] * len(group.completions))]

    def _count_signal(self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage | None]]) -> None:
        for which, values in enumerate(advantages):
            left = iter(values)
            for group in groups:
                row = [next(left) for _ in group.completions]
                self.totals.signal[which] += any(a is not None and distance(a, 0.0) > CLOSE for a in row)
        self.totals.groups += len(groups)

    def result(self) -> dict[str, Any]:
        """Return all numbers, as result.json holds them."""
        t = self.totals
        reproduced = not self.why_not and t.gap <= CLOSE
        why_not = self.why_not or ("" if reproduced else f"the stored ones differ by up to {t.gap:.2g} from recomputed")
        table: dict[str, dict[str, int]] = {}
        for (old, new), count in sorted(t.table.items()):
            table.setdefault(old, {})[new] = count
        means = [total / count if count else None for total, count in zip(t.rewards, t.rewarded)]
        return {
            "rollouts": t.rollouts,
            "agreement": 1 - t.disagreements / max(t.rollouts, 1),
            "disagreements": t.disagreements,
            "same_verdict_in_other_words": t.other_words,
            "kept_verdicts": t.kept_verdicts,
            "confusion": table,
            "reward": {"stored": means[0], "new": means[1], "changed": t.changed_rewards},
            "advantage": {
                "changed": t.changed_advantages,
                "of": t.advantages,
                "other_sign": t.turned,
                "mean_change": t.moved / max(t.advantages, 1),
                "groups": t.groups,
                "groups_with_signal": {"stored": t.signal[0], "new": t.signal[1]},
            }
            if not why_not
            else None,
            "no_advantages_because": why_not,
        }


def stored_verdict(record: Record) -> Verdict:
    """Return the verdict in a line of rollouts.jsonl."""
    steps = tuple((int(end), float(score)) for end, score in record.get("steps", ()))
    words = (record.get("reason") or "", record.get("extracted"), record.get("parts") or {})
    return Verdict(record["status"], record["score"], *words, steps=steps)


def is_same_verdict(record: Record, verdict: Verdict) -> bool:
    """Return whether a verdict has the status and the score of the stored one."""
    return str(verdict.status) == record.get("status") and not differs(verdict.score, record.get("score"))


def differs(one: float | None, other: float | None) -> bool:
    """Return whether two scores or rewards differ by more than rounding."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE


def groups_of(records: Sequence[Record], verdicts: Sequence[Verdict]) -> list[Group]:
    """Return the rollouts of a step as groups, as they were sampled."""
    numbers: list[int] = []
    for record in records:
        numbers.append((numbers[-1] if numbers else 0) + (bool(numbers) and record.get("sample") == 0))
    groups = []
    for _, places in groupby(range(len(records)), key=numbers.__getitem__):
        of = list(places)
        first = records[of[0]]
        groups.append(
            Group(
                Problem(str(first.get("problem")), ""),
                (),
                tuple(completion_of(records[i]) for i in of),
                tuple(verdicts[i] for i in of),
                kept=first.get("kept", True),
                round=first.get("round", 0),
            )
        )
    return groups


def completion_of(record: Record) -> Completion:
    """Return the completion of a line of rollouts.jsonl, as far as rewards depend on it: lengths, not tokens."""
    turns = tuple(
        Turn(turn["role"], turn["text"], turn["tokens"], turn.get("reward", 0.0), turn.get("void", False))
        for turn in record.get("turns", ())
    )
    length = sum(turn.length for turn in turns) if turns else record.get("tokens", 0)
    text, finish = str(record.get("completion", "")), record.get("finish_reason", "stop")
    return replace(Completion(text, (0,) * length, (0.0,) * length, finish), turns=turns)


def as_logged(advantage: Advantage | None) -> float | list[float] | None:
    """Return an advantage as rollouts.jsonl holds it."""
    return list(advantage.values) if isinstance(advantage, Steps) else advantage


def mean(advantage: Advantage) -> float:
    """Return an advantage as one number: of several steps the mean."""
    return sum(advantage.values) / len(advantage.values) if isinstance(advantage, Steps) else advantage


def distance(advantage: Advantage, other: Any) -> float:
    """Return the largest difference of two advantages, the second as logged; 0.0 stands for one without signal."""
    values = advantage.values if isinstance(advantage, Steps) else (advantage,)
    others = other if isinstance(other, list) else [other] * len(values)
    if len(others) != len(values) or any(value is None for value in others):
        return float("inf")
    return max((abs(a - b) for a, b in zip(values, others)), default=0.0)


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return what a line of disagreements.jsonl says of a verdict."""
    fields = ("status", "score", "reason", "extracted")
    return {name: str(value) if name == "status" else value for name in fields for value in [getattr(verdict, name)]}


def printable_reference(reference: Any) -> Any:
    """Return a reference as JSON; what JSON has no form for as text."""
    return reference if isinstance(reference, str | int | float | bool | None) else repr(reference)[:2000]
