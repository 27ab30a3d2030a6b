"""Spellings of careless sources, made regular before an answer is cut into tokens.

Doubled backslashes and control characters come from escapes that were written or read once too often. All rules are
linear in the text, and each runs only where a sign of it is there.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from rlvr.verifiers.math.vocabulary import CONSTANT_NAMES, FUNCTIONS, GREEK

_RUN = re.compile(r"\\+")
_DOUBLED = re.compile(r"\\\\([A-Za-z]{2,}|[%$])")
_COMMANDS = frozenset("% $ subset subseteq supset supseteq forall exists mid pmod bmod mod det dim gcd".split())
_NAMED = FUNCTIONS.keys() | GREEK | CONSTANT_NAMES.keys() | _COMMANDS
# "\f" of "\frac" and the like, read as an escape: a form feed before "rac".
_ESCAPES = {"\x07": "a", "\x08": "b", "\x0b": "v", "\x0c": "f"}
_ESCAPED = re.compile(r"[\x07\x08\x0b\x0c](?=[a-z])|[\t](?=imes(?![a-z])|ext\{|heta(?![a-z])|frac)")
_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:(?:\\prime(?![A-Za-z])|')\s*)+)\}|\\prime(?![A-Za-z]))")
_MODULE = re.compile(r"(?<![A-Za-z\\.])(?:np|numpy|math|sympy|sp|Math)\s*\.\s*(?=[a-zA-Z])")
# Not the suits of cards, which are answers.
_PICTURES = re.compile("[\u2600-\u2653\u2668-\u2775\u2795-\u2797\u27b0\u27bf\u2b00-\u2bff\ufe0f\U0001f300-\U0001faff]")


def one_backslash(text: str, commands: Collection[str]) -> str:
    """Return the text with single backslashes where all of them are double (`\\\\frac`), before one of `commands`."""
    if not any(name in commands or name in _NAMED for name in _DOUBLED.findall(text)):
        return text
    if any(len(run) % 2 for run in _RUN.findall(text)):
        return text
    return _RUN.sub(lambda run: "\\" * (len(run[0]) // 2 if run[0] != "\\\\" or _command(text, run.end()) else 2), text)


def _command(text: str, place: int) -> bool:
    """Whether a backslash before this place begins a command, not a row of a matrix."""
    return not (text[place : place + 1].isdigit() or text[place : place + 1] in (" ", "\n", "-", "&", ""))


def escapes_restored(text: str) -> str:
    """Return the text with the backslashes that an escape swallowed (a form feed before `rac{1}{2}`)."""
    return _ESCAPED.sub(lambda match: "\\" + _ESCAPES.get(match[0], "t"), text)


def without_pictures(text: str) -> str:
    """Return the text without emoji and dingbats."""
    return _PICTURES.sub("", text.replace("➖", "-").replace("➕", "+")) or text


def regular(text: str) -> str:
    """Return mathematics with primes as `'` and without module names (`np.sin`)."""
    if "prime" in text or "'" in text:
        text = _PRIMES.sub(lambda match: "'" * (match[1].count("prime") + match[1].count("'") if match[1] else 1), text)
    if "." in text:
        text = _MODULE.sub("", text)
    return text
