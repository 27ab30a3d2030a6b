"""Words by which completions reject answers, in several languages, and quick tests for them."""

from __future__ import annotations

import re

WRONG_EN = r"(?:wrong|incorrect|false|mistaken|erroneous|invalid|bad|flawed)"
NOUN_EN = r"(?:answer|result|option|choice|solution|value|conclusion|guess)"
# Adjectives for a wrong answer in other languages, and the answer's name.
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
# The first letters of the words that the patterns of this module look for, in texts of ASCII characters: where none
# occurs, nothing is searched.
STEMS = frozenset(
    word[:4]
    for word in (
        "not never cannot can doubt deny neither nobody no wrong wrongly incorrect false falsely mistaken mistake "
        "erroneous error invalid bad flawed if unless whether suppose supposing assume assuming might may could would "
        "wenn falls angenommen supongamos supposons nicht kein niemals pas jamais non nunca nem niet geen nie ne "
        "bukan tidak inte ikke equivocada errada errata sbagliata scorretta fausse faux mauvaise falsche fehlerhafte "
        "unrichtige inkorrekte foute verkeerde niepoprawna salah felaktig sai impossible absurd scratch second "
        "correction ignore disregard take mal just edit update wait sorry actually oops nope rather some claim guess "
        "allege pretend retract reject discard withdraw rule ruled ruling guess isn wasn don doesn didn won aren hasn "
        "haven est mistake error tempting easy half twice double triple third quarter square cube reciprocal negative "
        "opposite inverse digit digits factor multiple root units extraneous too "
        "excluded fails approximation estimate guess hmm recheck reconsider redo ist untrue unsure neq"
    ).split()
)
# Words that begin like one of these and are frequent in answers.
HARMLESS = frozenset(
    "with within integer integers integral integrate interval intervals interior intersect intersects intersection "
    "interest score scores scored correct correctly estimate estimated nonzero nonnegative somewhat "
    "import imported importance important".split()
)
LATIN_WORD = re.compile(r"[a-z]+")
_STEM = re.compile(r"([a-z]{2,4})[a-z]*")


# Those of them by which nothing is rejected in the clause of a value.
_NO_REJECTION = frozenset(
    "unle whet supp assu migh may can coul woul wenn fall ange some clai gues alle pret scra seco upda edit just "
    "take rath wait sorr actu too extr excl esti appr fail".split()
)
REJECTING = (STEMS - _NO_REJECTION) | frozenset("than been comm typi usua freq clas".split())
REFUSING = STEMS | frozenset(
    "show prov veri demo stud peop many few most othe comm typi usua freq clas quiz tal peut viel fors talv".split()
)


def folded(text: str) -> str:
    """Return a text in small letters, sign for sign.

    The patterns of this module are written in small letters and search such texts: without regard to case, the `re`
    module tries every alternative at every word, which takes several times as long.
    """
    if not text.isascii():
        text = text.replace("\u0130", "i").replace("\u0131", "i").replace("\u017f", "s")  # I with a dot, long s
    return text.lower()


def suspect(text: str, stems: frozenset[str] = STEMS) -> bool:
    """Whether a folded text may match a pattern of this module, or one that looks for words with these stems."""
    return not text.isascii() or ("'" in text and "n't" in text) or has_word(text, stems)


def has_word(text: str, stems: frozenset[str]) -> bool:
    """Whether a word of a folded text begins with one of the stems, and is not harmless."""
    if stems.isdisjoint(_STEM.findall(text)):
        return False
    return not HARMLESS.issuperset(word for word in LATIN_WORD.findall(text) if word[:4] in stems)


FALSE = (
    rf"(?:{WRONG_EN}|not\s+(?:quite\s+)?(?:right|correct|true|(?:a\s+|the\s+|my\s+|our\s+)?(?:\w+\s+){{0,2}}"
    rf"(?:answer|solution|option|choice)))"
)
