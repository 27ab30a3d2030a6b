"""The proxies of objects in what a program has sent, by what the tests expect there (proxies.py)."""

from __future__ import annotations

from typing import Any

from rlvr.sandbox.inside.bounds import TOO_LARGE
from rlvr.sandbox.inside.link import Link
from rlvr.sandbox.inside.plain import Opaque
from rlvr.sandbox.inside.proxies import Derived, Handle, Instance, Stream, asked, handle_of


class Maker:
    """Creates the proxies of objects in a value. `instance` and `derived`: the value itself is one of a class.

    Without `chained`, objects that are known as instances do not come back as such: the tests expect a value.
    """

    def __init__(
        self,
        link: Link,
        returned: bool = False,
        instance: bool = False,
        derived: bool = False,
        chained: bool = True,
    ) -> None:
        self.link = link
        self.returned = returned
        self.chained = chained
        self.kind: type[Handle] = Instance if instance else Derived if derived else Handle

    def object(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        """Return the proxy of a program's object, always the same one, so that `is` works."""
        if handle is None:
            self.link.too_large = self.link.too_large or kind == TOO_LARGE
            return Opaque(kind, None, truth)
        known = self.link.known.get(handle)
        if isinstance(known, Instance) and not self.chained:
            return self._of_value(Handle(self.link, {"object": ["o", kind, handle, truth]}, self.returned))
        if known is None or (self.kind is not Handle and not isinstance(known, Instance)):
            made = self.kind
            if made is not Handle and kind.isidentifier():
                # For a test that asks for the name of its type.
                made = type(
                    kind, (made,), {"__slots__": (), **{name: vars(Handle)[name] for name in ("__doc__", "__module__")}}
                )
            known = self.link.known[handle] = made(self.link, {"object": ["o", kind, handle, truth]})
        if self.returned:
            object.__setattr__(known, "_returned", True)
        return known if self.chained else self._of_value(known)

    @staticmethod
    def _of_value(made: Any) -> Any:
        """Return an object that stands where a value is expected, also of what it gives when it is awaited."""
        object.__setattr__(made, "_value", True)
        return made

    def stream(self, kind: str, handle: int) -> Any:
        """Return the proxy of an iterator."""
        if self.kind is not Handle:
            return self.object(kind, handle, True)
        if handle not in self.link.known:
            self.link.known[handle] = Stream(self.link, {"object": ["o", kind, handle, True]})
        return self.link.known[handle]

    @staticmethod
    def handle(value: Any) -> int | None:
        """Return the program's handle of a proxy; None for other objects, which are none of the program's."""
        if not issubclass(type(value), Handle):
            return None
        handle = handle_of(value)
        if handle is None:
            found = asked(value, "self")
            return Maker.handle(found) if found is not value else None
        return handle
