"""Partial rollouts with vLLM in this process: what a cut row goes on from, and that runs repeat.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from rlvr.core.types import Ask, Completion, Sampling
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.training.checkpoint.checkpoint import AHEAD
from rlvr.training.checkpoint.folders import checkpoint_folder
from tests.helpers.schedules import read_versions, replay_versions
from tests.helpers.vllm_policies import run_ahead, shake

# vLLM warns of its own dependencies while it is imported and started
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
pytest.importorskip("vllm", exc_type=ImportError)

LONG = "what is seven times eleven plus thirteen"  # 40 tokens: more than a block of the cache


def sample(sampler, asks: list[Ask]) -> list[Completion]:
    made: dict[int, Completion] = {}
    sampler.sample_rows(asks, made.__setitem__)
    return [made[place] for place in range(len(asks))]


def differences(policy, ask: Ask, made: Completion) -> float:
    """How far a completion's logprobs are from the policy's, at most."""
    tokens = torch.tensor([[*ask.context, *made.token_ids]])
    mask = torch.arange(tokens.shape[1])[None] >= len(ask.context)
    with torch.no_grad():
        own = token_logprobs(policy, tokens, mask)[0][mask]
    return float((own - torch.tensor(made.logprobs)).abs().max())


@pytest.mark.parametrize("in_flight", ["rebuild", "keep"])
def test_what_a_cut_row_goes_on_from(vllm_tied, monkeypatch, in_flight):
    """After a push the rest of a row has the logprobs of the new weights; with `keep` those of the new weights on the
    old keys and values, and rows of other groups have the new weights' alone."""
    policy, sampler = vllm_tied.policy, vllm_tied
    kept = dataclasses.replace(sampler.config, slice_tokens=8, max_staleness=2, in_flight=in_flight)
    monkeypatch.setattr(sampler.engine, "config", kept)
    prompt, first = tuple(policy.encode(LONG)), Sampling(8)
    asks = [Ask(prompt, first, seed, 0, "a") for seed in range(2)]
    parts = sample(sampler, asks)
    assert max(differences(policy, ask, part) for ask, part in zip(asks, parts, strict=True)) < 0.05
    shake(policy)
    sampler.load_weights(policy)
    rest = [Ask((*prompt, *part.token_ids), first, seed, 8, "a") for seed, part in enumerate(parts)]
    others = [Ask((*prompt, *part.token_ids), first, seed, 8, "b") for seed, part in enumerate(parts)]
    own, fresh = sample(sampler, rest), sample(sampler, others)
    assert max(differences(policy, ask, made) for ask, made in zip(others, fresh, strict=True)) < 0.05
    moved = max(differences(policy, ask, made) for ask, made in zip(rest, own, strict=True))
    assert moved > 0.1 if in_flight == "keep" else moved < 0.05
    assert own[0].token_ids != parts[0].token_ids


@pytest.mark.parametrize("in_flight", ["rebuild", "keep"])
def test_a_run_in_slices_repeats(vllm_tied, tmp_path, monkeypatch, in_flight):
    """Twice the same, cut where the torch sampler would cut; with rebuild a resumed run is the same too."""
    settings = {"slice_tokens": 4, "max_staleness": 2, "in_flight": in_flight}
    monkeypatch.setattr(vllm_tied.engine, "config", dataclasses.replace(vllm_tied.config, **settings))
    runs = [run_ahead(vllm_tied, tmp_path / name, 4, **settings) for name in ("a", "b")]
    rows = [run.reporter.log.read("rollouts") for run in runs]
    keys = ("problem", "completion", "versions", "tokens")
    assert [[row[key] for key in keys] for row in rows[0]] == [[row[key] for key in keys] for row in rows[1]]
    assert max(len(row["versions"]) for row in rows[0]) > 1
    assert read_versions(runs[0]) == replay_versions(runs[0])
    for row in rows[0]:
        assert all(count % 4 == 0 for _, count in row["versions"][:-1])
    if in_flight == "rebuild":
        run_ahead(vllm_tied, tmp_path / "c", 2, **settings)
        assert (checkpoint_folder(tmp_path / "c", 2) / AHEAD).exists()
        resumed = run_ahead(vllm_tied, tmp_path / "c", 4, start=2, **settings).reporter.log.read("rollouts")
        assert [row["completion"] for row in resumed] == [row["completion"] for row in rows[0]]
