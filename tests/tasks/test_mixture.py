"""Mixtures: each problem keeps its verifier and environment; shares, draws and bad input."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlvr.commands.audit import null_checks
from rlvr.commands.eval import packs_table
from rlvr.commands.verifier_runners import open_runners
from rlvr.config import Config, CurriculumConfig, RolloutConfig
from rlvr.core.registry import make_task, register
from rlvr.core.types import PACK, Completion, Group, Problem, Task, Verdict
from rlvr.tasks.base import build_task
from rlvr.tasks.mixture import mix
from rlvr.training.evaluation.evaluate import summarize, verify_answers
from rlvr.training.problems.draws import Draws, further_mixed, known_orders, mixed_items
from rlvr.training.records import rollout_metrics
from rlvr.verifiers.runner import Runner
from tests.helpers.machine import processor_time


@register("tests/says_yes")
def says_yes(problem: Problem, completion: str) -> bool:
    """Whether the completion says yes."""
    return "yes" in completion


def pack(name: str, count: int, verifier: str = "math", held_out: int = 2) -> Task:
    problems = [Problem(f"{name}/{i}", f"{name} {i}?", str(i)) for i in range(count + held_out)]
    return build_task(name, train=problems[:count], test=problems[count:], verifier=verifier)


def test_each_problem_keeps_its_verifier() -> None:
    """Two verifiers that disagree on the same completion, through the Runner and by a plain call."""
    task = mix({"sums": (pack("sums", 3), 1.0), "words": (pack("words", 3, "tests/says_yes"), 1.0)})
    sums = next(p for p in task.train if p.info[PACK] == "sums" and p.reference == "1")
    words = next(p for p in task.train if p.info[PACK] == "words")
    pairs = [(sums, r"\boxed{1}"), (words, r"\boxed{1}"), (sums, "yes"), (words, "yes")]
    with Runner(task.verifier, workers=1) as runner:
        assert [verdict.correct for verdict in runner.verify(pairs)] == [True, False, False, True]
    assert [task.verifier(*pair).correct for pair in pairs] == [True, False, False, True]  # type: ignore[union-attr]
    stray = task.verifier(Problem("p", "?", "1"), "1")
    assert stray.score is None  # type: ignore[union-attr]


def test_combined_verifiers_and_alternating_problems() -> None:
    """A pack whose verifier has components of its own; the first held-out problems are of all packs."""
    graded = build_task(
        "graded",
        train=[Problem("g/0", "g 0?", "7")],
        test=[Problem("g/1", "g 1?", "8")],
        verifier="combine",
        verifier_options={"parts": ("math:1", "format:0")},
    )
    task = mix({"graded": (graded, 1.0), "sums": (pack("sums", 1), 3.0)})
    assert task.shares == {"graded": 0.25, "sums": 0.75}
    assert [p.info[PACK] for p in task.test] == ["graded", "sums", "sums"]
    with Runner(task.verifier, workers=1) as runner:
        right, wrong = runner.verify([(task.train[0], r"\boxed{7}"), (task.train[1], r"\boxed{7}")])
    assert right.correct
    assert "math" in right.parts
    assert (wrong.correct, wrong.parts) == (False, {})


def test_shares_of_the_draws() -> None:
    """2:1:1 over 64 draws of steps of any size; each pack in epochs of its own; a function of seed and step."""
    task = mix({"a": (pack("a", 10), 2.0), "b": (pack("b", 40), 1.0), "c": (pack("c", 7), 1.0)})
    for size in (1, 5, 16):
        steps = [mixed_items(task.train, task.shares, size, seed=3, step=step) for step in range(64 // size + 1)]
        drawn = [problem for step in steps for problem in step]
        counts = Counter(problem.info[PACK] for problem in drawn[:64])
        assert all(abs(counts[name] - 64 * share) <= 3 for name, share in task.shares.items())
        of_a = [problem.id for problem in drawn if problem.info[PACK] == "a"]
        for epoch in range(len(of_a) // 10):
            assert len(set(of_a[10 * epoch : 10 * epoch + 10])) == 10
        assert steps[-1] == mixed_items(task.train, task.shares, size, seed=3, step=len(steps) - 1)
    assert steps[0] != mixed_items(task.train, task.shares, 16, seed=4, step=0)


@pytest.mark.parametrize("sizes", [(200, 1000), (20, 50), (12, 9), (17, 33)], ids=str)
def test_a_step_has_no_problem_of_a_pack_twice(sizes: tuple[int, int]) -> None:
    """Where an epoch of a pack ends within a step too, unless the step has more draws of it than it has problems; each
    epoch still has every problem once; a function of (seed, step), drawn alone and in any order."""
    task = mix({"a": (pack("a", sizes[0]), 1.0), "b": (pack("b", sizes[1]), 1.0)})
    for seed in range(3):
        draw = partial(mixed_items, task.train, task.shares, 16, seed=seed)
        steps = [draw(step=step) for step in range(200)]
        for name, size in zip("ab", sizes):
            of_pack = [[problem.id for problem in step if problem.info[PACK] == name] for step in steps]
            assert all(len(set(ids)) == len(ids) for ids in of_pack if len(ids) <= size)
            drawn = [one for ids in of_pack for one in ids]
            epochs = [drawn[start : start + size] for start in range(0, len(drawn) - size + 1, size)]
            assert all(len(set(epoch)) == size for epoch in epochs)
        known_orders.cache_clear()
        assert [draw(step=step) for step in reversed(range(200))] == steps[::-1]
        known_orders.cache_clear()
        assert draw(step=151) == steps[151]


def test_late_steps_of_a_small_pack_are_quick() -> None:
    """Though their order depends on that of many epochs before: it is computed once."""
    task = mix({"a": (pack("a", 9), 1.0), "b": (pack("b", 50), 1.0)})
    with processor_time() as taken:
        for step in range(5000, 5200):
            mixed_items(task.train, task.shares, 16, seed=0, step=step)
    assert taken.seconds < 10


@pytest.mark.parametrize("sizes", [(3, 400), (40, 40), (400, 7)], ids=str)
def test_shares_of_the_draws_by_signal(sizes: tuple[int, int]) -> None:
    """However few problems a pack has; within it solved ones are rare, and no step has one twice needlessly."""
    task = mix({"a": (pack("a", sizes[0]), 3.0), "b": (pack("b", sizes[1]), 1.0)})
    sampling = RolloutConfig(problems_per_step=16, group_size=4)
    draws = Draws(Config(rollout=sampling, curriculum=CurriculumConfig(draw="signal")), task.train, task.shares)
    solved = [
        Group(p, (1,), (Completion("x", (1,)),), (Verdict("correct", 1.0),)) for p in task.train if int(p.reference) % 2
    ]  # type: ignore[arg-type]
    for _ in range(40):
        draws.observe(solved)
    steps = [draws.of_step(step) for step in range(12)]
    for step in range(1, 12):
        counts = Counter(p.info[PACK] for problems in steps[:step] for p in problems)
        assert abs(counts["a"] - 0.75 * 16 * step) <= 3
    assert steps[5] == draws.of_step(5)
    assert steps[5] != steps[6]
    easy, names = {group.problem.id for group in solved}, ("a", "b")
    for name, size in zip(names, sizes):
        drawn = [p.id for problems in steps for p in problems if p.info[PACK] == name]
        if size > 16:
            assert sum(one in easy for one in drawn) < len(drawn) / 3
            each = [[p.id for p in problems if p.info[PACK] == name] for problems in steps]
            assert all(len(set(ids)) == len(ids) for ids in each)


def test_rounds_of_dynamic_sampling() -> None:
    """By the shares, without what is used; what is left where a pack has no more."""
    task = mix({"a": (pack("a", 4), 1.0), "b": (pack("b", 30), 1.0)})
    used = {"a/0", "b/0"}
    found = further_mixed(task.train, task.shares, 12, seed=0, step=1, round_number=0, used=used)
    assert len({problem.id for problem in found}) == 12
    assert not used & {problem.id for problem in found}
    assert Counter(problem.info[PACK] for problem in found)["a"] == 3
    everything = further_mixed(task.train, task.shares, 99, seed=0, step=1, round_number=0, used=used)
    assert len(everything) == 32


def test_prompts_held_out_elsewhere_are_left_out() -> None:
    """A training problem of one pack that another evaluates on."""
    train = [Problem("x/0", "words 3?", "1"), Problem("x/1", "mine?", "1")]
    other = build_task("x", train=train, test=[])
    task = mix({"words": (pack("words", 3), 1.0), "x": (other, 1.0)})
    assert [p.id for p in task.train if p.info[PACK] == "x"] == ["x/1"]
    with pytest.raises(ValueError, match="every training problem of 'x' is held out"):
        mix({"words": (pack("words", 3), 1.0), "x": (build_task("x", train=train[:1], test=[]), 1.0)})


def test_environments_are_those_of_the_packs() -> None:
    """A problem of hops is played in turns, one of arithmetic is a single turn."""
    options = ["hops.num_train=5", "hops.num_test=3", "hops.num_demonstrations=4", "arithmetic.num_demonstrations=4"]
    task = make_task("mixture", packs=("hops", "arithmetic"), options=tuple(options))
    assert task.environment is not None
    played = {}
    for problem in task.train[:2]:
        turn = task.environment(problem, Random(0))
        assert next(turn) is None
        try:
            played[problem.info[PACK]] = turn.send("?a")
        except StopIteration as ended:
            played[problem.info[PACK]] = ended.value
    assert played["arithmetic"] is None
    assert played["hops"].text.isalpha()


def test_metrics_of_packs() -> None:
    """Rewards and lengths by pack; pass@k by pack; nothing of the kind for other tasks."""

    def group(name: str, scores: list[float]) -> Group:
        verdicts = tuple(Verdict("correct" if s else "incorrect", s) for s in scores)  # type: ignore[arg-type]
        completions = tuple(Completion("x", tuple(range(len(name)))) for _ in scores)
        return Group(Problem(name, "?", "1", {PACK: name}), (1,), completions, verdicts)

    groups = [group("a", [1.0, 0.0]), group("bcd", [1.0, 1.0]), group("a", [0.0, 0.0])]
    metrics = rollout_metrics(groups, [[0.5, -0.5], [0.0, 0.0], [0.0, 0.0]])
    assert (metrics["pack/a/reward"], metrics["pack/bcd/reward"]) == (0.25, 1.0)
    assert (metrics["pack/a/groups"], metrics["pack/bcd/completion_tokens"]) == (2.0, 3.0)
    rows = [
        {"id": f"{name}{i}", "sample": 0, "pack": name, "status": "correct", "score": s, "correct": bool(s),
         "finish_reason": "stop", "tokens": 1}
        for name, scores in (("a", [1.0, 0.0]), ("b", [1.0, 1.0]))
        for i, s in enumerate(scores)
    ]  # fmt: skip
    result = summarize(rows, (1,))
    assert {name: held["pass@1"] for name, held in result["packs"].items()} == {"a": 0.5, "b": 1.0}
    assert result["pass@1"] == 0.75
    assert "packs" not in summarize([{k: v for k, v in row.items() if k != "pack"} for row in rows], (1,))


def mixed_extractions() -> Task:
    """Packs whose verifier has two other modes of extraction, has one, and has none."""
    strict = [Problem(f"strict/{i}", f"strict {i}?", str(i)) for i in range(4)]
    options = {"extract": "strict"}
    sets = {
        "marked": pack("marked", 2),
        "strict": build_task("x", train=strict[:2], test=strict[2:], verifier="math", verifier_options=options),
        "words": pack("words", 2, "tests/says_yes"),
    }
    return mix({name: (task, 1.0) for name, task in sets.items()})


# To the two held-out problems of each pack, whose references are 2 and 3.
ANSWERS = {
    "marked": ["The answer is 2.", "it is 3"],
    "strict": [r"\boxed{2}", "The answer is 3."],
    "words": ["yes", "no"],
}


def answer_held_out(task: Task) -> list[dict[str, Any]]:
    """The answers of an evaluation on the held-out problems."""
    said = {name: iter(texts) for name, texts in ANSWERS.items()}
    played = [(problem, 0, Completion(next(said[str(problem.info[PACK])]), (1,))) for problem in task.test]
    with open_runners(task.verifier, workers=1, timeout=30) as runners:
        others = {name: runner for name, runner in runners.items() if name != "verifier"}
        return verify_answers(played, runners["verifier"], others)


def test_strict_and_lenient_extraction_of_a_mixture() -> None:
    """Each pack by the modes that its verifier has; in all a pack without a mode counts as it is configured."""
    rows = answer_held_out(mixed_extractions())
    held = {row["pack"]: {name for name in row if name.endswith("_correct")} for row in rows}
    both = {"lenient_correct", "strict_correct"}
    assert held == {"marked": both, "strict": {"lenient_correct"}, "words": set()}
    result = summarize(rows, (1,))
    expected = {"marked": (0.5, 0.0, 1.0), "strict": (0.5, None, 1.0), "words": (0.5, None, None)}
    for name, numbers in expected.items():
        found = result["packs"][name]
        assert tuple(found.get(f"{form}pass@1") for form in ("", "strict_", "lenient_")) == numbers
    assert [result[f"{form}pass@1"] for form in ("", "strict_", "lenient_")] == pytest.approx([3 / 6, 2 / 6, 5 / 6])
    table = packs_table(result, (1,))
    assert table is not None
    packs, _, forms, _ = (list(column.cells) for column in table.columns)
    assert packs == ["marked", "", "", "strict", "", "words"]
    configured = "as configured"
    assert forms == [configured, "strict", "lenient", configured, "lenient", configured]


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_pack_with_some_second_verdicts_has_none(threshold: float | None) -> None:
    """Answers of an earlier evaluation, without them: a number of half of a pack's answers would say nothing."""
    rows = answer_held_out(mixed_extractions())
    first = next(row for row in rows if row["pack"] == "marked")
    older = [{k: v for k, v in row.items() if not k.startswith("lenient_")} if row is first else row for row in rows]
    result = summarize(older, (1,), threshold)
    assert "lenient_pass@1" not in result
    assert "lenient_pass@1" not in result["packs"]["marked"]
    assert result["packs"]["strict"]["lenient_pass@1"] == 1
    assert "strict_pass@1" in result
    assert summarize(rows, (1,), threshold)["lenient_pass@1"] == pytest.approx(5 / 6)


def test_packs_without_modes_have_no_second_verdicts() -> None:
    """Nor has a mixture of them a row of its own."""
    task = mix({name: (pack(name, 2, "tests/says_yes"), 1.0) for name in ("a", "b")})
    with open_runners(task.verifier, workers=1, timeout=30) as runners:
        assert list(runners) == ["verifier"]


def test_a_mixture_in_a_mixture_is_refused() -> None:
    """Of tasks in Python, under an alias, and one that is only evaluated: its verifier would know none of the packs."""
    inner = mix({"a": (pack("a", 2), 1.0)})
    alone = mix({"a": (pack("a", 0), 1.0)})
    for nested in (inner, alone, replace(inner, verifier=says_yes)):
        with pytest.raises(ValueError, match="pack 'in': a mixture in a mixture; name its packs"):
            mix({"in": (nested, 1.0), "b": (pack("b", 2), 1.0)})
    with pytest.raises(ValueError, match="pack 'm': a mixture in a mixture"):
        make_task("mixture", packs=("m=mixture", "countdown"))


@pytest.mark.parametrize(
    "parts",
    [
        {"a": [Problem("b/1", "q1", "1")], "a/b": [Problem("1", "q2", "1")]},
        {"a": [Problem("a/1", "q1", "1"), Problem("1", "q2", "1")]},
        {"a": [Problem("b/c/1", "q1", "1")], "a/b": [Problem("c/1", "q2", "1")], "d": [Problem("1", "q3", "1")]},
    ],
    ids=["two packs", "one pack", "of three"],
)
def test_two_problems_with_one_id_are_refused(parts: dict[str, list[Problem]]) -> None:
    """They would be one in pass rates, rollouts and lists of problems to leave out."""
    tasks = {name: build_task(name, train=problems, test=[]) for name, problems in parts.items()}
    with pytest.raises(ValueError, match="two problems have the id 'a/"):
        mix({name: (task, 1.0) for name, task in tasks.items()})


@pytest.mark.parametrize("wrapped", ["alone", "mixed", "combined"])
def test_audit_runs_null_programs_in_every_wrapping(wrapped: str) -> None:
    """A pack whose tests a constant passes is found alone, in a mixture, and where its verifier is combined."""
    tests = {"type": "assert", "code": "assert f(1) == 0\nassert f(2) == 0"}
    combined = wrapped == "combined"
    task = build_task(
        "weak",
        train=[Problem("weak/0", "Return 0.", tests)],
        test=[],
        verifier="combine" if combined else "unit_tests",
        verifier_options={"parts": ("unit_tests",)} if combined else {},
        include_weak=True,
    )
    task = mix({"weak": (task, 1.0), "sums": (pack("sums", 1), 1.0)}) if wrapped == "mixed" else task
    with Runner(task.verifier, workers=1) as runner:
        weak, *_ = null_checks(task, {"train": task.train}, runner)
        assert not list(null_checks(task, {"train": task.train[1:]}, runner))
    assert (weak.checked, weak.failed) == (len(task.train), 1)
    assert "weak/0: weak, passed by a program that" in weak.examples[0]


def test_a_mixture_refuses_packs_that_announce_tools() -> None:
    """Their announcement would stand before the other packs' prompts."""

    class Tools:
        announcement = "You have tools."

        def __call__(self, problem, rng):  # type: ignore[no-untyped-def]
            yield None

    made = build_task("t", train=[Problem("t", "?", "1")], test=[], environment=Tools())
    with pytest.raises(ValueError, match="tells of tools"):
        mix({"t": (made, 1.0), "a": (pack("a", 2), 1.0)})
    with pytest.raises(ValueError, match="a mixture of no packs"):
        mix({})


def test_one_pack_twice_and_the_fingerprint(tmp_path: Path) -> None:
    """Under two names, from two files; weights, packs and seed are in the fingerprint."""
    for name, answer in (("one", "1"), ("two", "2")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "reference": answer}) + "\n")
    options = tuple(
        f"{name}.{key}" for name in ("one", "two") for key in (f"data={tmp_path}/{name}.jsonl", "test_share=0")
    )
    made = [
        make_task("mixture", packs=packs, options=options)
        for packs in (("one=jsonl", "two=jsonl"), ("one=jsonl", "two=jsonl"), ("one=jsonl:2", "two=jsonl"))
    ]
    assert [p.id for p in made[0].train] == ["one/0", "two/0"]
    assert made[0].fingerprint == made[1].fingerprint != made[2].fingerprint


def test_verifiers_that_are_not_the_packs_own() -> None:
    """One pack keeps its verifier, the other gets one with options; the fingerprint tells the difference."""
    own = {"packs": ("notes", "sums=arithmetic"), "options": ("sums.num_train=4", "notes.num_train=4")}
    plain = make_task("mixture", **own)
    chosen = ("notes.pattern=noted", "notes.match=search")
    other = make_task("mixture", **own, verifiers=("notes=regex",), verifier_options=chosen)
    note = next(problem for problem in other.train if problem.info[PACK] == "notes")
    total = next(problem for problem in other.train if problem.info[PACK] == "sums")
    assert not Verdict.of(plain.verifier(note, "it is noted")).correct
    assert Verdict.of(other.verifier(note, "it is noted")).correct
    assert Verdict.of(other.verifier(total, f"\\boxed{{{total.reference}}}")).correct
    assert plain.fingerprint != other.fingerprint
    assert [p.id for p in plain.train] == [p.id for p in other.train]
