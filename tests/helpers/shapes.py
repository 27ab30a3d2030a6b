"""Shapes of Qwen2.5."""

from __future__ import annotations

from rlvr.model.memory.plan import known_settings, shape_of_config

QWEN_15B, QWEN_3B, QWEN_7B, QWEN_32B = (
    shape_of_config(known_settings(f"Qwen/Qwen2.5-{size}")) for size in ("1.5B", "3B", "7B", "32B")
)
