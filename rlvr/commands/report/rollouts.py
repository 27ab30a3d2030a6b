"""The rollouts of a report: which are in the page, and how they are packed for its script (report.js)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.core.printable import printable
from rlvr.runs.reading import Record, all_rollouts
from rlvr.runs.records import (
    Masks,
    Part,
    describe_shuffled,
    is_number,
    masks_of,
    mean_advantage,
    parts_of_rollout,
    verdict_line,
)

BUDGET = 20_000_000  # characters of all rollouts in a page; compressed, about a third in bytes
LONGEST_PART = 12_000  # characters of a prompt, a completion or a turn; the middle of longer ones is left out
TRUSTED = ("correct", "incorrect", "partial", "no_answer", "unparseable")  # verdicts about the answer itself
# The fields of a rollout in the page, in their order; then its verdict in words, and its parts.
FIELDS = ("step", "problem", "sample", "status", "reward", "advantage")


def is_notable(record: Record) -> bool:
    """Return whether a rollout calls for attention.

    It has no score, or the verifier did not judge its answer (error, timeout, ...); reward and monitor disagree; or it
    has a void turn.
    """
    turns = record.get("turns")
    void = isinstance(turns, list) and any(isinstance(turn, Mapping) and turn.get("void") for turn in turns)
    monitored = "monitor_status" in record and (record["monitor_status"] == "correct") != (
        record.get("status") == "correct"
    )
    return record.get("status") not in TRUSTED or monitored or void


def choose(strata: Sequence[Any], sizes: Sequence[int], budget: int = BUDGET) -> list[int]:
    """Return the numbers of the rollouts whose sizes add up to at most `budget`: all where they fit.

    Otherwise equally many of each stratum, as far as it has so many, so that a rare one is there in full. Which ones
    is drawn by a hash of their number: the same in every report of a run.
    """
    if sum(sizes) <= budget:
        return list(range(len(sizes)))
    ranks: Counter[Any] = Counter()
    order = []
    for number in sorted(range(len(sizes)), key=lambda n: hashlib.blake2b(n.to_bytes(8, "little")).digest()):
        ranks[strata[number]] += 1
        order.append((ranks[strata[number]], number))
    order.sort(key=lambda pair: pair[0])
    chosen = []
    for _, number in order:
        budget -= sizes[number]
        if budget < 0:
            break
        chosen.append(number)
    return sorted(chosen)


def pack_rollout(record: Record, masks: Masks) -> list[Any]:
    """Return what the page holds of a rollout: FIELDS, its verdict in words, and parts as [label, text, kind].

    kind: 1 where it is not trained on, plus 2 for a void turn. Control characters and direction marks are escaped.
    """
    parts = [
        [printable(part.label), printable(cut(part.text)), (not part.trained) + 2 * part.void]
        for part in parts_of_rollout(record, masks)
    ]
    values: dict[str, Any] = {**record, "advantage": mean_advantage(record)}
    for name in FIELDS:
        value = values.get(name)
        if name in ("problem", "status"):
            values[name] = printable(str(value))
        elif not is_number(value):
            values[name] = None
        elif name in ("reward", "advantage"):
            values[name] = float(f"{value:.4g}")  # what is not 0 stays so: it is filtered by its sign
    words = printable(verdict_line(record) + describe_shuffled(record))
    return [*(values[name] for name in FIELDS), words, parts]


def cut(text: str) -> str:
    """Return a text cut to LONGEST_PART characters. Its middle says how many are left out."""
    half = LONGEST_PART // 2
    if len(text) <= LONGEST_PART:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def texts_of(folder: Path) -> Iterator[tuple[Record, str]]:
    """Yield the rollouts of a run, each with its packed form as JSON."""
    masks = masks_of(folder)
    for record in all_rollouts(folder):
        yield record, json.dumps(pack_rollout(record, masks), ensure_ascii=False, separators=(",", ":"))


def browser(folder: Path) -> str:
    """Return the section of a report in which a run's rollouts are browsed; "" for a run without rollouts."""
    strata, sizes = [], []
    for record, text in texts_of(folder):
        strata.append((record.get("step"), record.get("status"), is_notable(record)))
        sizes.append(len(text))
    if not sizes:
        return ""
    numbers = set(choose(strata, sizes))
    chosen = ",".join(text for number, (_, text) in enumerate(texts_of(folder)) if number in numbers)
    packed = base64.b64encode(gzip.compress(f"[{chosen}]".encode(), 6, mtime=0)).decode()
    note = f"All {len(sizes):,} rollouts are in this page."
    if len(numbers) < len(sizes):
        note = (
            f"{len(numbers):,} of {len(sizes):,} rollouts are in this page: equally many of every step and verdict, "
            "drawn at random, and of those that call for attention (with a void turn, or on which reward and monitor "
            "disagree). All are in rollouts.jsonl and its compressed parts; `rlvr watch` shows every step."
        )
    section = f'<section id="browser" hidden><p>{html.escape(note)}</p>{CONTROLS}</section>'
    return f'{section}<script type="application/gzip" id="rollouts">{packed}</script>\n'


CONTROLS = """
<form class="controls">
<label>step <input name="step" inputmode="numeric" placeholder="all, or 3, or 10-20" size="14"></label>
<label>problem <input name="problem" placeholder="part of an id" size="14"></label>
<label>verdict <select name="status"><option value="">all</option></select></label>
<label>advantage <select name="advantage"><option value="">any</option><option value="+">above 0</option>
<option value="-">below 0</option><option value="0">0</option><option value="none">none: not trained on</option>
</select></label>
<label>order <select name="order"><option value="">as logged</option><option value="last">last step first</option>
<option value="high">highest advantage</option><option value="low">lowest advantage</option></select></label>
<label>text <input name="text" type="search" placeholder="in prompt or completion" size="20"></label>
</form>
<p class="pages"><button type="button" name="back" aria-label="earlier">&larr;</button> <output></output>
<button type="button" name="next" aria-label="later">&rarr;</button></p>
<div class="rollouts"></div>
"""


def render_parts(parts: Iterable[Part]) -> str:
    """Return parts of a rollout as HTML, each with its label; those that are not trained on are greyed."""
    return "".join(
        f"<div class=label>{html.escape(part.label)}</div>"
        f'<pre class="{"own" if part.trained else "masked"}{" void" * part.void}">{html.escape(part.text)}</pre>'
        for part in parts
    )
