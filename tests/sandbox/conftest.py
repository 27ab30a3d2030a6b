"""Pools that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.sandbox import Pool
from tests.helpers.programs import LEVELS, available


@pytest.fixture(scope="module", params=LEVELS, ids=lambda number: f"level{number}")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One slot at each level."""
    available(request.param)
    with Pool(1, level=request.param) as made:
        yield made
