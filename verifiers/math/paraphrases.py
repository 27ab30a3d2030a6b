r"""Answers that the grammar does not read, written as it reads them: "x if x >= 0, -x if x < 0", "all reals except 2".

Only what could not be read comes here. Each rule takes the whole text, so that words which are no part of a known
phrase ("probably all reals") leave it unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rlvr.verifiers.math.vocabulary import ALTERING, BLOCKED

MAX_CHARS = 400
MAX_UNEVALUATED = 4_000
MAX_CASES = 6

# A limit, sum or integral, which are not evaluated: its stated value counts.
_UNEVALUATED = re.compile(r"[^=]{0,40}\\(?:lim|sum|prod|int|iint|oint|sup|inf)(?![A-Za-z])")
_TOP_LEVEL = re.compile(r"\\(?:q?quad|text|mbox|mathrm|begin)(?![A-Za-z])|\\.|[{}()\[\]=,;]", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textrm|mbox|textit)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"[$~]|(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])")
_WORD = re.compile(r"[A-Za-z]{2,}")


def respelled(text: str) -> str | None:
    """Return an answer in a form that the grammar may read; None where no rule knows the text."""
    if value := _value_of_unevaluated(text):
        return value
    if len(text) > MAX_CHARS:
        return None
    flat = " ".join(_SPACE.sub(" ", _TEXT.sub(r" \1 ", text) if "{" in text else text).split()).strip(" .")
    for signs, rule in _RULES:
        found = rule(flat) if any(sign in flat for sign in signs) else None
        if found is not None and found != text:
            return found
    return None


def _value_of_unevaluated(text: str) -> str:
    """Return 5 of `\\lim a_n = 5`; "" for `\\sum a_n x^n, R = 1`, where the sum has a neighbour."""
    if len(text) > MAX_UNEVALUATED or not _UNEVALUATED.match(text):
        return ""
    depth, value = 0, -1
    for match in _TOP_LEVEL.finditer(text):
        sign = match.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
        elif depth == 0 and sign == "=":
            value = match.end()
        elif (depth == 0 and sign in ",;") or (len(sign) > 2 and value < 0):
            return ""
    return text[value:] if value >= 0 else ""


# --- cases ------------------------------------------------------------------------------------------------------------

_CONDITION = (
    r"(?:[a-z]\s+(?:is\s+)?(?:an?\s+)?(?:even|odd)(?:\s+(?:number|integer))?|otherwise|(?:else|for\s+other\s+values)"
    r"|[^,;]*?(?:<|>|=|≥|≤|≠|\\(?:ge|le|ne|neq|geq|leq|lt|gt|in|geqslant|leqslant)(?![A-Za-z]))[^,;]*?)"
)
_CASE = re.compile(
    rf"(?P<value>[^,;]+?)\s*,?\s*(?:(?:if|when|for|where)\s+(?P<condition>{_CONDITION})|(?P<rest>otherwise|else))"
    r"\s*(?:(?:[,;]|\band\b)\s*(?:and\s+)?|\Z)"
)
_GIVEN = re.compile(r"\b(?:if|when|for|where)\b")
_GIVEN_OR_NOT = re.compile(r"\b(?:if|when|for|where|or|not)\b")
_LABEL = re.compile(r"(?:[a-zA-Z]\s*(?:\(\s*[a-z]\s*\))?|[a-z]_\{?[a-z]\}?)\s*=\s*")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_JOINT = re.compile(r"\s*(?:,?\s*\b(?:and|or)\b|,)\s*")
_IS = re.compile(r"\s+(?:is\s+)?(?:an?\s+)?(even|odd)(?:\s+(?:number|integer))?\Z")


def _cases(text: str) -> str | None:
    """x if x >= 0, -x if x < 0."""
    if not _GIVEN.search(text):
        return None
    rows: list[str] = []
    position = 0
    label = _LABEL.match(text)
    position = label.end() if label else 0
    while position < len(text):
        match = _CASE.match(text, position)
        if match is None or len(rows) == MAX_CASES or _GIVEN_OR_NOT.search(match["value"]):
            return None
        condition = match["condition"] or "otherwise"
        if condition.startswith(("otherwise", "else", "for other")):
            condition = r"\text{otherwise}"
        elif parity := _IS.search(condition):
            condition = rf"{condition[: parity.start()]}\text{{ {parity[1]}}}"
        elif _WORD.search(_COMMAND.sub("", condition)):
            return None
        rows.append(f"{match['value']} & {condition}")
        position = match.end()
    if len(rows) < 2:
        return None
    return (label[0] if label else "") + r"\begin{cases}" + r" \\ ".join(rows) + r"\end{cases}"


# --- sets -------------------------------------------------------------------------------------------------------------

_REALS = (
    r"(?:all|any|every|the set of(?: all)?)\s+real(?:s|\s+(?:numbers?|values?))?(?:\s+(?:of|for|values\s+of))?"
    r"(?:\s+[a-z])?"
)
_EXCEPT = re.compile(
    rf"(?:\\mathbb\s*\{{?\s*R\s*\}}?|{_REALS})\s*,?\s*"
    r"(?:except(?:\s+for)?|excluding|other\s+than|but(?:\s+not)?|without|not\s+equal\s+to|besides)\s+(?:[a-z]\s*=\s*)?"
    r"(?P<values>[^<>=]{1,60})"
)
_DIFFERENT = re.compile(
    rf"{_REALS}\s*,?\s*(?:where|with|such\s+that|for\s+which)?\s*(?P<name>[a-z])?\s*(?:\\neq?|≠|!=)\s*(?P<values>[^<>=]{{1,60}})"
)
_EVERY = re.compile(
    r"(?:for\s+)?(?:all|any|every)\s+(?:(?:positive|natural|real|non-?negative)\s+)?(?:(?:integers?|numbers?|reals?|values\s+of)\s+)?"
    r"(?P<relation>[a-z]\s*(?:<|>|≥|≤|\\(?:ge|le|geq|leq|lt|gt|geqslant|leqslant)(?![A-Za-z])).*)"
)


def _all_but(text: str) -> str | None:
    """All real numbers except 2."""
    match = _EXCEPT.fullmatch(text) or _DIFFERENT.fullmatch(text)
    if match is None:
        return None
    values = _JOINT.sub(",", match["values"].strip())
    if _WORD.search(_COMMAND.sub("", values)):
        return None
    return rf"\mathbb{{R}}\setminus\{{{values}\}}"


def _every(text: str) -> str | None:
    """All n >= 3."""
    match = _EVERY.fullmatch(text)
    return match["relation"] if match else None


# --- names and remarks ------------------------------------------------------------------------------------------------

_NAMED = re.compile(
    r"\\(?:operatorname\*?|mathrm|mathbf)\s*\{\s*(?P<name>[A-Za-z ]{1,15})\s*\}(?:\s*_\s*(?:\w|\{[^{}]{1,12}\}))?"
    r"(?:\s*[A-Z]|\s*(?:\\left)?\([^()=]{1,20}\))?\s*(?:=|\\approx(?![A-Za-z])|≈)\s*(?P<value>[^=]+)"
)
_EXTREME = re.compile(r"\\(?:max|min|sup|inf|dim|deg|ker|\#)\s*(?:[A-Z]|\\\{[^{}=]{1,40}\\\})?\s*=\s*(?P<value>[^=]+)")
_ARBITRARY = re.compile(
    r"(?P<formula>.*?=.*?)\s*,?\s*\(?\s*(?:for|where|with)\s+(?:(?:any|all|every|each|some|an?)\s+)?"
    r"(?:(?:arbitrary|real|any)\s+)*(?:constants?|numbers?|parameters?)\s+[A-Za-z](?:\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?\s*\)?"
    r"|(?P<other>.*?=.*?)\s*,?\s*\(?\s*(?:for|where|with)\s+[A-Za-z]\s+(?:is|being)\s+(?:an?\s+)?(?:arbitrary|any|real)?\s*"
    r"(?:real\s+)?(?:constant|number|parameter)\s*\)?"
)


def _without_name(text: str) -> str | None:
    """The 5 of `\\operatorname{rank}A = 5`."""
    match = _NAMED.fullmatch(text)
    if match is not None:
        words = {word.lower() for word in match["name"].split()}
        return None if words & (BLOCKED | ALTERING) else match["value"]
    match = _EXTREME.fullmatch(text)
    return match["value"] if match else None


def _with_constant(text: str) -> str | None:
    """The f(x) = cx of `f(x) = cx for any constant c`."""
    match = _ARBITRARY.fullmatch(text)
    return (match["formula"] or match["other"]) if match else None


_SPANISH = re.compile(r"(?P<first>.*\d)\s+[ye]\s+(?P<last>[-−]?\d[^\s]*)")
_PRODUCT = re.compile(
    r"1\s*(?:\\cdot|\\times|·|\*)\s*2\s*(?:(?:\\cdot|\\times|·|\*)\s*3\s*)?"
    r"(?:\\cdots|(?:\\cdot|\\times|·|\*)\s*(?:\\[lc]?dots|\.\.\.|…))\s*(?:\\cdot|\\times|·|\*)?\s*(?P<last>[a-zN])"
)
_ANGLED = re.compile(r"<\s*(?P<entries>[^<>=]+,[^<>=]+)\s*>")
_ARROW = re.compile(r"(?:[a-zA-Z]\s*(?::|=)\s*)?(?P<name>[a-z])\s*(?:\\mapsto|↦|\\longmapsto)\s*(?P<value>[^=]+)")
_FOR_ALL = re.compile(r"(?P<formula>.*?)\s*,?\s*\(?(?:\\forall|∀)\s*(?P<names>[a-zA-Z][^=()]*)\)?")


def _of_pattern(pattern: re.Pattern[str], form: str) -> Callable[[str], str | None]:
    def rule(text: str) -> str | None:
        match = pattern.fullmatch(text)
        return match.expand(form) if match else None

    return rule


def _mapped(text: str) -> str | None:
    """x |-> x^2."""
    match = _ARROW.fullmatch(text)
    if match is None or not re.search(rf"(?<![A-Za-z\\]){match['name']}|\d{match['name']}", match["value"]):
        return None
    return f"f({match['name']})={match['value']}"


# One of the signs is in every text that the rule knows.
_RULES: tuple[tuple[tuple[str, ...], Callable[[str], str | None]], ...] = (
    (("if", "when", "for", "where"), _cases),
    (("R", "real"), _all_but),
    (("all", "any", "every"), _every),
    (("=", "≈", "approx"), _without_name),
    (("=",), _with_constant),
    ((" y ", " e "), _of_pattern(_SPANISH, r"\g<first>, \g<last>")),
    (("1",), _of_pattern(_PRODUCT, r"\g<last>!")),
    (("<",), _of_pattern(_ANGLED, r"(\g<entries>)")),
    (("mapsto", "↦"), _mapped),
    (("forall", "∀"), _of_pattern(_FOR_ALL, r"\g<formula>\\text{ for all }\g<names>")),
)
