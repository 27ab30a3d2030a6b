"""Families with an integer parameter, and solutions with arbitrary constants."""

from __future__ import annotations

import pytest

from rlvr.verifiers.math import verify_math

# gold, answers that equal it, answers that do not
CASES: list[tuple[str, list[str], list[str]]] = [
    (r"x=\frac{\pi}{4}+k\pi, k\in\mathbb{Z}", [r"x=-\frac{3\pi}{4}+m\pi, m\in\mathbb{Z}"], []),
    (r"\frac{\pi}{4}+k\pi, n\in\mathbb{Z}", [r"-\frac{3\pi}{4}+m\pi"], []),
    (r"\frac{\pi}{4}+k\pi", [], [r"\frac{3\pi}{4}+n\pi", r"\frac{\pi}{4}+2n\pi"]),
    (
        r"x=\pm\frac{\pi}{3}+2k\pi, k\in\mathbb{Z}",
        [
            r"x=\frac{\pi}{3}+2k\pi, x=-\frac{\pi}{3}+2k\pi, k\in\mathbb{Z}",
            r"x=\frac{\pi}{3}+2k\pi, x=\frac{5\pi}{3}+2k\pi, k\in\mathbb{Z}",
        ],
        [r"x=\frac{\pi}{3}+2k\pi, k\in\mathbb{Z}"],
    ),
    (
        r"x=\pm\frac{\pi}{3}+2k\pi",
        [r"x=\pm\frac{\pi}{3}+2n\pi, n \in \mathbb{Z}"],
        [r"x=\pm\frac{2\pi}{3}+2n\pi, n \in \mathbb{Z}"],
    ),
    (r"x=\frac{k\pi}{2}", [r"x=k\pi, x=\frac{\pi}{2}+k\pi", r"x=k\pi \text{ or } x=\frac{\pi}{2}+k\pi"], [r"x=k\pi"]),
    (r"x=k\pi", [r"n\pi"], [r"x=\frac{k\pi}{2}", r"\theta=k\pi", r"x=\pi", r"x=0"]),
    (
        r"x=(-1)^k\frac{\pi}{6}+k\pi",
        [r"x=\frac{\pi}{6}+2n\pi, x=\frac{5\pi}{6}+2n\pi", r"x=(-1)^n\frac{\pi}{6}+n\pi"],
        [r"x=\frac{\pi}{6}+2n\pi"],
    ),
    (r"k\pi", [], [r"k\pi^2"]),
    (
        r"x=\frac{\pi}{4}+\frac{k\pi}{2}, k\in\mathbb{Z}",
        [r"x=\frac{\pi}{4}+k\pi, x=\frac{3\pi}{4}+k\pi, k\in\mathbb{Z}"],
        [],
    ),
    (
        r"x = 30^\circ + 360^\circ k",
        [r"x=30^\circ+360^\circ n", r"x=390^\circ+360^\circ n"],
        [r"x=30^\circ+180^\circ n"],
    ),
    (r"x=\arctan 2+k\pi", [r"x=\arctan 2+n\pi", r"x=\arctan 2 - \pi+n\pi"], [r"x=\arctan 3+n\pi"]),
    (r"\frac{n\pi}{2}", [r"\frac{k\pi}{2}"], []),
    (r"\frac{(n-2)\pi}{n}", [], [r"\frac{(k-2)\pi}{k}"]),
    (r"n(n+1)/2", [], [r"k(k+1)/2"]),
    (r"2n+1", [], [r"2n-1"]),
    (r"\{k\pi\}", [r"\{n\pi\}"], []),
    (
        r"\frac{x^3}{3}+C",
        [r"\frac{x^3}{3}+c", r"\frac{x^3}{3}+K", r"\frac{x^3+3C}{3}", r"\frac{x^3+C}{3}"],
        [r"\frac{x^3}{3}", r"\frac{x^3}{3}+5", r"\frac{x^3}{3}+x", r"\frac{x^3}{2}+C"],
    ),
    (r"-\frac12\cos 2x+C", [r"\sin^2x+C", r"-\cos^2x+C"], [r"\cos^2x+C"]),
    (r"\ln|x|+C", [r"\ln|2x|+C"], [r"\ln|x|+Cx", r"\ln x+C", r"\ln|Cx|"]),
    (
        r"y=Ce^{2x}",
        [r"y=Ae^{2x}", r"y=2Ce^{2x}", r"y=-Ce^{2x}"],
        [r"y=Ae^{3x}", r"y=Ce^{2x}+D", r"y=e^{2x}+C", r"y=e^{2x}"],
    ),
    (
        r"y=c_1e^{x}+c_2e^{-2x}",
        [r"y=c_1e^{-2x}+c_2e^{x}", r"y=Ae^{x}+Be^{-2x}", r"y=C_1e^{x}+C_2e^{-2x}"],
        [r"y=c_1e^{x}", r"y=c_1e^{x}+c_1e^{-2x}", r"y=c_1e^{x}+c_2e^{2x}"],
    ),
    (r"y=c_1e^{x}+c_2e^{-x}", [r"y=A\cosh x+B\sinh x"], []),
    (r"y=c_1\cos x+c_2\sin x", [r"y=c_1\sin x+c_2\cos x"], []),
    (
        r"y=c_1\cos x+c_2\sin x+x",
        [r"y=c_1\sin x+c_2\cos x+x", r"y=c_1\sin x+c_2\cos x+x+\sin x"],
        [r"y=c_1\sin x+c_2\cos x"],
    ),
    (r"y=Ae^x+Be^{-x}", [r"y=c_1e^x+c_2e^{-x}"], []),
    (r"y=\frac{1}{C-x}", [r"y=-\frac{1}{x+C}"], [r"y=\frac{1}{x+C}"]),
    (r"y=\sqrt{x^2+C}", [r"y=\sqrt{x^2+K}", r"y=\sqrt{x^2-K}"], []),
    (r"y=\pm\sqrt{x^2+C}", [r"y=\pm\sqrt{x^2+c_1}"], []),
    (r"E=mc^2", [], [r"E=mk^2"]),
    (r"\frac{CV^2}{2}", [], [r"\frac{AV^2}{2}"]),
    (r"y=ax^2+bx+c", [], [r"y=ax^2+bx+d"]),
    (r"\sqrt{a^2+b^2+c^2}", [], [r"\sqrt{a^2+b^2+d^2}"]),
    (r"F=\frac95C+32", [], [r"F=\frac95K+32"]),
    (r"a+c", [], [r"a+d"]),
    (r"R+C", [], [r"R+K"]),
    (r"y=c_1+e^x", [], [r"y=c_1+e^x+x"]),
    (r"y=c_1e^{30x}+x", [], [r"y=c_1e^{30x}+x^2"]),
    (r"x(t)=c_1\cos 2t+c_2\sin 2t", [r"x(t)=A\cos 2t+B\sin 2t"], []),
    (r"y(x)=C_1e^x+C_2xe^x", [r"y(x)=(C_1+C_2x)e^x", r"y=(A+Bx)e^x"], []),
    (r"c_1e^x+c_2e^{-x}", [r"Ae^x+Be^{-x}"], []),
    (r"y=C_1x+C_2", [r"y=ax+b"], []),
    (r"y=Cx^2", [], [r"y=Cx^3"]),
    (r"y=x^2+C", [], [r"y=x^2+4"]),
    (r"y=C", [], [r"y=D"]),
    (r"x^2+y^2=C", [r"x^2+y^2=c_1", r"2x^2+2y^2=K", r"C=x^2+y^2"], [r"x^2-y^2=C", r"x^2+y^2=4", r"x^2+2y^2=C"]),
    (r"xy=C", [r"y=\frac{C}{x}"], []),
    (r"x^2y+\sin y=C", [r"\sin y+x^2y=C_1", r"\sin y+x^2y+3=C_1"], []),
    (r"a^2+b^2=c^2", [], [r"a^2+b^2=d^2"]),
    (r"a+b=c", [], [r"a+b=d"]),
    (r"x+y=C", [r"x+y=D"], []),
    (r"y=\ln|x|+C", [r"y=\ln|x|+K"], []),
    (r"y=Ce^{-x}+x-1", [r"y=x-1+Ae^{-x}"], [r"y=x+1+Ae^{-x}"]),
    (r"y=C_1e^{2x}+C_2e^{2x}x", [r"y=e^{2x}(A+Bx)"], []),
    (r"P=P_0e^{kt}", [], [r"P=P_0e^{rt}"]),
    (r"y=\frac{1}{x^2+C}", [r"y=\frac{1}{x^2+K}"], [r"y=\frac{1}{x^3+K}"]),
    (r"y^2=x^2+C", [r"y^2=x^2+K"], [r"y^2=x^2+2"]),
    (r"x=\frac{\pi}{6}+2k\pi \text{ or } x=\frac{5\pi}{6}+2k\pi", [r"x=(-1)^n\frac{\pi}{6}+n\pi"], []),
    (r"\frac{1}{2}\sin^2 x+C", [r"-\frac14\cos 2x+C"], []),
    (r"\arctan x+C", [], [r"-\arctan\frac1x+C"]),
    (r"\ln|\sec x+\tan x|+C", [r"\ln\left|\tan\left(\frac x2+\frac{\pi}{4}\right)\right|+C"], []),
    (r"\frac12\ln(x^2+1)+C", [r"\ln\sqrt{x^2+1}+C"], []),
    (r"\ln|x-1|-\ln|x+1|+C", [r"\ln\left|\frac{x-1}{x+1}\right|+C"], []),
    (r"\ln|x-1|+C", [], [r"-\ln|x-1|+C"]),
    (r"e^x+C", [r"e^x-C"], []),
    (r"x+C", [r"C+x"], [r"2x+C"]),
    (r"\sec x+C", [r"\frac{1}{\cos x}+C"], []),
    (r"\frac{x}{2}-\frac{\sin 2x}{4}+C", [r"\frac{x}{2}-\frac{\sin x\cos x}{2}+C"], []),
    (r"\tan x+C", [], [r"\tan x"]),
    (r"\tan x", [], [r"\tan x+C"]),
]


@pytest.mark.parametrize(("gold", "equal", "different"), CASES)
def test_families(gold, equal, different):
    """Families are compared as sets, whatever their parameters and constants are called."""
    assert [answer for answer in equal if not verify_math(gold, f"\\boxed{{{answer}}}").correct] == []
    assert [answer for answer in different if verify_math(gold, f"\\boxed{{{answer}}}").correct] == []
