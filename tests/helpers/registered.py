"""Verifiers with a name in the registry. Imports no torch: worker processes that run them start fast."""

from __future__ import annotations

from rlvr.core.registry import register


@register("seven_is_in_it")
def seven_is_in_it(problem, completion):
    """Check that a 7 occurs."""
    return "7" in completion


@register("share_of_sevens")
def share_of_sevens(problem, completion):
    """Return a graded proxy of `seven_is_in_it`."""
    return completion.count("7") / max(len(completion), 1)


@register("share_of_ones")
def share_of_ones(problem, completion):
    """Return a proxy that has nothing to do with `seven_is_in_it`."""
    return completion.count("1") / max(len(completion), 1)
