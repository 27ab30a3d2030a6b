"""Evaluations as the command line makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlvr.commands.cli import main


def evaluated_arithmetic(out: Path, *flags: str, code: int = 0) -> tuple[str, dict[str, Any]]:
    """Return the answers that `rlvr eval` wrote in a folder, and its numbers; {} where it had none to write."""
    assert main(["eval", "--task", "arithmetic", "--out-dir", str(out), *flags]) == code
    result = out / "result.json"
    return (out / "answers.jsonl").read_text(), json.loads(result.read_text()) if result.exists() else {}
