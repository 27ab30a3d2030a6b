"""Rollouts of several turns by vLLM in this process, on a CPU in float32: no row waits for another.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from rlvr.core.types import Problem, Reply, RunError, Sampling
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.sampling.vllm.engine import CPU_BLOCK
from tests.helpers.turns import (
    LIMITS,
    LastOfAll,
    completions,
    digits,
    find_unscored,
    in_rounds,
    interrupt_without_replies,
    play_rows,
    slow_digits,
)
from tests.helpers.vllm_policies import greedy_tokens, make_policy, run_ahead

# vLLM warns of its own dependencies while it is imported and started
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(240)]
pytest.importorskip("vllm", exc_type=ImportError)


def parts(groups) -> list[tuple]:
    """Tokens, turns and ends; logprobs may differ in the last bits with the size of the matmuls."""
    return [(made.token_ids, made.turns, made.finish_reason, made.verdict) for made in completions(groups)]


@pytest.mark.parametrize("environment", [digits, slow_digits])
@pytest.mark.parametrize("options", [{}, {"context": 20}, {"sampling": Sampling(max_new_tokens=9)}])
def test_rollouts_are_those_of_rounds(vllm_tied, environment, options):
    """With the seeds of (run, step, problem, sample, turn), whenever replies come; and a second time."""
    policy = vllm_tied.policy
    streamed = play_rows(policy, vllm_tied, environment, group_size=6, **options)
    assert parts(play_rows(policy, vllm_tied, environment, group_size=6, **options)) == parts(streamed)
    with in_rounds(vllm_tied):
        assert parts(play_rows(policy, vllm_tied, environment, group_size=6, **options)) == parts(streamed)
    assert len({made.token_ids for made in completions(streamed)}) > 20


def test_greedy_rollouts_are_those_of_the_torch_sampler(vllm_tied):
    """Contexts of sampled ids and replies are read from the cache and computed alike."""
    policy, greedy = vllm_tied.policy, Sampling(max_new_tokens=40, temperature=0.0)
    limits = replace(LIMITS, turn_tokens=12)
    ours = play_rows(policy, vllm_tied, slow_digits, sampling=greedy, limits=limits)
    assert parts(ours) == parts(play_rows(policy, TorchSampler(policy), digits, sampling=greedy, limits=limits))


def test_a_row_goes_on_while_the_reply_to_another_is_made(vllm_tied):
    """The first reply to p0 comes when all others have ended; in rounds it is overdue before that."""
    policy = vllm_tied.policy
    assert find_unscored(play_rows(policy, vllm_tied, LastOfAll(8))) == set()
    with in_rounds(vllm_tied):
        groups = play_rows(policy, vllm_tied, LastOfAll(8), limits=replace(LIMITS, reply_seconds=2.0))
    assert find_unscored(groups) == {"p0"}


def test_the_context_of_a_turn_is_read_from_the_cache(vllm_tied, monkeypatch):
    """All whole blocks of prompt, turns and replies before it, but the last reply: 32 tokens each on a CPU."""
    policy, engine, seen = vllm_tied.policy, vllm_tied.engine.llm.llm_engine, {}
    step = engine.step

    def note():
        made = step()
        seen.update({tuple(o.prompt_token_ids): o.num_cached_tokens for o in made if o.finished})
        return made

    vllm_tied.load_weights(policy)  # which empties the cache
    monkeypatch.setattr(engine, "step", note)
    problems = [Problem(f"p{i}", f"{i}" * 40) for i in range(3)]
    groups = play_rows(policy, vllm_tied, digits, problems=problems, group_size=1)
    lengths = {}
    for group in groups:
        row, known = (*group.prompt_ids, *completions([group])[0].token_ids), 0
        start = len(group.prompt_ids)
        for turn in completions([group])[0].turns:
            if turn.sampled:
                lengths[row[:start]] = known
                known = start + turn.length - 1  # the last sampled token was never read
            start += turn.length
    assert seen.keys() == lengths.keys()
    assert {context: known // CPU_BLOCK * CPU_BLOCK for context, known in lengths.items()} == seen
    assert max(seen.values()) >= CPU_BLOCK


def test_a_failure_in_the_middle_leaves_nothing_behind(vllm_tied):
    """The turns under way are dropped, and a push works."""
    policy, lock, left = vllm_tied.policy, threading.Lock(), [12]

    def lose_turn(problem, rng):
        yield
        while True:
            with lock:
                left[0] -= 1
                if left[0] < 0:
                    raise RunError("no namespaces here")
            yield Reply("1")

    with pytest.raises(RunError, match="no namespaces here"):
        play_rows(policy, vllm_tied, lose_turn)
    vllm_tied.load_weights(policy)
    assert greedy_tokens(vllm_tied, policy) == greedy_tokens(TorchSampler(policy), policy)


def test_turns_sampled_ahead_resume_exactly(tmp_path, vllm_tied):
    """The engine samples and the environment replies beside the training: six steps, against three, a resume and three
    more, and against rounds. Steps are made one after another, so that no batch holds rows of two."""
    whole = run_ahead(vllm_tied, tmp_path / "whole", 6, environment=slow_digits)
    run_ahead(vllm_tied, tmp_path / "parts", 3, environment=slow_digits)
    again = run_ahead(vllm_tied, tmp_path / "parts", 6, start=3, environment=digits)
    with in_rounds(vllm_tied):
        rounds = run_ahead(vllm_tied, tmp_path / "rounds", 6, environment=digits)
    assert describe_rollouts(again) == describe_rollouts(whole) == describe_rollouts(rounds)
    rows = whole.reporter.log.read("metrics")
    assert [row["staleness"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert all(row["turns/replies"] > 1 for row in rows)


def describe_rollouts(run) -> list:
    """What was said and heard in each rollout, and its verdict."""
    rows = run.reporter.log.read("rollouts")
    return [(row["step"], row["problem"], row["sample"], row["turns"], row["status"]) for row in rows]


def test_more_prompts_than_a_step_reads(vllm_tied):
    """300 prompts of 60 tokens: none is read in parts, which would take back draws, and torch's generator cannot."""
    prompts = [[5 + (p + i) % 40 for i in range(60)] for p in range(300)]
    drawn = vllm_tied.generate(prompts, Sampling(max_new_tokens=4), [[p] for p in range(300)])
    assert [len(row) for row in drawn] == [1] * 300
    alone = vllm_tied.generate(prompts[290:], Sampling(max_new_tokens=4), [[p] for p in range(290, 300)])
    assert [row[0].token_ids for row in drawn[290:]] == [row[0].token_ids for row in alone]


def test_interrupted_while_only_replies_are_missing(open_vllm):
    """Sampling ends within a second or so, and not when a reply comes."""
    policy = make_policy()
    sampler = open_vllm(policy)
    with pytest.raises(RunError, match="interrupted"):
        interrupt_without_replies(policy, sampler)
