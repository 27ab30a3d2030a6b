"""The answer of a completion, or the part of it that a verifier of text compares; references as text.

`boxes` finds `\boxed{...}` and its relatives; several boxes may make one answer, or be a part of a formula.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from rlvr.core.printable import kind_of
from rlvr.core.types import Verdict, limit, no_answer

from .announcements import find_announced_behind, find_marked
from .last_expression import Readable, last_expression
from .rejections import MAX_BEHIND, find_alternative, is_denied, is_taken_back, is_value_refused
from .sections import BYTE_ORDER_MARK, after_thinking

# --- boxes ------------------------------------------------------------------------------------------------------------

_BRACES = re.compile(r"\\\\|\\[{}]|\\(?:boxed|fbox|framebox|bbox)(?![A-Za-z])\s*(?:\[[^\[\]]{0,40}\])?\s*|[{}]")
_BARE = re.compile(
    r"-?(?:\\?\$)?\s*(?:\\d?frac\s*(?:\{[^{}]{1,200}\}|\d)\s*(?:\{[^{}]{1,200}\}|\d)|\d[\d,./:]*\d|\w)%?"
)


class Box(NamedTuple):
    """A complete box: where it starts and ends in the text, and its contents."""

    start: int
    end: int
    text: str


def boxes(text: str) -> list[Box]:
    """Return the complete outermost boxes, in order. A box that is never closed is skipped; boxes in it count."""
    stack: list[tuple[int, int] | None] = []  # of each open brace: (start of the command, start of the contents)
    found: list[tuple[int, int, int, int]] = []  # (start, end, start and end of the contents)
    position = max(text.find("box") - 6, 0)
    while match := _BRACES.search(text, position):
        sign = match.group()
        position = match.end()
        if sign == "{":
            stack.append(None)
        elif sign == "}":
            opened = stack.pop() if stack else None
            if opened is not None:
                start, inside = opened
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start, position, inside, position - 1))
        elif len(sign) > 2:
            if text[position : position + 1] == "{":
                position += 1
                stack.append((match.start(), position))
            elif bare := _BARE.match(text, position):
                found.append((match.start(), bare.end(), bare.start(), bare.end()))
                position = bare.end()
    # Contents are cut out at the end, since cutting those of nested boxes would take quadratic time.
    return [Box(start, end, text[first:last]) for start, end, first, last in found]


# Text before a box that makes it a part of a formula: -\boxed{42}, \frac{\boxed{42}}{2}. A dash after words, a bullet
# and emphasis do not.
_OPERATED = re.compile(
    r"(?:[$=({&\[\d)}][ \t]*[-−+]|(?:^|\n)[-−+]|(?:\$|\\[(\[]|=)[^$\n=]{0,60}[\d)}]\s*[-−+]\s*|[\d)}]\s*/\s*|√"
    r"|\\(?:cdot|times|div|pm|mp)\s*|\^\s*\{?\s*"
    r"|\\(?:[dt]?frac(?:\s*\{[^{}]{0,80}\})?|sqrt(?:\s*\[[^\[\]]{0,9}\])?|[bx]?cancel|sout|xout|st)\s*\{\s*"
    r"|(?:\$|\\[(\[])[^$<>\n]{0,60}[\w)}]\s*(?:[<>]|\\[lg]t(?![a-z]))\s*"
    r"|(?:\\neq?|≠|!=)\s*|\b(?:is|are|be|equals?|to|get|obtain|gives?)\s+[-−]|\\(?:neg|lnot)\s*|\d)\Z"
)
# The signs with which _OPERATED can end.
_SIGNS_BEFORE = ("-", "−", "+", "/", "√", "^", "{", "\\cdot", "\\times", "\\div", "\\pm", "\\mp",
                 "\\neg", "\\lnot", "\\ne", "\\neq", "≠", "!=", "<", ">", "\\lt", "\\gt", *"0123456789")  # fmt: skip
_OPERATES = re.compile(
    r"\s*(?:\}\s*\{\s*[\d\\]|\^(?!\s*\{?\s*(?:\\circ|°|\\text|\\prime))|\\(?:cdot|times|div)(?![A-Za-z])(?!\s*\\(?:text|boxed))"
    r"|[-−+*/]\s*(?:\d|\\(?:sqrt|[dt]?frac|pi)(?![A-Za-z]))"
    r"|\s*(?:\\text\s*\{\s*)?(?:hundred|thousand|million|billion|trillion)\b)|\d|[knpqrxyz](?![A-Za-z])"
    r"|!+\s*(?:\$|\\[)\]]|[-−+*/^=])|[.,]\d"
)


_ENDS = ("", "$", ")")  # _OPERATES does not begin with these


def is_operand(text: str, box: Box) -> bool:
    """Whether a box is a part of a formula, so that the answer has another value: -\\boxed{42}."""
    sign, following = text[box.end : box.end + 1], text[box.end + 1 : box.end + 2]
    stops = sign in _ENDS or (sign in ".," and not following.isdigit())
    if not stops and _OPERATES.match(text, box.end, box.end + 24):
        return True
    before = text[max(box.start - 100, 0) : box.start]
    return before.rstrip(" \t\n").endswith(_SIGNS_BEFORE) and _OPERATED.search(before) is not None


# The text between boxes that make one answer together: \boxed{1} and \boxed{2}, \boxed{1} (or maybe \boxed{2}).
_NAME = r"[A-Za-z](?:_(?:\d|\{\d\}))?\s*=\s*"
_LABEL = re.compile(rf"(?<![A-Za-z\\])({_NAME})\Z")
OR = r"(?:or|oder|ou|oppure|или|або|lub|veya|atau|eller|maybe|perhaps|possibly|vielleicht|quiz[áa]s?|alternatively)"
_OR = re.compile(rf"\b{OR}\b|\b[eo]\s|或|または|또는", re.IGNORECASE)
_JOINT = re.compile(
    r"(?:\s|[$,;&*()]|\\[()\[\],;:! ]|[/|]|\bvs\b\.?|\\(?:q?quad|text|mbox|mathrm)(?![A-Za-z])|[{}]"
    rf"|\b(?:and|und|et|y|e|o|{OR})\b|和|或者?|可能是?|もしくは|または|또는)*\Z",
    re.IGNORECASE,
)


def _read_between(text: str, left: Box, right: Box) -> str:
    """Return the text between two boxes, without the second label in `x = \\boxed{1} or x = \\boxed{2}`."""
    between = text[left.end : right.start]
    label = _LABEL.search(between[-16:])
    before = label and _LABEL.search(text[max(left.start - 16, 0) : left.start])
    return between[: -len(label[1])] if label and before and label[1][0] == before[1][0] else between


def join_last_boxes(text: str, found: list[Box]) -> tuple[list[Box], str]:
    """Return the last run of boxes with only separators between them, and the word that joins them."""
    run = [found[-1]]
    word = ", "
    for box in reversed(found[:-1]):
        if run[0].start - box.end > 60:
            break
        between = _read_between(text, box, run[0])
        if len(between) > 40 or not _JOINT.match(between):
            break
        if _OR.search(between):
            word = " or "
        run.insert(0, box)
        if len(run) > 64:
            break
    return run, word


# --- answers ----------------------------------------------------------------------------------------------------------

Equal = Callable[[str, str], bool]
Mode = Literal["strict", "marked", "lenient"]
Conflict = Literal["last", "reject"]

MAX_COMPARED = 16  # boxes of different texts
MAX_COMPLETION = 2_000_000  # characters; a longer completion is not read


class Extracted(NamedTuple):
    """text: the answer, or None. how: "box", "tag", "marker", "bold" or "last"; without an answer, the reason."""

    text: str | None
    how: str


def too_long(completion: str) -> Extracted:
    """Return the result for a completion of more than MAX_COMPLETION characters."""
    return Extracted(None, f"a completion of {len(completion)} characters; at most {MAX_COMPLETION} are read")


_CLOSING = "\\)]}$.*_~` \t\r\n"  # after a box these signs say nothing about it


def _find_boxed(text: str, mode: Mode, conflict: Conflict, equal: Equal | None) -> Extracted | None:
    found = boxes(text)
    if not found or not (found[-1].text.strip() or any(box.text.strip() for box in found)):
        return None
    if is_value_refused(text, found[-1].start):
        rejected = {box.text.strip() for box in found[-64:] if is_value_refused(text, box.start)}
        found = [box for box in found[-64:] if box.text.strip() not in rejected]
        if not found:
            return Extracted(None, "the boxed answer is rejected")
    run, word = join_last_boxes(text, found) if len(found) > 1 else (found, "")
    contents = list(dict.fromkeys([box.text.strip() for box in run])) if len(run) > 1 else [run[0].text.strip()]
    if not contents[-1]:
        return Extracted(None, "the last box is empty")
    texts = {"".join(box.text.split()): box.text for box in found} if conflict == "reject" else {}
    if len(texts) > 1:
        if equal is None or not _all_equal(list(texts.values()), equal):
            return Extracted(None, "several different boxes")
        run, contents = run[-1:], contents[-1:]
    if len(run) == 1 and is_operand(text, run[0]):
        return Extracted(None, "the box is a part of a formula")
    end = run[-1].end
    if text[end : end + MAX_BEHIND].strip(_CLOSING):
        if is_taken_back(text, end, contents[-1]):
            return Extracted(None, "the boxed answer is taken back")
        if mode != "strict" and _contradicts_box(text, end, ", ".join(contents), equal):
            return Extracted(None, "the text after the box announces another answer")
        if other := find_alternative(text, end):
            contents, word = [*contents, other], " or "
    return Extracted(contents[0] if len(contents) == 1 else word.join(filter(None, contents)), "box")


def _all_equal(texts: list[str], equal: Equal) -> bool:
    last = texts[-1]
    return len(texts) <= MAX_COMPARED and all(equal(last, text) for text in texts[:-1])


def _contradicts_box(text: str, end: int, answer: str, equal: Equal | None) -> bool:
    """Whether the text after the last box, which ends at `end`, announces another answer than the box holds."""
    other = find_announced_behind(text, end)
    if not other or (other.strip("()").isalpha() and not answer.strip("()").isalpha()):
        return False  # the letter of the option whose value is in the box
    if "".join(other.split()) == "".join(answer.split()):
        return False
    return equal is not None and not equal(answer, other) and not equal(other, answer)


_ANNOTATION = re.compile(r"<<[^<>\n]{1,200}=[^<>\n]{1,60}>>")  # of GSM8K's calculator: <<6*7=42>>42
_STRUCK = re.compile(r"(?<!\S)~~(?=\S)[^~\n]{1,400}(?<=\S)~~(?!\w)")  # crossed out in Markdown
_HIDDEN = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_COMMENT = re.compile(r"^[ \t]*%[^\n]*", re.MULTILINE)
_OVERSTRUCK = re.compile("(?:.[\u0335-\u0338])+")  # crossed out letter by letter
_TAG_CLOSE = "</answer>"


def _find_tagged(text: str) -> Extracted | None:
    close = text.rfind(_TAG_CLOSE)
    if close < 0:
        return None
    opened = text.rfind("<answer>", 0, close)
    if opened < 0:
        return None
    answer = text[opened + len("<answer>") : close].strip()
    if is_denied(answer[:1000]) or is_taken_back(text, close + len(_TAG_CLOSE), answer[:1000]):
        return Extracted(None, "the answer is rejected")
    return Extracted(answer, "tag")


def _strip_marks(text: str) -> str:
    """Return the text without a calculator's annotations, without comments, and without what is crossed out.

    The tests for single signs come first, since they are the fastest.
    """
    if "<" in text:
        if "<<" in text:
            text = _ANNOTATION.sub("", text)
        if "<!--" in text:
            text = _HIDDEN.sub(" ", text)
    if "%" in text and ("\n%" in text or text.lstrip().startswith("%")):
        text = _COMMENT.sub(" ", text)
    if "~" in text and "~~" in text:
        text = _STRUCK.sub(" ", text)
    if not text.isascii() and any(sign in text for sign in "\u0335\u0336\u0337\u0338"):
        text = _OVERSTRUCK.sub(" ", text)
    return text


def extract(
    completion: str,
    mode: Mode = "marked",
    conflict: Conflict = "last",
    readable: Readable | None = None,
    equal: Equal | None = None,
) -> Extracted:
    """Return the answer of a completion.

    mode: "strict" reads boxes only; "marked" reads marked answers, too; "lenient" also reads the whole of a short text,
    otherwise its last formula, otherwise its last number: the first of these that is `readable`. Without `readable`,
    the last side of the formula is the answer. conflict: with "last", the last box counts; if only separators stand
    between it and the boxes before it, they are one list. With "reject", boxes whose texts differ (and that are not
    `equal`, if it is given) are no answer.
    """
    if len(completion) > MAX_COMPLETION:
        return too_long(completion)
    text = after_thinking(completion)
    if text is None:
        return Extracted(None, "unterminated <think> block")
    text = _strip_marks(text)
    found = _find_boxed(text, mode, conflict, equal) if text.rfind("box") >= 0 else None
    if found is None and mode != "strict":
        found = _find_tagged(text)
        if found is None and (mark := find_marked(text)) is not None:
            found = Extracted(*mark)
    if found is None and mode == "lenient":
        found = Extracted(*last_expression(text, readable))
    if found is None:
        return Extracted(None, "no boxed answer" if mode == "strict" else "no boxed or marked answer")
    return found


_PLACEHOLDERS = frozenset(
    ("", "?", "??", "???", "...", "…", "answer", "your answer", "your answer here", "the answer", "final answer", "ans",
     "n/a", "na", "tbd", "todo", "result", "your result", "number", "value", "x.xx", "_", "__", "___", "____", "-",
     "--",
     "...answer...", "insert answer", "answer here", "final_answer", "your_answer", "□", "placeholder", "null", "nan",
     "idk", "i don't know", "i do not know", "unknown", "not sure", "dots", "\\ldots", "\\dots", "\\cdots")
)  # fmt: skip


def is_placeholder(text: str) -> bool:
    """Whether normalised text is only a placeholder for an answer: "your answer here", "...", "?"."""
    if text in _PLACEHOLDERS:
        return True
    return not (text[0].isalnum() or any(c.isalnum() or c in "∞∅πℝ\\{}" for c in text))


Part = Literal["all", "last_line", "marked", "strict"]


def read_answer(completion: str, part: Part) -> Extracted:
    """Return the part of a completion that holds the answer. Without one, `text` is None and `how` says why.

    Text before the last `</think>` never counts. part: "all" is the rest; "last_line" is its last line that is not
    blank; "marked" is a boxed, tagged or announced answer ("the answer is ..."); "strict" is a boxed one.
    """
    if part in ("marked", "strict"):
        return extract(completion, "strict" if part == "strict" else "marked")
    if len(completion) > MAX_COMPLETION:
        return too_long(completion)
    text = after_thinking(completion)
    if text is None:
        return Extracted(None, "unterminated <think> block")
    if part == "last_line":
        text = text.rstrip().rpartition("\n")[2]
    if not text.strip():
        return Extracted(None, "the completion is empty")
    return Extracted(text, part)


def without_answer(completion: str, found: Extracted) -> Verdict:
    """Return the verdict on a completion without an answer, or one that is too long to be read."""
    return limit(found.how) if len(completion) > MAX_COMPLETION else no_answer(found.how)


def reference_text(reference: Any) -> str:
    """Return a reference as text: a text without its byte order mark, or a number written out.

    Raise ValueError for anything else, and for NaN, which tables hold for a missing value.
    """
    if isinstance(reference, str):
        return reference.removeprefix(BYTE_ORDER_MARK)
    if isinstance(reference, bool) or not isinstance(reference, numbers.Number):
        raise ValueError(f"the reference is {kind_of(reference)}; expected the answer as text or a number")
    if reference != reference:
        raise ValueError("the reference is NaN, which tables hold for a missing value; expected the answer")
    return str(reference)


def excerpt(text: str, longest: int = 2000) -> str:
    """Return `text`, cut to the length that a verdict shows."""
    return text if len(text) <= longest else text[: longest - 1] + "…"
