r"""Answers that the text behind them takes back, or joins to another: "Wait, that is wrong", "or 6".

Each function reads a bounded stretch of text.
"""

from __future__ import annotations

import re

from rlvr.verifiers.extract.wording import FALSE, HARMLESS, LATIN_WORD, WRONG, WRONG_CJK, WRONG_EN, folded, suspect

MAX_BEHIND = 2_000

_THIS = (
    r"(?:(?:that|this)(?:\s+(?:answer|result))?|it|the\s+(?:above\s+)?(?:answer|result)"
    r"|my\s+(?:\w+\s+)?(?:answer|result)|the\s+above)"
)
_OH = r"(?:wait|no|nope|actually|hm+|oops|sorry|hold\s+on|but|however|unfortunately|in\s+fact)"
_AT_ONCE = re.compile(
    # "... is wrong", ", which is wrong", ". That is wrong", "Wait, no, that's not right"
    rf"[\s$.,;:!)\]}}*_~`\\|-]*(?:</answer>\s*)?(?:(?:which\s+)?(?:(?:is|was)\s+(?:\w+ly\s+)?"
    rf"(?:{FALSE}|impossible|absurd|extraneous|excluded|ruled\s+out|not\s+(?:allowed|permitted|admissible|valid|possible)"
    r"|(?:only\s+|just\s+|merely\s+)?an?\s+(?:approximation|estimate|guess)"
    r"|(?:only\s+|just\s+)?what\s+(?:an?|some|many|most|other)\s+(?:\w+\s+){1,2}(?:might|may|would|could))\b"
    r"|fails\b|(?:does\s+not|doesn['’]t|fails\s+to)\s+(?:satisfy|work|hold|fit|meet|solve)\b)"
    rf"|(?:{_OH}\b\W{{0,5}}){{0,3}}(?:i\s+(?:think|see|realize)\s+(?:that\s+)?)?{_THIS}(?:\s+(?:above|given))?"
    rf"\s*(?:['’]s|is|was|seems|looks|can['’]?t\s+be|cannot\s+be)\s+(?:\w+\s+)?(?:{FALSE}|impossible)\b"
    rf"|(?:(?:{_OH})\b\W{{0,5}}){{0,3}}{_THIS}\s+do(?:es)?(?:\s+not|n['’]t)\s+(?:look|seem|sound)\s+(?:right|correct)\b"
    r"|(?:but\s+|though\s+|although\s+)?(?:it|the\s+answer)\s+(?:might|may|could)\s+(?:also\s+|well\s+)?be\b"
    rf"|(?:no|non|nein|nee|нет|não|nie)\W{{1,3}}\s*(?:(?:eso|esto|das|dies|c['’]|ce|questo|ciò|isso|isto|это|dat|è|é)\W?\s*)?"
    rf"(?:\w+\s+)?(?:{WRONG}|falso|mal|falsch|faux|sbagliato|errato|errado|неверно|неправильно|ошибка|nicht\s+richtig)(?!\w)"
    rf"|(?:eso\s+(?:es|está)|esto\s+es|das\s+ist|c['’]est|questo\s+è|isso\s+(?:é|está)|это)\s+(?:\w+\s+)?"
    rf"(?:{WRONG}|falso|mal|falsch|faux|неверно|неправильно|nicht\s+richtig)(?!\w)"
    r"|would\s+(?:only\s+)?(?:be|have\s+been)\s+(?:\w+\s+){0,3}(?:if|had|were)\b"
    r"|but\s+(?:i|we)\s+(?:could\s+not|couldn['’]t|cannot|can['’]t|(?:am|was|were)\s+unable\s+to|d(?:o|id)\s+not|d(?:o|id)n['’]t)"
    r"\s+(?:find|determine|compute|know|get)\s+the\s+(?:(?:exact|true|actual)\s+)?(?:value|answer)\b"
    r"|not\s+(?:really|quite|exactly)\b|[❌✗✘]|\?\W{0,3}(?:no|nope|wrong)\b"
    r"|\(?(?:but|though|although)\s+i\W?a?m\s+(?:not|un)\s?(?:sure|certain)\b|(?:\\neq?(?![A-Za-z])|≠|!=)\W{0,3}(?:text\W+)?(?:the\s+)?answer\b"
    rf"|(?:est|ist|es|está|é|è|sono|são|is|är|jest)\s+(?:\w+\s+)?{WRONG}(?!\w)|невер\w+|неправил\w+|ошибоч\w+"
    rf"|(?:は|が|是|为|為|이|가|은|는)?\s*(?:{WRONG_CJK}|誤り|ではない|ではありません|じゃない|아니|아닙|不是答案)"
    rf"|[。，,；\s]*(?:(?:等等|等一下|不|哦)[，,。！\s]*)?(?:这(?:个答案)?(?:是|不)?|該|该答案)?(?:不对|不對|错了|錯了|错误|不正确))",
)
_LATER = re.compile(
    r"[.!?\n]\s*(?:(?:no|but|well)\b\W{1,3})?(?:it|that|this)\s*(?:is\s+not|['’]s\s+not|isn['’]t|was\s+not|wasn['’]t)\s*[.!]|"
    r"(?<!if )\bi(?:\s+have|['’]ve)?\s+(?:\w+\s+)?made\s+an?\s+(?:\w+\s+)?(?:mistake|error)\b(?!\s*[?,])"
    r"|(?<!if )\bi\s+(?:was|am)\s+(?:wrong|mistaken)\b|\bscratch\s+that\b|\bjust\s+kidding\b"
    r"|\bon\s+second\s+thoughts?\b|\bcorrection\s*:"
    r"|\b(?:ignore|disregard)\s+(?:that|this|the\s+above|my\s+(?:\w+\s+)?answer)\b|\bi\s+take\s+(?:that|it)\s+back\b"
    rf"|\b(?:the|my)\s+(?:(?:above|previous)\s+answer|answer\s+above|answer\s+(?:i\s+gave|is\s+not))\s*(?:(?:is|was)\s+)?{FALSE}\b"
    rf"|\b(?:wait|no|oops|actually|hm+)\b\W{{1,5}}(?:no\W{{1,3}})?{_THIS}\s*(?:['’]s|is|was)\s+(?:\w+\s+)?{FALSE}\b",
)
_OF_VALUE = re.compile(
    r"\s(?:is|was)(?:(?:\s+not|n['’]t|\s+definitely\s+not)\s+(?:the|our|my|a)\s+(?:\w+\s+)?(?:answer|solution)"
    rf"|\s+{WRONG_EN})\b|\b(?:answer|result)\s+(?:is\s+not|isn['’]t|cannot\s+be)\s+(\S{{1,80}})",
)
MATH_VALUE = r"\$[^$\n]{1,100}\$|\\\([^\n]{1,100}?\\\)|\\(?:boxed|d?frac|sqrt|pi)(?![A-Za-z])[^\s.,;]{0,60}"
NUMBER_VALUE = r"[-−]?\d(?:[\d.,/]*\d)?(?:\s?(?:%|\\%))?(?!\s+(?:in|out)\b)"
# Another answer in its place: "No, 6.", "Sorry, the correct answer is 6."
_INSTEAD = re.compile(
    r"(?:\A,\s*(?=no,)|\A[\s$.;:!)\]}*_~`-]*|[.!?\n]\s*)"
    r"(?:(?:no|nope|wait|actually|sorry|oops|edit|update|correction|rather|hmm+"
    r"|let\s+me\s+(?:re-?check|double-check|check|reconsider|redo)(?:\s+(?:it|this|that|again))?)\b[\s,.:!-]{0,4}){1,4}"
    r"(?:(?:i\s+mean|it\s*(?:['’]s|is|should\s+be|must\s+be)"
    r"|(?:so\s+)?(?:the|my)\s+(?:\w+\s+){0,2}answer\s*(?:is|should\s+be|:))\s*)?"
    r"(?:actually\s+|rather\s+|instead\s+)?"
    rf"(?P<value>{MATH_VALUE}|{NUMBER_VALUE})(?:\s+instead)?(?=[\s$)]*(?:[.!\n]|\Z))",
)
# "Oops, I forgot one case: 6.", "Sorry, that should read 6."
_MENDED = re.compile(
    r"(?:\A[\s$.;:!)\]}*_~`-]*|[.!?\n]\s*)(?:edit|oops|whoops|sorry|correction|my\s+mistake)\b[^\n]{0,100}?"
    r"(?:\b(?:so|thus|hence|therefore)\s+(?:it\s*(?:['’]s|is)|the\s+\w+\s+is)|\bshould\s+(?:be|read|have\s+been)|:)\s+"
    rf"(?P<value>{MATH_VALUE}|{NUMBER_VALUE})(?=[\s$)]*(?:[.!\n]|\Z))",
)
# "But checking, 12 fails, so the correct value is 15."
_REPLACED = re.compile(
    r"\b(?:wait|but|however|actually|hmm+|hold\s+on|oops|mistake|error)\b.{0,800}?\b(?:final|correct|right|actual|true)\s+"
    r"(?:answer|value|result|solution)\s*(?:is|should\s+be|must\s+be|=|:)\s*(?:then\s+|therefore\s+|actually\s+)?[$*]*"
    rf"(?P<value>{MATH_VALUE}|{NUMBER_VALUE})",
    re.DOTALL,
)
_DELIMITERS = re.compile(r"\\boxed|\\[()\[\]]|[\s${}.,;:!*]")


# Without a word that begins so, the pattern of the same name finds nothing; all of them look for English words.
_LATER_STEMS = frozenset(
    "wron inco fals mist erro inva bad flaw not isn wasn scra just seco corr igno disr take".split()
)
_INSTEAD_STEMS = frozenset("no nope wait actu sorr oops whoo my edit upda corr rath hmm rech reco redo".split())
_OF_VALUE_STEMS = frozenset("wron inco fals mist erro inva bad flaw not isn wasn cann".split())


def taken_back(text: str, end: int, answer: str) -> bool:
    """Whether the text behind an answer, which ends at `end`, takes it back. A question ("Is that wrong?") does not."""
    behind = text[end : end + MAX_BEHIND]
    words = folded(behind)
    if ("correct" in behind or "final" in behind or "actual" in behind) and (found := _REPLACED.search(words)):
        return _bare(answer) != _bare(behind[slice(*found.span("value"))])
    if not suspect(words):
        return False
    at_once = _AT_ONCE.match(words)
    if at_once and not _is_question(words, at_once.end()):
        return True
    stems = {word[:4] for word in LATIN_WORD.findall(words) if word not in HARMLESS}
    if not stems.isdisjoint(_LATER_STEMS) and any(
        not _is_question(words, found.end()) for found in _LATER.finditer(words)
    ):
        return True
    bare = _bare(answer)
    if not stems.isdisjoint(_INSTEAD_STEMS) and any(
        bare != _bare(behind[slice(*found.span("value"))])
        for pattern in (_INSTEAD, _MENDED)
        for found in pattern.finditer(words)
    ):
        return True
    return (
        bare != ""
        and not stems.isdisjoint(_OF_VALUE_STEMS)
        and any(
            bare == _bare(_value_of(behind, found))
            for found in _OF_VALUE.finditer(words)
            if not _is_question(words, found.end())
        )
    )


def _bare(answer: str) -> str:
    """An answer without delimiters and spaces."""
    return _DELIMITERS.sub("", answer)


def _value_of(behind: str, found: re.Match[str]) -> str:
    """The value of which _OF_VALUE says that it is wrong."""
    if found[1]:
        return behind[slice(*found.span(1))]
    return behind[max(found.start() - 80, 0) : found.start()].rpartition(" ")[2]


_SENTENCE = re.compile(r"[.!?\n]")


def _is_question(text: str, position: int) -> bool:
    end = _SENTENCE.search(text, position)
    return end is not None and end.group() == "?"


_ALTERNATIVE = re.compile(
    r"(?:[\s$.,;)\]}*_~`]|\\[()\[\],;: ])*(?:\(\s*|\\text\s*\{\s*\(?\s*)?"
    r"(?P<word>and|or|oder|ou|o|oppure|или|或者?|alternatively|maybe|perhaps|possibly)\b[\s,:}$]{0,4}"
    r"(?:(?:maybe|perhaps|possibly|even|else|it\s+(?:is|could\s+be|might\s+be|may\s+be)|equivalently|simply|just"
    r"|the\s+(?:\w+\s+)?answer\s+(?:is|could\s+be|might\s+be))[\s,]{1,2}){0,4}"
    rf"(?P<value>{MATH_VALUE}|{NUMBER_VALUE}|\(?(?-i:[A-J])\)?(?=[\s$)}}]*(?:[.!?\n]|\Z)))"
    r"(?P<rest>(?:\s?[A-Za-z°%]+){0,2}(?=[).\s$]*(?:[.!?\n)]|\Z)))?",
    re.IGNORECASE,
)


_SEVERAL = re.compile(
    r"\b(?:values|solutions|answers|roots|zeros|numbers)\s+(?:of\s+[^.!?\n]{1,40}\s)?are\b[^.!?\n]*\Z"
)


def alternative(text: str, end: int) -> str:
    """Return the value of "or 6" right behind an answer that ends at `end`; "" where there is none.

    Of "and 6" only where several values are announced."""
    found = _ALTERNATIVE.match(text[end : end + 300])
    if found is None:
        return ""
    word = found["word"].lower()
    if word == "alternatively" and not _stands_alone(text, end + found.end()):
        return ""
    if word == "and" and not (
        _stands_alone(text, end + found.end("value")) and _SEVERAL.search(text[max(end - 200, 0) : end])
    ):
        return ""
    return (found["value"] + (found["rest"] or "")).strip("$ ")


def _stands_alone(text: str, position: int) -> bool:
    return re.match(r"[\s$)]*(?:[.!?\n]|\Z)", text[position : position + 10]) is not None


_JOINS = re.compile(
    r"\b(?:or|oder|ou|oppure|или)[\s,]*(?:(?:maybe|perhaps|possibly|else|even)[\s,]*)*(?:(?:the|that|my)\s+)?\Z"
)


def continues(text: str, position: int) -> bool:
    """Whether the announcement that starts at `position` is joined by "or" to what comes before it."""
    return _JOINS.search(text[max(position - 60, 0) : position]) is not None
