"""Runs with an environment: their losses against single tokens, resumes, evaluations, demonstrations."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlvr.algo.batch import collate
from rlvr.config import Config, RolloutConfig
from rlvr.core.types import Completion, Group, Problem, Reply, RunError, Sampling, Status, Task, correct, error
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.sharding import fill
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.tasks.base import build_task
from rlvr.training.evaluation.evaluate import evaluate
from rlvr.training.records import rollout_metrics
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import verify, with_verdicts
from rlvr.training.run import Run
from rlvr.training.sft.sft import demonstration_batch
from rlvr.training.step.prepare import prepare_batch
from rlvr.training.step.rewards import credited_advantages, credited_rewards
from rlvr.training.step.update import accumulate_gradient, accumulate_value_gradient, to_batch
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.runner import VerifierErrors
from tests.helpers.batches import split
from tests.helpers.files import lines
from tests.helpers.models import shake
from tests.helpers.processes import run_processes
from tests.helpers.runs import tiny
from tests.helpers.sharded import ALONE, gradients, make_run
from tests.helpers.turns import digits, played_groups

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS: dict[str, dict[str, Any]] = {
    "grpo": {"algo": {"name": "grpo", "kl_coef": 0.1, "normalize": "sequence"}},
    "rloo": {"algo": {"name": "rloo", "loss": "sequence", "normalize": "token"}},
    "gspo": {"algo": {"name": "dr_grpo", "loss": "gspo", "normalize": "constant"}},
    "turns": {"algo": {"name": "rloo", "credit": "turn", "normalize": "token"}},
    "ppo": {
        "algo": {
            "name": "ppo",
            "advantage_scale": "whiten",
            "kl_coef": 0.1,
            "kl_in": "reward",
            "gamma": 0.95,
            "gae_lambda": 0.9,
        }
    },
    "dpo": {"algo": {"name": "dpo"}},
}
TOLERANCE = 1e-6


class Plain:
    """Logprobs and values of single rows by plain forwards in float64."""

    def __init__(self, run: Run) -> None:
        self.causal = copy.deepcopy(run.learner.policy.causal).double()
        critic = run.learner.critic
        self.trunk = None if critic is None else copy.deepcopy(critic.trunk.causal).double()
        self.head = None if critic is None else copy.deepcopy(critic.head).double()

    def logprobs(self, group: Group, completion: Completion, own: Sequence[int]) -> list[Tensor]:
        """The log-probability of each token of the completion that `own` names."""
        ids = [*group.prompt_ids, *completion.token_ids]
        logits = self.causal(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        return [logits[len(group.prompt_ids) + t - 1, completion.token_ids[t]] for t in own]

    def values(self, group: Group, completion: Completion, own: Sequence[int]) -> list[Tensor]:
        """The critic's value before each of these tokens."""
        assert self.trunk is not None
        assert self.head is not None
        ids = torch.tensor([[*group.prompt_ids, *completion.token_ids]])
        hidden = self.trunk.base_model(input_ids=ids).last_hidden_state[0]
        return [self.head(hidden[len(group.prompt_ids) + t - 1])[0] for t in own]


def prepare_turns(
    tmp_path: Path, name: str, tokens: int, shard: int = 1, *, void: bool = False, alone: bool = False
) -> tuple:
    """A run, a batch that was prepared before its weights were moved, and the plain models before and after."""
    settings = {key: dict(value) for key, value in SETTINGS[name].items()}
    settings["algo"] = {"importance": "token", "minibatches": 1, "epochs": 2, **settings["algo"]}
    if name == "dpo":
        del settings["algo"]["importance"]
    run = make_run(tmp_path, shard, optim={"tokens_per_microbatch": tokens}, rollout={"mask_void": void}, **settings)
    learner = run.learner
    if alone:
        learner.accelerator = ALONE
    if learner.critic is not None:
        shake(learner.critic.trunk, 0.02, 5)
        with torch.no_grad():
            shape = learner.critic.head.weight.shape
            fill(learner.critic.head.weight, 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(3)))
    groups = played_groups(7, len(run.learner.policy.tokenizer), void=void)
    rewards = credited_rewards(groups, run.config, run.learner.policy.decode)
    advantages = credited_advantages(groups, rewards, run.config.algo)
    shake(run.learner.policy, 0.02, 1)
    before = Plain(run) if shard == 1 else None
    batch = prepare_batch(run.learner, to_batch(run.learner, groups, advantages))
    shake(run.learner.policy, 0.005, 2)
    return run, batch, groups, advantages, before, Plain(run) if shard == 1 else None


def own_tokens(completion: Completion, void: bool) -> list[list[int]]:
    """The places of the tokens that are trained on, turn by turn."""
    places, start = [], 0
    for turn in completion.turns:
        if turn.role == "assistant" and not (void and turn.void):
            places.append(list(range(start, start + turn.length)))
        start += turn.length
    return places


def clip_loss(ratio: Tensor, advantage: float) -> Tensor:
    """PPO's surrogate of one token, as a loss."""
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def expected_loss(
    name: str, run: Run, groups: list[Group], advantages: Any, before: Plain, now: Plain, void: bool
) -> Tensor:
    """The loss of all rollouts, written out."""
    reference = Plain(run)
    reference.causal = copy.deepcopy(run.learner.reference.causal).double() if run.learner.reference else None
    rows = []
    for group, row in zip(groups, advantages, strict=True):
        for completion, verdict, advantage in zip(group.completions, group.verdicts, row, strict=True):
            turns = own_tokens(completion, void)
            own = [t for turn in turns for t in turn]
            if verdict.score is None or not own:
                continue
            with torch.no_grad():
                old = [float(x) for x in before.logprobs(group, completion, own)]
                ref = (
                    None if reference.causal is None else [float(x) for x in reference.logprobs(group, completion, own)]
                )
            rows.append((group, completion, advantage, turns, own, old, ref, now.logprobs(group, completion, own)))
    if name == "dpo":
        return dpo(run, rows)
    count = sum(len(own) for *_, own, _, _, _ in rows)
    if name == "ppo":
        rows = with_gae(run, rows, before)
    total = torch.zeros((), dtype=torch.float64)
    sampled = sum(len(group.completions) for group in groups)
    for _, completion, advantage, _, own, old, ref, logprobs in rows:
        weight = {"grpo": 1 / (len(rows) * len(own)), "gspo": 1 / (sampled * run.config.rollout.max_new_tokens)}
        for k, t in enumerate(own):
            ratio = (logprobs[k] - old[k]).exp()
            if name in ("rloo", "gspo"):
                both = sum(a - b for a, b in zip(logprobs, old, strict=True))
                ratio = (both / (len(own) if name == "gspo" else 1)).exp()
            value = advantage
            if name == "turns":
                number = [i for i, turn in enumerate(x for x in completion.turns if x.role == "assistant")]
                value = turn_value(completion, advantage, t, len(number))
            elif name == "ppo":
                value = advantage[k]
            loss = clip_loss(ratio, value) * min(math.exp(old[k] - completion.logprobs[t]), 2.0)
            if name == "grpo":
                difference = ref[k] - logprobs[k]
                loss = loss + 0.1 * (difference.exp() - 1 - difference)
            total = total + loss * weight.get(name, 1 / count)
    return total


def turn_value(completion: Completion, advantage: Any, token: int, count: int) -> float:
    """The advantage of the turn that holds a token."""
    assert len(advantage.values) == count
    start = number = 0
    for turn in completion.turns:
        if start <= token < start + turn.length:
            return advantage.values[number]
        start += turn.length
        number += turn.role == "assistant"
    raise AssertionError


def with_gae(run: Run, rows: list, before: Plain) -> list:
    """The rows with GAE advantages over their own tokens, whitened over all of them."""
    algo, found = run.config.algo, []
    for group, completion, score, _, own, old, ref, _ in rows:
        with torch.no_grad():
            values = [float(v) for v in before.values(group, completion, own)]
        rewards = [-algo.kl_coef * (a - b) for a, b in zip(old, ref, strict=True)]
        rewards[-1] += score
        following = future = 0.0
        advantages = []
        for reward, value in zip(reversed(rewards), reversed(values), strict=True):
            future = reward + algo.gamma * following - value + algo.gamma * algo.gae_lambda * future
            following = value
            advantages.append(future)
        found.append(advantages[::-1])
    everything = torch.tensor([a for row in found for a in row], dtype=torch.float64)
    mean, scale = float(everything.mean()), float(torch.rsqrt(everything.var() + 1e-8))
    return [(*row[:2], [(a - mean) * scale for a in own], *row[3:]) for row, own in zip(rows, found, strict=True)]


def dpo(run: Run, rows: list) -> Tensor:
    """The mean over groups of -log sigmoid of the margin of best and worst."""
    margins: dict[str, list[Tensor]] = {}
    for group, _, advantage, _, _, _, ref, logprobs in rows:
        if advantage:
            gain = sum(a - b for a, b in zip(logprobs, ref, strict=True))
            margins.setdefault(group.problem.id, []).append(advantage * run.config.algo.beta * gain)
    pairs = [torch.stack(both).sum() for both in margins.values() if len(both) == 2]
    assert len(pairs) > 1
    return -torch.nn.functional.logsigmoid(torch.stack(pairs)).mean()


def compare(found: dict[str, Tensor], loss: Tensor, now: Plain) -> None:
    """Check each entry of the gradient, which is computed in float32, to a share of the norm of the plain one."""
    now.causal.zero_grad()
    loss.backward()
    wanted = {name: weight.grad for name, weight in now.causal.named_parameters() if weight.grad is not None}
    assert found.keys() == wanted.keys()
    size = torch.stack([value.norm() for value in wanted.values()]).norm().item()
    assert size > 0.1
    for name, value in wanted.items():
        assert (found[name].double() - value).abs().max().item() < TOLERANCE * size, name


@pytest.mark.parametrize("void", [False, True], ids=["all turns", "void turns masked"])
@pytest.mark.parametrize("tokens", [10_000, 25], ids=["one microbatch", "microbatches"])
@pytest.mark.parametrize("name", SETTINGS)
def test_loss_and_gradient_are_those_of_single_tokens(tmp_path: Path, name: str, tokens: int, void: bool) -> None:
    """Replies enter the context and nothing else."""
    run, batch, groups, advantages, before, now = prepare_turns(tmp_path, name, tokens, void=void, alone=True)
    sums = accumulate_gradient(run.learner, batch)
    loss = expected_loss(name, run, groups, advantages, before, now, void)
    assert sums["loss"] == pytest.approx(loss.item(), abs=TOLERANCE)
    compare(gradients(run.learner.policy), loss, now)


@pytest.mark.parametrize("shard", [1, 2], ids=["replicas", "shards"])
@pytest.mark.parametrize("name", ["grpo", "ppo", "dpo"])
def test_two_processes_give_the_same(tmp_path: Path, name: str, shard: int) -> None:
    """Each computes its microbatches, of whole weights or of shards."""
    _, _, groups, advantages, before, now = prepare_turns(tmp_path, name, 25, alone=True)

    def work(rank: int) -> tuple[float, dict[str, Tensor]]:
        run, batch, *_ = prepare_turns(tmp_path, name, 25, shard)
        return accumulate_gradient(run.learner, batch)["loss"], gradients(run.learner.policy)

    run = make_run(tmp_path, **SETTINGS[name])
    loss = expected_loss(name, run, groups, advantages, before, now, void=False)
    first, second = run_processes(2, work)
    assert first[0] == pytest.approx(loss.item(), abs=TOLERANCE)
    assert second[0] == first[0]
    compare(first[1], loss, now)


def test_the_critic_learns_at_sampled_tokens_only(tmp_path: Path) -> None:
    """Half the squared error of values before the model's own tokens, averaged over them."""
    run, batch, groups, _, _, now = prepare_turns(tmp_path, "ppo", 25, alone=True)
    assert batch.returns is not None
    accumulate_value_gradient(run.learner, batch)
    critic = run.learner.critic
    rows = [(g, c) for g in groups for c, v in zip(g.completions, g.verdicts, strict=True) if v.score is not None]
    errors = []
    for (group, completion), returns in zip(rows, batch.returns, strict=True):
        own = [t for turn in own_tokens(completion, False) for t in turn]
        for t, value in zip(own, now.values(group, completion, own), strict=True):
            errors.append((value - float(returns[len(group.prompt_ids) + t])) ** 2)
    loss = critic.settings.value_coef * 0.5 * sum(errors) / len(errors)
    loss.backward()
    wanted = now.head.weight.grad
    assert float(wanted.abs().max()) > 1e-3
    torch.testing.assert_close(critic.head.weight.grad.double(), wanted, atol=TOLERANCE * 10, rtol=1e-5)


def pack(environment=digits, *, verifier: str = "regex", demonstrations=()) -> Task:
    """Sums; a last turn with a 7 is right."""
    return build_task(
        "sums",
        train=[Problem(f"train/{i}", f"{i}+{i}=", "7") for i in range(8)],
        test=[Problem(f"test/{i}", f"{i}+1{i}=", "7") for i in range(4)],
        verifier=verifier,
        verifier_options={"pattern": "7", "match": "search"} if verifier == "regex" else None,
        demonstrations=demonstrations,
        environment=environment,
        check_references=False,
    )


def demonstrations(count: int = 16) -> list:
    """Two turns and an answer each."""
    return [(Problem(f"demo/{i}", f"{i}-{i}=", "7"), (f"{i % 10}=", "1", "7")) for i in range(count)]


def settings(out_dir: Path, **groups: dict) -> Config:
    chosen = {
        "rollout": {"max_new_tokens": 15, "max_turns": 3, "turn_tokens": 5, "mask_void": True},
        "sft": {"steps": 4, "batch_size": 8},
        "run": {"steps": 3, "save_every": 1, "sample_every": 0},
        "eval": {"every": -1},
    }
    for name, values in groups.items():
        chosen[name] = {**chosen.get(name, {}), **values}
    return tiny(out_dir, **chosen)


def test_metrics_tell_turns_and_tokens_by_whom(tmp_path: Path):
    """And every rollout is logged with its turns; the length is what the model sampled."""
    config = settings(tmp_path, run={"steps": 1}, eval={"every": 0})
    (before, after) = launch(config, task=pack(demonstrations=demonstrations()))
    (metrics,) = lines(tmp_path / "metrics.jsonl")
    rows = lines(tmp_path / "rollouts.jsonl")
    own = [turn for row in rows for turn in row["turns"] if turn["role"] == "assistant"]
    others = [turn for row in rows for turn in row["turns"] if turn["role"] == "user"]
    assert metrics["turns/count"] == len(own) / len(rows) == 3
    assert metrics["turns/replies"] == len(others) / len(rows) == 2
    assert metrics["turns/reply_tokens"] == sum(turn["tokens"] for turn in others) / len(rows) == 4
    assert metrics["turns/void"] == pytest.approx(sum(turn.get("void", False) for turn in own) / len(own))
    assert metrics["completion_tokens"] == sum(turn["tokens"] for turn in own) / len(rows)
    assert [row["tokens"] for row in rows] == [
        sum(turn["tokens"] for turn in row["turns"] if turn["role"] == "assistant") for row in rows
    ]
    assert sum(value for name, value in metrics.items() if name.startswith("finish/")) == pytest.approx(1)
    assert before["num_samples"] == after["num_samples"] == 16


def test_the_environments_verdict_comes_before_the_verifiers():
    """The verifier is asked about the last turn of the others only."""
    groups = played_groups(3, 20)
    given = {"p0": correct("x"), "p1": error("lost")}
    groups = [
        dataclasses.replace(
            group,
            completions=tuple(dataclasses.replace(c, verdict=given.get(group.problem.id)) for c in group.completions),
        )
        for group in groups
    ]
    asked = []

    def judge(pairs):
        asked.extend(pairs)
        return [correct("judged") for _ in pairs]

    judged = with_verdicts(groups, judge)
    assert [[v.extracted for v in group.verdicts] for group in judged] == [["x"] * 4, [None] * 4, ["judged"] * 4]
    assert asked == [(groups[2].problem, completion.text) for completion in groups[2].completions]


def never_wrong(problem: Problem, completion: str) -> bool:
    return True


def test_failures_of_environments_count_against_the_error_budget():
    """As those of the verifier, whole batches at a time."""
    groups = played_groups(3, 20)
    lost = [
        dataclasses.replace(
            group, completions=tuple(dataclasses.replace(c, verdict=error("no sandbox")) for c in group.completions)
        )
        for group in groups
    ]
    never_wrong.isolate = False
    with Runner(never_wrong, error_budget=0.4) as runner:
        verify(groups, runner)
        assert runner.counts == {Status.CORRECT: 12}
        with pytest.raises(VerifierErrors, match="no sandbox"):
            verify([*lost, *lost, *lost, *lost, *lost, *lost, *lost, *lost], runner)


def test_masked_and_void_tokens_leave_the_batch(tmp_path: Path):
    """What counts is trained tokens: of the rows, of the denominator, and in the order of the places."""
    groups = played_groups(5, 20, void=True)
    ones = [[1.0] * len(group.completions) for group in groups]
    batch, masked = (collate(groups, ones, pad_id=0, mask_void=mask_void) for mask_void in (False, True))
    rows = [c for g in groups for c, v in zip(g.completions, g.verdicts, strict=True) if v.score is not None]
    assert batch.num_completion_tokens == sum(len(made.sampled_ids) for made in rows)
    trained = [sum(t.length for t in made.turns if t.sampled and not t.void) for made in rows]
    assert masked.num_completion_tokens == sum(trained) < batch.num_completion_tokens
    assert [n for n in masked.token_counts if n] == [n for n in trained if n]
    assert len(masked) == sum(n > 0 for n in trained)
    for row, made in zip(batch.tokens, rows, strict=True):
        assert set(made.token_ids) <= set(row.tolist())
    for limit, shared in itertools.product((10, 40, 1000), (False, True)):
        parts = [part for _, part in split(batch, limit, shared_prompts=shared)]
        assert sum(part.num_completion_tokens for part in parts) == batch.num_completion_tokens
        for part in parts:
            prompts = part.prompt_lengths
            once = int((part.lengths - prompts).sum()) + sum(
                {int(g): int(p) for g, p in zip(part.groups, prompts)}.values()
            )
            assert len(part) == 1 or (once if shared else int(part.lengths.sum())) <= limit


def test_demonstrations_are_played_and_only_the_models_turns_are_learned(tmp_path: Path):
    """The environment's replies lie between them; its random numbers are a function of seed and problem."""
    found = demonstrations(3)
    policy = load_policy(tiny(tmp_path).model, corpus=["0123456789-= "], seed=0)
    plan = TurnPlan(digits, RolloutConfig())
    batch = demonstration_batch(policy, found, plan, seed=0)
    for row, mask, (problem, turns) in zip(batch.tokens, batch.mask, found, strict=True):
        learned = policy.decode(row[mask], special=True)
        assert learned == "".join(f"{said}<eos>" for said in turns)
        whole = policy.decode(row, special=True).removesuffix("<pad>")
        assert whole.startswith(f"{problem.prompt}{turns[0]}<eos>")
        assert whole.count("=") == problem.prompt.count("=") + "".join(turns).count("=") + 2
    again = demonstration_batch(policy, found[::-1], plan, seed=0)
    assert again.tokens.flip(0).equal(batch.tokens)
    assert not demonstration_batch(policy, found, plan, seed=1).tokens.equal(batch.tokens)


def answer_shortly(problem, rng):
    yield
    return correct()


def break_turn(problem, rng):
    yield
    raise OSError("gone")


@pytest.mark.parametrize(
    "environment, message", [(answer_shortly, "ends after turn 1 of 3"), (break_turn, "OSError: gone")]
)
def test_a_demonstration_that_cannot_be_played_is_named(tmp_path: Path, environment, message: str):
    """In one line."""
    policy = load_policy(tiny(tmp_path).model, corpus=["0123456789-= "], seed=0)
    with pytest.raises(RunError, match=f"demonstration 'demo/0': .*{message}"):
        demonstration_batch(policy, demonstrations(1), TurnPlan(environment, RolloutConfig()))


@pytest.mark.parametrize(
    "groups, task, message",
    [
        ({"rollout": {"max_turns": 5}}, {}, "rollout.max_turns 5: task 'sums' has no environment"),
        ({"rollout": {"mask_void": True}}, {}, "rollout.mask_void True"),
        ({"rollout": {"context_tokens": 99}}, {}, "rollout.context_tokens 99"),
        ({}, {"demonstrations": demonstrations()}, "demonstration 'demo/0' has several turns"),
    ],
)
def test_settings_of_turns_need_an_environment(tmp_path: Path, groups: dict, task: dict, message: str):
    """Nothing is read and ignored."""
    with pytest.raises(ValueError, match=message):
        launch(tiny(tmp_path, **groups), task=pack(None, **task))


def test_pass_at_k_plays_the_environment(tmp_path: Path):
    """What it judges is right by any extraction; answers are kept with their turns, and an evaluation goes on."""

    def odd(problem, rng):
        yield
        yield Reply("?")
        return correct() if int(problem.id[-1]) % 2 else None

    policy = load_policy(tiny(tmp_path).model, corpus=["0123456789+=?"], seed=0)
    plan = TurnPlan(odd, RolloutConfig(max_turns=3, turn_tokens=4))
    task = pack(odd, verifier="exact")
    options = {"sampling": Sampling(12), "samples": 3, "ks": (1, 3), "answers_file": tmp_path / "answers", "plan": plan}
    with Runner(task.verifier) as runner:
        found = evaluate(policy, TorchSampler(policy), task.test, runner, lenient=runner, **options)
        again = evaluate(policy, TorchSampler(policy), task.test, runner, lenient=runner, **options)
    assert found == again
    assert found["pass@1"] == found["pass@3"] == 0.5
    rows = lines(tmp_path / "answers")
    assert len(rows) == 12
    assert all([turn["role"] for turn in row["turns"]] == ["assistant", "tool", "assistant"] for row in rows)


def test_no_metrics_of_turns_without_an_environment():
    """A run of one turn logs what it logged."""
    groups = played_groups(1, 20)
    plain = [
        dataclasses.replace(g, completions=tuple(dataclasses.replace(c, turns=()) for c in g.completions))
        for g in groups
    ]
    names = set(rollout_metrics(groups, [])) - set(rollout_metrics(plain, []))
    assert {name.split("/")[0] for name in names} <= {"turns", "tools", "finish", "parts"}
    assert names
