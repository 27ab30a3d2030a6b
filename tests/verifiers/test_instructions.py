"""The verifier `instructions`: the checks of IFEval and IFBench; golden/verdicts.jsonl has responses for each."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers.instructions import CHECKS, ifbench, ifeval, read_instructions
from rlvr.verifiers.instructions.english import count_syllables, sentences, tokens
from rlvr.verifiers.instructions.ifeval import count_sentences
from tests.helpers.files import GOLDEN, lines
from tests.helpers.machine import processor_time


def verdict(reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier("instructions", **options)(Problem("1", "", reference), completion)


def one(name: str, completion: str, **parameters: object) -> Verdict:
    return verdict([{"id": name, **parameters}], completion)


def read(reference: Any) -> list[tuple[str, dict[str, Any]]]:
    """The checks of a row's reference; none of one that cannot be used."""
    try:
        return read_instructions(reference)
    except ValueError:
        return []


ROWS = [row for row in lines(GOLDEN / "verdicts.jsonl") if row["verifier"] == "instructions"]
STATUSES: dict[str, set[str]] = {}
CASES: dict[str, dict[str, Any]] = {}  # the last parameters of each check
for _row in ROWS:
    for _name, _given in read(_row["reference"]):
        CASES[_name] = _given
        STATUSES.setdefault(_name, set()).add(_row["status"])


def test_each_check_has_good_and_bad_responses() -> None:
    """All 83 are there, and each but the language has responses that follow it and that nearly do."""
    assert (len(ifeval.CHECKS), len(ifbench.CHECKS)) == (25, 58)
    assert set(CASES) == set(CHECKS) - {"language:response_language"}
    assert [name for name in CASES if not STATUSES[name] >= {"correct", "incorrect"}] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("Dr. Smith met J. Doe at 3.5 p.m. in the U.S. office.", 1),
        ('He said "Stop!" and left. Then silence...', 3),
        ("1. First point.\n2. Second point.", 2),
        ("A heading\nA sentence.", 2),
        ("这是一。这是二！", 2),
        ("", 0),
        ("...", 0),
    ],
)
def test_sentences_of_ifeval(text, count):
    """Counted by hand, with a quotation's own end as one."""
    assert count_sentences(text) == count


IFEVAL = {
    "instruction_id_list": [
        "punctuation:no_comma",
        "detectable_format:number_highlighted_sections",
        "length_constraints:number_words",
    ],
    "kwargs": [{}, {"num_highlights": 3}, {"relation": "at least", "num_words": 5}],
}


def test_ifevals_own_lines_are_references():
    """The format of its input_data.jsonl, and that of the hub with its nulls."""
    found = verdict(IFEVAL, "*one* and *two* and *three*")
    assert found.correct
    assert found.parts == dict.fromkeys(IFEVAL["instruction_id_list"], 1.0)
    nulls = {"num_highlights": None, "relation": None, "num_words": None, "keywords": None}
    padded = {**IFEVAL, "kwargs": [{**nulls, **given} for given in IFEVAL["kwargs"]]}
    assert read_instructions(padded) == read_instructions(IFEVAL)


def test_partial_credit():
    """The share that is followed; all or nothing unless asked for."""
    text = "*one*, two and three more"
    assert (verdict(IFEVAL, text).status, verdict(IFEVAL, text).score) == (Status.INCORRECT, 0.0)
    found = verdict(IFEVAL, text, partial=True)
    assert (found.status, found.score) == (Status.PARTIAL, pytest.approx(1 / 3))
    assert found.reason == "not followed: punctuation:no_comma, detectable_format:number_highlighted_sections"
    assert verdict(IFEVAL, "a, b", partial=True).score == 0
    assert verdict(IFEVAL, "*a* *b* *c* d e", partial=True).correct


def test_an_instruction_given_twice_has_two_parts():
    """IFEval asks for "less than 10" and "at least 1" of the same thing."""
    twice = [
        {"id": "capital_word_frequency", "capital_relation": "less than", "capital_frequency": 2},
        {"type": "capital_word_frequency", "capital_relation": "at least", "capital_frequency": 1},
    ]
    name = "change_case:capital_word_frequency"
    assert verdict(twice, "One TWO THREE").parts == {name: 0.0, f"{name}#2": 1.0}


def test_loose_judgement():
    """IFEval's loose accuracy forgives a first line, a last line, and asterisks."""
    assert not one("change_case:english_lowercase", "Sure!\nall small").correct
    assert verdict([{"id": "english_lowercase"}], "Sure!\nall small", loose=True).correct
    assert verdict([{"id": "quotation"}], '**"All of it."**', loose=True).correct
    assert not verdict([{"id": "english_lowercase"}], "Sure!\nAll Big\nBye", loose=True).correct


@pytest.mark.skipif(importlib.util.find_spec("langdetect") is not None, reason="langdetect is installed")
def test_language_without_the_detector_is_a_bad_reference():
    """No guess is made: the error names the package."""
    with pytest.raises(ValueError, match="needs the package langdetect"):
        make_verifier("instructions").check_reference([{"id": "response_language", "language": "fr"}])


@pytest.mark.skipif(importlib.util.find_spec("langdetect") is None, reason="langdetect is not installed")
def test_language_with_the_detector():
    """French is French."""
    text = "Le chat est assis sur la table et regarde par la fenêtre."
    assert one("response_language", text, language="fr").correct
    assert not one("response_language", text, language="de").correct


@pytest.mark.parametrize("text", ["[" * 300_000, "*" * 300_000, "<<" * 150_000, "Dr. " * 75_000, " " * 300_000 + "x"])
def test_checks_take_linear_time(text):
    """No text makes a check slow: all of them on 300,000 characters in well under the runner's deadline."""
    reference = [{"id": name, **CASES[name]} for name in ifeval.CHECKS if name in CASES]
    with processor_time() as taken:
        verdict(reference, text)
    assert taken.seconds < 15


PUBLISHED = lines(GOLDEN / "ifbench_cases.jsonl")


@pytest.mark.parametrize("row", PUBLISHED, ids=[f"{place}-{row['id']}" for place, row in enumerate(PUBLISHED)])
def test_published_cases(row: dict[str, object]) -> None:
    """What the published checks say in their own tests."""
    name = str(row["id"])
    [(_, parameters)] = read_instructions([{**row["parameters"], "id": name}])
    assert CHECKS[name](row["text"], **parameters) is row["followed"]


@pytest.mark.parametrize("name", ifbench.CHECKS)
def test_empty_and_foreign_responses(name: str) -> None:
    """Nothing and white space are no answer; Arabic, Chinese, emoji and lone marks get a verdict."""
    assert {one(name, text, **CASES[name]).status for text in ("", " \n\t")} == {Status.NO_ANSWER}
    foreign = [
        "مرحبا بالعالم. كيف حالك؟",
        "你好。世界！",
        "Ångström ß İ ǆ",
        "😀",
        "\u0301",
        "...",
        '"',
        "*",
        "\x00",
        "\ud800",
    ]
    assert {one(name, text, **CASES[name]).status for text in foreign} <= {Status.CORRECT, Status.INCORRECT}


# Runs on which a pattern that tries again from each place, or a list that is searched anew, takes quadratic time.
PIECES = ["a. ", ". . ", "?!", "'\"", "([{", "don't ", "Question 1 ", "\nA) b", "<i>", "1-", "\n", ", ", "é", "\t"]
RUNS = ["".join(piece * (7200 // len(piece)) for piece in PIECES), *(mark * 100_000 + "x" for mark in '. "')]
HEADS = {
    "custom:csv_special_character": 'ProductID,Category,Brand,Price,Stock\n1"',
    "custom:csv_quotes": '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n',
    "format:thesis": "<em>",
}


@pytest.mark.parametrize("name", ifbench.CHECKS)
def test_a_hundred_thousand_characters(name: str) -> None:
    """Long runs of anything end with a verdict soon; with quadratic work they would take minutes."""
    with processor_time() as taken:
        for text in RUNS:
            assert CHECKS[name](HEADS.get(name, "") + text, **CASES[name]) in (True, False)
    assert taken.seconds < 3


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            'Dr. No met J. Smith. He said: "Hi." Then e.g. I left.',
            ["Dr. No met J. Smith.", 'He said: "Hi."', "Then e.g. I left."],
        ),
        ("Really?! Yes... maybe. It was I. 3.14 is pi", ["Really?!", "Yes... maybe.", "It was I.", "3.14 is pi"]),
        ("A line\nbreak. (So.) End", ["A line\nbreak.", "(So.)", "End"]),
        ("1. Apples are red. 2. pears", ["1.", "Apples are red.", "2. pears"]),
    ],
)
def test_sentences(text: str, parts: list[str]) -> None:
    """Marks before white space end them; abbreviations, initials, line breaks and numbers do not."""
    assert sentences(text) == parts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("I don't, he's (not) 1,000.", ["I", "do", "n't", ",", "he", "'s", "(", "not", ")", "1,000", "."]),
        ('"Go..." We cannot!', ['"', "Go", "...", '"', "We", "can", "not", "!"]),
        ("It’s well-known: a/b", ["It", "’", "s", "well-known", ":", "a/b"]),
    ],
)
def test_tokens(text: str, parts: list[str]) -> None:
    """As the Penn Treebank's, with straight quotes."""
    assert tokens(text) == parts


def test_syllables() -> None:
    """Silent e, endings and vowels apart; a number has none."""
    words = "cat table time wanted jumped boxes makes science various movement before rhythm mp3 being little".split()
    assert [count_syllables(word) for word in words] == [1, 2, 1, 2, 1, 2, 1, 2, 3, 2, 2, 1, 0, 2, 2]
