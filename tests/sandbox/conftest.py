"""Pools that several test files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.sandbox import Pool
from tests.helpers.programs import LEVELS, available
from tests.helpers.users import PLACES, Place, place


@pytest.fixture(scope="module", params=LEVELS, ids=lambda number: f"level{number}")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """One slot at each level."""
    available(request.param)
    with Pool(1, level=request.param) as made:
        yield made


@pytest.fixture(scope="module", params=PLACES, ids=lambda found: "-".join(map(str, found)))
def placed(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Three slots of this user and of one without privileges, at each level."""
    user, number = request.param
    with place(user, number, slots=3) as made:
        yield made
