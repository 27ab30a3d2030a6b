"""A completion that is sampled in parts: which weights sampled its tokens, and how a further part is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from rlvr.core.types import Completion, Sampling

Runs = tuple[tuple[int, int], ...]
"""(version, count): the weights after so many steps sampled so many tokens in a row."""

UNBEGUN = Completion("", finish_reason="cut")


class Decodes(Protocol):
    """The part of a policy that is needed to add a part."""

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


def add_tokens(runs: Runs, version: int, count: int) -> Runs:
    """Return a row's runs after `count` further tokens of a version."""
    if runs and runs[-1][0] == version:
        count, runs = runs[-1][1] + count, runs[:-1]
    return (*runs, (version, count)) if count else runs


def join(row: Completion, part: Completion, sampling: Sampling, *, policy: Decodes, version: int) -> Completion:
    """Return a row with a further part, which the weights of `version` sampled.

    Its finish reason stays "cut" until the row is done. sampling: of the whole row.
    """
    part = end_at_stop(policy, row.token_ids, part, sampling.stop)
    ids, logprobs = row.token_ids + part.token_ids, row.logprobs + part.logprobs
    versions = add_tokens(row.versions, version, len(part.token_ids))
    stopped = part.finish_reason != "length"
    if not stopped and len(ids) < sampling.max_new_tokens:
        return Completion("", ids, logprobs, "cut", versions=versions)
    text = policy.decode(ids[:-1] if stopped and ids[-1] in policy.eos_ids else ids)
    ends = [text.find(string) + len(string) for string in sampling.stop if stopped and string in text]
    return Completion(text[: min(ends)] if ends else text, ids, logprobs, part.finish_reason, versions=versions)


def end_at_stop(policy: Decodes, before: Sequence[int], part: Completion, stop: Sequence[str]) -> Completion:
    """Return the part up to a stop string that begins in the tokens before it, where no sampler looks for one."""
    if not stop or not before:
        return part
    most = max(len(text.encode()) for text in stop) + 8  # tokens; the first may be a partial character
    for count, _ in enumerate(part.token_ids[:most], start=1):
        text = policy.decode([*before[-most:], *part.token_ids[:count]])
        if any(string in text for string in stop):
            return replace(part, token_ids=part.token_ids[:count], logprobs=part.logprobs[:count], finish_reason="stop")
    return part
