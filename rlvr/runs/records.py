"""What lines of a run's logs say: numbers with intervals, and rollouts in parts with their verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .folder import read_record

Record = Mapping[str, Any]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, which can be shown and plotted."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def series(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a number, without records in which it is missing or not finite."""
    points = [(row["step"], row[name]) for row in records if is_number(row.get(name)) and is_number(row.get("step"))]
    return [step for step, _ in points], [value for _, value in points]


def pass_names(evaluations: Sequence[Record]) -> list[str]:
    """Return the names pass@k that were measured, in order of k."""
    names = {name for row in evaluations for name in row if name.startswith("pass@") and name[5:].isdigit()}
    return sorted(names, key=lambda name: int(name[5:]))


def is_graded(evaluations: Sequence[Record]) -> bool:
    """Return whether the mean score differs from pass@1: the verifier gives partial scores, or there is a threshold."""
    for row in evaluations:
        score, passed = row.get("score"), row.get("pass@1")
        if score is not None and ("partial" in row.get("status", ()) if passed is None else abs(score - passed) > 1e-9):
            return True
    return False


def measured_name(evaluation: Record) -> str:
    """Return the name of the pass@k that evaluations are compared by: that of the smallest k."""
    ks = [int(name[5:]) for name in evaluation if name.startswith("pass@") and name[5:].isdigit()]
    return f"pass@{min(ks)}"


def quality(evaluation: Record) -> tuple[float, float]:
    """Return the key by which evaluations are compared: pass@k of the smallest k, then the mean score."""
    return evaluation[measured_name(evaluation)], evaluation.get("score") or 0.0


def number_since_best(evaluations: Sequence[Record]) -> int:
    """Return how many evaluations came after the best one (of equal ones the first); 0 without any."""
    if not evaluations:
        return 0
    return len(evaluations) - 1 - evaluations.index(max(evaluations, key=quality))


def interval(row: Record, name: str) -> tuple[float, float] | None:
    found = row.get(f"{name}_ci")
    if isinstance(found, list | tuple) and len(found) == 2 and all(map(is_number, found)):
        return found[0], found[1]
    return None


def with_interval(row: Record, name: str, digits: int = 3) -> str:
    """Return a number with its interval, as far as known: "0.460 [0.404, 0.520]"; `digits` are the interval's."""
    if not is_number(row.get(name)):
        return ""
    ends = interval(row, name)
    return f"{row[name]:.3f}" + (f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else "")


def describe_shuffled(rollout: Record) -> str:
    """Return which reward a rollout got where rewards are shuffled; "" where they are not."""
    if "shuffled_status" not in rollout:
        return ""
    given = "none" if rollout["reward"] is None else f"{rollout['reward']:+.3f}"
    return f"; shuffled: rewarded {given} as another completion that is {rollout['shuffled_status']}"


CUT_OFF = ("length", "context")


@dataclass(frozen=True)
class Part:
    """A part of a rollout: a message of the prompt, a completion, a turn of the model, or a reply to it.

    role: "prompt" or "completion" where the log names no role. facts: length, reward and calls in words. trained:
    whether the loss counts the tokens, as far as the rollout's advantage is not 0. tokens: their number, as far as the
    log says.
    """

    role: str
    text: str
    trained: bool
    void: bool = False
    facts: tuple[str, ...] = ()
    tokens: int = 0

    @property
    def label(self) -> str:
        masked = () if self.trained or self.role in ("prompt", "system", "user", "tool") else ("not trained on",)
        return ", ".join((self.role, *self.facts, *masked))


@dataclass(frozen=True)
class Masks:
    """Which sampled tokens a run's settings take out of the loss: of truncated completions, of void turns."""

    truncated: bool = False
    void: bool = False


def masks_of(folder: Path) -> Masks:
    """Return the masks in the config.json of a run; none where it cannot be read."""
    try:
        settings = (read_record(folder / "config.json") or {}).get("rollout", {})
        return Masks(settings.get("truncated") == "mask", bool(settings.get("mask_void")))
    except (ValueError, OSError, AttributeError):
        return Masks()


def parts_of_rollout(record: Record, masks: Masks) -> list[Part]:
    """Return the parts of a line of rollouts.jsonl, those of its prompt first."""
    cut = masks.truncated and record.get("finish_reason") in CUT_OFF
    trained = bool(record.get("kept", True)) and not cut
    turns = record.get("turns")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        facts = (count_of(record["tokens"], "token"),) if is_number(record.get("tokens")) else ()
        text, tokens = str(record.get("completion", "")), number_of(record.get("tokens"))
        return [*prompt_parts(record), Part("completion", text, trained, facts=facts, tokens=tokens)]
    return [*prompt_parts(record), *(turn_part(turn, trained, masks) for turn in turns)]


def prompt_parts(record: Record) -> list[Part]:
    """Return the prompt's messages, none of which is trained on."""
    prompt = record.get("prompt", "")
    if isinstance(prompt, list) and all(isinstance(message, Mapping) for message in prompt):
        return [Part(str(message.get("role")), str(message.get("content")), False) for message in prompt]
    return [Part("prompt", str(prompt), False)]


def turn_part(turn: Record, trained: bool, masks: Masks) -> Part:
    """Return a turn as a part. trained: whether the loss counts the tokens that the model sampled in this rollout."""
    sampled, void = turn.get("role") == "assistant", bool(turn.get("void"))
    facts = [count_of(turn.get("tokens"), "token"), *(["void"] if void else [])]
    if is_number(turn.get("reward")):
        facts.append(f"reward {turn['reward']:+g}")
    if turn.get("calls"):
        facts.append(f"{count_of(turn['calls'], 'call')}, {turn.get('failed', 0)} failed")
    kept = trained and sampled and not (void and masks.void)
    return Part(str(turn.get("role")), str(turn.get("text")), kept, void, tuple(facts), number_of(turn.get("tokens")))


def number_of(value: Any) -> int:
    """Return a logged count; 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def count_of(number: Any, thing: str) -> str:
    """Return a number of things: "1 token", "2 tokens"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def numbers_of(value: Any) -> list[float]:
    """Return a logged number, or several (the advantages of turns or steps), as a list; [] for anything else."""
    values = value if isinstance(value, list) else [value]
    return values if values and all(map(is_number, values)) else []


def mean_advantage(record: Record) -> float | None:
    """Return a rollout's advantage, the mean where its turns or steps have one each; None without any."""
    values = numbers_of(record.get("advantage"))
    return sum(values) / len(values) if values else None


def verdict_line(record: Record) -> str:
    """Return one line: status, reason, reward, advantage, finish reason."""
    reason = f" ({record['reason']})" if record.get("reason") else ""
    numbers = [
        f"{name.replace('_', ' ')} {' '.join(f'{value:+.3f}' for value in values)}"
        for name in ("reward", "advantage", "monitor_score", "kl_cost")
        if (values := numbers_of(record.get(name)))
    ]
    if not record.get("kept", True):
        numbers.append("not trained on (dropped by dynamic sampling)")
    if record.get("finish_reason") not in (None, "stop", "eos"):
        numbers.append(f"ended by {record['finish_reason']}")
    return f"{record.get('status')}{reason}" + "".join(f", {number}" for number in numbers)
