"""Random pairs of functions: the verifier against dense evaluation by Python's own functions, which shares no code.

An expression is built as LaTeX and as Python at the same time. Its twin is spelled in another way, or differs in a
constant, a sign or a function. The oracle compares the Python functions on a fixed grid of 900 points to 1,500,
wherever both have values. What smaller domains mean is stated in tests/golden/math_values.jsonl.
"""

from __future__ import annotations

import math
import random

from rlvr.verifiers.math import verify_math

PAIRS = 4_000
Family = tuple[list[str], str, dict[str, str]]  # forms of one function, its Python, and other functions by their forms
Term = tuple[str, str]  # LaTeX and Python


def real_families(a: int, b: int, c: int, d: int) -> list[Family]:
    """Functions of U, in Python u, with kinks, branches and roots; a and b are positive, c and d may be negative."""
    return [
        (
            ["|U|", r"\sqrt{U^2}", r"\max(U,-U)", "|-U|", r"2\max(U,0)-U", r"U-2\min(U,0)"], "abs(u)",
            {"U": "u", "-U": "-u", r"\max(U,0)": "max(u, 0)", r"\max(U,-1)": "max(u, -1)", r"\sqrt[3]{U^3}": "u"},
        ),
        (
            [rf"\max(U,{c})", rf"\frac{{U+{c}+|U-({c})|}}{{2}}", rf"-\min(-U,{-c})"], f"max(u, {c})",
            {rf"\max(U,{d})": f"max(u, {d})", "U": "u", rf"\min(U,{c})": f"min(u, {c})"},
        ),
        (
            [rf"\lfloor U/{a}\rfloor", rf"\left\lfloor\frac{{U}}{{{a}}}\right\rfloor", rf"-\lceil -U/{a}\rceil",
             rf"\lfloor U/{a}+3\rfloor-3"], f"floor(u / {a})",
            {rf"\lfloor U/{a + 1}\rfloor": f"floor(u / {a + 1})", rf"\lceil U/{a}\rceil": f"ceil(u / {a})",
             rf"\lceil U/{a}\rceil-1": f"ceil(u / {a}) - 1", rf"\lfloor (U+1)/{a}\rfloor": f"floor((u + 1) / {a})",
             f"U/{a}": f"u / {a}"},
        ),
        (
            [rf"\sqrt{{U^2+{2 * b}U+{b * b}}}", rf"|U+{b}|", rf"\sqrt{{(U+{b})^2}}"], f"abs(u + {b})",
            {f"U+{b}": f"u + {b}", f"|U-{b}|": f"abs(u - {b})", f"|U|+{b}": f"abs(u) + {b}"},
        ),
        (
            [r"\arcsin(\sin U)", r"\frac{\pi}{2}-\arccos(\sin U)", r"-\arcsin(\sin(-U))"], "asin(sin(u))",
            {"U": "u", r"\arctan(\sin U)": "atan(sin(u))"},
        ),
        (
            [r"\arccos(\cos U)", r"\arccos(\cos(-U))", r"\frac{\pi}{2}-\arcsin(\cos U)"], "acos(cos(u))",
            {"U": "u", "|U|": "abs(u)"},
        ),
        (
            [r"\arctan U", r"-\arctan(-U)", r"\arcsin\frac{U}{\sqrt{1+U^2}}"], "atan(u)",
            {r"\arccos\frac{1}{\sqrt{1+U^2}}": "acos(1 / sqrt(1 + u * u))", r"2\arctan\frac{U}{2}": "2 * atan(u / 2)"},
        ),
        (
            [r"\arctan U+\arctan 7", r"\arctan 7-\arctan(-U)"], "atan(u) + atan(7)",
            {r"\arctan\frac{U+7}{1-7U}": "atan((u + 7) / (1 - 7 * u))"},
        ),
        (
            [rf"\ln({b}U^4+{b})", rf"\ln {b}+\ln(U^4+1)", rf"-\ln\frac{{1}}{{{b}(U^4+1)}}"], f"log({b} * u**4 + {b})",
            {rf"\ln {b}+4\ln(|U|+1)": f"log({b}) + 4 * log(abs(u) + 1)",
             rf"\ln({b + 1}U^4+{b})": f"log({b + 1} * u**4 + {b})"},
        ),
        ([r"\sin^2 U", r"\frac{1-\cos(2U)}{2}"], "sin(u) ** 2", {r"\sin(U^2)": "sin(u * u)"}),
        ([f"(U+{b})^2", f"U^2+{2 * b}U+{b * b}"], f"(u + {b}) ** 2", {f"U^2+{b * b}": f"u * u + {b * b}"}),
        ([rf"{b}\cos U", rf"{b}\sin(U+\frac{{\pi}}{{2}})"], f"{b} * cos(u)", {rf"\cos({b}U)": f"cos({b} * u)"}),
    ]  # fmt: skip


def integer_families(a: int, k: int) -> list[Family]:
    """Functions of the integer n, in Python u: factorials, binomials, gcd, remainders, powers of -1."""
    return [
        (
            [rf"\binom{{n}}{{{k}}}", rf"\binom{{n}}{{n-{k}}}", rf"\frac{{n}}{{{k}}}\binom{{n-1}}{{{k - 1}}}"],
            f"comb(u, {k})", {"0": "0 if u >= 0 else nan", rf"\binom{{n+1}}{{{k}}}": f"comb(u + 1, {k})"},
        ),
        (
            [rf"\gcd(n,{a})", rf"\gcd(n+{a},{a})", rf"\frac{{{a}n}}{{\operatorname{{lcm}}(n,{a})}}"],
            f"gcd(u, {a}) if u > 0 else nan", {"1": "1", rf"\gcd(n,{a + 1})": f"gcd(u, {a + 1})"},
        ),
        (
            [rf"n-{a}\lfloor n/{a}\rfloor", rf"n+{3 * a}-{a}\lfloor (n+{3 * a})/{a}\rfloor"], f"u % {a}",
            {"n": "u", rf"n-{k}\lfloor n/{k}\rfloor": f"u % {k}"},
        ),
        (
            [r"\frac{(n+2)!}{n!}", "(n+1)(n+2)", "n^2+3n+2"], "(u + 1) * (u + 2) if u >= 0 else nan",
            {r"\frac{(n+1)!}{n!}": "u + 1", r"\binom{n+2}{2}": "(u + 1) * (u + 2) / 2"},
        ),
        (
            [r"\lceil n/2\rceil", r"\lfloor (n+1)/2\rfloor", r"\frac{2n+1-(-1)^n}{4}"], "ceil(u / 2)",
            {r"\lfloor n/2\rfloor": "u // 2", r"\lceil n/3\rceil": "ceil(u / 3)"},
        ),
        (
            [r"\lfloor\sqrt{n}\rfloor", r"\lfloor n^{1/2}\rfloor"], "isqrt(u)",
            {r"\lfloor\sqrt{n-1}\rfloor": "isqrt(u - 1)",
             r"\lfloor\sqrt[3]{n}\rfloor": "floor(round(cbrt(u), 9)) if u >= 0 else nan"},
        ),
    ]  # fmt: skip


def linear(rng: random.Random) -> Term:
    """A x + B, (x + B)/A, x - y or x + y."""
    a, b, sign = rng.randrange(1, 9), rng.randrange(1, 160), rng.choice("+-")
    return rng.choice(
        [
            (f"x{sign}{b}", f"x{sign}{b}"),
            (f"{a}x{sign}{b}", f"{a}*x{sign}{b}"),
            (rf"\frac{{x{sign}{b}}}{{{a}}}", f"(x{sign}{b})/{a}"),
            (f"x{sign}y", f"x{sign}y"),
            ("x", "x"),
        ]
    )


def draw_twins(rng: random.Random, family: Family, inner: Term, wrong: bool) -> tuple[Term, Term]:
    """Two spellings of a function of an inner expression, or one of it and one of another function."""
    forms, source, others = family
    first, second = rng.sample(forms, 2)
    form, other = rng.choice(list(others.items())) if wrong else (second, source)

    def fill(text: str, code: str) -> Term:
        return text.replace("U", f"({inner[0]})"), f"(lambda u: {code})({inner[1]})"

    return fill(first, source), fill(form, other)


def draw(rng: random.Random) -> tuple[str, str, bool]:
    """A pair in LaTeX and whether it is equal: sums of one or two terms, of which the last may differ."""
    wrong, count = rng.random() < 0.55, rng.choice((1, 1, 2))
    if whole := rng.random() < 0.25:
        family = rng.choice(integer_families(rng.randrange(2, 60), rng.randrange(2, 30)))
        pairs = [draw_twins(rng, family, ("n", "int(x)"), wrong)]
    else:
        c = rng.choice((-1, 1)) * rng.randrange(1, 160)
        numbers = rng.randrange(2, 40), rng.randrange(1, 160), c, c + rng.choice((-2, -1, 1, 3))
        families = [rng.choice(real_families(*numbers)) for _ in range(count)]
        pairs = [draw_twins(rng, one, linear(rng), wrong and one is families[-1]) for one in families]
    sides = list(zip(*pairs, strict=True))
    rng.shuffle(sides)
    (left, right), sources = (
        ["+".join(f"{{{text}}}" for text, _ in side) for side in sides],
        [" + ".join(code for _, code in side) for side in sides],
    )
    return left, right, oracle(*sources, INTEGERS if whole else REALS)


# --- the oracle -------------------------------------------------------------------------------------------------------


def real_grid() -> list[tuple[float, float]]:
    """Points of both signs to 1,500, on and beside integers, in an order that finds differences early."""
    rng = random.Random(5)
    points = [(float(x), rng.uniform(-170, 170)) for x in range(-170, 171)]
    points += [(x + rng.random(), rng.choice((-1, 1)) * 10 ** rng.uniform(-1, 2.3)) for x in range(-170, 171)]
    points += [(x / 2, rng.uniform(-170, 170)) for x in range(-101, 102, 2)]
    points += [(rng.uniform(-2.5, 2.5), rng.uniform(-2.5, 2.5)) for _ in range(120)]
    points += [(rng.choice((-1, 1)) * 10 ** rng.uniform(2, 3.2), rng.uniform(-9, 9)) for _ in range(40)]
    rng.shuffle(points)
    return points


REALS = real_grid()
INTEGERS = [(float(n), 0.0) for n in random.Random(6).sample(range(-30, 330), 360)]
PYTHON = {**vars(math), "abs": abs, "max": max, "min": min, "int": int, "round": round}


def oracle(left: str, right: str, points: list[tuple[float, float]]) -> bool:
    """Whether both agree at every point where both have values."""
    functions = [eval(f"lambda x, y: {source}", PYTHON) for source in (left, right)]
    for point in points:
        try:
            a, b = (function(*point) for function in functions)
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        if abs(a - b) > 1e-7 * (1 + abs(a) + abs(b)):
            return False
    return True


def test_functions_are_equal_where_dense_evaluation_says_so():
    """No pair that differs is called equal, and at most one equal pair in a hundred is called different."""
    rng = random.Random(20_260)
    wrong_equal, wrong_different, equal = [], [], 0
    for _ in range(PAIRS):
        left, right, expected = draw(rng)
        found = verify_math(left, f"\\boxed{{{right}}}").correct
        equal += expected
        if found and not expected:
            wrong_equal.append((left, right))
        elif expected and not found:
            wrong_different.append((left, right))
    assert wrong_equal == []
    assert 0.3 * PAIRS < equal < 0.7 * PAIRS
    assert len(wrong_different) <= equal / 100, wrong_different[:10]
