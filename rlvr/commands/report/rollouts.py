"""The rollouts of a report: which are in the page, and how they are packed for its script (report.js)."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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

CHUNK = 256  # rollouts that are compressed together; the page unpacks a chunk when it shows one of them
BUDGET = 5_500_000  # bytes of all chunks, compressed; base64 makes a third more of them
NOTABLE_SHARE = 0.5  # of the budget, at most, for rollouts that call for attention
LONGEST_PART = 12_000  # characters of a prompt, a completion or a turn; the middle of longer ones is left out
TRIED = 2048  # rollouts by which the compression is estimated
TRUSTED = ("correct", "incorrect", "partial", "no_answer", "unparseable")  # verdicts about the answer itself
# In the log's order: columns of the page's index.
COLUMNS = ("step", "problem", "sample", "status", "reward", "advantage")


@dataclass
class Survey:
    """What a first reading of the log tells of each rollout.

    sizes: bytes of its packed text before compression. strata: the number of its (step, status). notable: whether it
    calls for attention. ratio: bytes after compression for each byte before.
    """

    sizes: array = field(default_factory=lambda: array("q"))
    strata: array = field(default_factory=lambda: array("q"))
    notable: array = field(default_factory=lambda: array("b"))
    ratio: float = 1.0


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


def survey(rollouts: Iterable[Record], masks: Masks) -> Survey:
    """Read all rollouts once."""
    found, numbers, tried = Survey(), dict[tuple[Any, Any], int](), list[str]()
    for count, record in enumerate(rollouts):
        text = pack_rollout(record, masks)
        found.sizes.append(len(text))
        found.strata.append(numbers.setdefault((record.get("step"), record.get("status")), len(numbers)))
        found.notable.append(is_notable(record))
        if count % 4096 < CHUNK and len(tried) < TRIED:
            tried.append(text)
    chunks = [tried[i : i + CHUNK] for i in range(0, len(tried), CHUNK)]
    found.ratio = sum(len(compress(chunk)) for chunk in chunks) / max(sum(map(len, tried)), 1)
    return found


def choose(known: Survey, budget: float) -> Sequence[int]:
    """Return the numbers of the rollouts that fit into `budget` bytes before compression: all where they fit.

    Otherwise those that call for attention, up to a share of the budget, and of the others the same number of every
    step and verdict, as far as there are so many. Which ones is drawn by a hash of their number.
    """
    everything = range(len(known.sizes))
    if sum(known.sizes) <= budget:
        return everything
    first = within(
        [i for i in sorted(everything, key=draw_key) if known.notable[i]], known.sizes, budget * NOTABLE_SHARE
    )
    ranks: Counter[int] = Counter()  # of the strata's rollouts so far
    order = []
    for i in sorted(everything, key=draw_key):
        if not known.notable[i]:
            ranks[known.strata[i]] += 1
            order.append((ranks[known.strata[i]], i))
    order.sort(key=lambda pair: pair[0])
    left = budget - sum(known.sizes[i] for i in first)
    return sorted([*first, *within([i for _, i in order], known.sizes, left)])


def within(numbers: Sequence[int], sizes: Sequence[int], budget: float) -> list[int]:
    """Return the first numbers whose sizes add up to no more than `budget`."""
    taken = []
    for i in numbers:
        budget -= sizes[i]
        if budget < 0:
            break
        taken.append(i)
    return taken


def draw_key(number: int) -> bytes:
    """Return a key that orders rollouts as if at random, but the same in every report of a run."""
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=8).digest()


def pack_rollout(record: Record, masks: Masks) -> str:
    """Return what the page shows of a rollout as JSON: its verdict in words, and parts as [label, text, kind].

    kind: 1 where it is not trained on, plus 2 for a void turn. Control characters and direction marks are escaped.
    """
    parts = [
        [printable(part.label), printable(cut(part.text)), (not part.trained) + 2 * part.void]
        for part in parts_of_rollout(record, masks)
    ]
    words = printable(verdict_line(record) + describe_shuffled(record))
    return json.dumps([words, parts], ensure_ascii=False, separators=(",", ":"))


def cut(text: str) -> str:
    """Return a text cut to LONGEST_PART characters. Its middle says how many are left out."""
    half = LONGEST_PART // 2
    if len(text) <= LONGEST_PART:
        return text
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def pack(rollouts: Iterable[Record], numbers: Collection[int], masks: Masks) -> tuple[bytes, list[bytes]]:
    """Return the compressed index of the rollouts with these numbers, and the compressed chunks of their texts."""
    wanted = numbers if isinstance(numbers, range) else set(numbers)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    names: dict[str, dict[str, int]] = {"problem": {}, "status": {}}
    chunks, texts = list[bytes](), list[str]()
    for number, record in enumerate(rollouts):
        if number not in wanted:
            continue
        for name in COLUMNS:
            value: Any = mean_advantage(record) if name == "advantage" else record.get(name)
            if name in names:
                value = names[name].setdefault(printable(str(value)), len(names[name]))
            elif not is_number(value):
                value = None
            elif name in ("reward", "advantage"):
                value = float(f"{value:.4g}")  # what is not 0 stays so: it is filtered by its sign
            columns[name].append(value)
        texts.append(pack_rollout(record, masks))
        if len(texts) == CHUNK:
            chunks.append(compress(texts))
            texts = []
    if texts:
        chunks.append(compress(texts))
    index = {"chunk": CHUNK, "names": {name: list(held) for name, held in names.items()}, "columns": columns}
    return gzip.compress(json.dumps(index, separators=(",", ":")).encode(), 9, mtime=0), chunks


def compress(texts: Sequence[str]) -> bytes:
    """Return texts of JSON as a compressed list."""
    return gzip.compress(f"[{','.join(texts)}]".encode(), 6, mtime=0)


def browser(folder: Path) -> str:
    """Return the section of a report in which a run's rollouts are browsed; "" for a run without rollouts."""
    masks = masks_of(folder)
    known = survey(all_rollouts(folder), masks)
    if not known.sizes:
        return ""
    budget, size = BUDGET / max(known.ratio, 1e-3), 0
    while not size or size > BUDGET * 1.1:  # again where it compresses worse than what was tried
        budget *= BUDGET / size * 0.95 if size else 1.0
        numbers = choose(known, budget)
        index, chunks = pack(all_rollouts(folder), numbers, masks)
        size = len(index) + sum(map(len, chunks))
    data = "".join(script(part, "chunk") for part in chunks)
    section = f'<section id="browser" hidden>{describe_chosen(known, numbers)}{CONTROLS}</section>'
    return f"{section}{script(index, 'index')}{data}"


def script(content: bytes, kind: str) -> str:
    """Return compressed bytes as an element that no browser runs."""
    return f'<script type="application/gzip" class="{kind}">{base64.b64encode(content).decode()}</script>\n'


def describe_chosen(known: Survey, numbers: Sequence[int]) -> str:
    """Return which rollouts are in the page, as HTML."""
    count = len(known.sizes)
    if len(numbers) == count:
        return f"<p>All {count:,} rollouts are in this page.</p>"
    notable, total = sum(known.notable[i] for i in numbers), sum(known.notable)
    text = (
        f"{len(numbers):,} of {count:,} rollouts are in this page: {'all' if notable == total else f'{notable:,} of'} "
        f"{total:,} that call for attention (without a score, judged by an error or a time limit, with a void turn, or "
        "on which reward and monitor disagree), and of the others equally many of every step and verdict, drawn at "
        "random. All are in rollouts.jsonl and its compressed parts; `rlvr watch` shows every step."
    )
    return f"<p>{html.escape(text)}</p>"


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
