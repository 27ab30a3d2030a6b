"""Which letter a completion chooses: announcements, rejections, lists of letters."""

from __future__ import annotations

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.choice import ChoiceVerifier

CASES = [
    ("A", "\\boxed{A: all of A, B, C, D}", False),
    ("A", "A. B, C, D", False),
    ("A", "The answer is A. B, C, D.", False),
    ("A", "\\boxed{A, B, C, D}", False),
    ("A", "A) all of the above options A B C D", False),
    ("A", "Answer: A; B", False),
    ("A", "Answer: (A) 5 (B) 6", False),
    ("A", "Answer: A (or B)", False),
    ("A", "Answer: A. Or B.", False),
    ("A", "\\boxed{A} or B", False),
    ("A", "\\boxed{A} or \\boxed{B}", False),
    ("A", "Answer: A. Wait, that's wrong.", False),
    ("A", "The wrong answer is A.", False),
    ("A", "Answer: not A", False),
    ("A", "The answer is A, not B.", True),
    ("A", "The answer is A because B is too large.", True),
    ("A", "\\boxed{A. Paris}", True),
    ("A", "A", True),
    ("A", "(A)", True),
    ("A", "Option A is correct.", True),
    ("A", "Option A is incorrect.", False),
    ("A", "Option B is correct. Option A is wrong.", False),
    ("A", "A is the correct answer", True),
    ("D", "故选D", True),
    ("D", "不选D", False),
    ("D", "正确选项是D", True),
    ("D", "答案是D，不是C", True),
    ("A", "La respuesta no es A.", False),
    ("A", "Die Antwort ist nicht A.", False),
    ("A", "\\boxed{A/B}", False),
    ("A", "Answer: A. The capital is Paris.", True),
    ("A", "A: Paris, B: London", False),
    ("A", "Answer: A) 12, B) 13", False),
    ("A", "Answer: A through D", False),
    ("A", "Answer: A-D", False),
    ("A", "Answer: A to D", False),
    ("AC", "A, C", True),
    ("AC", "A and C", True),
    ("AC", "A, B, C", False),
    ("A", "Answer: A|B|C|D", False),
    ("A", "Answer: A B C D", False),
    ("A", "Answer: ABCD", False),
    ("A", "Answer: Any of A-D", False),
    ("A", "A, maybe", False),
    ("A", "Answer: A?", False),
    ("A", "I would rule out A.", False),
    ("A", "Answer: A and also B", False),
    ("A", "Answer: A plus B", False),
    ("A", "Answer: A as well as B", False),
    ("A", "Answer: A or maybe C", False),
    ("B", "Answer: B: point A is on the line", True),
    ("B", "\\boxed{\\text{B. A and C are false}}", True),
    # Options copied from the prompt, of which one has to be the right one.
    ("D", "A) 3\nB) 4\nC) 5\nD) 6", False),
    ("D", "(A) 3\n\n(B) 4\n\n(D) 6", False),
    ("J", "- **I)** 10 J\n- **J)** 11 J", False),
    ("A", "A) 3.2 J B) 4 J C) None", False),
    ("A", "A. 3 B. 4", False),
    ("B", "\\boxed{B) 4 C) 5}", False),
    ("B", "A) no\nB) yes\nAnswer: B", True),
    ("B", "They are alike in C.\nB) 4 J", True),
    ("C", "The answer is C) vitamin D. It helps.", True),
]


@pytest.mark.parametrize(("reference", "completion", "expected"), CASES)
def test_the_chosen_letter(reference, completion, expected):
    """One letter that is announced counts; several, a rejected one, or one that is taken back do not."""
    assert ChoiceVerifier()(Problem("", "", reference), completion).correct is expected
