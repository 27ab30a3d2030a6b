"""Which warnings are errors on a GPU."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

# torch's compiler, Triton and drivers warn of what there is only on a GPU (inductor: that TF32 is off). As an error
# such a warning ends the trial of a kernel, and with it the test. Those of rlvr itself stay errors.
WARNINGS = ("default", r"error:::rlvr\..*")


def tolerate_warnings(items: Iterable[pytest.Item]) -> None:
    """Make warnings errors only where rlvr raises them; a test's own filters still come after these."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings(*WARNINGS), append=False)
