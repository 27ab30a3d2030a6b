"""What other verdicts change in a run: which rollouts, which rewards, and which groups have a signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlvr.config import Config
from rlvr.core.types import Completion, Group, Problem, Turn, Verdict
from rlvr.training.step.rewards import group_rewards

Record = Mapping[str, Any]
Rewards = list[list[float | None]]  # of groups
CLOSE = 1e-6  # difference of scores and rewards that is rounding


@dataclass(frozen=True)
class Regraded:
    """A line of rollouts.jsonl and its verdict today; None where the stored one is kept."""

    record: Record
    verdict: Verdict | None


class Changes:
    """Compares the stored verdicts of a run with other ones, step by step.

    Rewards are computed from both by the run's settings. A group has a signal where its rewards differ.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.counts: Counter[str] = Counter()
        self.confusion: Counter[tuple[str, str]] = Counter()  # (stored status, new status): rollouts
        self.sums = {"stored": 0.0, "new": 0.0}

    def add(self, rows: Sequence[Regraded], problems: Mapping[str, Problem]) -> Iterator[dict[str, Any]]:
        """Count the rollouts of a step; yield a line for each whose verdict is another."""
        records = [row.record for row in rows]
        stored = [verdict_of(record) for record in records]
        new = [row.verdict or old for row, old in zip(rows, stored)]
        rewards = {"stored": self._count_rewards("stored", groups_of(records, stored))}
        rewards["new"] = self._count_rewards("new", groups_of(records, new))
        self.counts["rollouts"] += len(rows)
        self.counts["kept"] += sum(row.verdict is None for row in rows)
        self.counts["rewards"] += sum(map(differ, rewards["stored"], rewards["new"]))
        for record, old, verdict, *pair in zip(records, stored, new, rewards["stored"], rewards["new"]):
            self.confusion[str(old.status), str(verdict.status)] += 1
            if is_same_verdict(record, verdict):
                self.counts["other words"] += (old.reason, old.extracted) != (verdict.reason, verdict.extracted)
                continue
            self.counts["disagreements"] += 1
            reference = problems[str(record["problem"])].reference
            plain = isinstance(reference, str | int | float | bool | None)
            yield {
                **{name: record.get(name) for name in ("step", "problem", "sample", "completion")},
                "reference": reference if plain else repr(reference)[:2000],
                "stored": verdict_fields(old),
                "new": verdict_fields(verdict),
                "reward": pair,
            }

    def _count_rewards(self, which: str, groups: Sequence[Group]) -> list[float | None]:
        """Return the reward of each rollout, and count rewards and groups with a signal."""
        of_groups = group_rewards(groups, self.config.rollout)
        for rewards in of_groups:
            scored = [reward for reward in rewards if reward is not None]
            self.sums[which] += sum(scored)
            self.counts[f"scored {which}"] += len(scored)
            self.counts[f"groups {which}"] += 1
            self.counts[f"signal {which}"] += bool(scored) and max(scored) - min(scored) > CLOSE
        return [reward for rewards in of_groups for reward in rewards]

    def result(self) -> dict[str, Any]:
        """Return all numbers, as result.json holds them."""
        c, sides = self.counts, ("stored", "new")
        confusion: dict[str, dict[str, int]] = {}
        for (old, new), count in sorted(self.confusion.items()):
            confusion.setdefault(old, {})[new] = count
        means = {side: self.sums[side] / c[f"scored {side}"] if c[f"scored {side}"] else None for side in sides}
        return {
            "rollouts": c["rollouts"],
            "agreement": 1 - c["disagreements"] / max(c["rollouts"], 1),
            "disagreements": c["disagreements"],
            "same_verdict_in_other_words": c["other words"],
            "kept_verdicts": c["kept"],
            "confusion": confusion,
            "reward": {**means, "changed": c["rewards"]},
            "groups": c["groups stored"],
            "groups_with_signal": {side: c[f"signal {side}"] for side in sides},
        }


def verdict_of(record: Record) -> Verdict:
    """Return the verdict in a line of rollouts.jsonl or verdicts.jsonl."""
    steps = tuple((int(end), float(score)) for end, score in record.get("steps", ()))
    words = (record.get("reason") or "", record.get("extracted"), record.get("parts") or {})
    return Verdict(record["status"], record["score"], *words, steps=steps)


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """Return what a line of disagreements.jsonl or verdicts.jsonl says of a verdict."""
    fields = {name: getattr(verdict, name) for name in ("score", "reason", "extracted")}
    return {"status": str(verdict.status), **fields}


def is_same_verdict(record: Record, verdict: Verdict) -> bool:
    """Return whether a verdict has the status and the score of the stored one."""
    return str(verdict.status) == record.get("status") and not differ(verdict.score, record.get("score"))


def differ(one: float | None, other: float | None) -> bool:
    """Return whether two scores or rewards differ by more than rounding."""
    if one is None or other is None:
        return one is not other
    return abs(one - other) > CLOSE


def groups_of(records: Sequence[Record], verdicts: Sequence[Verdict]) -> list[Group]:
    """Return the rollouts of a step as groups, as they were sampled: each begins with sample 0."""
    starts = [i for i, record in enumerate(records) if not i or record.get("sample") == 0]
    groups = []
    for start, end in zip(starts, [*starts[1:], len(records)]):
        completions = tuple(completion_of(record) for record in records[start:end])
        problem = Problem(str(records[start].get("problem")), "")
        groups.append(Group(problem, (), completions, tuple(verdicts[start:end])))
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
