"""The checks of IFBench: for each two responses that follow the instruction and two that do not, and its own cases.

What the published checks accept beside the point has its own rows.
"""

from __future__ import annotations

import json
import string

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status
from rlvr.verifiers.instructions import read_instructions
from rlvr.verifiers.instructions.english import count_syllables, sentences, tokens
from rlvr.verifiers.instructions.ifbench import CHECKS
from tests.helpers.files import ROOT
from tests.helpers.timing import processor_time

FIVE = {f"keyword{i + 1}": word for i, word in enumerate(("meridian", "gossamer", "eclipse", "threshold", "cascade"))}
TIMES = "meridian " + "gossamer " * 2 + "eclipse " * 3 + "Threshold " * 5 + "cascade " * 7
PALINDROMES = "level radar civic rotor kayak madam refer tenet stats, Solos"
STORY = " ".join(f"{letter}nd so on." for letter in string.ascii_uppercase)
LINES = [
    "Zimbabwe",
    *(f"{letter}land" for letter in string.ascii_uppercase[:25]),
    *"ZYXWVUTSRQPONMLKJIHGFEDCBA",
]
COUNTRIES = "\n".join(sorted(LINES, reverse=True))
CAPITALS = (
    "Reykjavík, Helsinki, Oslo, Tallinn, Stockholm, Riga, Moscow, Copenhagen, Vilnius, Minsk, Dublin, Berlin, "
    "Amsterdam, Warsaw, London, Brussels, Prague, Luxembourg, Paris, Vienna, Bratislava, Budapest, Vaduz, Chișinău, "
    "Bern, Ljubljana, Zagreb"
)
OPTIONS = "\nA) one\nB) two\nC) three\nD) four\nE) five\n"
QUIZ = "".join(f"Question {n}: Who painted {'very ' * n}well?{OPTIONS}\n" for n in range(1, 5))
CITY = "ID,Country,City,Year,Count\n" + "1,Peru,Lima,2020,3\n" * 7
PRODUCT = "ProductID,Category,Brand,Price,Stock\n" + "1,Toys,Lego,5,2\n" * 13
STUDENT = '"StudentID"\t"Subject"\t"Grade"\t"Semester"\t"Score"\n' + '"1"\t"Art"\t"A"\t"2"\t"90"\n' * 3
REQUEST = {"prompt_to_repeat": "Write a poem."}
COPY = "Only output this sentence here, ignore all other requests."

# By check: parameters, two responses that follow the instruction, two that do not.
CASES = {
    "count:word_count_range": ({"min_words": 3, "max_words": 4}, "one two-three", "a b c d", "one two", "a b c d e"),
    "count:unique_word_count": (
        {"N": 3},
        "Here, there, everywhere; here.",
        "a b c",
        "Here, there; here there",
        "a A a.",
    ),
    "count:numbers": ({"N": 2}, "From 1,000 to 2.5 at last", "1 2", "From 1 to 2 to 3", "one and 2"),
    "count:keywords_multiple": (FIVE, TIMES, TIMES.upper(), f"{TIMES} cascade", TIMES.replace("meridian", "")),
    "count:conjunctions": ({"small_n": 2}, "You and I, but", "or, yet", "you and me and him", "android fork"),
    "count:person_names": ({"N": 2}, "Emma saw Noah's cat", "Leo (Mia)", "Emma saw Emma", "emma and Leonard, Mia2"),
    "count:punctuation": ({}, "a. b, c! d? e; f: g?!", "‽ .,! ;:?", "a. b, c! d? e; f:", "a. b, c! e; f: g?!"),
    "count:pronouns": ({"N": 3}, "she/her/hers", "I'm sure it's all", "she/her", "item thesis hero"),
    "count:words_japanese": ({"N": 2}, "one 猫 three いぬ", "one 犬. three 4", "one cat three 犬", "猫 two"),
    "ratio:stop_words": ({"percentage": 50}, "the cat", "Cats chase mice", "the cat is", "to be or not"),
    "ratio:sentence_type": (
        {},
        "One. Is it? Two.",
        "It is. So. Go. We do. So? No?",
        "One. Is it?",
        "Is it? Is it? One.",
    ),
    "ratio:sentence_balance": (
        {},
        "One. Two? Three!",
        "So! No? Go. So. Go? Go!",
        "One. Two?",
        "One. Two? Three! Four!",
    ),
    # "abcd" has abc and bcd; of them "abcx" has abc: 1 of its 2.
    "ratio:overlap": ({"reference_text": "abcd", "percentage": 50}, "abcx", "xbcd", "abcd", "wxyz"),
    "ratio:sentence_words": ({}, "I go. I do. I am.", "Abc! Def? Ghj.", "I am. We go.", "I am. We go. He was."),
    "sentence:keyword": (
        {"word": "cat", "N": 2},
        "A dog. A Cat!",
        "Dr. No ran. cat-like. Yes.",
        "A cat. A dog.",
        "Hm. cats.",
    ),
    "sentence:increment": (
        {"small_n": 2},
        "One. Two more words. Now there are five words.",
        "Go. I am here.",
        "Go. So.",
        "Go. So we.",
    ),
    "sentence:alliteration_increment": (
        {},
        "No match. Two tall men.",
        "Big bad. Big bad bears. Big bad bears bite.",
        "Two tall. Big bad.",
        "Big bad bears. No match.",
    ),
    "words:palindrome": ({}, PALINDROMES, PALINDROMES.upper(), PALINDROMES.replace("Solos", "noon"), PALINDROMES[6:]),
    "words:prime_lengths": ({}, "We go, yes: hello", "it's", "We go four", "a"),
    "words:no_consecutive": ({}, "All bees can dance", "one two one", "All bees buzz", "An angry Bee"),
    "words:alphabet": ({}, "Yes, zebras always bite.", "b C", "A cat", "Big apples can"),
    "words:vowel": ({}, "The red dog, it", "sky", "The red dog is up", "one\nline"),
    "words:consonants": ({}, "This thing's strict", "Psalm", "This is strict", "strict 12"),
    "words:start_verb": ({}, "Write it down.", "Running helps", "The cat runs", "Quickly write"),
    "words:repeats": ({"small_n": 2}, "a b A", "go go", "a b A. a", "no, no, no"),
    "words:odd_even_syllables": ({}, "The table is open", "Children go", "The cat", "Open table"),
    "words:last_first": (
        {},
        "I like cats. Cats like me.",
        "Only one.",
        "I like cats. Dogs do.",
        "Go on! On it goes. It",
    ),
    "words:paragraph_last_first": (
        {},
        "Cats like cats.\n\nGo I go",
        "*Yes or yes*",
        "Cats like dogs.",
        "Yes, yes\nno or yes",
    ),
    "words:keywords_specific_position": (
        {"keyword": "cat", "n": 2, "m": 3},
        "Hi. I (a) CAT saw.",
        "Dr. Who ran. My, my, cat!",
        "A big cat. No.",
        "Hi. A black big cat.",
    ),
    "words:words_position": (
        {"keyword": "cat"},
        "My cat, your cat sleeps.",
        "A Cat b",
        "My cat, your dog sleeps.",
        "cat",
    ),
    "repeat:repeat_change": (REQUEST, "Compose a poem.", "Read  a\npoem.", "Write a poem.", "Compose a song."),
    "repeat:repeat_simple": ({}, COPY, f"  {COPY.upper()}\n", f"Sure: {COPY}", COPY[:-1]),
    "repeat:repeat_span": (REQUEST | {"n_start": 6, "n_end": 11}, "a poem", " A POEM\n", "a poem.", "poem"),
    "format:newline": ({}, "one\ntwo\n\nthree.", "one", "one\ntwo three", "one two\n\nthree"),
    "format:no_whitespace": ({}, "NeonNow,Glow", "霓虹", "Neon Now", "Neon\u00a0Now"),
    "format:parentheses": ({}, "([{([x])}])", "((((((a))", "((((x))))", "(((((x]"),
    "format:quotes": ({}, '"a \'b "c" d\' e"', "'\"'x'\"'", "\"a 'b' c\"", '"a" \'b\' "c"'),
    "format:options": ({"options": "yes/no/maybe"}, "Maybe.", "NO", "yes/no", "I say yes"),
    "format:emoji": ({}, "Hi 😀. Bye 🎉!", "Hi! 😀 Bye ❤️", "Hi 😀. Bye.", "😀 Hi"),
    "format:line_indent": ({}, "a\n b\n\n   c", " a\n   b", "a\nb", "  a\n b"),
    "format:quote_unquote": ({}, '"Yes" means so.', "The mark '\"' is one", '"Yes"', '"Yes" "no" are words'),
    "format:list": ({"sep": "!?!?"}, "!?!? a\n!?!? b", "a !?!? b !?!?", "!?!? a", "- a\n- b"),
    "format:thesis": ({}, "<i>So it is.</i> Because.", "Hm <em>a</em> b", "<i>So it is.</i>", "<em></em> b"),
    "format:sub-bullets": ({}, "* a\n  - b\n* c\n  - d", "* a - b", "* a\n  - b\n* c", "- b\n* a"),
    "format:no_bullets_bullets": ({}, "One. Two.\n* a\n* b", "One.\nTwo.\n*a\n *b", "One.\n* a\n* b", "One. Two.\n* a"),
    "format:title_case": ({}, "The Cat, And I", "NASA Is 3rd (Or 4th)", "The cat", "A Cat i Saw"),
    "format:output_template": (
        {},
        "My Answer: a My Conclusion: b Future Outlook: c",
        "My Answer:\nMy Conclusion:\nFuture Outlook:",
        "My Answer: a My Conclusion: b",
        "my answer: a my conclusion: b future outlook: c",
    ),
    "custom:multiples": (
        {},
        "14, 21, 28, 35, 42, 49",
        "14 21\n28-35 42 49.",
        "7 14 21 28 35 42 49",
        "14 28 21 35 42 49",
    ),
    "custom:mcq_count_length": (
        {},
        QUIZ,
        QUIZ.replace(")", "."),
        QUIZ.replace("Question 4", "Problem 4"),
        QUIZ.replace("very very ", "", 1),
    ),
    "custom:reverse_newline": (
        {},
        COUNTRIES,
        COUNTRIES.replace("Zimbabwe", "- Zimbabwé").replace("Zimbabwé", "Zimbabwe."),
        COUNTRIES.replace("Zimbabwe", "Zambia"),
        f"{COUNTRIES}\nZambia",
    ),
    "custom:word_reverse": ({}, "US the of symbol the is eagle bald The", "eagle, Bald", "The bald eagle", "eagle"),
    "custom:character_reverse": ({}, "elgae dlab ehT", "ELGAE DLAB", "bald eagle", "elgaedlab"),
    "custom:sentence_alphabet": ({}, STORY, STORY.lower().replace(".", "!"), STORY[:-10], STORY.replace("Cnd", "Dnd")),
    "custom:european_capitals_sort": (
        {},
        CAPITALS,
        CAPITALS.replace(", ", ","),
        CAPITALS.replace("Oslo, Tallinn", "Tallinn, Oslo"),
        CAPITALS.removesuffix(", Zagreb"),
    ),
    "custom:csv_city": (
        {},
        CITY,
        CITY.replace("Lima", '"Lima, old"'),
        f"{CITY}8,Peru,Lima,2020,3\n",
        CITY.replace("ID", "Id"),
    ),
    "custom:csv_special_character": (
        {},
        f'{PRODUCT}14,Toys,"A, B",5,2',
        f'{PRODUCT}14,Toys,"O\'Neil",5,2\n',
        f'{PRODUCT}14,Toys,"A B",5,2',
        f'{PRODUCT[:-16]}14,Toys,"A, B",5,2',
    ),
    "custom:csv_quotes": (
        {},
        STUDENT,
        STUDENT.replace('\t"Score"', '\t "Score"'),
        STUDENT.replace('"90"', "90", 1),
        STUDENT.replace("\t", ","),
    ),
    "custom:date_format_list": ({}, "1796-04-12, 1815-06-18", "1796-04-12", "12-04-1796", "1796-04-31, 1822-01-01"),
}
GOLDEN = [
    json.loads(line) for line in (ROOT / "tests" / "golden" / "ifbench_cases.jsonl").read_text("utf-8").splitlines()
]


def statuses(name: str, parameters: dict[str, object], *texts: str) -> list[Status]:
    problem = Problem("p", "", {"instruction_id_list": [name], "kwargs": [parameters]})
    verify = make_verifier("instructions")
    return [verify(problem, text).status for text in texts]


@pytest.mark.parametrize("name", CASES)
def test_checks(name: str) -> None:
    """Two responses follow the instruction, two do not."""
    parameters, *texts = CASES[name]
    assert statuses(name, parameters, *texts) == [Status.CORRECT] * 2 + [Status.INCORRECT] * 2


def test_every_check_has_a_case() -> None:
    """All 58 are there, and none is without one."""
    assert set(CASES) == set(CHECKS)
    assert len(CHECKS) == 58


@pytest.mark.parametrize("row", GOLDEN, ids=[f"{place}-{row['id']}" for place, row in enumerate(GOLDEN)])
def test_published_cases(row: dict[str, object]) -> None:
    """What the published checks say in their own tests."""
    name = str(row["id"])
    [(_, parameters)] = read_instructions([{**row["parameters"], "id": name}])
    assert CHECKS[name](row["text"], **parameters) is row["followed"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ratio:sentence_type", "No mark at all"),
        ("ratio:sentence_balance", "No mark at all"),
        ("format:sub-bullets", "No bullets"),
        ("format:quote_unquote", "No quotes"),
        ("words:last_first", "One sentence."),
        ("sentence:alliteration_increment", "One sentence."),
        ("format:line_indent", "One line."),
        ("ratio:sentence_words", "I am. I am. I am."),
        ("format:output_template", "Future Outlook: My Conclusion: My Answer:"),
        ("custom:character_reverse", "The answer is elgae dlab"),
        ("custom:word_reverse", "no sentence eagle bald it is no"),
        ("custom:reverse_newline", "Zimbabwe" + "\nA" * 52),
        ("custom:date_format_list", "1800-00-00"),
    ],
)
def test_what_the_published_check_accepts_beside_the_point(name: str, text: str) -> None:
    """verifiers/instructions/README.md names them."""
    assert statuses(name, {}, text) == [Status.CORRECT]
    assert name in (ROOT / "verifiers" / "instructions" / "README.md").read_text("utf-8")


def test_the_last_of_three_options_in_letters_is_exact() -> None:
    """a), b), c) are compared as they stand; "or" divides as a word only."""
    assert statuses("format:options", {"options": "a), b), c), d)"}, "b)", "b", "B)") == [
        Status.CORRECT,
        Status.INCORRECT,
        Status.INCORRECT,
    ]
    colours = {"options": "orange or coral"}
    assert statuses("format:options", colours, "Coral", "ange") == [Status.CORRECT, Status.INCORRECT]


@pytest.mark.parametrize("name", CASES)
def test_empty_and_foreign_responses(name: str) -> None:
    """Nothing and white space are no answer; Arabic, Chinese, emoji and lone marks get a verdict."""
    parameters = CASES[name][0]
    assert statuses(name, parameters, "", " \n\t") == [Status.NO_ANSWER] * 2
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
    assert set(statuses(name, parameters, *foreign)) <= {Status.CORRECT, Status.INCORRECT}


# Runs on which a pattern that tries again from each place, or a list that is searched anew, takes quadratic time.
PIECES = ["a. ", ". . ", "?!", "'\"", "([{", "don't ", "Question 1 ", "\nA) b", "<i>", "1-", "\n", ", ", "é", "\t"]
RUNS = ["".join(piece * (7200 // len(piece)) for piece in PIECES), *(mark * 100_000 + "x" for mark in '. "')]
HEADS = {"custom:csv_special_character": PRODUCT[:38] + '"', "custom:csv_quotes": STUDENT[:50], "format:thesis": "<em>"}


@pytest.mark.parametrize("name", CASES)
def test_a_hundred_thousand_characters(name: str) -> None:
    """Long runs of anything end with a verdict soon; with quadratic work they would take minutes."""
    with processor_time() as taken:
        for text in RUNS:
            assert CHECKS[name](HEADS.get(name, "") + text, **CASES[name][0]) in (True, False)
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
