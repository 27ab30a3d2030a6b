"""Finding the answer in a completion: the last box, else a marked answer, else (lenient) the last expression.

Every step is one linear pass over the text. `extract` returns the answer's text and how it was found, or why there is
none.
"""

from __future__ import annotations

import collections
import re
from typing import Literal, NamedTuple

Mode = Literal["strict", "marked", "lenient"]
Conflict = Literal["last", "reject"]

MAX_TAIL = 10_000  # marked answers are searched in these last characters only
MAX_SENTENCE = 400


class Extracted(NamedTuple):
    """`text` is the answer, None where there is none; `how`: "box", "tag", "marker", "bold", "last", or the reason."""

    text: str | None
    how: str


_TAGS = ("think", "thinking", "thought", "reasoning")
_OPENERS = (*(f"<{tag}>" for tag in _TAGS), "<|begin_of_thought|>")
_CLOSERS = (*(f"</{tag}>" for tag in _TAGS), "<|end_of_thought|>")
_SPECIAL = re.compile(r"<\|[A-Za-z_]{1,40}\|>|</s>|<eos>|<end_of_turn>")
_BRACES = re.compile(r"\\\\|\\[{}]|\\(?:boxed|fbox|framebox|bbox)(?![A-Za-z])\s*(?:\[[^\[\]]{0,40}\])?\s*|[{}]")
_BARE = re.compile(
    r"-?(?:\\?\$)?\s*(?:\\d?frac\s*(?:\{[^{}]{1,200}\}|\d)\s*(?:\{[^{}]{1,200}\}|\d)|\d[\d,./:]*\d|\w)%?"
)


BYTE_ORDER_MARK = "\ufeff"  # some editors put it before a text


def after_thinking(text: str) -> str | None:
    """Return the text after the last closing think tag; None where a think tag is opened and never closed."""
    text = text.removeprefix(BYTE_ORDER_MARK)
    if "<" not in text:
        return text
    end, closer = max((text.rfind(closer), closer) for closer in _CLOSERS)
    if end >= 0:
        text = text[end + len(closer) :]
    return None if any(opener in text for opener in _OPENERS) else text


class Box(NamedTuple):
    """A complete box: where it starts and ends in the text, and its contents."""

    start: int
    end: int
    text: str


def boxes(text: str) -> list[Box]:
    """Return the complete outermost boxes, in order. A box that is never closed is skipped; boxes inside it count."""
    stack: list[tuple[int, int] | None] = []  # of each open brace: (start of the command, start of the contents)
    found: list[Box] = []
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
                while found and found[-1].start > start:
                    found.pop()
                found.append(Box(start, position, text[inside : position - 1]))
        elif len(sign) > 2:
            if text[position : position + 1] == "{":
                position += 1
                stack.append((match.start(), position))
            elif bare := _BARE.match(text, position):
                found.append(Box(match.start(), bare.end(), bare.group()))
                position = bare.end()
    return found


def last_boxes(text: str) -> list[Box]:
    """Return the end of `boxes(text)`: the last box and those shortly before it.

    The search starts from the end, unless the last box is not closed or may lie inside another one.
    """
    start = text.rfind("\\boxed{")
    if start < 0 or text.find("box", start + 6) >= 0:
        return boxes(text)
    tail = boxes(text[start:])
    if not tail or _enclosed(text, start + tail[-1].end):
        return boxes(text)
    found = [Box(start, start + tail[-1].end, tail[-1].text)]
    before = text.rfind("box", 0, start)
    if before >= 0 and start - before < 2_000:
        return boxes(text)
    return found


def _enclosed(text: str, position: int) -> bool:
    """Whether a brace closes anywhere after `position`."""
    brace = text.find("}", position)
    return brace >= 0


# Between boxes that make one answer together: \boxed{1} and \boxed{2}.
_NAME = r"[A-Za-z](?:_(?:\d|\{\d\}))?\s*=\s*"
_LABEL = re.compile(rf"(?<![A-Za-z\\])({_NAME})\Z")
_JOINT = re.compile(
    r"(?:\s|[$,;&]|\\[()\[\],;:! ]|\\(?:q?quad|text|mbox|mathrm)(?![A-Za-z])|[{}]"
    r"|\b(?:and|or|und|oder)\b|和|或)*\Z"
)


def _unlabelled(text: str, left: Box, right: Box) -> str:
    """The text between two boxes, without the label in `x = \\boxed{1} or x = \\boxed{2}`."""
    between = text[left.end : right.start]
    label = _LABEL.search(between[-16:])
    before = label and _LABEL.search(text[max(left.start - 16, 0) : left.start])
    return between[: -len(label[1])] if label and before and label[1][0] == before[1][0] else between


def _joined(text: str, found: list[Box]) -> tuple[list[str], str]:
    """The last run of boxes with nothing but separators between them, and the word that joins them."""
    run = [found[-1]]
    word = ", "
    for box in reversed(found[:-1]):
        between = _unlabelled(text, box, run[0])
        if len(between) > 40 or not _JOINT.match(between):
            break
        if re.search(r"\bor\b|\boder\b|或", between):
            word = " or "
        run.insert(0, box)
        if len(run) > 64:
            break
    return list(dict.fromkeys(box.text.strip() for box in run)), word


def _from_boxes(text: str, conflict: Conflict) -> Extracted | None:
    found = last_boxes(text) if conflict == "last" else boxes(text)
    if not found or not any(box.text.strip() for box in found):
        return None
    contents, word = _joined(text, found)
    if not contents[-1]:
        return Extracted(None, "the last box is empty")
    if conflict == "reject" and len({"".join(box.text.split()) for box in found}) > 1:
        return Extracted(None, "several different boxes")
    return Extracted(word.join(c for c in contents if c), "box")


# --- marked answers ---------------------------------------------------------------------------------------------------

_IS = r"(?:is|equals|(?:should|must|would|will)\s+be|(?:comes|turns|works)\s+out\s+to(?:\s+be)?)"
_PHRASES = (
    rf"(?:the\s+)?(?:final|correct|right)\s+(?:answer|result|option|choice)(?:\s+{_IS})?",
    rf"(?:the|our|my)\s+(?:\w+\s+)?(?:answer|solution)\s*(?:to\s+[^.\n]{{1,80}}\s)?(?:{_IS}|=|:)",
    rf"answer\s*(?:{_IS}|=|:)",
    r"answer\*\*\s*:?",
    r"answer(?:\*|__?)\s*:",
    r"\bans\s*[:.=]",
    r"(?<![A-Za-z])A:",
    r"#{1,4}\s*answer\b",
    r"####",
    r"(?:the\s+)?result\s+is",
    r"最终答案(?:是|为)?",
    r"答案(?:是|为)?\s*[：:]?",
    r"所以(?:是|为)",
    r"故选",
    r"答え(?:は|:|：)?",
    r"정답(?:은|:)?",
    r"답(?:은|:)",
    r"la\s+respuesta(?:\s+\w+)?\s+es",
    r"respuesta(?:\s+final)?\s*:",
    r"la\s+(?:bonne\s+)?r[ée]ponse(?:\s+\w+)?\s+est(?:\s+donc)?",
    r"r[ée]ponse(?:\s+finale)?\s*:",
    r"die\s+(?:\w+\s+)?antwort\s+(?:ist|lautet)(?:\s+(?:also|daher))?",
    r"ist\s+die\s+(?:\w+\s+)?antwort",
    r"antwort\s*:",
    r"a\s+resposta(?:\s+\w+)?\s+[ée]",
    r"resposta(?:\s+final)?\s*:",
    r"la\s+risposta(?:\s+\w+)?\s+[èe]",
    r"risposta(?:\s+finale)?\s*:",
    r"(?:окончательный\s+)?ответ\s*(?:[:—-]|равен)?",
    r"(?:الجواب|الإجابة)(?:\s+النهائي[ة]?)?(?:\s+ه[وي])?\s*:?",
    r"उत्तर(?:\s+है)?\s*:?",
    r"উত্তর(?:\s*(?:হল|হলো))?\s*:?",
    r"సమాధానం\s*:?",
    r"คำตอบ(?:สุดท้าย)?\s*(?:คือ|:)",
    r"jibu\s*(?:la\s+mwisho\s+)?(?:ni|:)",
    r"antwoord\s*(?:is|:)",
    r"svaret\s+är|svar\s*:",
    r"svaret\s+er",
    r"odpowied[źz]\s*(?:to|:)",
    r"odpověď\s*(?:je|:)",
    r"cevap\s*:",
    r"jawaban(?:nya)?\s*(?:adalah|:)",
    r"відповідь\s*[:—-]",
    r"απάντηση\s*(?:είναι|:)",
    r"đáp\s+(?:án|số)(?:\s+là)?\s*:?",
)
_MARKER = re.compile("|".join(f"(?:{phrase})" for phrase in _PHRASES), re.IGNORECASE)
# Every marker contains one of these; a text without them is not searched.
_KEYWORDS = (
    *"answer result solution ans a: #### respuesta ponse antwort resposta risposta đáp ответ option choice jibu "
    "antwoord svar odpowied odpověď cevap jawaban відповідь απάντηση".split(),
    *"答 所以 故选 정답 답 الجواب الإجابة उत्तर উত্তর సమాధానం คำตอบ".split(),
)
_TAG_CLOSE = "</answer>"
_MATH = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$|\*)|[。！？।]|(?<=[^\d!])!(?=\s|$)")
# A reason after the answer, or what it is not: "42, since 6 * 7 = 42", "42, not 41".
_CLAUSE = re.compile(
    r",?\s+(?:because|since|which|where|so\s+that|considering|given\s+that)\b|,\s+(?:and\s+)?not\b", re.IGNORECASE
)
_LEADING = re.compile(r"(?:[\s:：=*_`>~]|\bis\b|\bthat\b|\bindeed\b|\btherefore\b|\bsimply\b|是|为)*", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*\n]{1,200})\*\*")


def _tagged(text: str) -> Extracted | None:
    close = text.rfind(_TAG_CLOSE)
    if close < 0:
        return None
    opened = text.rfind("<answer>", 0, close)
    if opened < 0:
        return None
    return Extracted(text[opened + len("<answer>") : close].strip(), "tag")


def _marked(text: str) -> Extracted | None:
    text = text[-MAX_TAIL:]
    if "<" in text:
        text = _SPECIAL.sub(" ", text)
    lower = text.lower()
    last = _last_match(_MARKER, text) if any(keyword in lower for keyword in _KEYWORDS) else None
    if last is not None:
        answer = sentence(text[last.end() : last.end() + 4 * MAX_SENTENCE])
        if answer:
            return Extracted(answer, "marker")
    tail = text.rstrip()
    line = tail[tail.rfind("\n") + 1 :][-1000:]
    bold = _last_match(_BOLD, line)
    if bold is not None and not bold[1].rstrip().endswith(":"):
        return Extracted(bold[1].strip(), "bold")
    return None


def _last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    return collections.deque(pattern.finditer(text), maxlen=1).pop() if pattern.search(text) else None


def sentence(text: str) -> str:
    """Return the answer at the start of `text`, up to the end of its sentence, without math delimiters and emphasis."""
    lead = _LEADING.match(text)
    text = text[lead.end() if lead else 0 :]
    display = text.startswith(("$$", "\\["))
    if display and (math := _MATH.match(text)):
        return next(group for group in math.groups() if group is not None).strip()
    for cut in (_SENTENCE_END, _CLAUSE):
        end = cut.search(text)
        text = text[: end.start()] if end else text
    text = text.replace("**", " ").replace("__", " ").strip().strip('*_`"').strip()
    return text[:MAX_SENTENCE]


# --- lenient ----------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?%?")


def _last(text: str) -> Extracted:
    """The last math span of the last paragraphs, else the last number."""
    tail = text[-4000:]
    span, number = _last_match(_MATH, tail), _last_match(_NUMBER, tail)
    if span is not None and (number is None or number.end() <= span.end()):
        inner = next(group for group in span.groups() if group is not None)
        return Extracted(inner.rsplit("=", 1)[-1].strip(), "last")
    if number is not None:
        return Extracted(number.group(), "last")
    line = tail.strip().rsplit("\n", 1)[-1].strip()
    return Extracted(line, "last") if line else Extracted(None, "the completion is empty")


def extract(completion: str, mode: Mode = "marked", conflict: Conflict = "last") -> Extracted:
    """Return the answer of a completion.

    "strict" reads boxes only, "marked" also marked answers, "lenient" also the last expression or number. With
    conflict="reject", several different boxes are no answer; boxes with only separators between them are one list.
    """
    text = after_thinking(completion)
    if text is None:
        return Extracted(None, "unterminated <think> block")
    found = _from_boxes(text, conflict) if "box" in text else None
    if found is None and mode != "strict":
        found = _tagged(text) or _marked(text)
    if found is None and mode == "lenient":
        found = _last(text)
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
    """Whether normalised text only fills the place of an answer: "your answer here", "...", "?"."""
    return text in _PLACEHOLDERS or not any(c.isalnum() or c in "∞∅πℝ\\{}" for c in text)
