"""pass@k of a policy: the numbers, the seeds, what is resumed, and the file of answers."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rlvr.config import ModelConfig
from rlvr.core.files.write import PARTIAL
from rlvr.core.types import (
    Completion,
    Problem,
    Sampler,
    Sampling,
    Verdict,
    bad_reference,
    correct,
    incorrect,
    no_answer,
)
from rlvr.model.load.policy import Policy, load_policy
from rlvr.runs.records import is_graded
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.served.evaluation import identical
from rlvr.training.evaluation.answers import Answers, read_answers, scan_answers, shorten_answer
from rlvr.training.evaluation.evaluate import evaluate, summarize
from rlvr.training.evaluation.passk import estimate_mean

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=", str(2 * i)) for i in range(6)]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(device="cpu"), corpus=["0123456789+=ab"], seed=0)


@dataclass
class Judge:
    """A batch verifier: right where the digit sum of the completion is even. Keeps the pairs that it was given."""

    divisor: int = 2
    seen: list[tuple[str, str]] = field(default_factory=list)

    def verify(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        self.seen += [(problem.id, text) for problem, text in pairs]
        sums = [sum(int(c) for c in text if c.isdigit()) for _, text in pairs]
        return [correct() if total % self.divisor == 0 else incorrect("odd") for total in sums]


class Grade:
    """A batch verifier that never says right: the last digit of the digit sum, in tenths."""

    def verify(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        return [Verdict.of(sum(int(c) for c in text if c.isdigit()) % 10 / 10) for _, text in pairs]


@dataclass
class Counting(Sampler):
    """The sampler inside, counting the completions asked for; stops as a crash would after `crash_after` calls."""

    inner: Sampler
    drawn: int = 0
    calls: int = 0
    crash_after: int = 10**9

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seeds: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        self.calls += 1
        if self.calls > self.crash_after:
            raise KeyboardInterrupt
        self.drawn += sum(map(len, seeds))
        return self.inner.generate(prompts, sampling, seeds)

    def load_weights(self, policy: Any) -> None:
        self.inner.load_weights(policy)


def run(policy: Policy, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"sampling": Sampling(max_new_tokens=6), "samples": 4, "ks": (1, 4), "seed": 3}
    settings |= changes
    sampler = settings.pop("sampler", None) or TorchSampler(policy)
    problems = settings.pop("problems", PROBLEMS)
    return evaluate(policy, sampler, problems, settings.pop("verifier", Judge()), **settings)


def row(problem: str, sample: int, verdict: Verdict, **more: Any) -> dict[str, Any]:
    shown = {"status": str(verdict.status), "score": verdict.score, "correct": verdict.correct}
    return {"id": problem, "sample": sample, **shown, "finish_reason": "stop", "tokens": 3, **more}


def test_numbers_agree_with_the_answers(policy: Policy, tmp_path: Path) -> None:
    """pass@1 is the share of right answers in the file, which has a line for every problem and sample."""
    file = tmp_path / "answers.jsonl"
    result = run(policy, answers_file=file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["id"], line["sample"]) for line in lines] == [(p.id, i) for p in PROBLEMS for i in range(4)]
    assert result["pass@1"] == pytest.approx(sum(line["correct"] for line in lines) / 24)
    solved = {line["id"] for line in lines if line["correct"]}
    assert result["pass@4"] == pytest.approx(len(solved) / 6)
    assert 0 < result["pass@1"] < 1
    assert (result["num_problems"], result["num_samples"]) == (6, 24)
    assert result["truncated"] == sum(line["finish_reason"] == "length" for line in lines) / 24
    assert result["completion_tokens"] == sum(line["tokens"] for line in lines) / 24
    assert result["status"]["correct"] + result["status"]["incorrect"] == 24
    low, high = result["pass@1_ci"]
    assert 0 <= low < result["pass@1"] < high <= 1
    assert json.loads(json.dumps(result)) == result


def test_a_sample_depends_on_seed_problem_and_index_alone(policy: Policy, tmp_path: Path) -> None:
    """Fewer problems, other chunks and fewer samples give the same completions; another seed gives others."""
    files = [tmp_path / f"{i}.jsonl" for i in range(3)]
    run(policy, answers_file=files[0])
    run(policy, answers_file=files[1], problems=PROBLEMS[3:5], samples=2, ks=(1,), answers_at_once=2)
    run(policy, answers_file=files[2], seed=4)
    whole, part, other = ({key: line["completion"] for key, line in read_answers(file).items()} for file in files)
    assert part == {key: text for key, text in whole.items() if key in part}
    assert len(part) == 4
    assert sum(whole[key] != other[key] for key in whole) > 20


def test_interrupted_evaluation_goes_on(policy: Policy, tmp_path: Path) -> None:
    """After a crash, with half a line left behind, only missing samples are drawn, and the result is equal."""
    file = tmp_path / "answers.jsonl"
    first = Counting(TorchSampler(policy), crash_after=1)
    with pytest.raises(KeyboardInterrupt):
        run(policy, sampler=first, answers_file=file, answers_at_once=8)
    with file.open("a") as end:
        end.write('{"id": "p2", "sam')
    second = Counting(TorchSampler(policy))
    assert run(policy, sampler=second, answers_file=file, answers_at_once=8) == run(policy)
    assert (first.drawn, second.drawn) == (8, 16)
    third = Counting(TorchSampler(policy))
    assert run(policy, sampler=third, answers_file=file, samples=5)["num_samples"] == 30
    assert third.drawn == 6


def test_answers_beyond_what_is_asked_do_not_count(policy: Policy, tmp_path: Path) -> None:
    """A file with more problems and samples than are asked for gives the numbers of those asked for."""
    file = tmp_path / "answers.jsonl"
    run(policy, answers_file=file)
    assert run(policy, answers_file=file, problems=PROBLEMS[:2], samples=2, ks=(1,)) == run(
        policy, problems=PROBLEMS[:2], samples=2, ks=(1,)
    )


def test_lenient_and_strict_stand_beside(policy: Policy, tmp_path: Path) -> None:
    """Each second verifier judges the very same completions, and has its own pass@k and interval."""
    judge, lenient, strict = Judge(), Judge(divisor=1), Judge(divisor=4)
    file = tmp_path / "answers.jsonl"
    result = run(policy, verifier=judge, lenient=lenient, strict=strict, answers_file=file)
    assert judge.seen == lenient.seen == strict.seen
    assert result["lenient_pass@1"] == 1.0
    assert result["strict_pass@1"] < result["pass@1"] < 1.0
    assert "strict_pass@4_ci" in result
    assert json.loads(file.read_text().splitlines()[0])["lenient_status"] == "correct"


def test_unscored_verdicts_are_no_samples() -> None:
    """Two errors in four leave n = 2; a problem with errors alone is counted apart, and never as wrong."""
    rows = [
        row("a", 0, correct()),
        row("a", 1, incorrect()),
        row("a", 2, bad_reference("x")),
        row("a", 3, bad_reference("x")),
    ]
    rows += [row("b", i, bad_reference("x")) for i in range(4)]
    rows += [row("c", i, no_answer()) for i in range(4)]
    result = summarize(rows, [1, 2, 4])
    assert result["pass@1"] == pytest.approx((0.5 + 0) / 2)
    assert result["pass@2"] == pytest.approx((1.0 + 0) / 2)
    assert result["pass@4"] == 0.0
    assert (result["unscored"], result["unscored_problems"], result["num_problems"]) == (6, 1, 3)
    assert result["status"] == {"bad_reference": 6, "no_answer": 4, "correct": 1, "incorrect": 1}


def graded_rows(*scores: list[float]) -> list[dict[str, Any]]:
    """Answers with these scores, a list for each problem."""
    return [
        row(f"p{p}", i, Verdict.of(score), lenient_correct=True, lenient_score=score + 0.5)
        for p, problem in enumerate(scores)
        for i, score in enumerate(problem)
    ]


def test_a_graded_verifier_has_a_score() -> None:
    """Scores .9 and .5 of one problem, .7 twice of another: pass@1 0, score .7, its interval that of .7 and .7."""
    result = summarize(graded_rows([0.9, 0.5], [0.7, 0.7], [0.1, 0.3]), [1])
    assert result["pass@1"] == 0.0
    assert result["score"] == pytest.approx((0.7 + 0.7 + 0.2) / 3)
    estimate = estimate_mean([0.7, 0.7, 0.2])
    assert result["score_ci"] == pytest.approx([estimate.low, estimate.high])
    assert "threshold" not in result


def test_a_threshold_says_what_is_right() -> None:
    """At .7: one of two, two of two, none; the second extraction is held to it by its own scores."""
    result = summarize(graded_rows([0.9, 0.5], [0.7, 0.7], [0.1, 0.3]), [1, 2], threshold=0.7)
    assert result["pass@1"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert result["pass@2"] == pytest.approx(2 / 3)
    assert result["pass^2"] == pytest.approx(1 / 3)
    assert result["lenient_pass@1"] == pytest.approx((1 + 1 + 0.5) / 3)
    assert result["threshold"] == 0.7
    assert result["status"] == {"partial": 6}


def test_scores_of_a_reward_model_are_not_cut_to_0_and_1() -> None:
    """Scores -3, 0 and 6: mean 1, and the t interval, from far below 0 to far above 1."""
    result = summarize(graded_rows([-3.0], [0.0], [6.0]), [1])
    assert result["score"] == 1.0
    assert result["score_ci"] == pytest.approx([1 - 4.302653 * 7**0.5, 1 + 4.302653 * 7**0.5], abs=1e-4)
    assert summarize(graded_rows([3.0], [3.0]), [1])["score_ci"] is None


def test_the_score_of_right_and_wrong_is_pass_at_1(policy: Policy) -> None:
    """A verifier that only says right or wrong has one number, with one interval."""
    result = run(policy)
    assert result["score"] == pytest.approx(result["pass@1"])
    assert result["score_ci"] == pytest.approx(result["pass@1_ci"])
    assert not is_graded([result])


def test_a_threshold_may_be_named_later(policy: Policy, tmp_path: Path) -> None:
    """It changes no answer: with the same file nothing is drawn again, and pass@1 is of the scores."""
    file = tmp_path / "answers.jsonl"
    assert run(policy, verifier=Grade(), answers_file=file)["pass@1"] == 0.0
    again = Counting(TorchSampler(policy))
    result = run(policy, verifier=Grade(), answers_file=file, sampler=again, threshold=0.5)
    assert again.drawn == 0
    scores = [line["score"] for line in map(json.loads, file.read_text().splitlines())]
    assert result["pass@1"] == pytest.approx(sum(score >= 0.5 for score in scores) / len(scores))
    assert 0 < result["pass@1"] < 1


def test_nothing_scored_is_an_error() -> None:
    """Where every verdict is the verifier's own failure there is no number to give."""
    with pytest.raises(ValueError, match="4 bad_reference"):
        summarize([row("a", i, bad_reference("x")) for i in range(4)], [1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ks": (1, 8)}, "pass@8 from 4 samples"),
        ({"ks": ()}, "no k"),
        ({"problems": []}, "no problems"),
        ({"problems": [PROBLEMS[0], PROBLEMS[0]]}, "several problems have the id 'p0'"),
    ],
)
def test_what_cannot_be_evaluated(policy: Policy, changes: dict[str, Any], message: str) -> None:
    """k above n, no problems, or repeated ids are refused before anything is drawn."""
    with pytest.raises(ValueError, match=message):
        run(policy, **changes)


def test_progress_counts_problems(policy: Policy) -> None:
    """The callback hears the number of problems done after each chunk."""
    heard: list[int] = []
    run(policy, answers_at_once=8, progress=heard.append)
    assert heard == [2, 4, 6]


def test_greedy_samples_are_alike(policy: Policy, tmp_path: Path) -> None:
    """At temperature 0 the samples of a problem are one completion, whatever their seeds."""
    file = tmp_path / "answers.jsonl"
    run(policy, answers_file=file, sampling=Sampling(max_new_tokens=6, temperature=0.0))
    texts: dict[str, set[str]] = {}
    for (problem, _), line in read_answers(file).items():
        texts.setdefault(problem, set()).add(line["completion"])
    assert all(len(found) == 1 for found in texts.values())


STATUSES = ("correct", "incorrect", "partial", "no_answer", "error")


def answer_row(rng: random.Random, problem: int, sample: int, **changes: Any) -> dict[str, Any]:
    """An answer as evaluations write it; texts that differ at their end, or in white space."""
    status = rng.choice(STATUSES)
    score = {"correct": 1.0, "partial": rng.choice([0.25, 0.5]), "error": None}.get(status, 0.0)
    text = rng.choice(["", "short", "the same long text, whatever it says, ", "  \n"]) + rng.choice(
        ["1", "2", " 2", "é"]
    )
    return {
        "id": f"p{problem}",
        "sample": sample,
        "pack": "ab"[problem % 2],
        "completion": text,
        "status": status,
        "score": score,
        "correct": status == "correct",
        "reason": "why" * rng.randrange(3),
        "extracted": rng.choice([None, "1", "2 ", "2", "a long answer that several of the samples give, number 3"]),
        "lenient_status": status,
        "lenient_correct": rng.random() < 0.5,
        "lenient_score": float(rng.random() < 0.5),
        "selector_score": rng.choice([None, 0.5, 1.5]),
        "finish_reason": rng.choice(["stop", "length"]),
        "tokens": rng.randrange(9),
        "turns": [{"role": "assistant", "text": text}],
        **changes,
    }


def rows_of(seed: int, problems: int = 8, samples: int = 6) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [answer_row(rng, problem, sample) for problem in range(problems) for sample in range(samples)]


@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_short_forms_give_the_numbers_of_whole_answers(seed: int, threshold: float | None) -> None:
    """pass@k, maj@k, best@k, lenient, scores, packs, and samples that are identical."""
    whole = rows_of(seed)
    brief = [shorten_answer(answer) for answer in whole]
    assert summarize(brief, (1, 2, 3), threshold) == summarize(whole, (1, 2, 3), threshold)
    assert identical(brief) == identical(whole)
    same = [{**answer, "completion": whole[0]["completion"] * 9} for answer in whole[:12]]
    assert identical(map(shorten_answer, same)) == identical(same) == 1


def test_long_texts_are_not_held(tmp_path: Path) -> None:
    """4 MB of completions, reasons and turns, added and read again: a tenth of them is held."""
    rng = random.Random(0)
    texts = {"reason": "r" * 4000, "extracted": "e" * 4000}
    whole = [answer_row(rng, 0, i, completion=f"{i}" + "c" * 8000, **texts) for i in range(256)]
    path = tmp_path / "answers.jsonl"
    Answers(path).add(whole)
    size = path.stat().st_size
    assert size > 4e6
    tracemalloc.start()
    held = Answers(path)
    used, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(held.held) == 256
    assert used < size / 10
    assert most < size / 2


def test_the_order_of_the_file(tmp_path: Path) -> None:
    """The keys asked for, then others as they came; of a key that is there twice the last line, byte for byte."""
    path = tmp_path / "answers.jsonl"
    whole = [{**answer, "completion": answer["completion"] + "ü\u2028"} for answer in rows_of(1, 4, 3)]
    mixed = random.Random(2).sample(whole, len(whole))
    again = {**mixed[0], "completion": "again"}
    answers = Answers(path)
    for place in range(0, len(mixed), 5):
        answers.add(mixed[place : place + 5])
    answers.add([again])
    keys = [(f"p{problem}", i) for problem in (2, 0) for i in range(3)]
    by_key = {(answer["id"], answer["sample"]): answer for answer in [*mixed, again]}
    answers.order(keys)
    expected = [by_key[key] for key in [*keys, *(key for key in by_key if key not in keys)]]
    assert path.read_text() == "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in expected)
    assert list(read_answers(path).values()) == expected
    assert not path.with_name(path.name + PARTIAL).exists()
    before = path.read_bytes()
    Answers(path).order(keys)
    assert path.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_line_that_was_cut_off_is_removed(tmp_path: Path, cut: int) -> None:
    """Wherever a crash cut it, within a character too; the answers before it stay."""
    path = tmp_path / "answers.jsonl"
    whole = rows_of(3, 1, 3)
    whole = [{**answer, "completion": "é" * 9, "reason": "é"} for answer in whole]
    Answers(path).add(whole)
    complete = path.read_bytes()
    path.write_bytes(complete + complete[: complete.index(b"\n")][: -cut or None])
    assert list(Answers(path).held) == [("p0", 0), ("p0", 1), ("p0", 2)]
    assert path.read_bytes() == complete


NO_ANSWERS = (
    b'{"question": 1}',
    b"[]",
    b"7",
    b'{"id": 3, "sample": 0}',
    b'{"id": "p", "sample": [1]}',
    b"{",
    b"null",
    b"\xff",
)


@pytest.mark.parametrize("line", NO_ANSWERS)
def test_lines_that_are_no_answers_are_named(tmp_path: Path, line: bytes) -> None:
    """By file and number."""
    path = tmp_path / "answers.jsonl"
    Answers(path).add(rows_of(4, 1, 2))
    with path.open("ab") as file:
        file.write(line + b"\n")
    for read in (read_answers, Answers, lambda file: list(scan_answers(file))):
        with pytest.raises(ValueError, match=r"answers\.jsonl, line 3: not an answer"):
            read(path)


def test_answers_without_a_verdict_are_refused(tmp_path: Path) -> None:
    """The line names problem, sample and what is missing."""
    path = tmp_path / "answers.jsonl"
    path.write_text('{"id": "p", "sample": 4, "status": "correct"}\n')
    with pytest.raises(ValueError, match=r"answers\.jsonl: sample 4 of 'p' has no field 'score'"):
        Answers(path)
