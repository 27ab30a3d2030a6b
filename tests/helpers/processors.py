"""Other processors: which kernels the code chooses on them can be tested on any."""

from __future__ import annotations

import pytest

from rlvr.model.cpu import processor

# What a kind of processor has: AMX, and instructions for products of bfloat16.
PROCESSORS = {"amx": (True, True), "bfloat16": (False, True), "neither": (False, False)}


def set_processor(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Make the code choose as on a processor of this kind."""
    amx, bfloat16 = PROCESSORS[kind]
    monkeypatch.setattr(processor, "has_amx", lambda: amx)
    monkeypatch.setattr(processor, "has_bfloat16", lambda: bfloat16)
