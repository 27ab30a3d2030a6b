"""Spellings of careless sources, made regular before an answer is cut into tokens.

Doubled backslashes and control characters come from escapes that were written or read once too often. All rules are
linear in the text, and each runs only where a sign of it is there.
"""

from __future__ import annotations

import re

from rlvr.verifiers.math.vocabulary import CONSTANT_NAMES, FUNCTIONS, GREEK

_RUN = re.compile(r"\\+")
_DOUBLED = re.compile(r"\\\\([A-Za-z]{2,}|[%$])")
_COMMANDS = (
    frozenset(
        "frac dfrac tfrac cfrac sqrt boxed text textbf textit mbox mathrm mathbf mathbb mathcal left right begin end cdot "
        "times div pm mp le ge ne lt gt leq geq neq approx equiv in notin cup cap setminus circ degree infty binom sum "
        "int prod lim ldots cdots dots quad qquad operatorname angle triangle overline vec hat bar lfloor rfloor lceil "
        "rceil langle rangle prime emptyset varnothing displaystyle mid land lor implies to forall pmod bmod".split()
    )
    | FUNCTIONS.keys()
    | GREEK
    | CONSTANT_NAMES.keys()
    | {"%", "$"}
)
# "\f" of "\frac" and the like, read as an escape: a form feed before "rac".
_ESCAPES = {"\x07": "a", "\x08": "b", "\x0b": "v", "\x0c": "f"}
_ESCAPED = re.compile(r"[\x07\x08\x0b\x0c](?=[a-z])|[\t](?=imes(?![a-z])|ext\{|heta(?![a-z])|frac)")
_PRIMES = re.compile(r"\^\s*(?:\{\s*((?:(?:\\prime(?![A-Za-z])|')\s*)+)\}|\\prime(?![A-Za-z]))")
_MODULE = re.compile(r"(?<![A-Za-z\\.])(?:np|numpy|math|sympy|sp|Math)\s*\.\s*(?=[a-zA-Z])")
_HOURS = re.compile(r"\s*(\d+)\s*h\s*(\d+)\s*m(?:in)?(?:\s*(\d+)\s*s(?:ec)?)?\s*\Z")
_FEET = re.compile(r"\s*(\d+)\s*'\s*(\d+(?:\.\d+)?)\s*(?:''|\")?\s*\Z")
# Not the suits of cards, which are answers.
_PICTURES = re.compile("[\u2600-\u2653\u2668-\u2775\u2795-\u2797\u27b0\u27bf\ufe0f\U0001f300-\U0001faff]")


def one_backslash(text: str) -> str:
    """Return the text with single backslashes where all of its commands have two (`\\\\frac`)."""
    if "\\\\" not in text or not any(name in _COMMANDS for name in _DOUBLED.findall(text)):
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
    return _PICTURES.sub("", text) or text


def regular(text: str) -> str:
    """Return mathematics with primes as `'`, without module names (`np.sin`), and `2h30m` and `5'6"` in words."""
    if "prime" in text or "'" in text:
        text = _PRIMES.sub(lambda match: "'" * (match[1].count("prime") + match[1].count("'") if match[1] else 1), text)
        if feet := _FEET.match(text):
            text = f"{feet[1]} \\text{{feet}} {feet[2]} \\text{{inches}}"
    if "." in text:
        text = _MODULE.sub("", text)
    if "h" in text and (hours := _HOURS.match(text)):
        text = f"{hours[1]} \\text{{hours}} {hours[2]} \\text{{minutes}}"
        text += f" {hours[3]} \\text{{seconds}}" if hours[3] else ""
    return text
