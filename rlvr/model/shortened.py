"""Text of a reply cut to a number of tokens, the marks around its parts kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Fits = Callable[[str, int], bool]  # whether a text has at most so many tokens


def shorten(text: str, tokens: int, payload: Sequence[tuple[int, int]], fits: Fits) -> str:
    """Return a text cut to `tokens` tokens, with a note that tells how much was left out; unchanged if it fits.

    payload: start and end of the parts that are cut, in order. Without any the text is cut at its end, and the note is
    beyond the limit. Else they are cut to the same number of characters, what is around them stays, and those at the
    end are left out where not even the notes fit. One always stays.
    """
    if fits(text, tokens):
        return text
    if not payload:
        count = largest_that(len(text), lambda count: fits(text[:count], tokens))
        return f"{text[:count]}{note(len(text) - count)}"
    starts, ends = zip(*payload)
    parts = [text[start:end] for start, end in payload]
    marks = [text[end:start] for end, start in zip((0, *ends), (*starts, len(text)))]
    for number in range(len(parts), 0, -1):

        def cut(count: int, number: int = number) -> str:
            """Return the first parts, each with at most so many characters, or a note's."""
            whole = "".join(before + begun(part, count) for before, part in zip(marks, parts[:number]))
            lost = sum(map(len, parts[number:]))
            return whole + marks[-1] + (note(lost) if lost else "")

        if fits(cut(0), tokens) or number == 1:
            return cut(largest_that(max(map(len, parts)), lambda count: fits(cut(count), tokens)))
    raise AssertionError("one part always stays")


def largest_that(top: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number below `top` for which it holds, by halving; 0 where there is none."""
    low, high = 0, max(top, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def begun(text: str, count: int) -> str:
    """Return the first characters of a text and a note; all of it where that has no more bytes than a note."""
    if len(text) <= count or len(text.encode()) <= len(note(len(text))):
        return text
    return f"{text[:count]}{note(len(text) - count)}"


def note(count: int) -> str:
    """Return what stands for text that was left out."""
    return f"\n[{count} more characters]\n"
