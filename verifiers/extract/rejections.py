r"""Answers that a completion does not give: negated, called wrong, supposed, taken back; or joined to another one.

`is_refused` and `is_value_refused` look at the words before an answer, `is_denied` at those of its own sentence,
`is_taken_back` and `find_alternative` at the text after it. Each reads a bounded stretch of text. The first part of
this module has the words for it in several languages, and quick tests for them.
"""

from __future__ import annotations

import re
from pathlib import Path

from rlvr.core.files.tables import read_words

WRONG_EN = r"(?:wrong|incorrect|false|mistaken|erroneous|invalid|bad|flawed)"
NOUN_EN = r"(?:answer|result|option|choice|solution|value|conclusion|guess)"
# Adjectives for a wrong answer in other languages, and words for an answer.
WRONG = (
    r"(?:incorrect[ao]?|incorrecte|equivocad[ao]|fals[ao]|err[óo]ne[ao]|errad[ao]|incorret[ao]|sbagliat[ao]|errat[ao]"
    r"|scorrett[ao]|fausse|faux|mauvaise|erron[ée]e?|falsche?[rs]?|fehlerhafte?|unrichtige?|inkorrekte?|foute?|verkeerde?"
    r"|неправильн\w+|неверн\w+|ошибочн\w+|хибн\w+|b[łl][ęe]dn\w+|niepoprawn\w+|yanliş|salah|felaktig\w*|sai|λάθο[ςσ]|خاطئ\w*)"
)
NOUN = (
    r"(?:respuesta|soluci[óo]n|resposta|solução|risposta|soluzione|r[ée]ponse|antwort|l[öo]sung|antwoord|ответ|відповідь"
    r"|odpowied[źz]|odpověď|svar(?:et)?|cevap|jawaban|đáp\s+án|απάντηση|الجواب|الإجابة)"
)
WRONG_CJK = r"错(?!排|位|开)|錯|误(?!差)|誤(?!差)|不对|不對|不正确|不正確|間違|틀린|틀렸|오답|잘못"
NOT_CJK = (
    r"不(?!同|等式|大于|小于|超过|少于|多于|相等|足|变|妨|难|仅|相邻|重复|定|含|包)|没|沒|非(?!负|零|常|空|平凡)|未必"
    r"|ない|ません|않|아니|아닙"
)
NOT = (
    r"(?:nicht|keine?[rsn]?|niemals|pas|jamais|non|não|nunca|nem|не|нет|ні|niet|geen|nie|není|ne|değil|değildir|bukan"
    r"|tidak|inte|ikke|không|phải\s+không|δεν|ليس(?:ت)?|नहीं)"
)
_WORDS = read_words(Path(__file__).with_name("words.txt"))
# The first letters of the words that the patterns below look for, in ASCII texts. A text without any is not searched.
STEMS = frozenset(word[:4] for word in _WORDS["suspect"])
HARMLESS = _WORDS["harmless"]
LATIN_WORD = re.compile(r"[a-z]+")
_STEM = re.compile(r"([a-z]{2,4})[a-z]*")


REJECTING = (STEMS - _WORDS["no rejection"]) | frozenset("than been comm typi usua freq clas".split())
REFUSING = STEMS | frozenset(
    "show prov veri demo stud peop many few most othe comm typi usua freq clas quiz tal peut viel fors talv".split()
)


def fold_case(text: str) -> str:
    """Return a text in small letters, with as many signs.

    The patterns of this module are written in small letters. Without regard to case, the `re` module would try every
    alternative at every word, which takes several times as long.
    """
    if not text.isascii():
        text = text.replace("\u0130", "i").replace("\u0131", "i").replace("\u017f", "s")  # I with a dot, long s
    return text.lower()


def is_suspect(text: str, stems: frozenset[str] = STEMS) -> bool:
    """Whether a folded text may match a pattern of this module, or a pattern for words with these stems."""
    return not text.isascii() or ("'" in text and "n't" in text) or has_word(text, stems)


def has_word(text: str, stems: frozenset[str]) -> bool:
    """Whether a word in a folded text begins with one of the stems and is not harmless."""
    if stems.isdisjoint(_STEM.findall(text)):
        return False
    return not HARMLESS.issuperset(word for word in LATIN_WORD.findall(text) if word[:4] in stems)


FALSE = (
    rf"(?:{WRONG_EN}|not\s+(?:quite\s+)?(?:right|correct|true|(?:a\s+|the\s+|my\s+|our\s+)?(?:\w+\s+){{0,2}}"
    rf"(?:answer|solution|option|choice)))"
)


MAX_CLAUSE = 120

_CALLED_WRONG = re.compile(
    rf"\A\W*(?:(?:so|thus|but|hence|then|another|the|an?|one|my|our|your|common|typical|most|first|obvious)\s+)*"
    rf"(?:\w+\s+)?{WRONG_EN}\s+(?:\w+\s+)?{NOUN_EN}(?!\w)"
    rf"|\b{WRONG}\W{{1,2}}(?:\w+\W+)?{NOUN}(?!\w)|\b{NOUN}\W{{1,2}}(?:\w+\s+)?{WRONG}(?!\w)"
    rf"|(?:{WRONG_CJK})(?:误|誤)?(?:的|な|った)?\s?(?:最终)?(?:答案|答え|解答|选项|選項|답)|(?:답안?|答案)은?\s*(?:{WRONG_CJK})",
)
_NEGATED = re.compile(
    rf"\b(?:not|never|cannot|doubt|deny|neither|nobody\s+\w+|no\s+one\s+\w+|wrongly|incorrectly|mistakenly|falsely)\b"
    rf"|n['’]t\b|(?<![\\\w-]){NOT}(?![\w-])|\bno\s+(?:es|son|sea)\b|\bn['’]est\b|{NOT_CJK}",
)
_COMMON_MISTAKE = r"\b(?:common|typical|usual|frequent|classic)\s+(?:mistake|error|misconception|slip|trap)\b"
_SUPPOSED = re.compile(
    r"\b(?:if|unless|whether|suppose|supposing|assume|assuming|wenn|falls|angenommen|supongamos|supposons|если)\b"
    r"|(?<!\bi )(?<!\bwe )\b(?:claim(?:s|ed)?|guess(?:es|ed)?|alleges?|pretends?)\b"
    r"|\b(?:some|many|few|most|people|others?|students|someone|anyone)\s+(?:\w+\s+)?(?:say|think|believe|answer|get)\b"
    r"|\b(?:mistake|error|tempting|easy)\s+to\s+(?:say|think|conclude|claim|believe|answer|assume)\b"
    r"|\b(?:false|wrong|incorrect|untrue)\s+(?:that|to)\b|\bno\s+way\b|\A\W*(?:show|prove|verify|demonstrate)\s+that\b"
    r"|\b(?:quiz[áa]s?|tal\s+vez|peut-[êe]tre|vielleicht|forse|talvez)\b|\bможет\s+быть\b|\bвозможно\b"
    rf"|{_COMMON_MISTAKE}"
    r"|\b(?:might|may|could|would)\s+(?:\w+\s+){0,2}(?:think|say|believe|guess|expect|conclude|claim|answer)\b|可能|如果|假设",
)
# Another quantity than the answer: "Half of the answer is 42", "The square of the number is 42".
_THE_ANSWER = (
    r"(?:the|this|that|our|my|its)\s+(?:\w+\s+)?(?:answer|result|solution|number|value|quantity|unknown)(?!\s+of\b)"
)
_ANOTHER = re.compile(
    rf"\b(?:half|twice|double|triple|(?:one[\s-])?(?:third|quarter|fourth|fifth|tenth)|square(?:\s+root)?|cube(?:\s+root)?"
    rf"|root|reciprocal|negative|opposite|inverse|\w*\s?digits?|factors?|multiples?|logarithm|successor|predecessor"
    rf"|remainder|magnitude|modulus|absolute\s+value|complement|conjugate|negation)"
    rf"\s+(?:of\s+|to\s+)?{_THE_ANSWER}\b"
    rf"|\b{_THE_ANSWER}\s+(?:plus|minus|times|divided|squared|cubed|doubled|halved|multiplied|modulo|mod)\b"
    r"|\b(?:half|twice|double|triple|square|cube|reciprocal|negative|opposite|inverse|logarithm)\s+of\s+[a-z]\s*\Z"
    r"|\b(?:the|its)\s+(?:(?:additive|multiplicative)\s+)?(?:double|triple|reciprocal|negative|opposite|inverse|negation|complement)\s*\Z"
    rf"|\b(?:than|plus|minus|times)\s+{_THE_ANSWER}\b",
)


def names_another(words: str) -> bool:
    """Whether the words before a value name a quantity that is computed from the answer: half of it, its square."""
    words = fold_case(words)
    return _ANOTHER.search(words) is not None


_AFFIRMED = re.compile(
    r"\b(?:no\s+doubt|without\s+(?:a\s+|any\s+)?doubt|not\s+only|not\s+(?:wrong|incorrect)|sin\s+duda)\b|不妨|不难|不仅",
)
# The signs that separate an answer's clause from those before it.
_STOPS = re.compile(r".*[.!?\n,;:。！？，；：、]", re.DOTALL)
_CONJUNCTIONS = re.compile(
    r"\b(?:so|therefore|thus|hence|then|and|but|because|since|where|which|also|daher|somit|also"
    r"|donc|alors|luego|entonces|portanto|então|quindi|dunque|perci[òo]|значит|поэтому|следовательно)\b"
    r"|故|所以|因此|因而|从而|则|但",
)


def clause_before(text: str, position: int, opening: str = " \t*_>#") -> str:
    """Return the clause that ends at `position`, without the signs at its end that open the answer (`opening`)."""
    return _after_conjunctions(_after_stops(text, position, opening))


def _after_stops(text: str, position: int, opening: str) -> str:
    before = text[max(position - MAX_CLAUSE, 0) : position].rstrip(opening)
    stop = _STOPS.match(before)
    return before if stop is None else before[stop.end() :]


def _after_conjunctions(before: str) -> str:
    last = 0
    for found in _CONJUNCTIONS.finditer(fold_case(before)):
        last = found.end()
    return before[last:]


DISPLAY = " \n\t$*_`[({:~>\\"  # signs that may stand between words and the box or formula that they announce


_SENTENCE_START = re.compile(r"[.!?\n。！？]")
_COUNTERFACTUAL = re.compile(r"\A\W*if\b.*\bwould\b", re.DOTALL)
_ON_FALSE_GROUNDS = re.compile(
    r"\A\W*(?:under|with|by|using|assuming)\b.*\b(?:false|wrong|incorrect|mistaken)\b"
    r"|\b(?:неверно|неправильно|falso|falsch|faux|false|wrong|incorrect|not\s+true)\W{1,3}(?:что|que|che|dass|that)\b",
    re.DOTALL,
)


def is_sentence_refused(text: str, start: int, end: int) -> bool:
    """Whether the sentence of an announcement is counterfactual: "If x were 3, the answer would be"."""
    before = fold_case(text[max(start - 2 * MAX_CLAUSE, 0) : end])
    if not is_suspect(before):
        return False
    place = 0
    for found in _SENTENCE_START.finditer(before, 0, len(before) - (end - start)):
        place = found.end()
    before = before[place:]
    return bool(_COUNTERFACTUAL.search(before) or _ON_FALSE_GROUNDS.search(before))


def _calls_wrong(clause: str) -> bool:
    """Whether a folded clause speaks of a wrong answer."""
    return is_suspect(clause, _WORDS["wrong"]) and _CALLED_WRONG.search(clause) is not None


def is_refused(clause: str) -> bool:
    """Whether the words that announce an answer reject it: they call it wrong, suppose it, or negate it."""
    clause = fold_case(clause)
    if not is_suspect(clause, REFUSING):
        return False
    clause = _AFFIRMED.sub(" ", clause)
    return bool(_NEGATED.search(clause) or _SUPPOSED.search(clause) or _calls_wrong(clause))


_ENDS_NEGATED = re.compile(
    rf"(?:\bnot|n['’]t|\bnever|\bcannot|\bno\s+(?:es|son)|\b{NOT}(?:\s+(?:è|é|est|ist|son|sono|são))?"
    rf"|\b(?:retract|reject\w*|discard\w*|withdraw|rul\w+\s+out)"
    r"|不(?:是|等于|为)?|并非)(?:\s+(?:be|equal(?:\s+to)?|just|simply|gleich|igual\s+a))?\Z",
)


_DISBELIEVED = re.compile(
    rf"\bif\s+(?:\w+\s+){{1,3}}were\b|\b(?:would|could|might)\s+have\s+been\Z|\bno\s+way\b|{_COMMON_MISTAKE}"
    r"|\b(?:answer|result)\s+(?:is|(?:must|should)\s+be)\s+(?:strictly\s+|certainly\s+|definitely\s+)?"
    r"(?:greater|larger|more|bigger|less|smaller|fewer|lower|higher)\s+than\Z|"
    r"(?:\b(?:not|cannot|never)|n['’]t)\s+(?:true|think|believe|say|claim|mean|the\s+case|correct|right|certain)\b|\bdoubt\b(?!less)"
    r"|\b(?:false|wrong|incorrect|untrue)\s+that\b|(?:\bnot|n['’]t|\bnever)\s+(?:answer|write|put|choose|pick|submit)(?:\s+with)?\Z",
)


def is_value_refused(text: str, position: int) -> bool:
    """Whether the clause before a box or formula rejects it. Other negations ("not divisible by 3") do not count."""
    before = fold_case(_after_stops(text, position, DISPLAY))
    if not is_suspect(before, REJECTING):
        return False
    clause = _AFFIRMED.sub(" ", _after_conjunctions(before)).strip()
    ending = " ".join(clause.split()[-4:])  # _ENDS_NEGATED matches at most so many words
    return bool(_ENDS_NEGATED.search(ending) or _DISBELIEVED.search(clause) or _calls_wrong(clause))


_NO = r"(?:not|never|no|nicht|keine?|pas|non|não|не|нет|niet|nie|değil|bukan|không|不是?|不等于|並不|并不|并非)"
_STARTS_NEGATED = re.compile(rf"[\W_]*(?:{_NO})(?![\w-])|[\W_]*(?:不是|不等于|不为|并非|并不|可能)")
_SAYS_NOT = re.compile(
    rf"\b(?:is|was|are)\s+(?:\w+ly\s+)?(?:(?:a|an|the)\s+)?(?:{FALSE}|impossible|absurd|extraneous|excluded|ruled\s+out"
    r"|too\s+(?:large|small|big|high|low|many|few))\b|\b(?:is|was|are|wo|does|do)n['’]t\b"
    rf"|(?<![\\\w]){NOT}(?![\w-])|\b(?:anything|everything|all)\s+but\b|\bthere\s+is\s+no\s+(?:answer|solution)\b"
    rf"|\bno\s+(?:es|son)\b|\bn['’]est\b|\b{WRONG}\b|{WRONG_CJK}|{NOT_CJK}|[❌✗✘]",
)
_VALUE = re.compile(r"\d|\$|\\[A-Za-z(]|\A\W*[A-J](?![A-Za-z])")


def is_denied(answer: str) -> bool:
    """Whether the sentence of an answer says that its value is not the answer."""
    words = fold_case(answer)
    if not is_suspect(words) or not _VALUE.search(answer):
        return False  # "False", "not possible" and the like are answers in words
    return bool(_STARTS_NEGATED.match(words) or _SAYS_NOT.search(words))


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


# A pattern of the same name matches only if a word begins with one of these: all its words are English.
_LATER_STEMS = frozenset(
    "wron inco fals mist erro inva bad flaw not isn wasn scra just seco corr igno disr take".split()
)
_INSTEAD_STEMS = frozenset("no nope wait actu sorr oops whoo my edit upda corr rath hmm rech reco redo".split())
_OF_VALUE_STEMS = frozenset("wron inco fals mist erro inva bad flaw not isn wasn cann".split())


def is_taken_back(text: str, end: int, answer: str) -> bool:
    """Whether the text after an answer, which ends at `end`, takes it back. A question ("Is that wrong?") does not."""
    behind = text[end : end + MAX_BEHIND]
    words = fold_case(behind)
    if ("correct" in behind or "final" in behind or "actual" in behind) and (found := _REPLACED.search(words)):
        return _bare(answer) != _bare(behind[slice(*found.span("value"))])
    if not is_suspect(words):
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
    """Return an answer without delimiters and spaces."""
    return _DELIMITERS.sub("", answer)


def _value_of(behind: str, found: re.Match[str]) -> str:
    """Return the value that a match of _OF_VALUE calls wrong."""
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


def find_alternative(text: str, end: int) -> str:
    """Return the value of "or 6" right after an answer that ends at `end`, or "".

    The value of "and 6" counts only if several values are announced.
    """
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


def is_joined_by_or(text: str, position: int) -> bool:
    """Whether "or" joins the announcement that starts at `position` to the text before it."""
    return _JOINS.search(text[max(position - 60, 0) : position]) is not None
