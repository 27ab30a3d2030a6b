"""URLs of servers in settings, which are recorded, and the variable that holds a server's key."""

from __future__ import annotations

from urllib.parse import urlsplit

KEY_VARIABLE = "RLVR_API_KEY"


def is_plain(url: str) -> bool:
    """Return whether a text is the URL of a server that holds no secret: no user, password, query or fragment.

    White space is in none.
    """
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
