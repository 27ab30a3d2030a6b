"""The file of an evaluation's answers: what is held of them, their order, and files that were cut off."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.files.write import PARTIAL
from rlvr.served.evaluation import identical
from rlvr.training.evaluation.evaluate import Answers, read_answers, scan_answers, shorten_answer, summarize

STATUSES = ("correct", "incorrect", "partial", "no_answer", "error")


def row(rng: random.Random, problem: int, sample: int, **changes: Any) -> dict[str, Any]:
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
    return [row(rng, problem, sample) for problem in range(problems) for sample in range(samples)]


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
    whole = [row(rng, 0, i, completion=f"{i}" + "c" * 8000, **texts) for i in range(256)]
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


NO_ANSWERS = (b"[]", b"7", b'{"id": 3, "sample": 0}', b'{"id": "p", "sample": [1]}', b"{", b"null", b"\xff")


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
