"""Processes of a run cannot be read or traced by others of their user, and leave no core dumps."""

from __future__ import annotations

import pytest

from tests.helpers.users import PLACES, place

WHO = {
    "the program": "print(libc.prctl(3, 0, 0, 0, 0), flush=True)",
    "a child": "if os.fork() == 0: print(libc.prctl(3, 0, 0, 0, 0), flush=True); os._exit(0)\nos.wait()",
    "a thread": "t = threading.Thread(target=lambda: print(libc.prctl(3, 0, 0, 0, 0))); t.start(); t.join()",
    "one that sets it": "libc.prctl(4, 1, 0, 0, 0); print(libc.prctl(3, 0, 0, 0, 0))",
}


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("user", "number"), PLACES)
def test_no_process_of_a_run_is_dumpable(user: str, number: int, who: str):
    """The attribute is taken away last, after changes of ids that would set it again, and cannot be set."""
    program = f"import ctypes, os, threading\nlibc = ctypes.CDLL(None)\n{WHO[who]}"
    with place(user, number) as pool:
        assert pool.run(program).stdout == "0\n"
