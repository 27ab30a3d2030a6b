"""Let the functions of dataclasses in test code take objects of the program."""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from rlvr.sandbox.inside.proxies import Handle, Instance, asked


def patch(patches: MutableMapping[str, Callable[[Any], None]]) -> None:
    """Change the module in this process, or, through `patches`, once it is imported."""
    if "dataclasses" in sys.modules:
        _change(sys.modules["dataclasses"])
    else:
        patches["dataclasses"] = _change


def _change(module: Any) -> None:
    for name in ("asdict", "astuple", "is_dataclass", "replace"):
        original = getattr(module, name)

        def answer(
            found: Any, *args: Any, name: str = name, original: Callable[..., Any] = original, **changes: Any
        ) -> Any:
            if not isinstance(found, Handle):
                return original(found, *args, **changes)
            given = [changes] if changes and name == "replace" else []
            return asked(found, name, *given, instance=name == "replace" and isinstance(found, Instance))

        setattr(module, name, answer)
