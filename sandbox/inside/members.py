"""Operations on members of enumerations of a program, as those of `enum.Flag` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_BINARY = ("and", "or", "xor")
_OTHERS = {"contains": "contains", "invert": "op invert"}


def give(kind: type, ask: Callable[..., Any], is_member: Callable[[Any], bool]) -> None:
    """Give a class of proxies these operations. For operands that are no members they are as if they were missing."""

    def operation(do: str, missing: Any) -> Callable[..., Any]:
        def operate(self: Any, *others: Any) -> Any:
            if all(isinstance(one, kind) and is_member(one) for one in (self, *others)):
                found = ask(self, do, *others, derived=True)
                return found is True if do == "contains" else found
            if missing is not None:
                return missing
            raise TypeError("an object of the program has no such operation here")

        return operate

    for name in _BINARY:
        setattr(kind, f"__{name}__", operation(f"op {name}", NotImplemented))
    for name, do in _OTHERS.items():
        setattr(kind, f"__{name}__", operation(do, None))
