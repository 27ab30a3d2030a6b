"""Whether a pass of tests shows that a program solves the problem, told from the tests alone."""

from __future__ import annotations

from typing import Any

from rlvr.verifiers.code import passing
from rlvr.verifiers.code.plans import CallsPlan, OutputPlan, WholePlan, make_plan


def integrity(reference: Any) -> str:
    """Return "strong", or "weak" where a pass does not show that a program solves the problem (`why_weak`)."""
    return "weak" if why_weak(reference) else "strong"


def why_weak(reference: Any) -> str:
    """Return why a pass shows little, in words; "" where it shows that a program solves the problem.

    The tests cannot be proved to be secured against the program, and run in one process with it; or they demand so
    little that a program which returns a constant or its argument passes.
    """
    plan = make_plan(reference)
    if isinstance(plan, WholePlan):
        return plan.weak
    found = ""
    if isinstance(plan, OutputPlan):
        found = passing.passing_output(plan.cases, plan.rule)
    elif isinstance(plan, CallsPlan):
        found = passing.passing_value([(call.args, value) for call, value in zip(plan.calls, plan.expected)], plan.same)
    return f"a program that answers with {found} passes" if found else ""
