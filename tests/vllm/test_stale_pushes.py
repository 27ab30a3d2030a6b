"""Servers that say yes to a push and do not have its weights, whatever they say. Without vLLM."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from rlvr.core.types import RunError
from rlvr.model.load.policy import Policy
from rlvr.sampling.vllm.proof import Proof, own_logprobs, proof_text
from rlvr.sampling.vllm.sampler import VLLMSampler
from tests.helpers.models import shake
from tests.helpers.vllm_servers import (
    GENERATE,
    LOSES,
    VLLMLike,
    agrees,
    babbles,
    dies,
    draw,
    fails,
    is_silent,
    loads_half,
    loads_nothing,
    loads_the_push_before,
    misshapes,
)

Sabotage = Callable[[VLLMLike], None]
SABOTAGES = [loads_nothing, loads_half, loads_the_push_before]


def train(policy: Policy, sampler: VLLMSampler, size: float, seed: int) -> None:
    shake(policy, size, seed)
    sampler.load_weights(policy)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_server_without_the_pushed_weights_is_refused_before_it_samples(policy, servers, sabotage, place, open_sampler):
    """It reports the new version; the warning names it, and the other samples all."""
    sampler = open_sampler(policy, servers, sync_check_every=0)
    train(policy, sampler, 0.01, 0)
    sabotage(servers[place])
    servers[place].answered.clear()
    with pytest.warns(RuntimeWarning, match=rf"{servers[place].url} does not have the weights of push 3.*1 of 2 are"):
        train(policy, sampler, 0.01, 1)
    assert servers[place].version.startswith(sampler.engine.run)
    draw(sampler)
    assert {seed for _, seed in servers[place].answered} <= {0}  # the proof's own request, and no completion
    assert [server.url for server in sampler.engine.servers] == [servers[1 - place].url]
    train(policy, sampler, 0.01, 2)
    draw(sampler)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_only_server_without_the_pushed_weights_ends_the_run_with_one_line(policy, servers, sabotage, open_sampler):
    sampler = open_sampler(policy, servers[:1], sync_check_every=0)
    train(policy, sampler, 0.01, 0)
    sabotage(servers[0])
    expected = rf"lost the vLLM server: the vLLM server {servers[0].url} does not have the weights of push 3: .*resumes"
    with pytest.raises(RunError, match=expected) as caught:
        train(policy, sampler, 0.01, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize("sabotage", SABOTAGES[:2], ids=lambda sabotage: sabotage.__name__)
def test_small_pushes_add_up(policy, servers, sabotage, open_sampler):
    """A server that stays behind is refused once logprobs tell."""
    sampler = open_sampler(policy, servers, sync_check_every=0)
    sampler.engine.proof.rounding = 0.01
    sabotage(servers[0])
    left = []
    for _ in range(30):
        train(policy, sampler, 2e-3, 0)  # in one direction
        left.append(len(sampler.engine.servers))
    assert left[0] == 2
    assert left[-1] == 1


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize("size", [0.0, 1e-7, 1e-5, 1e-3, 0.1])
def test_healthy_servers_are_never_refused(policy, servers, size, open_sampler):
    """Whatever a push changes, nothing included."""
    sampler = open_sampler(policy, servers, sync_check_every=0)
    assert sampler.measures() == {}
    for seed in range(5):
        train(policy, sampler, size, seed)
    assert len(sampler.engine.servers) == 2
    found = sampler.measures()
    assert found["push/difference"] < 1e-6
    assert (found["push/moved"] > 3 * found["push/rounding"]) == (size >= 1e-5)


def bf16_engine(policy: Policy) -> Callable[[list[int]], list[float]]:
    """Another implementation in bfloat16: weights rounded, no autocast, no packing, logits in bfloat16."""
    model = copy.deepcopy(policy.causal).to(torch.bfloat16)

    def score(text: list[int]) -> list[float]:
        row = torch.tensor([text])
        with torch.no_grad():
            logits = model(row).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0].tolist()

    return score


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2])
def test_rounding_of_bfloat16_is_no_reason_to_refuse(policy, rate):
    """Every weight moves by the rate at each of 30 pushes, as Adam's do; the engine rounds otherwise than the trainer.

    Beside it one that stays at push 10, which is refused once logprobs tell.
    """
    policy.dtype = torch.bfloat16
    text, proof = proof_text(policy, 200), Proof(torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    stays, held = "", list[float]()
    for push in range(30):
        proof.begin(push, own_logprobs(policy, text))
        found = bf16_engine(policy)(text)
        assert proof.judge("healthy", found) == ""
        held = found if push <= 10 else held
        if not stays:
            stays = proof.judge("stays", held)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator).sign(), alpha=rate)
    if rate >= 1e-3:
        assert "since push" in stays or "differ from the trainer's" in stays
    if rate == 0:
        assert stays == ""


@pytest.mark.parametrize("values", [[0.0] * 3, [], [float("nan")] * 5], ids=["short", "none", "nan"])
def test_answer_that_is_no_score_of_the_text_is_refused(values):
    proof = Proof(torch.float32)
    for push in (1, 2):
        proof.begin(push, [-1.0, -2.0, -3.0, -4.0, -5.0])
    assert proof.judge("server", values) != ""


def test_a_trainer_without_finite_logprobs_refuses_nobody():
    """Its own weights are at fault."""
    proof = Proof(torch.float32)
    proof.begin(1, [-1.0, -2.0])
    assert proof.judge("server", [-1.0, -2.0]) == ""
    proof.begin(2, [float("nan"), -2.0])
    assert proof.judge("server", [-1.0, -2.0]) == ""


def test_what_is_remembered_is_bounded():
    """Of many pushes that move nothing, and of many that move far."""
    for step in (0.0, 1e-6, 1.0):
        proof = Proof(torch.float32)
        for push in range(200):
            proof.begin(push, [-1.0 - step * push, -2.0])
            assert proof.judge("server", [-1.0 - step * push, -2.0]) == ""
        assert len(proof.pushes) <= 33


@pytest.mark.filterwarnings(LOSES)
@pytest.mark.parametrize(
    "fault", [dies, fails, babbles, misshapes, is_silent, agrees], ids=lambda fault: fault.__name__
)
def test_server_that_is_lost_while_it_proves_its_weights(policy, servers, fault, open_sampler):
    """The other has the push, and samples."""
    sampler = open_sampler(policy, servers, sync_check_every=0, timeout=10.0 if fault is is_silent else 60.0)
    servers[0].faults[GENERATE] = fault
    train(policy, sampler, 0.01, 0)
    assert [server.url for server in sampler.engine.servers] == [servers[1].url]
    draw(sampler)
