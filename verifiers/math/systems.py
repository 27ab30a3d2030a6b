"""The number systems of numeric evaluation: floats, and mpmath's numbers at a fixed number of digits."""

from __future__ import annotations

import cmath
import functools
import math
import threading
from typing import Any

MAX_LOG = 1e6  # |log| of the largest intermediate value

Value = tuple[Any, Any]  # a number and the bound of its absolute error


class OutsideReals(ValueError):
    """A root or logarithm of a negative number, met in real evaluation."""


class Numbers:
    """Floats and complex floats. `real`: raise OutsideReals in place of complex results."""

    epsilon: Any = 2.0**-51
    lib: Any = math
    complex_lib: Any = cmath
    pi: Any = math.pi
    e: Any = math.e
    i: Any = 1j
    precise = False

    def __init__(self, real: bool, log_base: int | None = None) -> None:
        self.real = real
        self.log_base = log_base  # base of \\log; None: natural

    def of(self, value: Any) -> Any:
        return float(value)

    def added(self, value: Any, error: Any) -> None:
        """Take note of a term of a sum."""

    def call(self, name: str, x: Any) -> Any:
        """Apply a function of the library; outside its real domain, the complex one."""
        if not isinstance(x, complex):
            try:
                return getattr(self.lib, name)(x)
            except ValueError:
                self.leave_reals()
        return getattr(self.complex_lib, name)(x)

    def leave_reals(self) -> None:
        if self.real:
            raise OutsideReals

    def power(self, x: Any, y: Any) -> Any:
        if not isinstance(x, complex) and x < 0 and not isinstance(y, complex) and y != int(y):
            self.leave_reals()
        return x**y

    def argument(self, x: Any) -> Any:
        return cmath.phase(x)

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, complex)


@functools.lru_cache(maxsize=64)
def _context(digits: int, thread: int) -> Any:
    """Return an mpmath context of `digits` decimal digits, one per thread: functions change it while they run."""
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits
    return context


class Digits(Numbers):
    """mpmath's numbers at a fixed number of decimal digits. `smallest`: the least size of the terms met in sums."""

    precise = True

    def __init__(self, real: bool, log_base: int | None = None, digits: int = 60) -> None:
        super().__init__(real, log_base)
        self.context = _context(digits, threading.get_ident())
        self.smallest = self.context.inf
        self.epsilon = self.context.mpf(10) ** (2 - digits)
        self.pi, self.e, self.i = +self.context.pi, +self.context.e, self.context.mpc(0, 1)

    def added(self, value: Any, error: Any) -> None:
        size = abs(value)
        if size > error and size < self.smallest:
            self.smallest = size

    def of(self, value: Any) -> Any:
        if isinstance(value, (float, self.context.mpf)):
            return self.context.mpf(value)
        return self.context.mpf(value.numerator) / value.denominator

    def call(self, name: str, x: Any) -> Any:
        result = getattr(self.context, name)(x)
        if self.is_complex(result) and not self.is_complex(x):
            self.leave_reals()
        return result

    def power(self, x: Any, y: Any) -> Any:
        result = self.context.power(x, y)
        if self.is_complex(result) and not self.is_complex(x) and not self.is_complex(y):
            self.leave_reals()
        return result

    def argument(self, x: Any) -> Any:
        return self.context.arg(x)

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, self.context.mpc)
