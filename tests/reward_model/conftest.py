"""Fixtures of the reward models' tests."""

from __future__ import annotations

import pytest

from tests.helpers.reward_models import save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    """A saved random reward model."""
    return save_model(tmp_path_factory.mktemp("reward"))
