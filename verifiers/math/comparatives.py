"""Words of other languages by which a sentence says another value than the one in it: at least 42, half of 42.

Those of English are in `vocabulary` and `statements`.
"""

from __future__ import annotations

import re

from rlvr.verifiers.extract.rejections import folded

MAX_SENTENCE = 400

# Of Latin script: words that stand by themselves, with spaces for any white space.
_LATIN = (
    # French
    "au moins", "au plus", "au maximum", "au minimum", "moins d[e']", "plus d[e']", "(?:plus|moins)(?: \\w+)? que?",
    "sup[ée]rieure? (?:ou [ée]gale? )?[àa]", "inf[ée]rieure? (?:ou [ée]gale? )?[àa]", "double d[e']", "triple d[e']",
    "moiti[ée] d[e']", "tiers d[e']", "quart d[e']", "carr[ée] d[e']", "racine (?:carr[ée]e )?d[e']",
    "inverse d[e']", "oppos[ée] d[e']", "multiple d[e']", "diviseurs? d[e']", "peut-[êe]tre", "sans doute",
    # Spanish
    "al menos", "(?:a )?lo (?:sumo|m[áa]s)", "como (?:m[áa]ximo|m[íi]nimo|mucho)", "por lo menos",
    "(?:mayor|menor)(?:es)? que",
    "mayor(?:es)? o igual(?:es)?", "menor(?:es)? o igual(?:es)?", "m[áa]s (?:de|que)", "menos (?:de|que)",
    "doble de", "triple de", "mitad de", "tercio de", "cuarto de", "cuadrado de", "ra[íi]z (?:cuadrada )?de",
    "inverso de", "opuesto de", "m[úu]ltiplo de", "divisor(?:es)? de", "quiz[áa]s?", "tal vez", "posiblemente",
    # German
    "mindestens", "h[öo]chstens", "(?:gr[öo](?:ß|ss)er|kleiner|mehr|weniger|h[öo]her|niedriger)(?: oder gleich)? als",
    "(?:gr[öo](?:ß|ss)er|kleiner) (?:oder )?gleich", "doppelte (?:von|der)", "dreifache (?:von|der)",
    "h[äa]lfte (?:von|der)", "drittel (?:von|der)", "viertel (?:von|der)", "quadrat (?:von|der)", "wurzel (?:aus|von)",
    "kehrwert (?:von|der)", "vielfaches (?:von|der)", "teiler (?:von|der)", "vielleicht", "m[öo]glicherweise",
    "vermutlich", "wahrscheinlich",
    # Italian
    "almeno", "al massimo", "al minimo", "al pi[ùu]", "(?:maggiore|minore)(?: o uguale)?(?: (?:di|a))",
    "pi[ùu] di", "meno di", "doppio di", "triplo di", "met[àa] di", "quadrato di", "radice (?:quadrata )?di",
    "reciproco di", "multiplo di", "divisor[ei] di", "forse", "probabilmente",
    # Portuguese
    "pelo menos", "ao menos", "no (?:m[áa]ximo|m[íi]nimo)", "(?:maior|menor)(?:es)? (?:do )?que", "maior ou igual",
    "menor ou igual", "mais (?:de|(?:do )?que)", "menos (?:de|(?:do )?que)", "dobro de", "triplo de", "metade de",
    "ter[çc]o de", "talvez", "provavelmente",
    # Dutch, Swedish, Danish, Norwegian
    "minstens", "hoogstens", "(?:meer|minder|groter|kleiner) dan", "helft van", "dubbele van", "misschien",
    "minst", "h[öo]gst", "mindst", "h[øo]jst", "(?:mer|mindre|st[öo]rre|fler|f[äa]rre|mere) (?:[äa]n|end)",
    "h[äa]lften av", "dubbla", "kanske", "m[åa]ske",
    # Polish, Czech
    "(?:wi[ęe]cej|mniej|wi[ęe]ksz\\w+|mniejsz\\w+) (?:ni[żz]|od)", "co najmniej", "co najwy[żz]ej", "po[łl]ow[ay]",
    "by[ćc] mo[żz]e", "(?:v[íi]ce|m[ée]n[ěe]|v[ěe]t[šs][íi]|men[šs][íi]) ne[žz]", "alespo[ňn]", "nejv[ýy][šs]e",
    # Turkish, Vietnamese, Indonesian
    "en (?:az|fazla|[çc]ok)", "'?[dt][ae]n (?:b[üu]y[üu]k|k[üu][çc][üu]k|fazla|az|[çc]ok)", "yar[ıi]s[ıi]", "belki",
    "[íi]t nh[ấa]t", "nhi[ềe]u nh[ấa]t", "(?:l[ớo]n|nh[ỏo]|nhi[ềe]u|[íi]t) h[ơo]n", "m[ộo]t n[ửu]a",
    "(?:lebih|kurang) (?:\\w+ )?dari", "paling (?:sedikit|banyak)", "setidaknya", "setengah dari", "mungkin",
)  # fmt: skip
_CYRILLIC = (
    "(?:не )?(?:больше|более|меньше|менее|выше|ниже|свыше|превышает|превосходит)", "как (?:минимум|максимум)",
    "по (?:крайней|меньшей) мере", "самое (?:большее|меньшее)", "половин\\w+", "удво\\w+", "утро\\w+", "вдвое",
    "втрое", "треть от", "четверть от", "квадрат от", "корень из", "может быть", "возможно", "вероятно", "наверное",
    "(?:не )?(?:більше|менше|більш|менш)", "принаймні", "щонайменше", "щонайбільше", "можливо",
)  # fmt: skip
_OTHERS = (
    # Chinese and Japanese, which write without spaces
    "大于", "小于", "大於", "小於", "超过", "超過", "至少", "至多", "少于", "多于", "以上", "以下", "未満", "より",
    "的(?:[一二两兩三四五六七八九十]|\\d+)(?:半|倍|分之)", "的(?:平方|立方|倒数|相反数|倍数|因数|约数)",
    "の半分", "の\\d*倍", "の[二三四五]倍", "の平方", "の逆数", "の倍数", "の約数", "少なくとも", "高々", "多分",
    "たぶん", "おそらく", "かもしれ", "也许", "大概是", "或许",
    # Korean
    "이상", "이하", "미만", "초과", "최소\\s*(?=\\d)", "최대\\s*(?=\\d)", "보다", "적어도", "절반", "[두세네]\\s?배",
    "\\d+\\s?배", "아마", "배수", "약수",
    # Hindi, Arabic, Greek
    "से?\\s+(?:अधिक|कम|ज)", "कम\\s+से?\\s+कम",
    "(?:أكثر|أقل|أكبر|أصغر)\\s+من", "على\\s+(?:الأقل|الأكثر)", "نصف", "ضعف", "ربما",
    "τουλάχιστον", "το\\s+πολύ", "(?:μεγαλύτερ|μικρότερ|περισσότερ|λιγότερ)\\w+\\s+από", "ίσως",
)  # fmt: skip
_COMPARED = re.compile(
    rf"(?<![\w\\])(?:{'|'.join((*_LATIN, *_CYRILLIC)).replace(' ', chr(92) + 's+')})(?!\w)|{'|'.join(_OTHERS)}"
)
_HAS_NUMBER = re.compile(r"\d")
# The words of _LATIN without accents, one of which any of them has in a text of ASCII characters.
_HINTS = frozenset(
    "de d que als oder von der aus di a menos sumo como almeno al no pelo ao dan van minst mindst minstens hoogstens "
    "mindestens vielleicht vermutlich wahrscheinlich forse probabilmente talvez provavelmente misschien kanske dubbla "
    "niz od co alespon en dari paling setidaknya mungkin quiza quizas tal posiblemente au maske belki nhat".split()
)


def compares(text: str) -> bool:
    """Whether a sentence in another language says more or less than a number, a part of it, or doubts it."""
    if len(text) > MAX_SENTENCE:
        return False
    if text.isascii() and (" " not in text or _HINTS.isdisjoint(text.lower().split())):
        return False
    return _HAS_NUMBER.search(text) is not None and _COMPARED.search(folded(text)) is not None
