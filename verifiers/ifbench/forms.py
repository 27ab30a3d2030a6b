"""format: the form of a response."""

from __future__ import annotations

import itertools
import re
import string

from rlvr.verifiers.ifbench.emoji import is_emoji
from rlvr.verifiers.ifbench.table import MARKS, bare, check
from rlvr.verifiers.ifbench.tokens import sentences, tokens

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


@check("format:no_whitespace")
def no_whitespace(text: str) -> bool:
    """No white space."""
    return not any(character.isspace() for character in text)


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
    """Each sentence ends with an emoji, before its mark or behind it; the last one before it."""
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
    """No quotation in " follows another at once, and none ends the text; one of the character " is none.

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
    """Text in <i> or <em>, and text behind it. As published, one section is enough."""
    start = "<i>" if "<i>" in text else "<em>"
    _, opened, rest = text.partition(start)
    end = "</i>" if "</i>" in rest else "</em>"
    thesis, closed, behind = rest.partition(end)
    return bool(opened and closed and thesis.strip() and behind.strip())


@check("format:sub-bullets")
def sub_bullets(text: str) -> bool:
    """A - stands behind each *, before the next. As published, anywhere, and a text without * follows it."""
    return all("-" in bullet for bullet in text.split("*")[1:])


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


@check("format:output_template")
def output_template(text: str) -> bool:
    """My Answer:, My Conclusion: and Future Outlook: occur. As published, in any order, with or without text."""
    return all(part in text for part in _TEMPLATE)
