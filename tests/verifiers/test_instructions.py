"""The verifier `instructions`: IFEval's checks, one by one, and its references."""

from __future__ import annotations

import importlib.util

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers.instructions import read_instructions
from rlvr.verifiers.instructions.ifeval import CHECKS, count_sentences
from tests.helpers.timing import processor_time


def verdict(reference: object, completion: str, **options: object) -> Verdict:
    return make_verifier("instructions", **options)(Problem("1", "", reference), completion)


def one(name: str, completion: str, **parameters: object) -> Verdict:
    return verdict([{"id": name, **parameters}], completion)


CASES = [
    ("keywords:existence", {"keywords": ["Rome", "wall"]}, "The walls of rome.", "The walls of Paris."),
    ("keywords:frequency", {"keyword": "war", "frequency": 2, "relation": "at least"}, "War and war.", "War."),
    ("keywords:frequency", {"keyword": "war", "frequency": 2, "relation": "less than"}, "War.", "War and war."),
    ("keywords:forbidden_words", {"forbidden_words": ["rock", "a.b"]}, "Rocks roll; axb.", "They ROCK."),
    ("keywords:letter_frequency", {"letter": "t", "let_frequency": 2, "let_relation": "less than"}, "To be", "Tut"),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"}, "#a #b", "#a"),
    ("length_constraints:number_sentences", {"num_sentences": 3, "relation": "at least"}, "A b. C d! E f?", "A b. C."),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now there are four"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "exactly"}, "one two three", "one two"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "One.\n***\nTwo.", "One.\n\nTwo."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\nOne.\n***\nTwo.\n***", "A***B***C"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 3}, "A\n***\nB\n***\nC", "A\n***\n***\nC"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        'First.\n\n"Then, more."',
        "Then.\n\nMore.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name], [address]", "[name], address"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. More.", "Bye. PS more"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Bye.\nP.P.S more", "Bye.\nP.S. more"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "Two:\n* a\n  - b\n**bold**", "* a\n* b\n* c"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* and **two**", "*one* and ** **"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\nx\nSection 2\ny",
        "Section 1\nx\nSection two",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', '{"a": 1} and so on'),
    ("detectable_format:title", {}, "<<Poem of joy>>\nText", "<< >>\n<Poem>"),
    ("combination:two_responses", {}, "Yes.\n******\nNo.", "Yes.\n******\nYes."),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Write a poem."}, "write a poem. Roses...", "Roses..."),
    ("startend:end_checker", {"end_phrase": "Any other questions?"}, 'So: "any other questions?"', "Questions?"),
    ("startend:quotation", {}, ' "All of it." ', '"All" of it.'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "A WELL-KNOWN man",
        "A man",
    ),
    ("change_case:english_capital", {}, "ALL OF IT, 3 TIMES", "ALL of it"),
    ("change_case:english_lowercase", {}, "all of it, 3 times", "All of it"),
    ("punctuation:no_comma", {}, "one and two", "one, two"),
]


@pytest.mark.parametrize(("name", "parameters", "good", "bad"), CASES)
def test_each_check_tells_good_from_bad(name, parameters, good, bad):
    """A response that follows the instruction, and one that nearly does."""
    assert one(name, good, **parameters).status is Status.CORRECT
    assert one(name, bad, **parameters).status is Status.INCORRECT


def test_all_of_ifevals_checks_are_here():
    """25 names in 9 families; all but the language have a case above."""
    assert len(CHECKS) == 25
    assert {name for name, *_ in CASES} == set(CHECKS) - {"language:response_language"}


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
def test_sentences(text, count):
    """Counted by hand, with a quotation's own end as one."""
    assert count_sentences(text) == count


def test_the_response_is_what_follows_the_thinking():
    """Commas in the reasoning do no harm."""
    assert one("punctuation:no_comma", "<think>a, b</think>c").correct
    assert one("punctuation:no_comma", "<think>a").status is Status.NO_ANSWER
    assert one("punctuation:no_comma", "").status is Status.NO_ANSWER


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


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (None, "expected a list of instructions"),
        ([], "holds no instruction"),
        (["punctuation:no_comma"], "is not an object with an id"),
        ([{"id": "punctuation:no_coma"}], "did you mean punctuation:no_comma"),
        ([{"id": 3}], "no instruction 3"),
        ([{"id": "number_words", "num_words": 3}], r"parameters \['num_words'\]; expected \['num_words', 'relation'\]"),
        ([{"id": "number_words", "num_words": "3", "relation": "at least"}], "expected a whole number"),
        ([{"id": "number_words", "num_words": 3, "relation": "about"}], "expected one of less than, at least"),
        ([{"id": "keywords:existence", "keywords": "word"}], "expected a list of texts"),
        ([{"id": "no_comma", "more": 1}], r"parameters \['more'\]; expected \[\]"),
        ({"instruction_id_list": ["a", "b"], "kwargs": [{}]}, "not lists of one length"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["x"]}, "expected an object"),
    ],
)
def test_references_that_cannot_be_used(reference, message):
    """Found when the data is loaded, and never scored."""
    with pytest.raises(ValueError, match=message):
        make_verifier("instructions").check_reference(reference)
    assert verdict(reference, "text").status is Status.BAD_REFERENCE


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
    reference = [{"id": name, **parameters} for name, parameters, *_ in CASES]
    with processor_time() as taken:
        verdict(reference, text)
    assert taken.seconds < 15
