"""Other ways to write the same gold, which every verdict must see through."""

from __future__ import annotations

import re
from collections.abc import Callable

_NUMBER = re.compile(r"(?<![\d.,{_])\d{4,}(?![\d.,}])")


def _only_digits(make: Callable[[str], str]) -> Callable[[str], str]:
    return lambda gold: make(gold) if re.fullmatch(r"-?\d+", gold) else gold


REWRITINGS: dict[str, Callable[[str], str]] = {
    "as it is": lambda gold: gold,
    "dfrac": lambda gold: gold.replace("\\frac", "\\dfrac"),
    "tfrac": lambda gold: gold.replace("\\frac", "\\tfrac"),
    "spaces around": lambda gold: f"  {gold}  ",
    "thin spaces around": lambda gold: f"\\,{gold}\\,",
    "new lines": lambda gold: f"\n{gold}\n",
    "left right": lambda gold: (
        gold
        if "\\left" in gold
        else re.sub(r"(?<!\\)([()])", r"\\SIDE\1", gold).replace("\\SIDE(", "\\left(").replace("\\SIDE)", "\\right)")
    ),
    "no left right": lambda gold: gold.replace("\\left", "").replace("\\right", ""),
    "dollar signs": lambda gold: f"${gold}$",
    "double dollar signs": lambda gold: f"$${gold}$$",
    "inline delimiters": lambda gold: f"\\({gold}\\)",
    "display style": lambda gold: f"\\displaystyle {gold}",
    "trailing period": lambda gold: f"{gold}.",
    "second box": lambda gold: f"\\boxed{{{gold}}}",
    "braces": lambda gold: f"{{{gold}}}",
    "no space after commas": lambda gold: gold if re.search(r",\s\d{3}", gold) else gold.replace(", ", ","),
    "thousands": lambda gold: _NUMBER.sub(lambda m: f"{int(m[0]):,}", gold) if re.fullmatch(r"-?\d+", gold) else gold,
    "latex thousands": lambda gold: (
        _NUMBER.sub(lambda m: f"{int(m[0]):,}".replace(",", "{,}"), gold) if re.fullmatch(r"-?\d+", gold) else gold
    ),
    "decimal point": _only_digits(lambda gold: f"{gold}.0"),
    "bold": lambda gold: f"\\mathbf{{{gold}}}" if re.fullmatch(r"[-\d]+", gold) else gold,
    "text": lambda gold: f"\\text{{{gold}}}" if re.fullmatch(r"[\w ]+", gold) else gold,
    "unicode minus": lambda gold: gold.replace("-", "−"),
    "equals": lambda gold: f"= {gold}" if re.fullmatch(r"[-\d\\{}frac]+", gold) else gold,
}
