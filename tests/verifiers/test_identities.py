"""The verifier `identities`: who is a knight and who is a knave, in the forms in which answers are written."""

from __future__ import annotations

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status

PUZZLE = Problem("p", "", {"identities": {"Ella": "knight", "Zoey": "knave"}, "roles": ["knight", "knave"]})
RIGHT = [
    "Because of this ...\n\nCONCLUSION:\n(1) Ella is a knight\n(2) Zoey is a knave",
    "**Conclusion:**\n1. **Ella** is a knight\n2. **Zoey** is a knave.\n\nSo Zoey lies.",
    r"\boxed{\text{Ella is a knight and Zoey is a knave}}",
    "<think>Zoey is a knight? No.</think><answer>(1) ella: Knight\n(2) zoey: Knave</answer>",
    "Final answer: Ella is the knight; Zoey → knave",
    "### Conclusion\n(1) Ella is a knight\n(2) Zoey is a knave",
    "**CONCLUSION**\n\nElla is a knight\nZoey is a knave",
    "My conclusion is long.\n\nFinal Answer\n- Ella: knight\n- Zoey: knave",
]
WRONG = {
    "CONCLUSION:\n(1) Ella is a knave\n(2) Zoey is a knave": "another identity of ella",
    "CONCLUSION:\n(1) Ella is a knight": "does not say what zoey is",
    "CONCLUSION:\nElla is a knight, Zoey is a knave or Zoey is a knight": "several things",
    "CONCLUSION:\nElla is a knight or Zoey is a knave": "something else: 'or'",
    "CONCLUSION:\nIf Ella is a knight then Zoey is a knave": "something else: 'If",
    "CONCLUSION:\nElla is a knight, Zoey is a knave, Max is a knave": "something else: 'Max",
    "CONCLUSION:\nElla is a knight, Zoey is not a knight": "something else",
    "CONCLUSION:\nElla is a knightess, Zoey is a knave": "something else",
    "## Conclusion\nElla is a knave\nZoey is a knave": "another identity of ella",
}


@pytest.mark.parametrize("completion", RIGHT)
def test_right_answers(completion: str) -> None:
    """In a box, in a tag, below a heading; with numbers, emphasis, colons."""
    assert make_verifier("identities")(PUZZLE, completion).status is Status.CORRECT


@pytest.mark.parametrize("completion", sorted(WRONG))
def test_wrong_answers(completion: str) -> None:
    """Another identity, one that is missing, several, and whatever else is said."""
    verdict = make_verifier("identities")(PUZZLE, completion)
    assert verdict.status is Status.INCORRECT
    assert WRONG[completion] in verdict.reason


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("", Status.NO_ANSWER),
        ("Ella is a knight and Zoey is a knave.", Status.NO_ANSWER),
        ("CONCLUSION:\nThey are both liars.", Status.UNPARSEABLE),
        ("CONCLUSION:\n" + "Ella is a knight\n" * 5000, Status.UNPARSEABLE),
        ("<think>CONCLUSION:\nElla is a knight, Zoey is a knave", Status.NO_ANSWER),
    ],
)
def test_no_answers(completion: str, status: Status) -> None:
    """Nothing below a heading, nobody named, too long, still thinking."""
    assert make_verifier("identities")(PUZZLE, completion).status is status


def test_groups_and_other_roles() -> None:
    """Several people at once; other words for truth and lie; a name that is a part of another."""
    problem = Problem("p", "", {"identities": {"Al": "saint", "Ali": "saint", "Bo": "sinner"}})
    verify = make_verifier("identities")
    assert verify(problem, "CONCLUSION:\nAl and Ali are both saints, Bo is a sinner").correct
    assert verify(problem, "CONCLUSION:\nAl, Ali, and Bo are saints").status is Status.INCORRECT


@pytest.mark.parametrize(
    "reference", [None, {}, {"identities": {}}, {"identities": {"A": 1}}, {"identities": {"A": "x"}, "roles": ["y"]}]
)
def test_bad_references(reference: object) -> None:
    """They have no score."""
    assert make_verifier("identities")(Problem("p", "", reference), "x").status is Status.BAD_REFERENCE
