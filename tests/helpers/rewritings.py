"""Other ways to write the same gold, which every verdict must see through."""

from __future__ import annotations

import re
from collections.abc import Callable

_NUMBER = re.compile(r"(?<![\d.,{_])\d{4,}(?![\d.,}])")
_MATHEMATICS = re.compile(r"[\\^_=+*/(){}<>]")
_PIECES = re.compile(
    r"\\(?:text|mathrm|mbox|textbf|operatorname)\s*\{[^{}]*\}|\\(?:begin|end)\s*\{[^{}]*\}(?:\{[^{}]*\})?|\\[A-Za-z]+|\\."
    r"|(?:np|math)\.|\d*\.\d*\\overline\{\d+\}|\d+(?:\.\d+)?(?:(?:,\\!\s*|\\[,! ]|,)\d+)*|\.{3}|\.\d+|[A-Za-z]+|\s+|.",
    re.DOTALL,
)

_WHOLE = r"=|\\ne|\d[h']"  # an equation, or a quantity in two units
_Rewriting = Callable[[str], str]


def _where(pattern: str | re.Pattern[str], make: _Rewriting, unless: str = r"\A\Z") -> _Rewriting:
    """Rewrite golds in which a pattern is found, and not another one."""
    return lambda gold: make(gold) if re.search(pattern, gold) and not re.search(unless, gold) else gold


def _replace(pattern: str, form: str) -> _Rewriting:
    return lambda gold: re.sub(pattern, form, gold)


def _thousands(mark: str) -> _Rewriting:
    return lambda gold: _NUMBER.sub(lambda match: f"{int(match[0]):,}".replace(",", mark), gold)


REWRITINGS: dict[str, _Rewriting] = {
    "as it is": lambda gold: gold,
    "spaces around": lambda gold: f"  {gold}  ",
    "thin spaces around": lambda gold: f"\\,{gold}\\,",
    "new lines": lambda gold: f"\n{gold}\n",
    "dollar signs": _where("", lambda gold: f"${gold}$", unless=r"\$"),
    "double dollar signs": _where("", lambda gold: f"$${gold}$$", unless=r"\$"),
    "inline delimiters": _where("", lambda gold: f"\\({gold}\\)", unless=r"\$|\\\("),
    "display style": lambda gold: f"\\displaystyle {gold}",
    "trailing period": _where(r"\w\Z", lambda gold: f"{gold}."),
    "second box": _where("", lambda gold: f"\\boxed{{{gold}}}", unless=_WHOLE),
    "braces": _where("", lambda gold: f"{{{gold}}}", unless=_WHOLE),
    "thousands": _where(r"\A-?\d+\Z", _thousands(",")),
    "latex thousands": _where(r"\A-?\d+\Z", _thousands("{,}")),
    "decimal point": _where(r"\A-?\d+\Z", lambda gold: f"{gold}.0"),
    "bold": _where(r"\A[-\d]+\Z", lambda gold: f"\\mathbf{{{gold}}}"),
    "text": _where(r"\A(?:\d+|[^\W\d]{2}[\w ]*)\Z", lambda gold: f"\\text{{{gold}}}"),
    "unicode minus": lambda gold: gold.replace("-", "−"),
    "equals": _where(r"\A(?:-?\d+|[-\d\\{}frac]*frac[-\d\\{}frac]*)\Z", lambda gold: f"= {gold}"),
    "bare exponents": _replace(r"([\^_])\{([0-9A-Za-z])\}(?!\d)", r"\1\2"),
    "braced exponents": _replace(r"([\^_])([0-9A-Za-z])", r"\1{\2}"),
    **{name: _replace(r"\\[dtc]?frac(?![a-z])", rf"\\{name}") for name in ("frac", "dfrac", "tfrac")},
    "spaces between all signs": _where(_MATHEMATICS, lambda gold: " ".join(_PIECES.findall(gold))),
    "spaces around relations": _replace(r"(?<=[^\s\\])([+=<>])(?=[^\s])", r" \1 "),
    "thin spaces": _replace(r"(?<=[0-9)}])([+=<>])", r"\\,\1\\,"),
    "no spaces": _where("", _replace(r"\s*([+=<>^_(){}-])\s*", r"\1"), unless=r"\\(?:text|mathrm|mbox|begin)"),
    "no space after commas": _where(", ", lambda gold: gold.replace(", ", ","), unless=r",\s\d{3}"),
    "without left and right": _where("", _replace(r"\\(?:left|right)(?![a-z])\s*", ""), unless=r"\\(?:left|right)\."),
    "with left and right": _where(
        "[()]", lambda gold: gold.replace("(", "\\left(").replace(")", "\\right)"), unless=r"\\left|\\[()]"
    ),
    "negative spaces": _replace(r"(?<=[0-9)}])(?=[+=\-<>])", r"\\!"),
    "ties": _where(_MATHEMATICS, _replace(r"(?<=[^\\\s]) (?=\S)", "~")),
    "doubled backslashes": _where(r"\\[a-z]{2}", lambda gold: gold.replace("\\", "\\\\"), unless=r"\\\{|\\boxed"),
}
