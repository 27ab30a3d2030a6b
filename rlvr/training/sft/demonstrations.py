"""Demonstrations from a user's own file, for supervised fine-tuning. Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlvr.config import SFTConfig
from rlvr.core.files.jsonl import read_objects
from rlvr.core.types import Problem, Prompt, Task

Demonstration = tuple[Problem, str | Sequence[str]]  # with an environment: the turns of the model


def with_demonstrations(task: Task, config: SFTConfig) -> Task:
    """Return the task with the demonstrations of sft.data instead of its own; they change its fingerprint."""
    if config.data is None:
        return task
    found = read_demonstrations(config.data)
    content = json.dumps([task.fingerprint, [[p.prompt, text] for p, text in found]], sort_keys=True)
    fingerprint = hashlib.sha256(content.encode()).hexdigest()[: len(task.fingerprint) or None]
    return replace(task, demonstrations=found, fingerprint=fingerprint)


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Return the rows of a JSON Lines file with `prompt` and `completion`; a problem's id is FILE:LINE.

    prompt: text or chat messages. completion: text, or chat messages of the assistant only; several are its turns in an
    environment. Both are rendered as in training. Raises ValueError, with the line's number, for any other row, and for
    a file without any; OSError where the file does not exist.
    """
    rows: list[Demonstration] = []
    for number, row in read_objects(path):
        where = f"{path}, line {number}"
        missing = [name for name in ("prompt", "completion") if name not in row]
        if missing:
            raise ValueError(f"{where}: no {missing[0]!r}; it has {', '.join(row) or 'no key'}")
        problem = Problem(f"{path.name}:{number}", read_prompt(row["prompt"], where))
        rows.append((problem, _completion(row["completion"], where)))
    if not rows:
        raise ValueError(f"{path} has no demonstrations: the file is empty")
    return rows


def read_prompt(value: Any, where: str) -> Prompt:
    """Return a prompt of a row: text, or messages without further keys. Raises ValueError for anything else."""
    if isinstance(value, str) and value.strip():
        return value
    if _is_messages(value):
        return [{"role": message["role"], "content": message["content"]} for message in value]
    raise ValueError(f"{where}: the prompt is {value!r:.80}; expected text, or messages with role and content")


def _completion(value: Any, where: str) -> str | tuple[str, ...]:
    turns = [value]
    if _is_messages(value):
        if any(message["role"] != "assistant" for message in value):
            roles = ", ".join(message["role"] for message in value)
            raise ValueError(f"{where}: the completion has messages of {roles}; expected those of the assistant only")
        turns = [message["content"] for message in value]
    if all(isinstance(turn, str) and turn for turn in turns):
        return turns[0] if len(turns) == 1 else tuple(turns)
    raise ValueError(f"{where}: the completion is {value!r:.80}; expected text, or messages of the assistant")


def _is_messages(value: Any) -> bool:
    """Return whether a value is a list of messages, each with role and content as text."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, dict) and all(isinstance(m.get(key), str) for key in ("role", "content")) for m in value)
    )
