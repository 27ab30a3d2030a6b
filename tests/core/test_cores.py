"""The cores that a process may keep busy."""

from __future__ import annotations

import pytest

from rlvr.core import cores


@pytest.mark.parametrize(
    ("text", "quota", "ranks", "count"),
    [
        ("200000 100000", 2.0, 1, 2),
        ("250000 100000", 2.5, 1, 3),
        ("50000 100000", 0.5, 1, 1),
        ("max 100000", None, 1, 16),
        ("", None, 1, 16),
        ("max 100000", None, 4, 4),
        ("max 100000", None, 32, 1),
    ],
)
def test_cores_of_a_quota_and_of_ranks(tmp_path, monkeypatch, text, quota, ranks, count):
    """cpu.max holds quota and period, max means no limit; the ranks of a machine share its 16 cores."""
    monkeypatch.setattr(cores, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(cores, "bound_cores", lambda: 16)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
    assert cores.cpu_quota() is None
    cores.QUOTA.write_text(text)
    assert (cores.cpu_quota(), cores.count_cores()) == (quota, count)
