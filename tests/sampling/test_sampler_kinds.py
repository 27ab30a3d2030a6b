"""The table of samplers: each name of the settings has its row, and a row's own check decides what is installed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from rlvr.config import SAMPLERS, TorchSamplerConfig
from rlvr.config.sampler import SamplerSettings
from rlvr.core.types import Sampler
from rlvr.sampling import samplers
from rlvr.sampling.samplers import SAMPLER_KINDS, SamplerKind, check_sampler, open_sampler


@dataclass(frozen=True)
class OtherConfig(SamplerSettings):
    name: str = field(default="other", init=False)


class Other(Sampler):
    def __init__(self, policy, config):
        self.made_of = policy, config

    def generate(self, prompts, sampling, seeds):
        raise NotImplementedError

    def load_weights(self, policy):
        raise NotImplementedError


def test_every_name_of_the_settings_has_a_row():
    assert list(SAMPLER_KINDS) == list(SAMPLERS)


def test_a_new_sampler_needs_only_its_row(monkeypatch):
    """Where vLLM is not installed too: that is no business of another sampler."""
    monkeypatch.setitem(SAMPLER_KINDS, "other", SamplerKind(Other))
    monkeypatch.setattr(samplers, "check_vllm", None)
    config = OtherConfig()
    check_sampler(config)
    with open_sampler(config, "policy") as sampler:
        assert sampler.made_of == ("policy", config)


def test_a_missing_extra_is_told_by_the_row(monkeypatch):
    def check(config):
        raise ValueError("the other sampler needs pip install other")

    monkeypatch.setitem(SAMPLER_KINDS, "other", SamplerKind(Other, check))
    with pytest.raises(ValueError, match="pip install other"):
        check_sampler(OtherConfig())
    check_sampler(TorchSamplerConfig())
