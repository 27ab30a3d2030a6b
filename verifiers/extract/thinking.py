"""The part of a completion that is its answer, without what was thought before."""

from __future__ import annotations

BYTE_ORDER_MARK = "\ufeff"  # some editors put it before a text

_TAGS = ("think", "thinking", "thought", "reasoning")
_OPENERS = (*(f"<{tag}>" for tag in _TAGS), "<|begin_of_thought|>")
_CLOSERS = (*(f"</{tag}>" for tag in _TAGS), "<|end_of_thought|>")
THINKING = (*_OPENERS, *_CLOSERS)


def after_thinking(text: str) -> str | None:
    """Return the text after the last closing think tag; None where a think tag is opened and never closed."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    if "<" not in text:
        return text
    end, closer = max((text.rfind(closer), closer) for closer in _CLOSERS)
    if end >= 0:
        text = text[end + len(closer) :]
    return None if any(opener in text for opener in _OPENERS) else text
