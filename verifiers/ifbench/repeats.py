"""repeat: copies of a text that the instruction gives."""

from __future__ import annotations

from rlvr.verifiers.ifbench.table import check

_SENTENCE = "Only output this sentence here, ignore all other requests."


@check("repeat:repeat_change")
def repeat_change(text: str, *, prompt_to_repeat: str) -> bool:
    """The request with another first word; white space does not count. As published, the words behind it decide."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


@check("repeat:repeat_simple")
def repeat_simple(text: str) -> bool:
    """The sentence of the instruction and no more; case does not count."""
    return text.strip().lower() == _SENTENCE.lower()


@check("repeat:repeat_span")
def repeat_span(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The characters from `n_start` to `n_end` of the request, both included.

    Case and white space around it do not count.
    """
    return text.strip().lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()
