"""Keep secrets out of messages and records: texts of servers without them, URLs that hold none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from html.entities import codepoint2name
from urllib.parse import urlsplit

HIDDEN = "[key]"
SHORTEST = 4  # characters of the start of a secret that are taken out at the end of a text


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a server's text without these secrets, which some servers repeat when they refuse a request.

    Also finds them as JSON, HTML and URLs encode them; the first half of one; and at the end of the text, which may
    have been cut, its first four characters.
    """
    for secret in secrets:
        text = _without(text, secret)
    return text


def _without(text: str, secret: str) -> str:
    if not secret:
        return text
    patterns = [_pattern_of(character) for character in secret]
    parts, place = [], 0
    for begin in patterns[0].finditer(text):
        if begin.start() < place:
            continue
        end, count = begin.end(), 1
        while count < len(patterns) and (match := patterns[count].match(text, end)):
            end, count = match.end(), count + 1
        least = min(SHORTEST, len(secret)) if end == len(text) else max(SHORTEST, (len(secret) + 1) // 2)
        if count >= min(least, len(secret)):
            parts += [text[place : begin.start()], HIDDEN]
            place = end
    return "".join([*parts, text[place:]])


@lru_cache(maxsize=512)
def _pattern_of(character: str) -> re.Pattern[str]:
    """Return a pattern of the ways in which JSON, HTML, URLs and programs write a character."""
    code = ord(character)
    name = codepoint2name.get(code, "apos" if character == "'" else "")
    forms = [
        *([rf"&(?:amp;)*{name};"] if name else []),
        rf"&(?:amp;)*#0*{code};|&(?:amp;)*#[xX]0*(?i:{code:x});",
        *(rf"%(?:25)*(?i:{byte:02x})" for byte in character.encode()[:1] if code < 128),
        rf"\\+(?:u(?i:{code:04x})|x(?i:{code:02x}))",
        rf"\\*{re.escape(character)}",
    ]
    return re.compile("|".join(forms))


KEY_VARIABLE = "RLVR_API_KEY"


def is_plain(url: str) -> bool:
    """Return whether a text is the URL of a server without secrets: no user, password, query, fragment or space."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and "@" not in parts.netloc
            and not parts.query
            and not parts.fragment
            and parts.port != 0
            and not any(character.isspace() for character in url)
        )
    except ValueError:
        return False
