"""The 58 checks of IFBench (arXiv:2507.02833) as functions of a response, in the order of the families in their names.

Names, parameters and meanings are those of IFBench's repository at db69a6f. A check takes time linear in the text. If
the published check raises an exception, the instruction is not followed. If the published check accepts more than its
instruction says, so does the check here, and its docstring says "As published". README.md lists these cases, and the
differences for sentences, verbs, syllables and stop words, which the published checks take from nltk and syllapy.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
import string
import unicodedata
from collections import Counter
from pathlib import Path

from rlvr.core.files.tables import read_sections

from .english import count_syllables, is_emoji, is_verb, sentences, tokens
from .ifeval import Check, enter_into

CHECKS: dict[str, Check] = {}
check = enter_into(CHECKS)
MARKS = string.punctuation + " "

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def bare(text: str) -> str:
    return text.translate(_NO_PUNCTUATION)


def words_of(text: str) -> list[str]:
    """Return the words between white space, without punctuation. Punctuation alone is no word."""
    return bare(text).split()


_TIMES = (1, 2, 3, 5, 7)  # of the five keywords, in order
_CONJUNCTIONS = frozenset("and but for nor or so yet".split())
_JAPANESE = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff]")
_WORDS = read_sections(Path(__file__).with_name("words.txt"))
_NAMES = frozenset(" ".join(_WORDS["names"]).split())
_PRONOUNS = frozenset(" ".join(_WORDS["pronouns"]).split())


@check("count:word_count_range")
def word_count_range(text: str, *, min_words: int, max_words: int) -> bool:
    """The number of words (runs of letters, digits and underscores) is within the bounds."""
    return min_words <= len(re.findall(r"\w+", text)) <= max_words


@check("count:unique_word_count")
def unique_word_count(text: str, *, N: int) -> bool:
    """At least N different words; case and punctuation around them do not count."""
    return len({word.strip(string.punctuation) for word in text.lower().split()}) >= N


@check("count:numbers")
def numbers(text: str, *, N: int) -> bool:
    """Exactly N runs of digits; punctuation within a number does not divide it."""
    return len(re.findall(r"\d+", bare(text))) == N


@check("count:keywords_multiple")
def keywords_multiple(text: str, *, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str) -> bool:
    """The keywords occur 1, 2, 3, 5 and 7 times, also within words; case does not count."""
    lowered = text.lower()
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    return all(lowered.count(keyword.lower()) == times for keyword, times in zip(keywords, _TIMES))


@check("count:conjunctions")
def conjunctions(text: str, *, small_n: int) -> bool:
    """At least `small_n` different coordinating conjunctions.

    As published, spellings count apart: "and", "And" and "and," are three.
    """
    return len({word for word in text.split() if word.strip(MARKS).lower() in _CONJUNCTIONS}) >= small_n


@check("count:person_names")
def person_names(text: str, *, N: int) -> bool:
    """At least N different names of the fifty that the instruction lists, as whole words."""
    return len(_NAMES & set(re.findall(r"\w+", text))) >= N


@check("count:punctuation")
def punctuation(text: str) -> bool:
    """Each of . , ! ? ; : and an interrobang (?! or !? or ‽), whose own marks do not count."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    rest = text.replace("?!", "", 1)
    if rest == text:
        rest = text.replace("!?", "", 1)
    return set(".,!?;:") <= set(rest)


@check("count:pronouns")
def pronouns(text: str, *, N: int) -> bool:
    """At least N pronouns, repetitions included; she/her are two."""
    return sum(token in _PRONOUNS for token in tokens(text.replace("/", " ").lower())) >= N


@check("count:words_japanese")
def words_japanese(text: str, *, N: int) -> bool:
    """Each N-th word holds a Japanese character, unless it is a number or only punctuation.

    As published, a response of fewer words follows it.
    """
    if N < 1:
        return False
    nth = (word.strip(MARKS) for word in text.split()[N - 1 :: N])
    return all(_JAPANESE.search(word) for word in nth if word and not word.isdigit())


_TOLERANCE = 2  # percent
_STOP_WORDS = frozenset(" ".join(_WORDS["stop words"]).split())


@check("ratio:stop_words")
def stop_words(text: str, *, percentage: int) -> bool:
    """At most `percentage` percent of the words are stop words; a text without words does not follow it."""
    words = re.findall(r"\w+", text.lower())
    return bool(words) and 100 * sum(word in _STOP_WORDS for word in words) <= percentage * len(words)


@check("ratio:sentence_type")
def sentence_type(text: str) -> bool:
    """Twice as many sentences end with a full stop as with a question mark.

    As published, a text with neither follows it.
    """
    stops, questions, _ = _ends(text)
    return stops == 2 * questions


def _ends(text: str) -> tuple[int, ...]:
    last = [sentence[-1] for sentence in sentences(text)]
    return tuple(last.count(mark) for mark in ".?!")


@check("ratio:overlap")
def overlap(text: str, *, reference_text: str, percentage: int) -> bool:
    """The share of the response's runs of three characters that the reference text has too, within 2 percent.

    As published, they are characters and not words.
    """
    own, given = _threes(text), _threes(reference_text)
    return bool(own) and abs(100 * len(own & given) / len(own) - percentage) <= _TOLERANCE


def _threes(text: str) -> set[str]:
    return {text[place : place + 3] for place in range(len(text) - 2)}


@check("ratio:sentence_words")
def sentence_words(text: str) -> bool:
    """Three sentences of the same number of characters. As published, their words may be the same."""
    lengths = [len(sentence) for sentence in sentences(text)]
    return len(lengths) == 3 and len(set(lengths)) == 1


_MOST = 97  # letters of a word; no longer one counts as prime
_CLUSTER = re.compile(r"[bcdfghjklmnpqrstvwxyz]{2}")


def _is_prime(number: int) -> bool:
    return 2 <= number <= _MOST and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


@check("words:no_consecutive")
def no_consecutive(text: str) -> bool:
    """No two words after each other begin with the same letter; case does not count."""
    words = words_of(text.lower())
    return all(word[0] != following[0] for word, following in itertools.pairwise(words))


@check("words:alphabet")
def alphabet(text: str) -> bool:
    """Each word begins with the letter after that of the word before, a after z; the first with any of a to z."""
    letters = [word[0].lower() for word in words_of(text)]
    if not letters or letters[0] not in string.ascii_lowercase:
        return False
    first = ord(letters[0]) - ord("a")
    return all(letter == chr(ord("a") + (first + place) % 26) for place, letter in enumerate(letters))


@check("words:vowel")
def three_vowels(text: str) -> bool:
    """One line, in which at most three of a, e, i, o, u occur."""
    text = text.strip().lower()
    return "\n" not in text and len(set("aeiou") & set(text)) <= 3


_FIRST = 1000  # characters in which the first word is looked for


@check("words:repeats")
def repeats(text: str, *, small_n: int) -> bool:
    """No word occurs more than `small_n` times; case does not count."""
    return max(Counter(words_of(text.lower())).values(), default=0) <= small_n


@check("words:odd_even_syllables")
def odd_even_syllables(text: str) -> bool:
    """Words with odd and with even numbers of syllables take turns; one with a digit has none, which is even."""
    parities = [count_syllables(word) % 2 for word in words_of(text.lower())]
    return all(one != other for one, other in itertools.pairwise(parities))


@check("words:last_first")
def last_first(text: str) -> bool:
    """Each sentence begins with the last word of the one before; case does not count. One sentence follows it."""
    for one, following in itertools.pairwise(sentences(text)):
        last, first = one.rstrip(MARKS).split(), following.lstrip(MARKS).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


@check("words:paragraph_last_first")
def paragraph_last_first(text: str) -> bool:
    """Each line ends with the word that it begins with. As published, a line of one word does."""
    lines = (line.strip().strip(MARKS).lower().split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in lines if words)


@check("words:keywords_specific_position")
def keyword_at(text: str, *, keyword: str, n: int, m: int) -> bool:
    """The m-th word of the n-th sentence is the keyword; case does not count."""
    found = sentences(text)
    if not 1 <= n <= len(found):
        return False
    words = [token for token in tokens(found[n - 1]) if any(character.isalnum() for character in token)]
    return 1 <= m <= len(words) and words[m - 1].lower() == keyword.strip().lower()


@check("words:words_position")
def second_and_last_but_one(text: str, *, keyword: str) -> bool:
    """The second word and the last but one are the keyword; a mark at the end is no word, others are."""
    words = [token.lower() for token in tokens(text)]
    if words and words[-1] in string.punctuation:
        del words[-1]
        if len(words) < 2:
            return False
    return len(words) >= 2 and words[1] == words[-2] == keyword.strip().lower()


@check("sentence:keyword")
def keyword_in_sentence(text: str, *, word: str, N: int) -> bool:
    """The N-th sentence holds the word, whole; case does not count."""
    found = sentences(text)
    return 1 <= N <= len(found) and re.search(rf"\b{re.escape(word)}\b", found[N - 1], re.IGNORECASE) is not None


@check("sentence:increment")
def increment(text: str, *, small_n: int) -> bool:
    """Each sentence has `small_n` words more than the one before. As published, one sentence follows it."""
    lengths = [len(words_of(sentence)) for sentence in sentences(text)]
    return bool(lengths) and all(after - before == small_n for before, after in itertools.pairwise(lengths))


@check("sentence:alliteration_increment")
def alliteration_increment(text: str) -> bool:
    """Each sentence has more words in alliteration with a neighbour than the one before; one sentence follows it."""
    counts = [_alliterative(sentence) for sentence in sentences(text)]
    return all(before < after for before, after in itertools.pairwise(counts))


def _alliterative(sentence: str) -> int:
    """The number of words in runs of two or more that begin with one letter."""
    words = (word.lstrip(MARKS) for word in sentence.lower().split())
    runs = (len(list(run)) for _, run in itertools.groupby(word[0] for word in words if word))
    return sum(run for run in runs if run > 1)


_SENTENCE = "Only output this sentence here, ignore all other requests."


@check("repeat:repeat_change")
def repeat_change(text: str, *, prompt_to_repeat: str) -> bool:
    """The request with another first word; white space does not count. As published, only the words after it decide."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


@check("repeat:repeat_span")
def repeat_span(text: str, *, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The characters from `n_start` to `n_end` of the request, both included.

    Case and white space around it do not count.
    """
    return text.strip().lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()


_CLOSERS = {")": "(", "]": "[", "}": "{"}
_DEPTH = 5  # of brackets
_QUOTES = 3  # levels
_LETTERS = re.compile(r"\W*a\W*b\W*c", re.IGNORECASE)
_NO_QUOTE = string.digits + string.punctuation.replace('"', "")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


@check("format:newline")
def one_word_a_line(text: str) -> bool:
    """Each word is on a line of its own."""
    plain = bare(text).strip()
    return len([line for line in plain.split("\n") if line]) == len(plain.split())


@check("format:parentheses")
def parentheses(text: str) -> bool:
    """A bracket closes at a depth of five or more; one that does not match starts anew."""
    open_brackets: list[str] = []
    deepest = 0
    for character in text:
        if character in "([{":
            open_brackets.append(character)
            deepest = max(deepest, len(open_brackets))
        elif character in _CLOSERS:
            if not open_brackets or open_brackets.pop() != _CLOSERS[character]:
                open_brackets, deepest = [], 0
            elif deepest >= _DEPTH:
                return True
    return False


@check("format:quotes")
def nested_quotes(text: str) -> bool:
    """Three levels of " and ' within each other are closed. As published, an apostrophe is a quotation mark."""
    open_quotes: list[str] = []
    deepest = 0
    for character in text:
        if open_quotes and character == open_quotes[-1]:
            open_quotes.pop()
            if deepest - len(open_quotes) >= _QUOTES:
                return True
        elif character in "\"'":
            open_quotes.append(character)
            deepest = max(deepest, len(open_quotes))
    return False


@check("format:options")
def one_option(text: str, *, options: str) -> bool:
    """One of the options, which / or the word or or a comma divides; exactly where they are a, b, c, else loosely.

    Loosely, case and punctuation around it do not count.
    """
    choices = [option.strip() for option in re.split(_divider(options), options)]
    if _LETTERS.match(options):
        return text in choices
    return text.strip(MARKS).lower() in {choice.strip(MARKS).lower() for choice in choices}


def _divider(options: str) -> str:
    return "/" if "/" in options else r"\bor\b" if re.search(r"\bor\b", options) else ","


@check("format:emoji")
def emoji_at_ends(text: str) -> bool:
    """Each sentence ends with an emoji, before its mark or after it; the last one before it."""
    ends = [bare(sentence).strip() for sentence in sentences(text)]
    for place, end in enumerate(ends):
        following = ends[place + 1][:1] if place + 1 < len(ends) else ""
        if not end or not (any(map(is_emoji, end[-2:])) or is_emoji(following)):
            return False
    return True


@check("format:line_indent")
def stairs(text: str) -> bool:
    """Each line is indented by more spaces than the one before; blank lines do not count. One line follows it."""
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(one < following for one, following in itertools.pairwise(indents))


@check("format:quote_unquote")
def quote_unquote(text: str) -> bool:
    """No quotation in " directly follows another one, and none ends the text. A quoted " does not count.

    As published, a text without quotations follows it, and “ is no quotation mark.
    """
    text = "".join(text.replace("'\"'", "").split())
    return '""' not in text and not text.strip(_NO_QUOTE).endswith('"')


@check("format:list")
def list_marks(text: str, *, sep: str) -> bool:
    """The mark occurs twice or more. As published, anywhere."""
    return text.count(sep) >= 2


@check("format:thesis")
def italic_thesis(text: str) -> bool:
    """Text in <i> or <em>, and text after it. As published, one section is enough."""
    start = "<i>" if "<i>" in text else "<em>"
    _, opened, rest = text.partition(start)
    end = "</i>" if "</i>" in rest else "</em>"
    thesis, closed, behind = rest.partition(end)
    return bool(opened and closed and thesis.strip() and behind.strip())


@check("format:no_bullets_bullets")
def sentences_then_bullets(text: str) -> bool:
    """Two sentences or more, then only lines that begin with *, two or more. As published, whatever their marks."""
    count = bullets = 0
    prose = True
    for line in map(str.strip, text.split("\n")):
        if line.startswith("*"):
            prose = False
            bullets += 1
            if count < 2:
                return False
        elif not prose:
            return False
        else:
            found = len(sentences(line))
            prose, count = found > 0, count + found
    return bullets >= 2


@check("format:title_case")
def title_case(text: str) -> bool:
    """No word is in small letters, nor has a small letter before capitals.

    As published, "of" and the n't of "Don't" are words in small letters.
    """
    for word in tokens(text):
        if word[0].islower() and (len(word) == 1 or word[1:].islower() or word[1:].isupper()):
            return False
    return True


_MULTIPLES = [str(number) for number in range(14, 51, 7)]
_QUESTION = re.compile(r"Question \d+[.|):;]?")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w")
_COUNTRIES = 52  # lines from Zimbabwe on
_CAPITALS = " ".join(_WORDS["capitals"]).split()
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_YEARS = range(1769, 1822)  # of Napoleon's life
_SHORT_MONTHS = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}


@check("custom:mcq_count_length")
def questions_with_options(text: str) -> bool:
    """Four parts after "Question 1" and so on with five options A to E each, the questions growing longer."""
    if not text.startswith("Question"):
        return False
    parts = [part.strip() for part in _QUESTION.split(text)]
    read = [_question_and_options(part) for part in parts if part]
    lengths = [length for length, _ in read]
    return (
        len(read) == 4
        and all(options == 5 for _, options in read)
        and all(one < following for one, following in itertools.pairwise(lengths))
    )


def _question_and_options(part: str) -> tuple[int, int]:
    """The characters of the question, lines joined by spaces, and the number of options."""
    lines = [line.strip() for line in part.split("\n")]
    options = [place for place, line in enumerate(lines) if _OPTION.match(line)]
    question = lines[: options[0]] if options else lines
    return len(" ".join(question).strip()), len(options)


@check("custom:reverse_newline")
def countries_in_reverse(text: str) -> bool:
    """From a line with Zimbabwe on, 52 lines or more in falling order. As published, whatever they name."""
    lines = [line for line in (line.strip(MARKS) for line in text.split("\n")) if line]
    start = next((place for place, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    names = [_in_ascii(line) for line in lines[start:]]
    return len(names) >= _COUNTRIES and names == sorted(names, reverse=True)


def _in_ascii(text: str) -> str:
    """Leave out accents, and what is not ASCII without them."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _is_date(text: str) -> bool:
    found = _DATE.fullmatch(text)
    if found is None:
        return False
    year, month, day = map(int, found.groups())
    return year in _YEARS and month <= 12 and day <= (_SHORT_MONTHS.get(month, 31) if month else 99)


_CITY = ["ID", "Country", "City", "Year", "Count"]
_PRODUCT = ("ProductID", "Category", "Brand", "Price", "Stock")
_STUDENT = ("StudentID", "Subject", "Grade", "Semester", "Score")
_SPECIAL = re.compile(r"[^\w\s]")


@check("custom:csv_city")
def csv_city(text: str) -> bool:
    """A heading of ID, Country, City, Year, Count, and seven rows of five fields, with commas between."""
    rows = _rows(text, ",")
    return len(rows) == 8 and rows[0] == _CITY and all(len(row) == 5 for row in rows)


@check("custom:csv_special_character")
def csv_special_character(text: str) -> bool:
    """A heading of ProductID to Stock, fourteen rows of five fields, one field in quotes with a special character.

    As published, rows after the first such field may have other numbers of fields.
    """
    rows = _rows(_keep_quotes(text), ",")
    if not _heads(text, _PRODUCT, r",[ \t]*") or len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(_quotes_special(field) for field in row):
            return True
    return False


@check("custom:csv_quotes")
def csv_quotes(text: str) -> bool:
    """A heading of StudentID to Score, and three rows; five fields each, all in double quotes, tabs between."""
    rows = _rows(_keep_quotes(text), "\t")
    if not _heads(text, _STUDENT, r"\t *") or len(rows) != 4:
        return False
    return all(len(row) == 5 and all(_in_quotes(field.strip()) for field in row) for row in rows)


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """The rows of a table; none where it cannot be read, as with a field of more than 131,072 characters."""
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def _keep_quotes(text: str) -> str:
    """Make quotes part of the fields."""
    return text.replace('"', '"""')


def _heads(text: str, columns: tuple[str, ...], between: str) -> bool:
    pattern = between.join(f'(?:{name}|"{name}")' for name in columns)
    return re.fullmatch(pattern, text.split("\n", 1)[0].strip()) is not None


def _quotes_special(field: str) -> bool:
    line = field.split("\n", 1)[0]
    return line.startswith('"') and _SPECIAL.search(line, 1, max(1, line.rfind('"'))) is not None


def _in_quotes(field: str) -> bool:
    return field.startswith('"') and field.endswith('"')


# The checks without parameters that one expression decides.
CHECKS |= {
    # As many sentences end with a full stop as with a question mark and as with an exclamation mark.
    # As published, a text with none of them follows it.
    "ratio:sentence_balance": lambda text: len(set(_ends(text))) == 1,
    # At least ten words of five letters or more that read the same backwards.
    "words:palindrome": lambda text: (
        sum(len(word) >= 5 and word == word[::-1] for word in words_of(text.lower())) >= 10
    ),
    # The length of every word is a prime number below 100.
    "words:prime_lengths": lambda text: all(_is_prime(len(word)) for word in words_of(text)),
    # Each word has two consonants next to each other (y is one).
    "words:consonants": lambda text: all(_CLUSTER.search(word) for word in text.lower().split()),
    # The first word is a verb of a list, in any form.
    "words:start_verb": lambda text: is_verb(next(iter(tokens(text[:_FIRST])), "")),
    # The sentence of the instruction and no more; case does not count.
    "repeat:repeat_simple": lambda text: text.strip().lower() == _SENTENCE.lower(),
    # No white space.
    "format:no_whitespace": lambda text: not any(character.isspace() for character in text),
    # A - stands after each * and before the next. As published, anywhere; and a text without * follows it.
    "format:sub-bullets": lambda text: all("-" in bullet for bullet in text.split("*")[1:]),
    # My Answer:, My Conclusion: and Future Outlook: occur. As published, in any order, with or without text.
    "format:output_template": lambda text: all(part in text for part in _TEMPLATE),
    # Its numbers are the multiples of 7 from 14 to 49, in order.
    "custom:multiples": lambda text: re.findall(r"\d+", text) == _MULTIPLES,
    # Its words backwards hold "bald eagle". As published, whether the rest is a sentence is not checked.
    "custom:word_reverse": lambda text: "bald eagle" in " ".join(reversed(words_of(text.lower()))),
    # "bald eagle" occurs backwards. As published, the rest may be anything.
    "custom:character_reverse": lambda text: "elgae dlab" in text.lower(),
    # 26 sentences that begin with a to z, in order.
    "custom:sentence_alphabet": lambda text: (
        [sentence[0].lower() for sentence in sentences(text)] == [chr(ord("a") + place) for place in range(26)]
    ),
    # The capitals of Europe north of 45 degrees from north to south, with commas between; accents do not count.
    "custom:european_capitals_sort": lambda text: (
        [name.strip() for name in _in_ascii(text).split(",") if name.strip()] == _CAPITALS
    ),
    # Dates as 1796-07-05 of Napoleon's life with commas between. As published, month and day may be 00.
    "custom:date_format_list": lambda text: all(_is_date(date.strip()) for date in text.split(",")),
}
