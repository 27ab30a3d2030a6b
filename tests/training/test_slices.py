"""Partial rollouts: what is cut where is a function of the seed, no group is lost, and a resumed run is the same."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.batch import Batch, collate
from rlvr.algo.losses import batch_loss
from rlvr.config import AlgoConfig, Config, CurriculumConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.config.sampler import TorchSamplerConfig, VLLMConfig
from rlvr.core.types import (
    Ask,
    Completion,
    Group,
    Problem,
    Reply,
    RunError,
    Sampler,
    Sampling,
    Turn,
    correct,
    incorrect,
)
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import AHEAD, load_checkpoint, read_groups, write_groups
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.rollout.cuts import add_tokens, end_at_stop
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import RolloutWorker, rollout, verify
from rlvr.training.rollout.slices import SlicedRollouts, is_whole, sample_slice, tokens_of_slice
from rlvr.training.run import Run
from rlvr.training.step.update import importance_kind
from rlvr.verifiers.runner import Runner
from tests.helpers.enumeration import cosine, gradient, whole_group
from tests.helpers.models import OwnWeights, small_policy
from tests.helpers.overlap import logs, threads
from tests.helpers.runs import AfterStep, build_run, make_short_run, weights_of
from tests.helpers.schedules import read_versions, replay, replay_versions
from tests.helpers.turns import digits
from tests.helpers.verifiers import PROBLEMS, OddDigits, odd_digits

pytestmark = pytest.mark.usefixtures("one_thread")


def make_run(out_dir, *, sampler=TorchSampler, verifier=None, steps=5, curriculum=None, run=None, **settings) -> Run:
    """A run of a tiny model in slices of three tokens."""
    kind = TorchSamplerConfig if sampler is TorchSampler else VLLMConfig
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0, **(run or {})),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=3, group_size=4, max_new_tokens=12),
        optim=OptimConfig(lr=1e-3),
        sampler=kind(mismatch_alarm=10.0, **{"slice_tokens": 3, "max_staleness": 2, **settings}),
        curriculum=curriculum or CurriculumConfig(),
    )
    config.check()
    return build_run(config, verifier or Runner(odd_digits), sampler=sampler)


def records(run: Run) -> list[dict]:
    return run.reporter.log.read("rollouts")


def test_a_cut_row_goes_on_as_if_it_had_not_been_cut():
    """With the same weights: the same tokens, and logprobs up to rounding; also where a row has a neighbour."""
    policy = small_policy()
    sampler, whole = TorchSampler(policy), Sampling(9)
    made: dict[int, Completion] = {}
    prompt = tuple(policy.encode("12+34="))
    sampler.sample_rows([Ask(prompt, whole, seed) for seed in range(6)], made.__setitem__)
    for cut in (1, 4):
        asks = [Ask((*prompt, *made[s].token_ids[:cut]), Sampling(9 - cut), s, cut) for s in range(6)]
        rest: dict[int, Completion] = {}
        sampler.sample_rows(asks, rest.__setitem__)
        for seed, part in rest.items():
            if len(made[seed].token_ids) > cut:
                assert part.token_ids == made[seed].token_ids[cut:]
                assert part.logprobs == pytest.approx(made[seed].logprobs[cut:], abs=1e-4)


def test_the_default_of_a_sampler_draws_new_numbers_after_a_cut():
    """A sampler with `stream` alone does not get the numbers of a row's beginning again."""

    class Seeds(Sampler):
        def __init__(self) -> None:
            self.seeds: list[int] = []

        def generate(self, prompts, sampling, seeds):
            self.seeds += [seed for row in seeds for seed in row]
            return [[Completion("", (1,), (0.0,)) for _ in row] for row in seeds]

        def load_weights(self, policy):
            pass

    sampler = Seeds()
    sampler.sample_rows([Ask((1, 2), Sampling(3), 7, drawn) for drawn in (0, 1, 2)], lambda place, made: None)
    assert sampler.seeds[0] == 7
    assert len(set(sampler.seeds)) == 3


def test_a_stop_string_across_a_cut_ends_the_row():
    """The sampler saw its second half only: what it sampled after that is left out."""
    policy = small_policy()
    before, ids = policy.encode("1+"), tuple(policy.encode("34=7"))
    part = Completion("34=7", ids, (-1.0, -2.0, -3.0, -4.0), "length")
    ended = end_at_stop(policy, before, part, ("+3",))
    assert (ended.token_ids, ended.logprobs, ended.finish_reason) == (part.token_ids[:1], (-1.0,), "stop")
    assert end_at_stop(policy, before, part, ("4=",)).token_ids == part.token_ids[:3]
    assert end_at_stop(policy, [], part, ("+3",)) == part
    assert end_at_stop(policy, before, part, ()) == part


def test_each_token_has_the_logprob_of_the_version_that_sampled_it(tmp_path):
    """By the weights that were stored after each step; runs of versions add up to the row, in order."""
    run, weights = make_run(tmp_path), {}
    weights[0] = weights_of(run)
    run.reporter.callbacks.append(AfterStep(lambda step: weights.__setitem__(step, weights_of(run))))
    seen: list[Group] = []
    observe = run.worker.draws.observe
    run.worker.draws.observe = lambda groups: (seen.extend(groups), observe(groups))[1]
    train(run)
    assert len(seen) == 15
    cut = 0
    for version, vector in weights.items():
        torch.nn.utils.vector_to_parameters(vector, run.learner.policy.parameters())
        batch = collate(seen, [[1.0] * 4] * len(seen), pad_id=run.learner.policy.pad_id)
        with torch.no_grad():
            now, _ = token_logprobs(run.learner.policy, batch.tokens, batch.mask, temperature=1.0)
        rows = [completion for group in seen for completion in group.completions]
        for row, own, prompt in zip(rows, now, batch.prompt_lengths.tolist(), strict=True):
            assert sum(count for _, count in row.versions) == len(row.token_ids)
            assert all(one[0] < other[0] for one, other in pairwise(row.versions))
            start = 0
            for of, count in row.versions:
                if of == version:
                    there = own[prompt + start : prompt + start + count].tolist()
                    assert row.logprobs[start : start + count] == pytest.approx(there, abs=1e-4)
                start += count
            cut += len(row.versions) > 1
    assert cut > 10


@pytest.mark.parametrize("max_versions", [0, 2])
def test_the_torch_sampler_simulates_an_engine_that_samples_beside_the_training(tmp_path, max_versions):
    """What is cut where, under which weights, and all that is trained: the same as with weights of its own."""
    runs = [
        make_run(tmp_path / kind.__name__, sampler=kind, max_versions=max_versions)
        for kind in (TorchSampler, OwnWeights)
    ]
    for run in runs:
        train(run)
    assert logs(runs[0])[0] == logs(runs[1])[0]
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))
    most = max(len(record["versions"]) for record in records(runs[0]))
    assert most == max_versions or (not max_versions and most > 2)
    assert not threads("rlvr-")


def test_a_recorded_schedule_is_replayed_from_its_lengths(tmp_path):
    """rollouts.jsonl of a run whose sampler works beside the training, at a pace of its own: the simulator, which knows
    no clock, trains the same groups in the same steps, with tokens of the same versions."""
    run = make_run(tmp_path, sampler=OwnWeights, steps=7, max_staleness=3)
    train(run)
    versions = read_versions(run)
    assert max(len(row) for rows in versions for row in rows) == 4
    assert versions == replay_versions(run)


def resume(run: Run, step: int) -> None:
    """Puts a run where its last checkpoint is, as the command line does."""
    folder = checkpoint_folder(run.reporter.log.out_dir, step)
    state = load_checkpoint(folder, run.learner.policy, run.learner.optimizer)
    run.reporter.log.truncate_to(state["log"], step)
    run.worker.sampler = type(run.worker.sampler)(run.learner.policy)


@pytest.mark.parametrize("sampler", [TorchSampler, OwnWeights])
@pytest.mark.parametrize("draw", ["epochs", "signal"])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, sampler, draw):
    """Six steps, against three, a signal, a resume with cut rows, and three more; also with a curriculum."""
    settings = {"sampler": sampler, "curriculum": CurriculumConfig(draw=draw), "steps": 6}
    whole = make_run(tmp_path / "whole", **settings)
    train(whole)
    parts = make_run(tmp_path / "parts", **settings)
    parts.reporter.callbacks.append(AfterStep(lambda step: step == 3 and os.kill(os.getpid(), signal.SIGINT)))
    assert train(parts).signal == signal.SIGINT
    pending = read_groups(checkpoint_folder(tmp_path / "parts", 3) / AHEAD, PROBLEMS)
    assert any(row.finish_reason == "cut" for groups in pending.values() for g in groups for row in g.completions)
    again = make_run(tmp_path / "parts", **settings)
    resume(again, 3)
    train(again, 3)
    assert logs(again) == logs(whole)
    assert torch.equal(weights_of(again), weights_of(whole))
    for name in (AHEAD, "model.safetensors", "optimizer.safetensors"):
        files = [checkpoint_folder(tmp_path / run, 6) / name for run in ("whole", "parts")]
        assert files[0].read_bytes() == files[1].read_bytes(), name


def test_every_drawn_problem_is_trained_once_and_nothing_waits_for_the_longest_row(tmp_path):
    """Draws in order: what the steps took and what is left is what was drawn. Most steps wait for no slice."""
    run = make_run(tmp_path, steps=8, max_staleness=4)
    drawn: list[str] = []
    of_step = run.worker.draws.of_step
    run.worker.draws.of_step = lambda step: (found := of_step(step), drawn.extend(p.id for p in found))[0]
    train(run)
    pending = read_groups(checkpoint_folder(tmp_path, 8) / AHEAD, PROBLEMS)
    left = [group.problem.id for groups in pending.values() for group in groups]
    trained = [record["problem"] for record in records(run) if record["sample"] == 0]
    assert len(trained) == 8 * 3
    assert Counter(trained) + Counter(left) == Counter(drawn)
    metrics = run.reporter.log.read("metrics")
    assert max(row["slices/versions_most"] for row in metrics) > 1
    assert metrics[0]["slices/waited"] > 1
    assert all(row["slices/waited"] == 0 for row in metrics[1:])


def play_in_slices(run: Run, *, keep: bool, environment=digits) -> dict[int, list[Group]]:
    """Three groups in slices under the same weights until all rows are done. keep: environments live on."""
    run.worker.plan = TurnPlan(environment, dataclasses.replace(run.config.rollout, turn_tokens=4, max_turns=4))
    rollouts, live = SlicedRollouts(run.worker), {}
    rollouts._draw_until(0)
    pool, slices = rollouts.ahead, 0
    while not all(map(is_whole, pool[0])):
        pool = sample_slice(run.worker, pool, 0, live if keep else {})
        slices += 1
    assert slices > 2
    assert not live
    return pool


def without_logprobs(groups: Sequence[Group]) -> list[tuple]:
    """What was said and judged: logprobs differ in the last bits with what is decoded at once."""
    return [
        (row.token_ids, row.turns, row.finish_reason, row.text, verdict.status, len(row.logprobs))
        for group in groups
        for row, verdict in zip(group.completions, group.verdicts, strict=True)
    ]


@pytest.mark.parametrize("keep", [True, False])
def test_turns_that_are_cut_go_on_as_if_they_had_not_been_cut(tmp_path, keep):
    """Within a turn and between two, with environments that live on and with those that play their turns again."""
    run = make_run(tmp_path)
    pool = play_in_slices(run, keep=keep)
    whole = rollout(
        run.learner.policy,
        run.worker.sampler,
        run.worker.draws.of_step(0),
        run.config.sampling(),
        group_size=4,
        seed=(run.config.run.seed, "rollout", 0),
        plan=run.worker.plan,
    )
    assert without_logprobs(pool[0]) == without_logprobs(verify(whole, run.worker.verifier))
    rows = [row for group in pool[0] for row in group.completions]
    assert all(row.versions == ((0, len(row.sampled_ids)),) for row in rows)
    assert max(sum(turn.sampled for turn in row.turns) for row in rows) == 3


def test_a_resumed_run_with_turns_equals_an_uninterrupted_one(tmp_path):
    """Environments are gone with the process: their turns are played again."""

    def start(name: str) -> Run:
        run = make_run(tmp_path / name, steps=4)
        run.worker.plan = TurnPlan(digits, dataclasses.replace(run.config.rollout, turn_tokens=4, max_turns=4))
        return run

    whole, parts, again = start("whole"), start("parts"), start("parts")
    train(whole)
    parts.reporter.callbacks.append(AfterStep(lambda step: step == 2 and os.kill(os.getpid(), signal.SIGINT)))
    train(parts)
    pending = read_groups(checkpoint_folder(tmp_path / "parts", 2) / AHEAD, PROBLEMS)
    cut = [row for groups in pending.values() for g in groups for row in g.completions if row.finish_reason == "cut"]
    assert any(len(row.turns) > 1 for row in cut)
    resume(again, 2)
    train(again, 2)
    assert logs(again) == logs(whole)
    assert torch.equal(weights_of(again), weights_of(whole))


def test_an_environment_that_replies_otherwise_ends_the_resumed_run(tmp_path):
    """It is named, with what it had replied before."""
    count = itertools.count()

    def counts(problem, rng):
        yield None
        while True:
            yield Reply(f"{next(count)}=", role="user")

    with pytest.raises(RunError, match=r"the environment replied .* that had the reply .* before: a run in slices"):
        play_in_slices(make_run(tmp_path), keep=False, environment=counts)


def test_runs_of_versions():
    """Tokens under the same weights are one run; a slice without tokens adds none."""
    assert add_tokens(add_tokens(add_tokens((), 3, 5), 3, 2), 4, 1) == ((3, 7), (4, 1))
    assert add_tokens(((1, 2),), 2, 0) == ((1, 2),)


def test_the_last_version_samples_a_row_to_its_end(tmp_path):
    """With max_versions 2: three tokens, three more under the same weights, and all the rest under the next."""
    config = make_run(tmp_path, max_versions=2).config
    assert tokens_of_slice((), 0, config) == 3
    assert tokens_of_slice(((0, 3),), 0, config) == 3
    assert tokens_of_slice(((0, 6),), 1, config) == 6
    assert tokens_of_slice(((0, 6),), 1, make_run(tmp_path).config) == 3
    assert tokens_of_slice(((0, 11),), 1, make_run(tmp_path).config) == 1


def test_verifiers_of_whole_batches_see_the_groups_of_a_step(tmp_path):
    """Such a verifier is called once for each step, with the rows that the step trains."""

    class Batches(OddDigits):
        whole_batch = True

        def __init__(self) -> None:
            self.sizes: list[int] = []

        def verify(self, pairs):
            self.sizes.append(len(pairs))
            return super().verify(pairs)

    run = make_run(tmp_path, verifier=Batches())
    train(run)
    assert run.worker.verifier.sizes == [12] * 5


def test_shuffled_rewards_are_those_of_the_step(tmp_path):
    """The control works: each row keeps its verdict beside the one that it is rewarded by."""
    run = make_run(tmp_path, run={"shuffle_rewards": True})
    train(run)
    assert all("shuffled_status" in record for record in records(run))


# Bias: lengths that depend on difficulty.


class ScriptedLengths(Sampler):
    """Rows whose lengths are log-normal, longer for harder problems; the prompt's last token is the difficulty."""

    def __init__(self, slope: float = 0.35) -> None:
        self.slope = slope

    def length(self, difficulty: int, seed: int) -> int:
        draw = np.random.Generator(np.random.Philox(key=seed)).normal()
        return int(np.clip(np.exp(2.5 + self.slope * difficulty + 0.8 * draw), 1, 400))

    def generate(self, prompts, sampling, seeds):
        raise NotImplementedError

    def load_weights(self, policy):
        pass

    def sample_rows(self, asks, on_row):
        for place, ask in enumerate(asks):
            difficulty = ask.context[len(ask.context) - ask.drawn - 1]
            left = self.length(difficulty, ask.seed) - ask.drawn
            count = min(left, ask.sampling.max_new_tokens)
            reason = "stop" if count == left else "length"
            on_row(place, Completion("", (difficulty,) * count, (0.0,) * count, reason))


class Renders:
    """The part of a policy that a slice needs."""

    eos_ids: frozenset[int] = frozenset()

    def render(self, prompt):
        return [int(prompt)]

    def decode(self, ids):
        return ""


DIFFICULTIES, GROUP, PER_STEP = 5, 4, 10
LONGEST = 400


def chi_square_p(found: Sequence[float], expected: Sequence[float]) -> float:
    """The p value of counts against expected counts of the same sum."""
    found_, expected_ = torch.tensor(found, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64)
    assert float(found_.sum()) == pytest.approx(float(expected_.sum()))
    value = ((found_ - expected_).square() / expected_).sum()
    freedom = torch.tensor((len(found_) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, value / 2))


def make_sliced(tmp_path, **settings) -> SlicedRollouts:
    """Rollouts in slices of 20 tokens of problems that are drawn at random, each difficulty as often."""
    values = {"slice_tokens": 20, "max_staleness": 4, **settings}
    config = Config(
        run=RunConfig(out_dir=tmp_path, seed=3),
        rollout=RolloutConfig(problems_per_step=PER_STEP, group_size=GROUP, max_new_tokens=LONGEST),
        sampler=VLLMConfig(**values),
    )
    config.check()
    problems = [Problem(str(i), str(i % DIFFICULTIES)) for i in range(1000)]
    worker = RolloutWorker(config, Renders(), ScriptedLengths(), problems, OddDigits(), Accelerator(cpu=True))
    return SlicedRollouts(worker)


def p_values(groups: Sequence[Group]) -> tuple[float, float]:
    """The p values of the trained problems' difficulties, and of the rows' lengths, against those that are drawn."""
    by_difficulty = Counter(int(group.problem.prompt) for group in groups)
    drawn = [len(groups) / DIFFICULTIES] * DIFFICULTIES
    lengths = [len(row.token_ids) for group in groups for row in group.completions]
    sampler, rows = ScriptedLengths(), range(40_000)
    fresh = [sampler.length(i % DIFFICULTIES, 10**9 + i) for i in rows]
    edges = [0, *np.quantile(fresh, [0.2, 0.4, 0.6, 0.8, 0.9, 0.97]), LONGEST + 1]
    expected = np.histogram(fresh, edges)[0] / len(fresh) * len(lengths)
    return (
        chi_square_p([by_difficulty[d] for d in range(DIFFICULTIES)], drawn),
        chi_square_p(np.histogram(lengths, edges)[0].tolist(), expected.tolist()),
    )


@pytest.mark.parametrize("settings", [{}, {"max_versions": 3}, {"max_staleness": 2}], ids=["slices", "bound", "few"])
def test_trained_problems_and_lengths_are_distributed_as_drawn_ones(tmp_path, settings):
    """Of 20,000 rollouts, in which harder problems have longer rows: by chi-square, for each mode."""
    rollouts, groups = make_sliced(tmp_path, **settings), []
    for step in range(20_000 // (GROUP * PER_STEP)):
        groups += rollouts.take(step)
        rollouts.load_weights()
    assert sum(len(group.completions) for group in groups) == 20_000
    by_problem, by_length = p_values(groups)
    assert by_problem > 0.01
    assert by_length > 0.01


def test_the_simulator_has_the_schedule_of_the_trainer(tmp_path):
    """Log-normal lengths, which let groups overtake others: each group in the same step, cut at the same tokens."""
    rollouts = make_sliced(tmp_path)
    lengths: dict[str, list[int]] = {}
    versions = []
    for step in range(30):
        rows = [(group.problem.id, row) for group in rollouts.take(step) for row in group.completions]
        rollouts.load_weights()
        versions.append([[list(run) for run in row.versions] for _, row in rows])
        for name, row in rows:
            lengths.setdefault(name, []).append(len(row.token_ids))
    assert versions == replay(rollouts.worker.config, rollouts.worker.draws, lengths, 30)


def train_the_first(rollouts: SlicedRollouts, step: int) -> list[Group]:
    """A discard rule: of twice as many groups those that are whole first are trained, and the others are given up."""
    worker = rollouts.worker
    problems = [problem for of in (2 * step, 2 * step + 1) for problem in worker.draws.of_step(of)]
    pool = {step: [rollouts._enter(problem, 0) for problem in problems]}
    while sum(map(is_whole, pool[step])) < PER_STEP:
        pool = sample_slice(worker, pool, step, {})
    return [group for group in pool[step] if is_whole(group)][:PER_STEP]


def test_a_rule_that_drops_slow_groups_is_found_out(tmp_path):
    """It trains on fewer hard problems, and on shorter rows."""
    rollouts = make_sliced(tmp_path)
    groups = [group for step in range(100) for group in train_the_first(rollouts, step)]
    by_problem, by_length = p_values(groups)
    assert by_problem < 1e-6
    assert by_length < 1e-6


def test_drawing_a_dropped_problem_again_shortens_rows(tmp_path):
    """Why max_versions drops no row: groups that pass a bound of four slices, sampled anew, keep the problems' shares,
    but long rows become rarer, since a group without any is never sampled anew."""
    sampler, groups = ScriptedLengths(), []
    for number in range(5000):
        difficulty = number % DIFFICULTIES
        lengths = [sampler.length(difficulty, 100 * number + i) for i in range(GROUP)]
        if max(lengths) > 4 * 20:
            lengths = [sampler.length(difficulty, 100 * number + 50 + i) for i in range(GROUP)]
        rows = tuple(Completion("", (1,) * length) for length in lengths)
        groups.append(Group(Problem(str(number), str(difficulty)), (1,), rows))
    by_problem, by_length = p_values(groups)
    assert by_problem > 0.01
    assert by_length < 1e-6


# Gradients, by enumeration.


def behaviour(versions: Sequence[Tensor], batch: Batch) -> Tensor:
    """The logprobs (B, T) of rows whose first token the first version samples, the second the next, and so on."""
    places = (batch.scored.int().cumsum(-1) - 1).clamp(min=0, max=len(versions) - 1)
    return torch.stack(list(versions)).gather(0, places[None])[0] * batch.mask


@pytest.mark.parametrize(("lr", "enough"), [(1e-5, {"none", "token", "version", "sequence"}), (1e-4, {"sequence"})])
def test_corrected_partial_rollouts_have_the_gradient_of_the_present_policy(tmp_path, lr, enough):
    """All completions with their probabilities, a version for each token, three steps of training apart. After small
    steps the expected gradient is near that of the present policy in any case (cosine above .999), after larger ones
    with importance sequence alone. By version it is nearer than without, with fewer factors."""
    run = make_short_run(tmp_path, name="reinforce", kl_coef=0.0)
    policy, group = run.learner.policy, whole_group(run)
    batch = collate([group], [[1.0] * len(group.completions)], pad_id=policy.pad_id)
    torch.manual_seed(1)
    rewards = torch.rand(len(batch))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    versions = []
    for _ in range(4):
        now = token_logprobs(policy, batch.tokens, batch.mask)[0]
        versions.append(now.detach())
        rows = torch.multinomial((now * batch.mask).detach().sum(-1).exp(), 32, replacement=True)
        optimizer.zero_grad()
        (-(rewards - rewards.mean())[:, None] * now * batch.mask)[rows].sum(-1).mean().backward()
        if len(versions) < 4:
            optimizer.step()

    def expect_gradient(sampled: Tensor, importance: str) -> Tensor:
        """The gradient of the loss in expectation over rows that these logprobs (B, T) sampled."""
        probabilities = (sampled * batch.mask).sum(-1).exp()
        assert float(probabilities.sum()) == pytest.approx(1.0, abs=1e-4)
        advantages = probabilities * (rewards - (probabilities * rewards).sum())
        numbers = (batch.scored.int().cumsum(-1) - 1).clamp(min=0)
        rows = dataclasses.replace(batch, sampler_logprobs=sampled, advantages=advantages, versions=numbers)
        algo = dataclasses.replace(run.config.algo, normalize="constant", importance_cap=1e6)
        logprobs = token_logprobs(policy, batch.tokens, batch.mask)[0]
        return gradient(run, batch_loss(logprobs, rows, 1.0, importance=importance, **algo.loss_arguments())[0])

    present = expect_gradient(versions[3] * batch.mask, "none")
    cut = behaviour(versions[:3], batch)
    found = {kind: cosine(expect_gradient(cut, kind), present) for kind in ("none", "token", "version", "sequence")}
    assert {kind for kind, value in found.items() if value > 0.999} == enough
    assert found["sequence"] > 0.9999
    assert found["version"] > found["none"]


def test_a_batch_knows_the_version_of_each_token():
    """Replies and padding have that of the tokens before them; a batch without cut rows has none."""
    turns = (Turn("assistant", "a", 2), Turn("user", "b", 2), Turn("assistant", "c", 1))
    talk = Completion("c", (5, 6, 7, 8, 9), (-1.0,) * 5, turns=turns, versions=((3, 1), (6, 2)))
    plain = Completion("a", (5, 6), (-1.0,) * 2, versions=((4, 2),))
    group = Group(PROBLEMS[0], (1, 2), (talk, plain), (correct(), incorrect()))
    batch = collate([group], [[1.0, -1.0]], pad_id=0)
    assert batch.versions.tolist() == [[0, 0, 3, 6, 6, 6, 6], [0, 0, 4, 4, 4, 4, 4]]
    alone = dataclasses.replace(group, completions=(plain, plain))
    assert collate([alone], [[1.0, -1.0]], pad_id=0).versions is None


def test_tokens_are_corrected_by_default(tmp_path):
    """The torch sampler in float32, which needs no correction otherwise: cut rows are of older weights."""
    assert importance_kind(make_run(tmp_path).config) == "token"
    plain = dataclasses.replace(make_run(tmp_path).config, sampler=TorchSamplerConfig())
    assert importance_kind(plain) == "none"


def test_cut_groups_are_stored_to_the_last_bit(tmp_path):
    """Rows with their versions, groups of which nothing was sampled yet, and how often a problem came before."""
    rows = (Completion("", (3, 4), (-0.1, -0.25), "cut", versions=((4, 1), (5, 1))), Completion("a", (5,), (-0.5,)))
    groups = [Group(PROBLEMS[0], (1, 2), rows), Group(PROBLEMS[1], (1,), (), occurrence=2)]
    write_groups(tmp_path / AHEAD, {7: groups})
    assert read_groups(tmp_path / AHEAD, PROBLEMS) == {7: groups}


@pytest.mark.parametrize(
    ("rollout", "sampler", "algo", "reason"),
    [
        ({}, {"max_staleness": 1}, {}, "set sampler.max_staleness to 2 or more"),
        ({}, {"max_versions": 1}, {}, "max_versions 1 would sample every completion to its end"),
        ({"max_new_tokens": 16}, {}, {}, "no completion would be cut"),
        ({"resample_rounds": 1}, {}, {}, "rollout.resample_rounds 1: groups leave in the order"),
        ({}, {"slice_tokens": 0}, {}, "samples no batch ahead without sampler.slice_tokens"),
        ({}, {}, {"importance": "none"}, "set --algo.importance token"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(rollout, sampler, algo, reason):
    """At the start, with what to do."""
    config = Config(
        rollout=RolloutConfig(**{"max_new_tokens": 64, **rollout}),
        sampler=TorchSamplerConfig(**{"slice_tokens": 16, "max_staleness": 2, **sampler}),
        algo=AlgoConfig(**algo),
    )
    with pytest.raises(ValueError, match=reason):
        config.check()
