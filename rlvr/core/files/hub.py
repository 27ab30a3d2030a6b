"""Whether the Hugging Face hub answers. It is asked once for a few seconds; its own client tries half a minute."""

from __future__ import annotations

import functools
import threading
import time
from typing import Any

SECONDS = 4.0
ANSWER_SECONDS = 60.0  # seconds for which an answer holds: a command asks for its model and its data sets


def why_unreachable() -> str:
    """Return why the hub cannot be reached; "" if it answers anything, and if HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return ""
    return _ask(constants.ENDPOINT, int(time.monotonic() // ANSWER_SECONDS))


@functools.lru_cache(maxsize=8)
def _ask(endpoint: str, period: int) -> str:
    """Return why an endpoint does not answer, or "". `period` makes an answer hold for ANSWER_SECONDS seconds."""
    from huggingface_hub import errors, get_session

    http_error: Any = errors.HfHubHTTPError.__bases__[0]  # the HTTP library's; which library depends on the version
    session, reasons = get_session(), [f"no answer within {SECONDS:g} seconds"]

    def ask() -> None:
        try:
            session.head(endpoint, timeout=SECONDS)
            reasons.append("")
        except (http_error, OSError) as error:
            reasons.append(str(error).partition("\n")[0] or type(error).__name__)

    # In a thread, since no timeout bounds the look-up of a host's name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return reasons[-1]
