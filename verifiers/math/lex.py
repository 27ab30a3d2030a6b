"""Tokens of LaTeX and plain-text answers: one linear pass of one regular expression.

Spellings are unified here: Unicode signs become LaTeX commands, a number in any thousands spelling one token; `\\left`,
colours, sizes and math delimiters are dropped; the contents of `\\text{}` and the like become upright words.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import NamedTuple

from rlvr.verifiers.math.formulas import FORMULA_SIGNS, Formulas, new_equation
from rlvr.verifiers.math.literals import decimal, repeating
from rlvr.verifiers.math.notations import follows_vector, rewritten_notations
from rlvr.verifiers.math.spelling import escapes_restored, one_backslash, regular, without_pictures
from rlvr.verifiers.math.tree import Num, ParseError, TooLarge

MAX_CHARS = 6_000
MAX_TOKENS = 4_000


class Token(NamedTuple):
    """`kind`: num, name (letters), op (a sign or a command's meaning), end. `spaced`: white space comes before it.
    `upright`: a name inside `\\text{}` or the like, never a product of letters. `apart`: it begins a formula
    of its own, after `\\quad`, in other dollar signs or on another line than the formula before it."""

    kind: str
    text: str
    spaced: bool = False
    upright: bool = False
    number: Num | None = None
    apart: bool = False


END = Token("end", "", True)

_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "×": "*", "⋅": "*", "·": "*", "∙": "*",
    "•": "*", "∗": "*", "✕": "*", "✖": "*", "÷": "/", "∕": "/", "⁄": "/", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≧": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
    "≃": r"\approx ", "≅": r"\approx ", "≒": r"\approx ", "∪": r"\cup ", "⋃": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "∉": r"\notin ", "∅": r"\emptyset ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ", "°": "^\\circ ",
    "º": "^\\circ ",
    "′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "″": "''", "…": r"\ldots ", "⋯": r"\ldots ", "√": r"\usqrt ",
    "∛": r"\ucbrt ", "∜": r"\uqdrt ", "ℝ": r"\reals ", "ℤ": r"\integers ", "ℕ": r"\naturals ", "ℚ": r"\rationals ",
    "ℂ": r"\complexes ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "∠": r"\angle ", "∴": "",
    "∧": r"\land ", "∨": r"\lor ", "→": r"\to ", "⇒": r"\implies ", "∶": ":",
    "：": ":", "，": ",", "、": ",", "；": ";", "（": "(", "）": ")", "［": "[", "］": "]", "｛": r"\{", "｝": r"\}",
    "＝": "=", "＋": "+", "％": r"\%", "＄": r"\$", "。": ".", "．": ".", "∣": "|", "ⅈ": "i", "ⅇ": "e",
    "∫": r"\int ", "∑": r"\sum ", "∏": r"\prod ", "∂": r"\partial ", "∘": r"\circ ", "△": r"\triangle ",
    "\u00a0": " ", "\u2009": r"\,", "\u202f": r"\,", "\u2007": r"\,", "\u2008": " ", "\u200a": " ", "\u3000": " ",
    "✓": "", "✔": "", "✅": "", "∎": "", "■": "", "\u200b": "", "\u200c": "", "\u200d": "", "\u2060": "",
    "\ufeff": "", "\u2061": "", "\u2062": "*", "\u2063": ",",
    "℃": "^\\circ C", "℉": "^\\circ F", "Ω": r"\Omega ", "µ": r"\mu ", "≡": r"\equiv ",
}  # fmt: skip
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΣΦΨΩϕϵϑ",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
        "chi psi omega "
        "Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega phi epsilon theta".split(),
    )
)
_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱˣ", "0123456789+-nix"))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉ₙₓ", "0123456789nx"))
_SUPERSCRIPT_RUN = re.compile("[" + "".join(_SUPERSCRIPTS) + "]+")
_SUBSCRIPT_RUN = re.compile("[" + "".join(_SUBSCRIPTS) + "]+")
_TRANSLATION = str.maketrans({**_SIGNS, **{letter: f"\\{name} " for letter, name in _GREEK.items()}})


def plain(text: str) -> str:
    """Return Unicode signs as LaTeX. Letters that only look like others (Cyrillic A) stay as they are.

    Doubled backslashes become single ones."""
    if not text.isprintable():
        text = escapes_restored(text)
    if "\\\\" in text:
        text = one_backslash(text, _COMMANDS)
    if text.isascii():
        return text
    text = without_pictures(text)
    text = _SUPERSCRIPT_RUN.sub(lambda m: "^{" + "".join(_SUPERSCRIPTS[c] for c in m[0]) + "}", text)
    text = _SUBSCRIPT_RUN.sub(lambda m: "_{" + "".join(_SUBSCRIPTS[c] for c in m[0]) + "}", text)
    text = text.translate(_TRANSLATION)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else _fold(c) for c in text)


_FOLDED = frozenset(("<font>", "<wide>", "<narrow>", "<fraction>", "<noBreak>", "<super>", "<sub>"))


def _fold(char: str) -> str:
    """One character: fullwidth, mathematical and vulgar-fraction forms by their compatibility decomposition."""
    kind = unicodedata.decomposition(char).partition(" ")[0]
    folded = unicodedata.normalize("NFKC", char) if kind in _FOLDED else char
    if "⁄" in folded:
        top, _, bottom = folded.partition("⁄")
        return f"\\frac{{{top}}}{{{bottom or 1}}}"
    if unicodedata.category(char) in ("Cf", "Mn", "Cc"):
        return "" if unicodedata.category(char) != "Cc" else " "
    return folded.translate(_TRANSLATION)


# --- commands -------------------------------------------------------------------------------------------------------

_OPS = {
    "times": "*", "cdot": "*", "ast": "*", "star": "*", "bullet": "*", "div": "/", "slash": "/", "pm": "pm", "mp": "mp",
    "le": "<=", "leq": "<=", "leqslant": "<=", "leqq": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=", "geqq": ">=",
    "lt": "<", "gt": ">", "ne": "!=", "neq": "!=", "approx": "~", "simeq": "~", "cong": "~", "doteq": "~", "sim": "~",
    "in": "in", "notin": "notin", "cup": "cup", "cap": "cap", "setminus": "setminus", "backslash": "setminus",
    "bigcup": "cup", "bigcap": "cap", "circ": "deg", "degree": "deg", "degrees": "deg", "%": "%", "$": "$", "{": "{{",
    "}": "}}", "lbrace": "{{", "rbrace": "}}", "vert": "|", "lvert": "|", "rvert": "|", "mid": "|", "|": "||",
    "Vert": "||", "lVert": "||", "rVert": "||", "ldots": "dots", "dots": "dots", "cdots": "dots", "dotsc": "dots",
    "dotsb": "dots", "langle": "<(", "rangle": ")>", "lfloor": "lfloor", "rfloor": "rfloor", "lceil": "lceil",
    "rceil": "rceil", "land": "land", "wedge": "land", "lor": "lor", "vee": "lor",
    "colon": ":", "prime": "'", "equiv": "=",
    "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "#": "#", "_": "_blank", "\\": "newline",
    "newline": "newline", "cr": "newline", "&": "and", "because": "because", "implies": "implies", "to": "to",
    "Rightarrow": "implies", "rightarrow": "to", "Longrightarrow": "implies", "iff": "implies",
    "Leftrightarrow": "implies",
    "pounds": "£", "euro": "€", "yen": "¥", "textdollar": "$", "textdegree": "deg", "textasciicircum": "^",
    "emptyset": "emptyset", "varnothing": "emptyset", "reals": "reals", "integers": "integers", "naturals": "naturals",
    "rationals": "rationals", "complexes": "complexes", "R": "reals", "Z": "integers", "N": "naturals", "over": "over",
    "angle": "angle", "measuredangle": "angle", "triangle": "triangle", "overarc": "overarc",
}  # fmt: skip
_SKIPPED = frozenset(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle displaystyle textstyle "
    "scriptstyle "
    "scriptscriptstyle limits nolimits rm bf it sf tt cal quad qquad , ; : ! > space thinspace medspace thickspace "
    "negthinspace enspace enskip hfill null protect large Large LARGE huge Huge small normalsize mathstrut "
    "strut nobreak "
    "allowbreak hline displaylimits boldmath left. right. noindent centering bfseries relax checkmark "
    "blacksquare square qed qedsymbol Box bigstar therefore".split()
)
_UPRIGHT = frozenset(
    "text mathrm textrm textbf textit textsf texttt textnormal mbox hbox mathsf mathtt operatorname operatorname* emph "
    "textup textsc".split()
)
# Wrappers whose group is read like any other group.
_PLAIN_GROUPS = frozenset(
    "boxed fbox framebox bbox underline uline mathbf mathit boldsymbol bm pmb mathnormal mathop mathord "
    "mathscr mathcal "
    "mathfrak mathring mathclose mathopen mathrel mathbin ensuremath vec".split()
)
_ARGUMENT_DROPPED = frozenset(
    "color hspace vspace phantom hphantom vphantom label tag tag* hspace* fontsize textcolor kern cellcolor".split()
)
_KEPT = frozenset(
    "frac dfrac tfrac cfrac sfrac nicefrac sqrt usqrt ucbrt uqdrt binom dbinom tbinom overline bar hat widehat "
    "overrightarrow "
    "begin end mathbb Bbb not dot ddot pmod bmod mod int sum prod lim iint iiint oint partial nabla xrightarrow "
    "substack choose "
    "underbrace overbrace".split()
)

_COMMANDS = frozenset(
    name
    for name in (*_OPS, *_SKIPPED, *_UPRIGHT, *_PLAIN_GROUPS, *_ARGUMENT_DROPPED, *_KEPT)
    if len(name) > 1 and name.isalpha()
)

_LONG = r"\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d\d)+,\d{3}|\d{1,3}(?:(?:\\[,; ]|['\u0020~])\d{3})+"
_AFTER = r"(?![\d]|,\d|\\[,; ]\d|[ '~]\d)"
_TOKEN = re.compile(
    rf"""
      (?P<cmd>\\(?:[A-Za-z]+\*?|.))
    | (?P<name>[^\W\d_\u2e80-\uffff]+|(?:(?![A-Za-z])[^\W\d_])+)
    | (?P<space>[\s~\x00-\x1f\x7f]+)
    | (?P<int>[0-9]++(?![\d.,\\'\ ~eE])) |
      (?P<repeat>\d*\.\d*(?:\s*\\(?:overline|bar|overbar|dot)\s*(?:\{{\s*\d+\s*\}}|\d)\d*(?:\\dot\s*(?:\{{\d\}}|\d))?|\(\d+\))|\d*\.\d+\s*(?:\.\.\.|\\[lc]?dots\b))
    | (?P<num>(?:(?:{_LONG}){_AFTER}(?:\.\d+)?|\d+\.\d+|\d+\.(?![\d.])|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.A-Za-z]))?)
    | (?P<op>\*\*|<=|>=|=<|=>|!=|==|<>|->|\.\.\.|:=|''|\\$|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_LIST_NUMBER = re.compile(r"(?:\d+\.\d+|\d+\.(?![\d.])|\.\d+|\d+)(?:[eE][+-]?\d+(?![\d.A-Za-z]))?")
_COMMA_NUMBER = re.compile(r"\d+,\d+")
_PLAIN_OPS = {"**": "^", "==": "=", "=<": "<=", "=>": "implies", "<>": "!=", "->": "to", "...": "dots", ":=": "="}
_GLUE = re.compile(r",\s*\\![\s~]*|\{,\}\s?|\{,\\!\}\s?")
_GROUP = re.compile(r"\s*\{([^{}]*)\}")
_ROW_SPACING = re.compile(r"\s*\[\s*-?[\d.]+\s*(?:pt|e[mx]|[cm]m|in)\s*\]")
_DEGREE_LETTER = re.compile(r"(?<=[\d}])\^\s*(?:o(?![A-Za-z])|\{\s*o\s*\})")
_ONE_UNIT = r"\\(?:text|mathrm)\s*\{\s*~?[A-Za-z][A-Za-z~ ]{0,20}\s*\}\s*(?:\^\s*(?:\d|\{\s*-?\d\s*\}))?\s*"
_UNIT_NAMES = rf"\s*\{{\s*({_ONE_UNIT}(?:(?:\\cdot|\\[,;: ]|~)?\s*{_ONE_UNIT}){{0,3}})\}}"
_UNIT_QUOTIENT = re.compile(r"\\[dt]?frac" + 2 * _UNIT_NAMES)
_NEGATED = re.compile(r"\\not\s*(=|\\in(?![A-Za-z]))")
_BETWEEN_SETS = re.compile(r"\s*(?:\\left\s*)?[(\[]")
_SPACES = frozenset(" ~'\\")
_ALONE = frozenset("{}()[]^_+/,;&|")  # signs that begin no longer one
# After these one digit, or a number without spaces, is the operand.
_ONE_NUMBER = frozenset(
    ("_", "^", "\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac", "\\sqrt", "\\binom")
)
_OPTION = re.compile(r"\s*\[[^\[\]]*\]")


def tokenize(text: str, commas: str = "thousands") -> list[Token]:
    """Return the tokens of `text`, the last one of kind "end".

    `commas` says how `1,234` is read: "thousands" (1234), "list" (1 and 234) or "decimal" (1.234).
    Raise TooLarge beyond MAX_CHARS, MAX_TOKENS or MAX_DIGITS, and ParseError for a degree sign within an
    exponent or digits after a repeating block.
    """
    if len(text) > MAX_CHARS:
        raise TooLarge(f"an answer of {len(text)} characters; at most {MAX_CHARS} are read")
    text = rewritten_notations(regular(plain(text)))
    if ("," in text and "\\" in text) or "{" in text:
        text = _GLUE.sub(",", text).replace("{:}", ":").replace("{.}", ".")
    if "{}^" in text:
        text = text.replace("{}^", "^")
    if "\\!" in text:
        text = text.replace("\\!", "")
    if "^" in text:
        text = _DEGREE_LETTER.sub(r"^\\circ ", text)
    if "\\not" in text:
        text = _NEGATED.sub(lambda match: "\\ne " if match[1] == "=" else "\\notin ", text)
    if "frac" in text:
        text = _UNIT_QUOTIENT.sub(_unit_quotient, text)
    return _scan(text, commas)


def _unit_quotient(match: re.Match[str]) -> str:
    top, bottom = match[1].strip(), match[2].strip()
    return rf"\ {top}/({bottom})" if bottom.count("{") > 1 + bottom.count("^") else rf"\ {top}/{bottom}"


@functools.lru_cache(maxsize=1024)
def _sign(text: str, spaced: bool) -> Token:
    return Token("op", text, spaced)


def _numeral(text: str, position: int, value: str, commas: str, tokens: list[Token]) -> str:
    """Return the number at `position`, where `value` is one with its thousands marks, as `commas` says."""
    if commas == "thousands" and (not tokens or tokens[-1].text not in _ONE_NUMBER or _SPACES.isdisjoint(value)):
        return value
    match = (commas == "decimal" and _COMMA_NUMBER.match(text, position)) or _LIST_NUMBER.match(text, position)
    assert match
    return match.group().replace(",", ".")


def _scan(text: str, commas: str) -> list[Token]:
    tokens: list[Token] = []
    position, end, spaced = 0, len(text), False
    groups: list[bool] = []  # for each open brace: whether it belongs to \text{} or the like
    upright = 0
    apart: set[int] = set()  # places of the tokens that begin a formula of their own
    dollars = Formulas()
    while position < end:
        if (sign := text[position]) in _ALONE:
            position += 1
            if sign == "}" and groups and groups.pop():
                upright -= 1
                spaced = True
                continue
            if sign == "{":
                groups.append(False)
            tokens.append(_sign(sign, spaced))
            spaced = False
            continue
        match = _TOKEN.match(text, position)
        assert match is not None
        kind, value = match.lastgroup, match.group()
        start, position = position, match.end()
        if kind == "space":
            spaced = True
            if "\n" in value and not groups and new_equation(text, position, tokens):
                apart.add(len(tokens))
            continue
        if kind == "int":
            tokens.append(Token("num", value, spaced, upright > 0, decimal(value)))
        elif kind == "num":
            if commas == "decimal" or not value.isdigit():
                value = _numeral(text, start, value, commas, tokens)
                position = start + len(value)
            tokens.append(Token("num", value, spaced, upright > 0, decimal(value)))
        elif kind == "repeat":
            tokens.append(Token("num", value, spaced, upright > 0, repeating(value)))
        elif kind == "name":
            union = value == "U" and tokens and tokens[-1].text in (")", "]") and _BETWEEN_SETS.match(text, position)
            tokens.append(_sign("cup", spaced) if union else Token("name", value, spaced, upright > 0))
        elif kind == "cmd":
            if value in FORMULA_SIGNS:
                dollars.sign(value, tokens, spaced, apart)
            position, wrapper = _command(text, position, value[1:], spaced, tokens)
            if wrapper:
                groups.append(True)
                upright += 1
            spaced = wrapper or value[1:] in _SKIPPED or value[1:].isspace()
            continue
        elif value == "$":
            dollars.sign(value, tokens, spaced, apart)
        elif value == "!=" and not spaced and tokens and tokens[-1].kind == "num":  # 5!=120
            tokens += (_sign("!", False), _sign("=", False))
        else:
            tokens.append(_sign(_PLAIN_OPS.get(value, value), spaced))
        spaced = False
    if len(tokens) > MAX_TOKENS:
        raise TooLarge(f"an answer of more than {MAX_TOKENS} tokens")
    tokens.append(END)
    for place in apart:
        tokens[place] = tokens[place]._replace(apart=True)
    return tokens


def _command(text: str, position: int, name: str, spaced: bool, tokens: list[Token]) -> tuple[int, bool]:
    """Read `\\name`, which ends at `position`; return the next position, and whether it opens an upright group."""
    if name in _SKIPPED or name in ("(", ")", "[", "]", " ", "\n", "\t"):
        if name in ("left", "right") and text[position : position + 1] == ".":
            position += 1
        return position, False
    if name == "\\" and (spacing := _ROW_SPACING.match(text, position)):
        position = spacing.end()
    if name in _PLAIN_GROUPS:
        option = _OPTION.match(text, position) if name in ("framebox", "bbox") else None
        return (option.end() if option else position), False
    if name in _UPRIGHT:
        after = len(text) - len(text[position:].lstrip()) if text[position : position + 1] in (" ", "\n") else position
        if text[after : after + 1] == "{":
            return after + 1, True
        return position, False
    if name in _ARGUMENT_DROPPED:
        group = _GROUP.match(text, position)
        return (group.end() if group else position), False
    meaning = _OPS.get(name)
    if name == "times" and follows_vector(text, position):
        meaning = "cross"
    if meaning is not None:
        if meaning == "deg" and tokens and tokens[-1].text == "^":
            tokens.pop()
        elif meaning == "deg" and len(tokens) > 1 and tokens[-1].text == "{" and tokens[-2].text == "^":
            del tokens[-2:]
            brace = text.find("}", position)
            if brace < 0 or text[position:brace].strip():
                raise ParseError("a degree sign inside a longer exponent")
            position = brace + 1
        tokens.append(_sign(meaning, spaced))
    elif name in _KEPT:
        tokens.append(_sign("\\" + name, spaced))
    else:
        tokens.append(Token("name", "\\" + name, spaced))
    return position, False
