"""Chains of equalities, inequalities, and sets of numbers."""

from __future__ import annotations

import pytest

from rlvr.verifiers.math import verify_math

# gold, answers that equal it, answers that do not
CASES: list[tuple[str, list[str], list[str]]] = [
    (r"a=b=c", [r"c=b=a"], [r"a=d=c"]),
    (r"a=b=5", [r"b=a=5"], [r"a=c=5"]),
    (r"x=y=5", [], [r"x=5", r"x=y=6", r"x=3=5"]),
    (r"x+1", [r"y=x+1", r"1+x=x+1"], [r"x-1=x+1", r"y=x-1=x+1"]),
    (r"6", [r"2\cdot3=6", r"x=6=6"], [r"x=5=6", r"5=6"]),
    (r"x^2+2x+1", [r"(x+1)^2=x^2+2x+1", r"f(x)=(x+1)^2=x^2+2x+1"], [r"(x-1)^2=x^2+2x+1", r"(x+1)^2=x^2+2x+2"]),
    (r"A=6", [r"A=\frac12bh=6"], []),
    (r"A=\frac12bh=6", [r"A=6"], []),
    (r"A=B=C", [], [r"A=B"]),
    (r"x=2y=4", [], [r"x=2y=5"]),
    (r"AB=BC=CA", [r"AB=BC=CA"], [r"AB=CD=CA"]),
    (r"\frac{a}{b}", [r"\tan\theta=\frac ab"], []),
    (r"y=2x=z", [], [r"y=3x=z"]),
    (r"\frac{n(n+1)}{2}", [r"S_n=\frac{n(n+1)}{2}"], [r"n^2=\frac{n(n+1)}{2}"]),
    (r"2R", [r"\frac{a}{\sin A}=2R"], []),
    (r"x=1", [], [r"x=2=1"]),
    (r"x=y", [], [r"x=z=y"]),
    (r"x<1", [r"-x>-1", r"1>x"], [r"-x<-1", r"x<2"]),
    (r"x \le 1", [r"-x \ge -1"], []),
    (r"-3<x<3", [r"|x|<3"], []),
    (r"-1\le x\le 1", [r"|x|\le1"], [r"|x|<1"]),
    (r"(-3,3)", [r"|x|<3"], []),
    (r"x<-3 \text{ or } x>3", [r"|x|>3"], []),
    (r"|x-2|<3", [r"(-1,5)", r"-1<x<5", r"|2-x|<3"], [r"(-5,1)", r"|x-2|\le3", r"|x-2|<4"]),
    (r"(-1,5)", [], [r"|x-2|<3"]),
    (r"x^2<4", [r"-2<x<2", r"(-2,2)"], [r"[-2,2]"]),
    (
        r"x^2-5x+6\ge0",
        [r"(-\infty,2]\cup[3,\infty)", r"x\le2 \text{ or } x\ge3"],
        [r"[2,3]", r"(-\infty,2)\cup(3,\infty)"],
    ),
    (r"x^2-2<0", [r"(-\sqrt2,\sqrt2)"], [r"(-1.41,1.41)"]),
    (r"x^2+1>0", [r"\mathbb{R}"], []),
    (r"x^2\le0", [r"\{0\}"], []),
    (r"x^2\le 0", [r"x=0"], []),
    (r"x(x-1)^2>0", [r"(0,1)\cup(1,\infty)"], [r"(0,\infty)"]),
    (r"x(x-1)^2\ge0", [r"[0,\infty)"], []),
    (r"2x+3y<6", [r"4x+6y<12", r"-2x-3y>-6", r"y<2-\frac{2x}{3}"], [r"-2x-3y<-6", r"2x+3y\le6", r"4x+6y<6"]),
    (r"x^2+y^2<1", [r"2x^2+2y^2<2", r"-x^2-y^2>-1"], [r"x^2+y^2>1"]),
    (r"y>x+1", [r"x-y+1<0"], [r"y<x+1"]),
    (r"\sqrt2 x<y", [r"2x<\sqrt2y"], [r"2x>\sqrt2y"]),
    (r"|x|+|y|<1", [r"2|x|+2|y|<2"], []),
    (r"|x|<y", [], [r"x<y"]),
    (r"|x+y|\le|x|+|y|", [r"|x|+|y|\ge|x+y|"], []),
    (r"x>3", [], [r"2x>6", r"x-3>0"]),
    (r"x\ne2", [], [r"x-2\ne0"]),
    (r"x\neq2", [r"x \in \mathbb{R}\setminus\{2\}"], []),
    (r"a+b\ge 2\sqrt{ab}", [r"\frac{a+b}{2}\ge\sqrt{ab}"], [r"a+b\le 2\sqrt{ab}"]),
    (r"x<y", [], [r"x<y<z"]),
    (r"0<x<y", [r"0<x<y", r"y>x>0"], [r"0<y<x"]),
    (r"a<b<c", [r"c>b>a"], []),
    (r"(1,2)\cup(2,3)", [r"(1,3)\setminus\{2\}"], []),
    (r"(1,3)", [], [r"(1,2)\cup(2,3)"]),
    (r"[1,2]\cup[2,3]", [r"[1,3]"], []),
    (r"\{1,2\}", [r"\{1,2,2\}"], [r"\{1,2,3\}"]),
    (r"[1,1]", [r"\{1\}"], []),
    (r"x\in\{1,2\}", [r"x=1,2"], []),
    (r"\emptyset", [r"\{\}"], [r"\{0\}"]),
    (r"(0,\infty)", [r"x>0"], [r"[0,\infty)"]),
    (r"[0,\infty)", [r"x\ge0"], []),
    (r"\mathbb{R}\setminus\{0\}", [r"x\ne0"], []),
    (r"(-\infty,0)\cup(0,\infty)", [r"\mathbb{R}\setminus\{0\}"], []),
    (r"\mathbb{R}", [r"(-\infty,\infty)"], [r"\mathbb{Q}"]),
    (r"\mathbb{Z}", [], [r"\mathbb{N}"]),
    (r"x\le 5", [r"x \in (-\infty, 5]"], []),
    (r"[2,3)", [r"2\le x<3", r"3>x\ge2"], []),
]


@pytest.mark.parametrize(("gold", "equal", "different"), CASES)
def test_claims(gold, equal, different):
    """A chain must hold, and an inequality must have the same solutions."""
    assert [answer for answer in equal if not verify_math(gold, f"\\boxed{{{answer}}}").correct] == []
    assert [answer for answer in different if verify_math(gold, f"\\boxed{{{answer}}}").correct] == []
