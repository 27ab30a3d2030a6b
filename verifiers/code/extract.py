"""Reading a program out of a completion."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlvr.verifiers.extract import BYTE_ORDER_MARK
from rlvr.verifiers.extract.fences import fenced_blocks

MAX_COMPLETION = 1 << 20  # characters; a longer one is not searched for a program
# The first words of lines that make a program of a text.
_STATEMENT = re.compile(
    r"^[ \t]*(?:def|class|import|from|for|while|if|with|try|return|print|async|@\w+)\b|^[\w., \t]*[-+*/]?=[^=]|\w\(",
    re.MULTILINE,
)
_PYTHON = frozenset(("", "python", "py", "python3", "python2"))


def program_of(completion: str, names: Sequence[str] = ()) -> str:
    """Return the last python fence of a completion, else the whole text.

    Text before a closing </think> is ignored. A fence without a language counts where it looks like a program, or where
    there is no other. Of several, the last that binds one of `names`, which the tests use, is preferred: the ones after
    it show how to call it, or what it prints.
    """
    answer = completion.rpartition("</think>")[2].removeprefix(BYTE_ORDER_MARK)
    blocks = [(language, content) for language, content in fenced_blocks(answer) if language in _PYTHON]
    programs = [content for language, content in blocks if language or (content and _STATEMENT.search(content))]
    contents = programs or [content for _, content in blocks]
    if not contents:
        return answer
    bound = _binding(*names)
    return next((content for content in reversed(contents) if names and bound.search(content)), contents[-1])


def _binding(*names: str, indented: str = "") -> re.Pattern[str]:
    """Return the pattern of a line that binds one of the names. A program is not parsed here: that may take seconds."""
    name = f"(?:{'|'.join(map(re.escape, names))})"
    assigned = rf"{name} *(?::[^=\n]*)?=[^=]"
    return re.compile(rf"^{indented}(?:(?:async +)?(?:def|class) +{name}\b|{assigned})", re.MULTILINE)


def imports(program: str, package: str) -> bool:
    """Whether a line of a program imports a package."""
    return re.search(rf"^[ \t]*(?:import|from) +{re.escape(package)}\b", program, re.MULTILINE) is not None


def completed(program: str, prefix: str, entry: str) -> str:
    """Return `program`, after `prefix` where it does not define `entry`: a body without its `def` line."""
    if not prefix or not entry or _binding(entry, indented=r"[ \t]*").search(program):
        return program
    return prefix + program
