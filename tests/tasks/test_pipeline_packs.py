"""The packs of the pipelines: what their demonstrations and rewards say."""

from __future__ import annotations

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import Problem, Verdict
from rlvr.verifiers import Runner

SUM = Problem("s", "347+585=", "932")
READABLE = "<think>7+5=12 4+8=12>13 3+5=08>09</think><answer>932</answer>"


@pytest.mark.parametrize(
    ("completion", "zero", "consistent", "both"),
    [
        (READABLE, 1.2, 1.7, 1.0),
        (READABLE.replace("7+5=12", "七+五=一二"), 1.2, 1.2 + 0.5 * 2 / 3, 0.0),
        (READABLE.replace("932", "832"), 0.2, 0.7, 0.0),
        ("7+5=12 4+8=12>13 3+5=08>09 \\boxed{932}", 1.0, 1.5, 0.0),
        ("<answer>932</answer>", 1.0, 1.5, 0.0),
    ],
)
def test_the_rewards_of_bilingual_sums(completion: str, zero: float, consistent: float, both: float) -> None:
    """Answer, tags and one kind of numerals; the status is that of the answer."""
    for reward, score in {"zero": zero, "consistent": consistent, "all": both}.items():
        verdict = Verdict.of(make_task("bilingual_sums", reward=reward, num_train=1).verifier(SUM, completion))
        assert verdict.score == pytest.approx(score), reward
        assert verdict.correct == ("932" in completion)


def test_demonstrations_of_bilingual_sums() -> None:
    """Readable ones are right in format and language; with nothing forgotten also in their answers."""
    readable = make_task("bilingual_sums", forget=0.0, mixing=0.0, untagged=0.0, reward="all", num_demonstrations=60)
    with Runner(readable.verifier, workers=1) as runner:
        assert all(verdict.score == 1 for verdict in runner.verify(list(readable.demonstrations)))
    mixed = [text for _, text in make_task("bilingual_sums", num_demonstrations=400).demonstrations]
    tagged = [text for text in mixed if text.startswith("<think>")]
    assert 0.4 < len(tagged) / len(mixed) < 0.6
    columns = [column for text in mixed for column in text.split("<answer>")[0].split()[:3]]
    chinese = [column for column in columns if any(c in "零一二三四五六七八九" for c in column)]
    assert 0.4 < len(chinese) / len(columns) < 0.6


def test_demonstrations_of_notes() -> None:
    """Half of the replies are right, a quarter is curt, a quarter has a wrong digit."""
    task = make_task("notes", num_demonstrations=400)
    right = [text == problem.reference for problem, text in task.demonstrations]
    assert 0.4 < sum(right) / len(right) < 0.6
    curt = [text.endswith(" noted.") for _, text in task.demonstrations]
    assert 0.17 < sum(curt) / len(curt) < 0.33
    assert all(problem.prompt == f"note {problem.reference.split()[0]}." for problem in task.train)
    assert not {p.prompt for p in task.train} & {p.prompt for p in task.test}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bilingual_sums", {"forget": 1.5}, "forget 1.5: expected a probability"),
        ("bilingual_sums", {"mixing": -0.1}, "mixing -0.1: expected a probability"),
        ("bilingual_sums", {"untagged": 2}, "untagged 2: expected a probability"),
        ("bilingual_sums", {"reward": "some"}, "some"),
        ("notes", {"sloppy": 7}, "sloppy 7: expected a probability"),
    ],
)
def test_bad_options(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(name, **options)
