"""Rollouts in a page: a column of each number for all of them, and the texts of those that fit."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from rlvr.core.printable import cut_middle
from rlvr.runs.reading import Record, all_rollouts, read_rollouts
from rlvr.runs.records import (
    CUT_OFF,
    Masks,
    Part,
    describe_shuffled,
    is_number,
    mean_advantage,
    parts_of_rollout,
    prompt_parts,
    verdict_line,
)

BUDGET = 20_000_000  # characters of all texts in a file; compressed, about a third in bytes
LONGEST_PART = 12_000  # characters of a prompt, a completion or a turn; the middle of longer ones is left out
CHUNK = 1_000_000  # characters of texts that a page unpacks at once
LONGEST_ANSWER = 200  # characters of an extracted answer that wrong completions are searched for
WORDS = 2_000  # of a text that are looked at for repetition
OWN_ROLES = ("completion", "assistant")  # parts whose tokens the model sampled
TRUSTED = ("correct", "incorrect", "partial", "no_answer", "unparseable")  # verdicts about the answer itself
# What a person should look at in a rollout: bits of the column "flags".
NAMES_OF_FLAGS = ("cut", "void", "flagged", "same", "repetitive", "near", "unjudged", "dropped", "values")
FLAGS = {name: 1 << place for place, name in enumerate(NAMES_OF_FLAGS)}
COLUMNS = ("step", "problem", "sample", "status", "reward", "advantage", "tokens", "flags", "chunk")


class RolloutIndex:
    """The numbers of all rollouts, a list for each of COLUMNS, in the log's order.

    "problem" and "status" are places in the lists of `names`; "chunk" says with which others the texts are read, -1 for
    a rollout whose texts are not in the page.
    """

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.names: dict[str, dict[str, int]] = {"problem": {}, "status": {}}

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, records: Iterable[Record], chunk: int = 0) -> None:
        """Append rollouts, whose texts are in this chunk."""
        for _, group in groupby(records, key=lambda record: (record.get("step"), record.get("problem"))):
            rows = list(group)
            for record, flags in zip(rows, flags_of_group(rows)):
                self._append(record, flags, chunk)

    def _append(self, record: Record, flags: int, chunk: int) -> None:
        values = {
            "step": as_number(record.get("step")),
            "sample": as_number(record.get("sample")),
            "reward": round_number(record.get("reward")),
            "advantage": round_number(mean_advantage(record)),
            "tokens": as_number(record.get("tokens")),
            "flags": flags,
            "chunk": chunk,
        }
        for name, known in self.names.items():
            values[name] = known.setdefault(str(record.get(name)), len(known))
        for name, column in self.columns.items():
            column.append(values[name])

    def after(self, number: int) -> dict[str, Any]:
        """Return the columns from a rollout's number on, and the names."""
        return {
            "columns": {name: column[number:] for name, column in self.columns.items()},
            "names": {name: list(known) for name, known in self.names.items()},
        }


def as_number(value: Any) -> Any:
    """Return a number that JSON has; None for anything else."""
    return value if is_number(value) else None


def round_number(value: Any) -> float | None:
    """Return a number with four digits, so that what is not 0 stays so; None for anything else."""
    return float(f"{value:.4g}") if is_number(value) else None


def flags_of_group(rows: Sequence[Record]) -> list[int]:
    """Return the flags of the rollouts of a group.

    cut: a limit of tokens ended it. void: a turn held neither a call nor an answer. flagged: rewarded, and rejected by
    the monitor. same: its text is that of an earlier one. repetitive: half of its word 4-grams came before. near: it is
    wrong, and partly right or holds the answer of a correct one. unjudged: no verdict on the answer itself. dropped: by
    dynamic sampling. values: its tokens have values.
    """
    answers = {str(row.get("extracted")) for row in rows if row.get("status") == "correct" and row.get("extracted")}
    answers = {answer for answer in answers if len(answer) <= LONGEST_ANSWER}
    any_answer = "|".join(map(re.escape, sorted(answers)))
    right = re.compile(rf"(?<![\w.])(?:{any_answer})(?!\w|\.\d)") if answers else None
    seen: set[str] = set()
    flags = []
    for row in rows:
        text, status, turns = str(row.get("completion", "")), row.get("status"), row.get("turns")
        near = status == "partial" or (status != "correct" and right is not None and bool(right.search(text)))
        found = {
            "cut": row.get("finish_reason") in CUT_OFF,
            "void": isinstance(turns, list) and any(isinstance(turn, Mapping) and turn.get("void") for turn in turns),
            "flagged": status == "correct" and row.get("monitor_status", "correct") != "correct",
            "same": text in seen,
            "repetitive": is_repetitive(text),
            "near": near,
            "unjudged": status not in TRUSTED,
            "dropped": not row.get("kept", True),
            "values": "token_values" in row,
        }
        seen.add(text)
        flags.append(sum(FLAGS[name] for name, holds in found.items() if holds))
    return flags


def is_repetitive(text: str) -> bool:
    """Return whether at least half of a text's word 4-grams, of 20 or more, occur earlier in it."""
    words = text.split(maxsplit=WORDS)[:WORDS]
    count = len(words) - 3
    if count < 20 or len(set(words)) > count / 2 + 3:  # each further word begins another 4-gram
        return False
    return len(set(zip(words, words[1:], words[2:], words[3:]))) <= count / 2


def pack_rollout(record: Record, masks: Masks) -> list[Any]:
    """Return the texts of a rollout in a page: verdict in words, extracted answer, parts as [role, facts, text, kind].

    kind: 1 where it is not trained on, plus 2 for a void turn; then its own advantage, where turns have one each, and
    the values of its tokens, where they are known.
    """
    extracted, own, values = record.get("extracted"), record.get("advantage"), columns_of_values(record)
    advantages = iter(own if isinstance(own, list) else ())
    parts, place = [], 0
    for part in parts_of_rollout(record, masks):
        tokens = None
        if values and part.tokens and part.role in OWN_ROLES:
            count = part.tokens
            tokens = pack_values({name: column[place : place + count] for name, column in values.items()}, part.text)
            place += count
        advantage = next(advantages, None) if part.role == "assistant" else None
        parts.append([*pack_part(part), advantage, *([] if tokens is None else [tokens])])
    return [verdict_line(record) + describe_shuffled(record), None if extracted is None else cut(str(extracted)), parts]


def columns_of_values(record: Record) -> dict[str, list[Any]]:
    """Return the values of a rollout's tokens by name; empty where they are not known."""
    held = record.get("token_values")
    columns = (
        {name: column for name, column in held.items() if isinstance(column, list)} if isinstance(held, dict) else {}
    )
    return columns if "lengths" in columns else {}


def pack_values(values: Mapping[str, list[Any]], text: str) -> dict[str, list[Any]]:
    """Return the values of a text's tokens. Where the text is cut, one token without values stands for the middle."""
    ends = list(accumulate(values["lengths"]))
    if len(text) <= LONGEST_PART or not ends or ends[-1] < len(text) - LONGEST_PART // 2:
        return dict(values)
    head = bisect_right(ends, LONGEST_PART // 2)
    tail = bisect_left(ends, len(text) - LONGEST_PART // 2) + 1
    middle = len(cut(text)) - (ends[head - 1] if head else 0) - (len(text) - ends[tail - 1])
    return {
        name: [*column[:head], middle if name == "lengths" else None, *column[tail:]] for name, column in values.items()
    }


def pack_part(part: Part) -> list[Any]:
    """Return a part of a rollout as [role, facts, text, kind]."""
    facts = part.label.removeprefix(part.role).removeprefix(", ")
    return [part.role, facts, cut(part.text), (not part.trained) + 2 * part.void]


def cut(text: str) -> str:
    """Return a text cut to LONGEST_PART characters."""
    return cut_middle(text, LONGEST_PART)


def pack_answers(path: Path, masks: Masks) -> str:
    """Return a file of held-out answers as JSON: of each problem its prompt in parts, and the answers with theirs."""
    return json.dumps([pack_problem(row, masks) for row in read_rollouts(path)])


def pack_problem(row: Record, masks: Masks) -> dict[str, Any]:
    """Return a problem with its held-out answers; prompt and answers are parts as in `pack_rollout`."""
    prompt = prompt_parts(row)
    answers = [
        {name: answer.get(name) for name in ("sample", "status", "correct", "reason", "extracted", "tokens")}
        | {"parts": [pack_part(part) for part in parts_of_rollout(answer, masks)[1:]]}
        for answer in row["answers"]
    ]
    return {"problem": row["problem"], "prompt": [pack_part(part) for part in prompt], "answers": answers}


def choose(strata: Sequence[tuple[int, Hashable]], sizes: Sequence[int], budget: int) -> set[int]:
    """Return the numbers of the groups whose sizes add up to at most `budget`: all where they fit.

    Otherwise equally many of each stratum, as far as it has so many, so that a rare one is there in full. A stratum
    begins with how common it is: the rarer ones are served first. Which groups is drawn by a hash of their number: the
    same in every report of a run.
    """
    if sum(sizes) <= budget:
        return set(range(len(sizes)))
    ranks: Counter[Hashable] = Counter()
    order = []
    for number in sorted(range(len(sizes)), key=lambda n: hashlib.blake2b(n.to_bytes(8, "little")).digest()):
        ranks[strata[number]] += 1
        order.append((ranks[strata[number]], number))
    order.sort(key=lambda pair: (pair[0], strata[pair[1]][0]))
    chosen = set[int]()
    for _, number in order:
        budget -= sizes[number]
        if budget < 0:
            break
        chosen.add(number)
    return chosen


def groups_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the rollouts of each problem of each step, in the log's order."""
    for _, group in groupby(records, key=lambda record: (record.get("step"), record.get("problem"))):
        yield list(group)


def pack_texts(rows: Iterable[Record], masks: Masks) -> str:
    """Return the texts of rollouts as JSON, separated by commas."""
    return ",".join(json.dumps(pack_rollout(row, masks), ensure_ascii=True, separators=(",", ":")) for row in rows)


def pack_run(folder: Path, masks: Masks, budget: int = BUDGET) -> tuple[RolloutIndex, list[str], str]:
    """Return the index of a run's rollouts, the texts that fit as JSON by chunk, and one line on what is there.

    Raise ValueError for a damaged line or part.
    """
    groups: list[tuple[Any, frozenset[str]]] = []
    sizes, counts, common = [], [], Counter[str]()
    for rows in groups_of(all_rollouts(folder)):
        statuses = Counter(str(row.get("status")) for row in rows)
        common += statuses
        groups.append((rows[0].get("step"), frozenset(statuses)))
        sizes.append(len(pack_texts(rows, masks)))
        counts.append(len(rows))
    strata = [(min(common[status] for status in statuses), step) for step, statuses in groups]
    chosen = choose(strata, sizes, budget)
    index, chunks, held = RolloutIndex(), list[list[str]](), CHUNK
    for number, rows in enumerate(groups_of(all_rollouts(folder))):
        if number in chosen and held >= CHUNK:
            chunks.append([])
            held = 0
        index.add(rows, len(chunks) - 1 if number in chosen else -1)
        if number in chosen:
            chunks[-1].append(pack_texts(rows, masks))
            held += sizes[number]
    there, total = sum(counts[number] for number in chosen), sum(counts)
    note = f"All {total:,} rollouts are in this page."
    if there < total:
        note = (
            f"The texts of {there:,} of {total:,} rollouts are in this page: whole groups, equally many of every step, "
            "those with rare verdicts first. The numbers of all are here. `rlvr view` shows every text."
        )
    return index, [f"[{','.join(texts)}]" for texts in chunks], note if total else ""
