"""Dynamic sampling: what is trained on is kept, and everything that was sampled is logged, watched and stored."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from rlvr.commands.console import Display, describe_step
from rlvr.commands.report.page import write_report
from rlvr.config import (
    AlgoConfig,
    Config,
    ModelConfig,
    MonitorConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    TorchSamplerConfig,
    VLLMConfig,
)
from rlvr.model.logprobs.critic import Critic
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import AHEAD, load_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.monitor.monitor import Monitor
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from rlvr.verifiers.runner import Runner
from tests.helpers.files import lines
from tests.helpers.models import OwnWeights
from tests.helpers.runs import build_run
from tests.helpers.verifiers import has_seven, odd_digits_or_easy


def make_run(
    out_dir: Path,
    *,
    verifier=odd_digits_or_easy,
    steps: int = 2,
    monitor: bool = False,
    shuffle: bool = False,
    max_staleness: int = 0,
    **rollout,
) -> Run:
    """A run of a random tiny model in float32 on the CPU, with two rounds of dynamic sampling."""
    settings = {"problems_per_step": 6, "group_size": 4, "max_new_tokens": 12, "resample_rounds": 2, **rollout}
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0, shuffle_rewards=shuffle),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(**settings),
        optim=OptimConfig(lr=1e-3),
        monitor=MonitorConfig("has_seven", window=2),
        sampler=VLLMConfig(mismatch_alarm=10.0, max_staleness=max_staleness)
        if max_staleness
        else TorchSamplerConfig(mismatch_alarm=10.0),
    )
    run = build_run(config, Runner(verifier), sampler=OwnWeights if max_staleness else TorchSampler)
    if monitor:
        run.worker.monitor = Monitor(Runner(has_seven), config.monitor)
    return run


def test_all_that_was_sampled_is_handed_on(tmp_path):
    """The groups of every round are there; kept are the first P whose rewards differ."""
    groups = collect(make_run(tmp_path).worker, 0)
    informative = [len({verdict.score for verdict in group.verdicts}) > 1 for group in groups]
    assert sum(informative) >= 6
    assert len(groups) > 6
    first = [place for place, holds in enumerate(informative) if holds][:6]
    assert [place for place, group in enumerate(groups) if group.kept] == first
    assert [group.round for group in groups] == sorted(group.round for group in groups)
    assert [group.round for group in groups[:7]] == [0] * 6 + [1]


def test_without_a_group_that_teaches_the_first_are_kept(tmp_path):
    """Nothing is right: all rounds are drawn, and the step has its P groups all the same."""
    groups = collect(make_run(tmp_path, verifier=lambda problem, text: False).worker, 0)
    assert [group.kept for group in groups] == [True] * 6 + [False] * 12


def test_metrics_describe_all_that_was_sampled(tmp_path):
    """Reward, right ones, lengths, statuses and groups without signal are those of every rollout in rollouts.jsonl."""
    run = make_run(tmp_path)
    train(run)
    rows = run.reporter.log.read("rollouts")
    for metrics in run.reporter.log.read("metrics"):
        here = [row for row in rows if row["step"] == metrics["step"]]
        kept = [row for row in here if row["kept"]]
        assert len(kept) == 24 < len(here)
        assert metrics["reward"] == metrics["correct"] == pytest.approx(mean(row["score"] for row in here))
        assert metrics["reward"] != pytest.approx(mean(row["score"] for row in kept))
        assert metrics["completion_tokens"] == pytest.approx(mean(row["tokens"] for row in here))
        assert metrics["rollout_tokens"] == sum(row["tokens"] for row in here)
        assert metrics["status/correct"] == pytest.approx(mean(row["status"] == "correct" for row in here))
        assert metrics["truncated"] == pytest.approx(mean(row["finish_reason"] == "length" for row in here))
        scores = {row["problem"]: {r["score"] for r in here if r["problem"] == row["problem"]} for row in here}
        assert metrics["no_signal"] == pytest.approx(mean(len(values) == 1 for values in scores.values()))
        assert metrics["groups_sampled"] == len(scores) == len(here) / 4
        assert metrics["groups_kept"] == 6
        assert metrics["resample_rounds"] == max(row["round"] for row in here) > 0


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def test_what_is_dropped_is_marked_and_has_no_advantage(tmp_path):
    """Its verdict and its reward are there; what is trained on has an advantage."""
    run = make_run(tmp_path, truncated="penalize", overlong_buffer=4)
    train(run)
    rows = run.reporter.log.read("rollouts")
    assert {row["kept"] for row in rows} == {True, False}
    for row in rows:
        assert (row["advantage"] is None) == (not row["kept"])
        assert row["status"]
        assert row["reward"] == pytest.approx(row["score"] - max(row["tokens"] - 8, 0) / 4)


def test_with_a_critic_every_kept_group_teaches(tmp_path):
    """Without signal are the dropped groups whose rewards do not differ, and none of the kept ones."""
    run = make_run(tmp_path, steps=1)
    run.config = dataclasses.replace(run.config, algo=AlgoConfig("ppo"))
    run.learner.critic = Critic(run.learner.policy, run.config.critic, run.config.optim)
    train(run)
    rows, (metrics,) = run.reporter.log.read("rollouts"), run.reporter.log.read("metrics")
    dropped = [{r["score"] for r in rows[i : i + 4]} for i in range(0, len(rows), 4) if not rows[i]["kept"]]
    assert metrics["no_signal"] == sum(len(scores) == 1 for scores in dropped) / (len(rows) / 4) > 0


def test_only_the_kept_groups_are_trained_on(tmp_path):
    """Trained tokens are those of the kept groups."""
    run = make_run(tmp_path)
    train(run)
    rows = run.reporter.log.read("rollouts")
    for metrics in run.reporter.log.read("metrics"):
        kept = [row for row in rows if row["step"] == metrics["step"] and row["kept"]]
        assert metrics["trained_tokens"] == sum(row["tokens"] for row in kept)


def test_without_dynamic_sampling_no_line_changes(tmp_path):
    """Neither mark nor round, and no count of groups."""
    run = make_run(tmp_path, resample_rounds=0)
    train(run)
    assert all({"kept", "round"}.isdisjoint(row) for row in run.reporter.log.read("rollouts"))
    names = {"groups_sampled", "groups_kept", "resample_rounds"}
    assert all(names.isdisjoint(row) for row in run.reporter.log.read("metrics"))


def test_the_monitor_judges_all_that_was_sampled(tmp_path):
    """Every line has the monitor's verdict, and its means are over all of them."""
    run = make_run(tmp_path, monitor=True)
    train(run)
    rows = run.reporter.log.read("rollouts")
    for metrics in run.reporter.log.read("metrics"):
        here = [row for row in rows if row["step"] == metrics["step"]]
        assert any(not row["kept"] for row in here)
        assert metrics["monitor/score"] == pytest.approx(mean(row["monitor_score"] for row in here))
        assert metrics["monitor/proxy"] == pytest.approx(mean(row["score"] for row in here))
        assert all(row["monitor_score"] == ("7" in row["completion"]) for row in here)


@pytest.mark.parametrize("shuffle", [False, True])
def test_resumed_run_with_batches_ahead_equals_an_uninterrupted_one(tmp_path, shuffle):
    """Dropped groups are in the checkpoint's batches ahead too: the same logs, weights and checkpoint to the byte.

    With shuffled rewards, so are the verifier's own verdicts.
    """
    settings = {"max_staleness": 1, "shuffle": shuffle, "monitor": True}
    whole = make_run(tmp_path / "whole", **settings, steps=4)
    train(whole)
    train(make_run(tmp_path / "parts", **settings, steps=2))
    again = make_run(tmp_path / "parts", **settings, steps=4)
    state = load_checkpoint(checkpoint_folder(tmp_path / "parts", 2), again.learner.policy, again.learner.optimizer)
    again.reporter.log.truncate_to(state["log"], 2)
    again.worker.sampler = OwnWeights(again.learner.policy)
    again.worker.monitor.rows.extend(again.reporter.log.read("metrics"))
    train(again, 2)
    ahead = lines(checkpoint_folder(tmp_path / "whole", 4) / AHEAD)
    assert shuffle or {record["kept"] for record in ahead} == {True, False}
    assert all(bool(record["own_verdicts"]) == shuffle for record in ahead)
    names = ["rollouts.jsonl", *(f"checkpoints/step-000004/{name}" for name in (AHEAD, "model.safetensors"))]
    for name in names:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes(), name
    without_times = [
        [{k: v for k, v in row.items() if "second" not in k} for row in run.reporter.log.read("metrics")]
        for run in (whole, again)
    ]
    assert without_times[0] == without_times[1]
    for one, other in zip(whole.learner.policy.parameters(), again.learner.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_reads_rollouts_shows_the_mark(tmp_path, capsys):
    """Report and console name what was not trained on; the line of a step counts the groups."""
    run = make_run(tmp_path, steps=1)
    train(run)
    assert "not trained on (dropped by dynamic sampling)" in write_report(tmp_path).read_text()
    rows = run.reporter.log.read("rollouts")
    display = Display()
    display.sample(next(row for row in rows if not row["kept"]))
    assert "not trained on" in capsys.readouterr().out
    display.sample(next(row for row in rows if row["kept"]))
    assert ", advantage " in capsys.readouterr().out
    groups = {row["problem"] for row in rows}
    assert f"kept 6/{len(groups)}  " in describe_step(run.reporter.log.read("metrics")[0])


def test_the_error_budget_and_the_control_see_all(tmp_path):
    """The shuffled control permutes verdicts over what was sampled, and only informative groups are kept of it."""
    run = make_run(tmp_path)
    run.config = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, shuffle_rewards=True))
    groups = collect(run.worker, 0)
    kept = [group for group in groups if group.kept]
    assert 0 < len(kept) <= 6
    assert all(len({verdict.score for verdict in group.verdicts}) > 1 for group in kept)


def test_the_cost_of_the_kl_divergence_is_logged_beside_the_reward(tmp_path):
    """The reward of a line is that of the task, so that the metrics' mean is theirs; the KL cost has a field."""
    run = make_run(tmp_path)
    run.config = dataclasses.replace(run.config, algo=AlgoConfig(kl_coef=0.1, kl_in="reward"))
    run.learner.reference = run.learner.policy.reference()
    train(run)
    rows = run.reporter.log.read("rollouts")
    assert all((row["kl_cost"] is None) != row["kept"] for row in rows)
    for metrics in run.reporter.log.read("metrics"):
        here = [row for row in rows if row["step"] == metrics["step"]]
        assert metrics["reward"] == pytest.approx(mean(row["reward"] for row in here))
    later = [row for row in rows if row["step"] > 1 and row["kept"]]
    assert any(row["kl_cost"] for row in later)
