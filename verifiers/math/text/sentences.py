"""The value that a sentence or a phrase states.

| text | stated |
|---|---|
| no solution; 1 in 6; 52 (base 8) | the empty set; 1/6; a number in a base |
| x if x >= 0, -x if x < 0 | a function by cases |
| all reals except 2 | a set |
| The largest n is 34; 42 (the sum of both) | 34; 42 |
| at least 42, half of 42, in some twenty languages | nothing |

Each rule takes the whole text, so that words which are no part of a known phrase ("probably all reals") leave it
unread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rlvr.core.files.tables import read_sections, read_words

from ...extract.rejections import fold_case, is_denied, is_refused, names_another
from ..grammar.vocabulary import ALTERING, BLOCKED, MULTIPLIERS, NUMBER_WORDS
from ..values.tree import OO, Node, Op, Words, number

# --- phrases ----------------------------------------------------------------------------------------------------------

_BASED = re.compile(r"\(?([0-9A-F]+)\)?(?:_\(?|\(?(?:in)?base)(\d{1,2}|[a-z]{3,9})\)?\Z", re.IGNORECASE)
_NAME_AND_FACTOR = re.compile(r"[A-Za-z]_|[^_]*_(?:\{[^{}]*\}|\w)[^\s)}]")  # A_{16}, c_1 3
_PREFIXED = re.compile(r"0([bB](?=[01]+\Z)|[oO](?=[0-7]+\Z)|[xX](?=[0-9A-Fa-f]+\Z))(\w+)\Z")
_RADIX = {"b": 2, "o": 8, "x": 16}
_BASE_MARKS = str.maketrans("", "", " ,-{}")

_NONE, _ALL_REAL = Op("set", ()), Op("domain", (Words("reals"),))
PHRASES: dict[str, Node] = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "empty set"), _NONE),
    **dict.fromkeys(("there is no solution", "there are no solutions", "none", "no such numbers exist"), _NONE),
    "infinite": OO,
    **dict.fromkeys(("no solution exists", "no solutions exist", "无解", "無解", "нет решений"), _NONE),
    **dict.fromkeys(("aucune solution", "pas de solution", "keine lösung", "sin solución", "解なし"), _NONE),
    **dict.fromkeys(("all real numbers", "all reals", "any real number", "every real number", "all real x"), _ALL_REAL),
}


_ODDS = re.compile(r"(\d{1,6}) (?:in|out of) (\d{1,9})\Z")


def odds(normal: str) -> Node | None:
    """Return the probability 1 in 6; None for another text."""
    match = _ODDS.match(normal) if " in " in normal or " out " in normal else None
    return None if match is None else Op("div", (number(int(match[1])), number(int(match[2]))))


def in_base(normal: str) -> Node | None:
    """Return a number in a base whose digits may be letters: 1A_{16}, 52 (base 8); None for another text."""
    if "_" not in normal and "base" not in normal:
        match = _PREFIXED.match(normal) if normal.startswith("0") else None
        return match and Op("based", (Words(match[2].upper().lstrip("0") or "0"), number(_RADIX[match[1].lower()])))
    if "_" in normal and "-" in normal:
        return None  # c_1 - 3
    match = _BASED.match(normal.translate(_BASE_MARKS))
    if match is None or ("_" in normal and _NAME_AND_FACTOR.match(normal)):
        return None
    digits, base = match[1].upper().lstrip("0") or "0", match[2].lower()
    radix = int(base) if base.isdigit() else NUMBER_WORDS.get(base, 0)
    if not 2 <= radix <= 36 or any(int(digit, 36) >= radix for digit in digits):
        return None
    return Op("based", (Words(digits), number(radix)))


# --- words of other languages -----------------------------------------------------------------------------------------

MAX_SENTENCE = 400

# What compares a number, takes a part of it, or doubts it.
_COMPARISONS = read_sections(Path(__file__).with_name("comparisons.txt"))
_COMPARED = re.compile(
    rf"(?<![\w\\])(?:{'|'.join(_COMPARISONS['words']).replace(' ', chr(92) + 's+')})(?!\w)"
    rf"|{'|'.join(_COMPARISONS['anywhere'])}"
)
_HAS_NUMBER = re.compile(r"\d")
_HINTS = frozenset(_COMPARISONS["hints"])


def compares(text: str) -> bool:
    """Whether a sentence in another language says more or less than a number, a part of it, or doubts it."""
    if len(text) > MAX_SENTENCE:
        return False
    if text.isascii() and (" " not in text or _HINTS.isdisjoint(text.lower().split())):
        return False
    return _HAS_NUMBER.search(text) is not None and _COMPARED.search(fold_case(text)) is not None


# --- other notations --------------------------------------------------------------------------------------------------

MAX_CHARS = 400
MAX_UNEVALUATED = 4_000
MAX_CASES = 6

# A limit, sum or integral, which are not evaluated: its stated value counts.
_UNEVALUATED = re.compile(r"[^=]{0,40}\\(?:lim|sum|prod|int|iint|oint|sup|inf)(?![A-Za-z])")
_TOP_LEVEL = re.compile(r"\\(?:q?quad|text|mbox|mathrm|begin)(?![A-Za-z])|\\.|[{}()\[\]=,;]", re.DOTALL)
_TEXT = re.compile(r"\\(?:text|textrm|mbox|textit)\s*\{([^{}]*)\}")
_SPACE = re.compile(r"[$~]|(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])")
_TWO_LETTERS = re.compile(r"[A-Za-z]{2,}")


def respell(text: str) -> str | None:
    """Return an answer in a form that the grammar may read; None where no rule knows the text."""
    if value := _value_of_unevaluated(text):
        return value
    if len(text) > MAX_CHARS:
        return None
    flat = " ".join(_SPACE.sub(" ", _TEXT.sub(r" \1 ", text) if "{" in text else text).split()).strip(" .")
    for signs, rule in _RULES:
        found = rule(flat) if any(sign in flat for sign in signs) else None
        if found is not None and found != text:
            return found
    return None


def _value_of_unevaluated(text: str) -> str:
    """Return 5 of `\\lim a_n = 5`; "" for `\\sum a_n x^n, R = 1`, where the sum has a neighbour."""
    if len(text) > MAX_UNEVALUATED or not _UNEVALUATED.match(text):
        return ""
    depth, value = 0, -1
    for match in _TOP_LEVEL.finditer(text):
        sign = match.group()
        if sign in "{([":
            depth += 1
        elif sign in "})]":
            depth -= 1
        elif depth == 0 and sign == "=":
            value = match.end()
        elif (depth == 0 and sign in ",;") or (len(sign) > 2 and value < 0):
            return ""
    return text[value:] if value >= 0 else ""


# --- cases ------------------------------------------------------------------------------------------------------------

_CONDITION = (
    r"(?:[a-z]\s+(?:is\s+)?(?:an?\s+)?(?:even|odd)(?:\s+(?:number|integer))?|otherwise|(?:else|for\s+other\s+values)"
    r"|[^,;]*?(?:<|>|=|≥|≤|≠|\\(?:ge|le|ne|neq|geq|leq|lt|gt|in|geqslant|leqslant)(?![A-Za-z]))[^,;]*?)"
)
_CASE = re.compile(
    rf"(?P<value>[^,;]+?)\s*,?\s*(?:(?:if|when|for|where)\s+(?P<condition>{_CONDITION})|(?P<rest>otherwise|else))"
    r"\s*(?:(?:[,;]|\band\b)\s*(?:and\s+)?|\Z)"
)
_GIVEN = re.compile(r"\b(?:if|when|for|where)\b")
_GIVEN_OR_NOT = re.compile(r"\b(?:if|when|for|where|or|not)\b")
_LABEL = re.compile(r"(?:[a-zA-Z]\s*(?:\(\s*[a-z]\s*\))?|[a-z]_\{?[a-z]\}?)\s*=\s*")
_ANY_COMMAND = re.compile(r"\\[A-Za-z]+")
_JOINT = re.compile(r"\s*(?:,?\s*\b(?:and|or)\b|,)\s*")
_IS = re.compile(r"\s+(?:is\s+)?(?:an?\s+)?(even|odd)(?:\s+(?:number|integer))?\Z")


def _cases(text: str) -> str | None:
    """x if x >= 0, -x if x < 0."""
    if not _GIVEN.search(text):
        return None
    rows: list[str] = []
    position = 0
    label = _LABEL.match(text)
    position = label.end() if label else 0
    while position < len(text):
        match = _CASE.match(text, position)
        if match is None or len(rows) == MAX_CASES or _GIVEN_OR_NOT.search(match["value"]):
            return None
        condition = match["condition"] or "otherwise"
        if condition.startswith(("otherwise", "else", "for other")):
            condition = r"\text{otherwise}"
        elif parity := _IS.search(condition):
            condition = rf"{condition[: parity.start()]}\text{{ {parity[1]}}}"
        elif _TWO_LETTERS.search(_ANY_COMMAND.sub("", condition)):
            return None
        rows.append(f"{match['value']} & {condition}")
        position = match.end()
    if len(rows) < 2:
        return None
    return (label[0] if label else "") + r"\begin{cases}" + r" \\ ".join(rows) + r"\end{cases}"


# --- sets -------------------------------------------------------------------------------------------------------------

_REALS = (
    r"(?:all|any|every|the set of(?: all)?)\s+real(?:s|\s+(?:numbers?|values?))?(?:\s+(?:of|for|values\s+of))?"
    r"(?:\s+[a-z])?"
)
_EXCEPT = re.compile(
    rf"(?:\\mathbb\s*\{{?\s*R\s*\}}?|{_REALS})\s*,?\s*"
    r"(?:except(?:\s+for)?|excluding|other\s+than|but(?:\s+not)?|without|not\s+equal\s+to|besides)\s+(?:[a-z]\s*=\s*)?"
    r"(?P<values>[^<>=]{1,60})"
)
_DIFFERENT = re.compile(
    rf"{_REALS}\s*,?\s*(?:where|with|such\s+that|for\s+which)?\s*(?P<name>[a-z])?\s*(?:\\neq?|≠|!=)\s*(?P<values>[^<>=]{{1,60}})"
)
_EVERY = re.compile(
    r"(?:for\s+)?(?:all|any|every)\s+(?:(?:positive|natural|real|non-?negative)\s+)?(?:(?:integers?|numbers?|reals?|values\s+of)\s+)?"
    r"(?P<relation>[a-z]\s*(?:<|>|≥|≤|\\(?:ge|le|geq|leq|lt|gt|geqslant|leqslant)(?![A-Za-z])).*)"
)


def _all_but(text: str) -> str | None:
    """All real numbers except 2."""
    match = _EXCEPT.fullmatch(text) or _DIFFERENT.fullmatch(text)
    if match is None:
        return None
    values = _JOINT.sub(",", match["values"].strip())
    if _TWO_LETTERS.search(_ANY_COMMAND.sub("", values)):
        return None
    return rf"\mathbb{{R}}\setminus\{{{values}\}}"


def _every(text: str) -> str | None:
    """All n >= 3."""
    match = _EVERY.fullmatch(text)
    return match["relation"] if match else None


# --- names and remarks ------------------------------------------------------------------------------------------------

_NAMED = re.compile(
    r"\\(?:operatorname\*?|mathrm|mathbf)\s*\{\s*(?P<name>[A-Za-z ]{1,15})\s*\}(?:\s*_\s*(?:\w|\{[^{}]{1,12}\}))?"
    r"(?:\s*[A-Z]|\s*(?:\\left)?\([^()=]{1,20}\))?\s*(?:=|\\approx(?![A-Za-z])|≈)\s*(?P<value>[^=]+)"
)
_EXTREME = re.compile(r"\\(?:max|min|sup|inf|dim|deg|ker|\#)\s*(?:[A-Z]|\\\{[^{}=]{1,40}\\\})?\s*=\s*(?P<value>[^=]+)")
_ARBITRARY = re.compile(
    r"(?P<formula>.*?=.*?)\s*,?\s*\(?\s*(?:for|where|with)\s+(?:(?:any|all|every|each|some|an?)\s+)?"
    r"(?:(?:arbitrary|real|any)\s+)*(?:constants?|numbers?|parameters?)\s+[A-Za-z](?:\s*\\in\s*\\mathbb\s*\{?\s*R\s*\}?)?\s*\)?"
    r"|(?P<other>.*?=.*?)\s*,?\s*\(?\s*(?:for|where|with)\s+[A-Za-z]\s+(?:is|being)\s+(?:an?\s+)?(?:arbitrary|any|real)?\s*"
    r"(?:real\s+)?(?:constant|number|parameter)\s*\)?"
)


def _without_name(text: str) -> str | None:
    """The 5 of `\\operatorname{rank}A = 5`."""
    match = _NAMED.fullmatch(text)
    if match is not None:
        words = {word.lower() for word in match["name"].split()}
        return None if words & (BLOCKED | ALTERING) else match["value"]
    match = _EXTREME.fullmatch(text)
    return match["value"] if match else None


def _with_constant(text: str) -> str | None:
    """The f(x) = cx of `f(x) = cx for any constant c`."""
    match = _ARBITRARY.fullmatch(text)
    return (match["formula"] or match["other"]) if match else None


_SPANISH = re.compile(r"(?P<first>.*\d)\s+[ye]\s+(?P<last>[-−]?\d[^\s]*)")
_PRODUCT = re.compile(
    r"1\s*(?:\\cdot|\\times|·|\*)\s*2\s*(?:(?:\\cdot|\\times|·|\*)\s*3\s*)?"
    r"(?:\\cdots|(?:\\cdot|\\times|·|\*)\s*(?:\\[lc]?dots|\.\.\.|…))\s*(?:\\cdot|\\times|·|\*)?\s*(?P<last>[a-zN])"
)
_ANGLED = re.compile(r"<\s*(?P<entries>[^<>=]+,[^<>=]+)\s*>")
_ARROW = re.compile(r"(?:[a-zA-Z]\s*(?::|=)\s*)?(?P<name>[a-z])\s*(?:\\mapsto|↦|\\longmapsto)\s*(?P<value>[^=]+)")
_FOR_ALL = re.compile(r"(?P<formula>.*?)\s*,?\s*\(?(?:\\forall|∀)\s*(?P<names>[a-zA-Z][^=()]*)\)?")


def _of_pattern(pattern: re.Pattern[str], form: str) -> Callable[[str], str | None]:
    def rule(text: str) -> str | None:
        match = pattern.fullmatch(text)
        return match.expand(form) if match else None

    return rule


def _read_mapping(text: str) -> str | None:
    """x |-> x^2."""
    match = _ARROW.fullmatch(text)
    if match is None or not re.search(rf"(?<![A-Za-z\\]){match['name']}|\d{match['name']}", match["value"]):
        return None
    return f"f({match['name']})={match['value']}"


# One of the signs is in every text that the rule knows.
_RULES: tuple[tuple[tuple[str, ...], Callable[[str], str | None]], ...] = (
    (("if", "when", "for", "where"), _cases),
    (("R", "real"), _all_but),
    (("all", "any", "every"), _every),
    (("=", "≈", "approx"), _without_name),
    (("=",), _with_constant),
    ((" y ", " e "), _of_pattern(_SPANISH, r"\g<first>, \g<last>")),
    (("1",), _of_pattern(_PRODUCT, r"\g<last>!")),
    (("<",), _of_pattern(_ANGLED, r"(\g<entries>)")),
    (("mapsto", "↦"), _read_mapping),
    (("forall", "∀"), _of_pattern(_FOR_ALL, r"\g<formula>\\text{ for all }\g<names>")),
)


# --- sentences --------------------------------------------------------------------------------------------------------

MAX_STATEMENT = 300

_PICTURES = re.compile("[\U0001f000-\U0001faff\u2600-\u27bf\u2b50\u2b55\ufe0f\u20e3]+")
_CONNECTIVE = re.compile(r"\s*(?:So|Thus|Hence|Therefore|Then|Finally|Consequently|Clearly|Now)\s*,\s+", re.IGNORECASE)
_MODULE = re.compile(r"(?<![\w.\\])(?:np|numpy|math|cmath|sp|sympy)\.(?=[A-Za-z])")
_ONE_CELL = re.compile(
    r"\\begin\s*\{(array|aligned|align\*?|gathered|split|center|equation\*?)\}(?:\s*\{[lcr|]{1,3}\})?"
    r"((?:(?!\\\\|\\begin|\\end).)*)\\end\s*\{\1\}",
    re.DOTALL,
)


def clean(text: str) -> str:
    r"""Return an answer without emoji, the module of a function (np.arcsin), and the environment around one cell."""
    if not text.isascii():
        text = _PICTURES.sub(" ", text.replace("➖", "-").replace("➕", "+")).strip()
    if "," in text and (connective := _CONNECTIVE.match(text)):
        text = text[connective.end() :]
    if "." in text:
        text = _MODULE.sub("", text)
    if "\\begin" in text and (cell := _ONE_CELL.fullmatch(text.strip())):
        inner = cell[2].replace("&", " ")
        text = text if cell[1] == "array" and "&" in cell[2] else inner.strip()
    return text


_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm)\s*\{([^{}]*)\}")
_FORMULA = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|(?<![\w.])[-−]?\$?\s?\d(?:[\d.,/]*\d)?(?:\\?%)?(?![\w.]*\d)")
_DISPLAYED = re.compile(r"\$[^$]+\$|\\\(.+?\\\)")
_COPULA = re.compile(
    r"(?<!that )(?<!which )(?<!who )\b(?:is|are|was|were|equals|becomes)\b"
    r"(?:\s+(?:equal\s+to|exactly|thus|therefore))?:?"
)
_REMARK = re.compile(r"(?P<value>.*[^\s(])\s*\((?P<words>[^()\d\\$=+*/^]{3,200})\)\s*")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_WORDS = read_words(Path(__file__).with_name("words.txt"))
# Before a number they make another value of it; "of" does unless a total or the like precedes it.
_CHANGING = (BLOCKED | frozenset(MULTIPLIERS) | _WORDS["changing"]) - {
    "and",
    "all",
    "any",
    "correct",
    "true",
    "open",
    "system",
    "that",
}
_OF_WHAT = frozenset("total sum value distance speed area volume length maximum minimum average mean".split())
_ALTERED = frozenset("digit digits unequal congruent minus negative up power exponent modulo inverse".split())
_REACHING = _WORDS["reaching"]
_SUPERLATIVES = frozenset("smallest largest greatest least first last next biggest".split())
_WHERE = re.compile(r"\bwhere\b")
_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z]\s*\Z")
_KIND = re.compile(r"(?:an?|any|some|arbitrary)\s+[a-z]{4}")
_DIGIT = re.compile(r"\d")
_GAP = re.compile(r"[\s-]+")
_COMMAND = re.compile(r"[\\{}]")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b\s*\w")
_OPERATOR_BEFORE = re.compile(r"[-+*/^=<>≠≤≥≈]\s*\Z")
_OPERATOR_AFTER = re.compile(r"[-+*/^=<>!(\[{_,;:]|in\s+binary\b")
_PREPOSITIONS = frozenset("to in for that which on at with during among between when".split())
_COUNTED = re.compile(r"\d+\s+[A-Za-z]+\s")  # "7 ways to do it"
_FRACTIONS = re.compile(
    r"(?:half|halves|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|\w+tenths?|tenths?|hundredths?"
    r"|thousandths?|millionths?|factorial|squared|cubed)\Z",
    re.IGNORECASE,
)
_UNSURE = re.compile(
    r"\b(?:if|unless|or|either|neither|nor|maybe|perhaps|possibly|probably|might|may|could|should|would|not|never|nobody"
    r"|none|no\s+one|nothing|near|nearly|almost|nowhere|close\s+to|far|(?:short|shy)\s+of|false|untrue|wrong|incorrect|doubt|unlikely|except|without|least|most|guess|suppose|assume)\b",
    re.IGNORECASE,
)
_HARMLESS = re.compile(
    r"\b(?:least\s+common|without\s+(?:loss|replacement)|non(?!e\b)-?\w+|at\s+(?:least|most)\s+one)\b", re.IGNORECASE
)


def rewritten(text: str, readable: Callable[[str], bool]) -> str | None:
    """Return the one value that a sentence states, where `readable` accepts it; None where it states none."""
    if len(text) > MAX_STATEMENT:
        return None
    if "\\" in text:
        text = _WRAPPER.sub(r" \1 ", text)
    text = " ".join(text.replace("~", " ").split()).strip(" .*")
    if is_denied(text):
        return None
    for candidate in _find_stated(text):
        if readable(candidate):
            return candidate
    return None


def _find_stated(text: str) -> Iterator[str]:
    if (remark := _REMARK.fullmatch(text)) and not (_changes(remark["words"]) or _is_number(remark["words"])):
        yield remark["value"]
    words = _outside(text)
    if len(_WORD.findall(words)) < 2:
        return
    copulas = list(_COPULA.finditer(words))
    if len(copulas) == 1:
        subject, value = text[: copulas[0].start()], text[copulas[0].end() :].strip().removeprefix("at ").strip()
        if _WHERE.search(subject) or _is_open(subject) or (_LETTER.search(subject) and _KIND.match(value)):
            return  # x + c where c is a constant; k \pi, k is an integer
        if not _is_doubtful(subject) and not (" and " in subject and _DIGIT.search(_outside(subject))):
            if _COUNTED.match(value):
                yield from _only_value(value)
            yield value
            if (remark := _REMARK.fullmatch(value)) and not _changes(remark["words"]):
                yield remark["value"]
            text = value
        else:
            return
    elif copulas:
        return
    yield from _only_value(text)


# The verb after these belongs to their clause: "n such that 2n equals 42", "the number whose double is 42".
_CLAUSE = re.compile(r".*\b(?P<word>such\s+that|whose|for\s+which)\b(?P<rest>.*)", re.DOTALL)
_HAS_VERB = re.compile(
    r"[<>=≤≥∣|$]|\\|\b(?:divides?|divisible|has|have|can|holds?|exists?|satisf\w+|works?|contains?|ends?|begins?|starts?"
    r"|sums?|adds?|differs?|gives?|leaves?|makes?|needs?|costs?|wins?|meets?|appears?|occurs?|does|do|remains?)\b"
)
_UNSOLVED = re.compile(r"\bsolutions?\s+(?:of|to|for)\b[^=<>$\\]*\s[-+*/^]\s[^=<>$\\]*\Z")


def _is_open(subject: str) -> bool:
    """Whether the value after a subject completes a clause of it: the number whose double is 42."""
    clause = _CLAUSE.fullmatch(subject)
    return bool(clause and not _HAS_VERB.search(clause["rest"])) or bool(_UNSOLVED.search(subject))


def _outside(text: str) -> str:
    """The text with its formulas blanked out, character for character."""
    return _DISPLAYED.sub(lambda formula: " " * len(formula.group()), text)


def _is_doubtful(words: str) -> bool:
    words = _HARMLESS.sub(" ", _outside(words))
    return bool(_UNSURE.search(words)) or is_refused(words) or names_another(words)


def _changes(words: str) -> bool:
    """Whether words beside a value may change it, or what it holds for."""
    return _RESTRICTS.search(words) is not None or any(
        word.lower() in ALTERING
        or word.lower() in _CHANGING - {"of", "from", "by", "per", "every", "digits", "square"}
        or _FRACTIONS.match(word)
        for word in _WORD.findall(words)
    )


_RESTRICTS = re.compile(
    r"\b[b-zA-Z](?:\s+(?:is|are))?(?:\s+an?)?\s+(?:odd|even|prime|composite|large|small)\b"
    r"|\b(?:odd|even|prime|composite|large|small)\s+[b-zA-Z]\b"
)


def _is_number(words: str) -> bool:
    """Whether words are a number: forty-three."""
    return all(word in NUMBER_WORDS or word == "and" for word in _GAP.split(words.strip().lower()))


def _only_value(text: str) -> Iterator[str]:
    """The only number or formula of a sentence, with the words after it that the grammar reads."""
    values = list(_FORMULA.finditer(text))
    if len(values) != 1:
        return
    before, value, after = text[: values[0].start()], values[0].group(), text[values[0].end() :].strip()
    leading = [word.lower() for word in _WORD.findall(before)]
    trailing = after.split()
    if _COMMAND.search(before) or _is_doubtful(before) or any(word in NUMBER_WORDS for word in leading):
        return
    last = leading[-1] if leading else ""
    if not _ALTERED.isdisjoint(leading) or (last == "to" and leading[-2:-1] and leading[-2] not in _REACHING):
        return
    if leading[-2:] == ["to", "the"]:
        return
    if last in _CHANGING and not (last == "of" and _OF_WHAT & set(leading[-2:])):
        return
    if _ORDINAL.match(text, values[0].end()) or (last == "the" and trailing and trailing[0] in _SUPERLATIVES):
        return  # the 42nd prime, the 42 smallest primes
    if _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after):
        return
    if "only" in trailing[:-1] or _RESTRICTS.search(after):
        return
    if any(_changes(word) or word.lower() in NUMBER_WORDS or not _WORD.match(word) for word in trailing):
        return
    read = next((place for place, word in enumerate(trailing) if word in _PREPOSITIONS), len(trailing))
    for count in range(min(read, 4), -1, -1):
        yield " ".join([value, *trailing[:count]])


def is_statement(text: str) -> bool:
    """Whether a text may be a sentence that says what something is."""
    if ("s" not in text and "re" not in text) or len(text) > MAX_STATEMENT:
        return False
    return _COPULA.search(text) is not None and len(_WORD.findall(_outside(text))) > 2
