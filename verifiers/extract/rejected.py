r"""Answers that a completion does not give: negated, called wrong, supposed.

`refused` and `refused_value` look at the words before an answer, `denied` at those of its own sentence. Each reads a
bounded stretch of text.
"""

from __future__ import annotations

import re

from rlvr.verifiers.extract.wording import (
    FALSE,
    NOT,
    NOT_CJK,
    NOUN,
    NOUN_EN,
    REFUSING,
    REJECTING,
    WRONG,
    WRONG_CJK,
    WRONG_EN,
    folded,
    suspect,
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
# What another quantity is: "Half of the answer is 42", "The square of the number is 42".
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
    """Whether the words before a value name something that is computed from the answer: half of it, its square."""
    words = folded(words)
    return _ANOTHER.search(words) is not None


_AFFIRMED = re.compile(
    r"\b(?:no\s+doubt|without\s+(?:a\s+|any\s+)?doubt|not\s+only|not\s+(?:wrong|incorrect)|sin\s+duda)\b|不妨|不难|不仅",
)
# What separates an answer's clause from the ones before it.
_STOPS = re.compile(r".*[.!?\n,;:。！？，；：、]", re.DOTALL)
_CONJUNCTIONS = re.compile(
    r"\b(?:so|therefore|thus|hence|then|and|but|because|since|where|which|also|daher|somit|also"
    r"|donc|alors|luego|entonces|portanto|então|quindi|dunque|perci[òo]|значит|поэтому|следовательно)\b"
    r"|故|所以|因此|因而|从而|则|但",
)


def clause_before(text: str, position: int, opening: str = " \t*_>#") -> str:
    """Return the clause that ends at `position`, without what opens there: emphasis and space, or `opening`."""
    return _after_conjunctions(_after_stops(text, position, opening))


def _after_stops(text: str, position: int, opening: str) -> str:
    before = text[max(position - MAX_CLAUSE, 0) : position].rstrip(opening)
    stop = _STOPS.match(before)
    return before if stop is None else before[stop.end() :]


def _after_conjunctions(before: str) -> str:
    last = 0
    for found in _CONJUNCTIONS.finditer(folded(before)):
        last = found.end()
    return before[last:]


DISPLAY = " \n\t$*_`[({:~>\\"  # may stand between words and the box or formula that they announce


_SENTENCE_START = re.compile(r"[.!?\n。！？]")
_COUNTERFACTUAL = re.compile(r"\A\W*if\b.*\bwould\b", re.DOTALL)
_ON_FALSE_GROUNDS = re.compile(
    r"\A\W*(?:under|with|by|using|assuming)\b.*\b(?:false|wrong|incorrect|mistaken)\b"
    r"|\b(?:неверно|неправильно|falso|falsch|faux|false|wrong|incorrect|not\s+true)\W{1,3}(?:что|que|che|dass|that)\b",
    re.DOTALL,
)


def refused_sentence(text: str, start: int, end: int) -> bool:
    """Whether the sentence of an announcement supposes what is not so: "If x were 3, the answer would be"."""
    before = folded(text[max(start - 2 * MAX_CLAUSE, 0) : end])
    if not suspect(before):
        return False
    place = 0
    for found in _SENTENCE_START.finditer(before, 0, len(before) - (end - start)):
        place = found.end()
    before = before[place:]
    return bool(_COUNTERFACTUAL.search(before) or _ON_FALSE_GROUNDS.search(before))


_WRONG_STEMS = frozenset(
    "wron inco fals mist erro inva bad flaw equi erra sbag scor faus faux mauv fehl unri inko fout verk bled niep sala "
    "fela sai".split()
)


def _calls_wrong(clause: str) -> bool:
    """Whether a folded clause speaks of a wrong answer."""
    return suspect(clause, _WRONG_STEMS) and _CALLED_WRONG.search(clause) is not None


def refused(clause: str) -> bool:
    """Whether the words that announce an answer say that it is none: a wrong one, a supposed one, "not"."""
    clause = folded(clause)
    if not suspect(clause, REFUSING):
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


def refused_value(text: str, position: int) -> bool:
    """Whether the clause before a box or formula rejects it. Other negations ("not divisible by 3") do not."""
    before = folded(_after_stops(text, position, DISPLAY))
    if not suspect(before, REJECTING):
        return False
    clause = _AFFIRMED.sub(" ", _after_conjunctions(before)).strip()
    ending = " ".join(clause.split()[-4:])  # as many words as _ENDS_NEGATED may take
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


def denied(answer: str) -> bool:
    """Whether the sentence of an answer with a value says that the value is not the answer."""
    words = folded(answer)
    if not suspect(words) or not _VALUE.search(answer):
        return False  # "False", "not possible" and the like are answers in words
    return bool(_STARTS_NEGATED.match(words) or _SAYS_NOT.search(words))
