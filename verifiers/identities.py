r"""The verifier `identities`: who is what, as in puzzles of knights and knaves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlvr.core.registry import register
from rlvr.core.types import Verdict, correct, incorrect, no_answer, unparseable

from .extract import MAX_COMPLETION, after_thinking, extract
from .extract.answer import excerpt, without_answer
from .runner.base import ReferenceVerifier

MOST = 10_000  # characters of an answer; a longer one is no list of identities
# A heading ends with a colon, or is alone on its line.
_HEADING = re.compile(
    r"^[ \t>#*_]*(?:final\s+)?(?:conclusion|answer)s?[*_ \t]*(?::[*_ \t]*|$)", re.IGNORECASE | re.MULTILINE
)
# LaTeX commands around words, emphasis, numbers of items and signs between the statements have no meaning.
_DRESS = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|begin|end)(?![A-Za-z])\s*|\\[\\,;!: ]|[${}*_`~&]")
_NUMBERING = re.compile(r"(?:^|(?<=[\s,;.]))(?:\(\d{1,2}\)|\d{1,2}[.):]|[-•])(?=\s)")
_BETWEEN = re.compile(
    r"[\s,;.:|()]+|\b(?:and|so|thus|hence|therefore|the|final|answer|conclusion|is|are)\b", re.IGNORECASE
)


_Identities = tuple[dict[str, str], list[str]]  # roles by name, and all roles


@register("identities")
@dataclass(frozen=True, kw_only=True)
class IdentitiesVerifier(ReferenceVerifier[_Identities]):
    """Whether the answer says the same of every person as the reference.

    The reference is {"identities": {"Ella": "knight", "Zoey": "knave"}, "roles": ["knight", "knave"]}. Without "roles",
    the roles are those that occur. The answer is a box, an answer tag, or the lines below a heading such as
    CONCLUSION:. It holds statements such as "Ella is a knight", "Ella: knight" or "Ella and Zoey are knaves". It must
    name each person, and no person with two roles. An answer that says anything else ("or", "if", "not") is wrong.
    """

    def judge(self, reference: _Identities, completion: str) -> Verdict:
        wanted, roles = reference
        found = extract(completion, "marked")
        text = found.text if found.how in ("box", "tag") else _read_conclusion(completion, roles)
        if text is None:
            return without_answer(completion, found) if found.text is None else no_answer("no conclusion found")
        if len(text) > MOST:
            return unparseable(f"an answer of {len(text):,} characters; at most {MOST:,} are read")
        said, rest = _statements(_DRESS.sub(" ", text), wanted, roles)
        quote = excerpt(text.strip(), 200)
        if not said:
            return unparseable("the answer says of nobody what they are", quote)
        several = [name for name, found in said.items() if len(found) > 1]
        if several:
            return incorrect(f"{several[0]} is said to be several things", quote)
        if rest:
            return incorrect(f"the answer says something else: {excerpt(rest, 60)!r}", quote)
        for name, role in wanted.items():
            if name not in said:
                return incorrect(f"the answer does not say what {name} is", quote)
            if said[name] != {role}:
                return incorrect(f"another identity of {name}", quote)
        return correct(quote)

    def read_reference(self, reference: Any) -> _Identities:
        """Return roles by name, and all roles. Raise ValueError unless the reference names people and their roles."""
        identities = reference.get("identities") if isinstance(reference, Mapping) else None
        if not isinstance(identities, Mapping) or not identities:
            raise ValueError('the reference is no mapping with identities; expected {"identities": {NAME: ROLE}}')
        if not all(isinstance(part, str) and part.strip() for pair in identities.items() for part in pair):
            raise ValueError("the names and the roles of identities are text")
        roles = reference.get("roles") or sorted(set(identities.values()))
        if not isinstance(roles, (list, tuple)) or not set(identities.values()) <= set(roles):
            raise ValueError("the roles of the reference are not a list with every role of its identities")
        return {name.casefold(): role.casefold() for name, role in identities.items()}, [
            role.casefold() for role in roles
        ]


def _read_conclusion(completion: str, roles: list[str]) -> str | None:
    """Return the lines below the last heading, until a blank line after one with a role; None without a heading."""
    text = after_thinking(completion) if len(completion) <= MAX_COMPLETION else None
    headings = list(_HEADING.finditer(text)) if text else []
    if text is None or not headings:
        return None
    lines: list[str] = []
    for line in text[headings[-1].end() :].splitlines():
        if not line.strip() and any(role in above.casefold() for above in lines for role in roles):
            break
        lines.append(line)
    return "\n".join(lines)


def _statements(text: str, wanted: Mapping[str, str], roles: list[str]) -> tuple[dict[str, set[str]], str]:
    """Return what is said of each person, and what is left of the text."""
    names = "|".join(re.escape(name) for name in sorted(wanted, key=len, reverse=True))
    kinds = "|".join(re.escape(role) for role in sorted(roles, key=len, reverse=True))
    one = rf"(?<!\w)({names})\s*(?:\bis\b|:|=|-+>?|→|–|—)\s*(?:an?\s+|the\s+)?({kinds})(?!\w)"
    group = rf"(?:{names})(?:\s*(?:,\s*and\b|,|\band\b)\s*(?:{names}))+"
    many = rf"(?<!\w)({group})\s+are\s+(?:both\s+|all\s+)?({kinds})s(?!\w)"
    said: dict[str, set[str]] = {}

    def take(match: re.Match[str]) -> str:
        for name in re.findall(rf"(?<!\w)(?:{names})(?!\w)", match[1].casefold()):
            said.setdefault(name, set()).add(match[2].casefold())
        return " "

    # Numbers of items go first: otherwise "(1) Ella" would leave "(1)".
    rest = re.sub(many, take, _NUMBERING.sub(" ", text), flags=re.IGNORECASE)
    rest = re.sub(one, take, rest, flags=re.IGNORECASE)
    return said, _BETWEEN.sub("", rest).strip()
