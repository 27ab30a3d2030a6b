"""What is logged of the difference between the trainer's logprobs and the sampler's."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from rlvr.mismatch import mismatch, warn_of_mismatch


def test_equal_engines_have_no_mismatch():
    """No difference: every ratio is 1, and every sample counts in full."""
    stats = mismatch(torch.zeros(7))
    assert stats["mismatch/mean"] == stats["mismatch/max"] == 0
    assert stats["mismatch/ratio_p01"] == stats["mismatch/ratio_p99"] == stats["mismatch/effective_samples"] == 1


def test_mismatch_by_hand():
    """Ratios 1, 1, 1, 3: mean |log| is log(3)/4, the effective sample size 6^2 / (4 * 12) = 0.75."""
    stats = mismatch(torch.tensor([0.0, 0.0, 0.0, math.log(3)]))
    assert stats["mismatch/mean"] == pytest.approx(math.log(3) / 4, abs=1e-6)
    assert stats["mismatch/max"] == pytest.approx(math.log(3), abs=1e-6)
    assert stats["mismatch/effective_samples"] == pytest.approx(0.75, abs=1e-6)
    assert stats["mismatch/ratio_p50"] == pytest.approx(1.0)
    # linear between the third ratio and the fourth: 1 + 2 * 0.97
    assert stats["mismatch/ratio_p99"] == pytest.approx(2.94, abs=1e-5)


def test_alarm_is_raised_past_the_bound_only():
    """A mean difference at the bound is silent; beyond it the step is named."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mismatch(mismatch(torch.full((3,), 0.1)), 4, bound=0.11)
    with pytest.warns(RuntimeWarning, match="step 5"):
        warn_of_mismatch(mismatch(torch.full((3,), -0.2)), 5, bound=0.11)


def test_intended_age_raises_the_bound():
    """A batch that was to be two steps old may differ three times as much; beyond that it is reported all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mismatch(mismatch(torch.full((3,), 0.29)), 4, bound=0.1, staleness=2)
    with pytest.warns(RuntimeWarning, match=r"bound 0\.3"):
        warn_of_mismatch(mismatch(torch.full((3,), 0.31)), 4, bound=0.1, staleness=2)
