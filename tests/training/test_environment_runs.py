"""Runs with an environment: fine-tuning, training, evaluation, records, resume."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import pytest

from rlvr.algo.batch import collate
from rlvr.config import Config, RolloutConfig
from rlvr.core.types import Problem, Reply, RunError, Sampling, Status, Task, Verdict, correct, error
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.tasks.base import build_task
from rlvr.training.checkpoint.checkpoint import read_groups, write_groups
from rlvr.training.evaluation.evaluate import evaluate
from rlvr.training.records import rollout_metrics
from rlvr.training.rollout.episodes import Play
from rlvr.training.rollout.rollout import verify, with_verdicts
from rlvr.training.sft.sft import demonstration_batch
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.runner.runner import VerifierErrors
from tests.helpers.files import lines
from tests.helpers.runs import AfterStep, tiny
from tests.helpers.turns import digits, played_groups, slow_digits


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


class Stopped(Exception):
    pass


def stop_after(step: int) -> AfterStep:
    def stop(done: int) -> None:
        if done == step:
            raise Stopped

    return AfterStep(stop)


def written(out_dir: Path) -> dict[str, bytes]:
    """What must be equal of two runs of three steps."""
    last = out_dir / "checkpoints" / "step-000003"
    files = [path for path in sorted(last.iterdir()) if path.suffix in (".safetensors", ".jsonl")]
    assert len(files) >= 2
    return {path.name: path.read_bytes() for path in (*files, out_dir / "rollouts.jsonl")}


def test_a_run_that_was_ended_goes_on_byte_for_byte(tmp_path: Path):
    """In the middle, with replies that come at other times."""
    for name, ends in (("whole", ()), ("parts", (1, 2))):
        config = settings(tmp_path / name)
        for end in ends:
            with pytest.raises(Stopped):
                launch(config, task=pack(slow_digits, demonstrations=demonstrations()), callbacks=[stop_after(end)])
        launch(config, task=pack(slow_digits, demonstrations=demonstrations()))
    whole, parts = written(tmp_path / "whole"), written(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert [name for name in whole if whole[name] != parts[name]] == []
    rows = [json.loads(line) for line in whole["rollouts.jsonl"].splitlines()]
    assert any(turn.get("void") for row in rows for turn in row["turns"])
    assert {len(row["turns"]) for row in rows} == {5}


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


def test_groups_are_read_as_they_were_written(tmp_path: Path):
    """With turns and verdicts of environments; durations are left out."""
    groups = played_groups(3, 20, void=True)
    judged = dataclasses.replace(groups[0].completions[0], verdict=Verdict("partial", 0.5, parts={"a": 1.0}))
    groups[0] = dataclasses.replace(groups[0], completions=(judged, *groups[0].completions[1:]))
    write_groups(tmp_path / "ahead", {4: groups})
    assert read_groups(tmp_path / "ahead", [group.problem for group in groups]) == {4: groups}


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
        parts = [part for _, part in batch.split(limit, shared_prompts=shared)]
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
    plan = Play(digits, RolloutConfig())
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


def short(problem, rng):
    yield
    return correct()


def broken(problem, rng):
    yield
    raise OSError("gone")


@pytest.mark.parametrize("environment, message", [(short, "ends after turn 1 of 3"), (broken, "OSError: gone")])
def test_a_demonstration_that_cannot_be_played_is_named(tmp_path: Path, environment, message: str):
    """In one line."""
    policy = load_policy(tiny(tmp_path).model, corpus=["0123456789-= "], seed=0)
    with pytest.raises(RunError, match=f"demonstration 'demo/0': .*{message}"):
        demonstration_batch(policy, demonstrations(1), Play(environment, RolloutConfig()))


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
    plan = Play(odd, RolloutConfig(max_turns=3, turn_tokens=4))
    task = pack(odd, verifier="exact")
    options = {"sampling": Sampling(12), "samples": 3, "ks": (1, 3), "answers_file": tmp_path / "answers", "plan": plan}
    with Runner(task.verifier) as runner:
        found = evaluate(policy, TorchSampler(policy), task.test, runner, runner, **options)
        again = evaluate(policy, TorchSampler(policy), task.test, runner, runner, **options)
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
