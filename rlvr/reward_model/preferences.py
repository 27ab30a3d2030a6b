"""Preference pairs: a chosen and a rejected completion of one prompt."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlvr.core.files.jsonl import read_objects
from rlvr.core.files.write import write_whole
from rlvr.core.printable import kind_of
from rlvr.core.seeding import derive_seed
from rlvr.core.types import UNSCORED, Group, Prompt
from rlvr.training.sft.demonstrations import read_prompt


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """A chosen and a rejected completion. margin: the least difference of their scores in log-odds, 0 if unknown."""

    prompt: Prompt
    chosen: str
    rejected: str
    margin: float = 0.0

    @property
    def key(self) -> str:
        """Return the prompt as text, equal for pairs of one prompt."""
        return self.prompt if isinstance(self.prompt, str) else json.dumps(list(map(dict, self.prompt)))


def read_pairs(path: Path) -> list[PreferencePair]:
    """Read pairs from a JSON Lines file: prompt (text or messages), chosen, rejected (text), optionally margin.

    Raises ValueError naming a line that is not such a pair, and for a file without pairs; OSError where there is no
    such file.
    """
    pairs = [_read_pair(row, f"{path}, line {number}") for number, row in read_objects(path)]
    if not pairs:
        raise ValueError(f"{path} has no pairs: the file is empty")
    return pairs


def _read_pair(row: Mapping[str, Any], where: str) -> PreferencePair:
    missing = [name for name in ("prompt", "chosen", "rejected") if name not in row]
    if missing:
        raise ValueError(f"{where}: no {' and no '.join(missing)}; its fields are {', '.join(row) or 'none'}")
    for name in ("chosen", "rejected"):
        if not isinstance(row[name], str):
            raise ValueError(f"{where}: {name} is {kind_of(row[name])}; expected text")
    if row["chosen"] == row["rejected"]:
        raise ValueError(f"{where}: chosen and rejected are the same text; expected two different ones")
    margin = row.get("margin", 0.0)
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise ValueError(f"{where}: margin {margin!r:.80}; expected a number")
    return PreferencePair(read_prompt(row["prompt"], where), row["chosen"], row["rejected"], float(margin))


def write_pairs(path: Path, pairs: Iterable[PreferencePair]) -> None:
    """Write pairs as `read_pairs` reads them, atomically. Raises RunError where the file cannot be written."""
    write_whole(path, (f"{json.dumps(asdict(pair), ensure_ascii=False)}\n".encode() for pair in pairs))


def pairs_of(group: Group, *, limit: int, seed: int) -> list[PreferencePair]:
    """Return the pairs of one group: each distinct correct completion with each distinct one that is not correct.

    At most `limit` of them, drawn by the seed and the problem's id. Completions without a score (errors) and truncated
    correct ones are left out.
    """
    right: dict[str, None] = {}
    wrong: dict[str, None] = {}
    for completion, verdict in zip(group.completions, group.verdicts, strict=True):
        if verdict.correct and completion.finish_reason == "stop":
            right[completion.text] = None
        elif not verdict.correct and verdict.status not in UNSCORED:
            wrong[completion.text] = None
    pairs = [
        PreferencePair(group.problem.prompt, chosen, rejected)
        for chosen in right
        for rejected in wrong
        if chosen != rejected
    ]
    random.Random(derive_seed(seed, "pairs", group.problem.id)).shuffle(pairs)
    return pairs[:limit]


def split_by_prompt(
    pairs: Sequence[PreferencePair], share: float, *, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Return (training pairs, held-out pairs); all pairs of a prompt are on the same side.

    About `share` of the prompts, at least one, are held out. Raises ValueError for fewer than two prompts.
    """
    prompts = sorted({pair.key for pair in pairs}, key=lambda key: derive_seed(seed, "held out", key))
    if len(prompts) < 2:
        raise ValueError(f"{len(pairs)} pairs of {len(prompts)} prompts; expected at least 2 prompts, one to hold out")
    held_out = set(prompts[: min(max(round(share * len(prompts)), 1), len(prompts) - 1)])
    return [p for p in pairs if p.key not in held_out], [p for p in pairs if p.key in held_out]
