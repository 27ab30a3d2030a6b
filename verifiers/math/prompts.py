r"""The expressions of a prompt, which an answer must not only repeat: its formulas, and its operations in words.

"57 minus 1" and "the product of $x + 1$ and $x - 1$" are rewritten as 57 - 1 and ((x + 1) * (x - 1)), then runs of
mathematics are read as answers are. Functions that the prompt defines are applied, and values that it gives inserted:
of "f(x) = 2x + 1 ... f(3)" 2(3) + 1 is an expression too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from rlvr.core.types import Prompt
from rlvr.verifiers.extract.last_expression import is_mathematics
from rlvr.verifiers.math.answer import readings
from rlvr.verifiers.math.binders import substituted
from rlvr.verifiers.math.lex import plain
from rlvr.verifiers.math.repeats import Expressions, expressions
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, nodes, symbols
from rlvr.verifiers.math.words import NUMBER_WORDS, normal_text, number_words

MAX_PROMPT = 20_000  # characters, at the end of a prompt
MAX_RUN = 1_000  # characters of one expression
MAX_TREES = 400
MAX_INSERTED = 60  # expressions with values inserted

_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
_DISPLAYED = re.compile(
    r"\$\$(.{1,2000}?)\$\$|(?<!\\)\$([^$]{1,1000})(?<!\\)\$(?!\d)|\\\((.{1,1000}?)\\\)|\\\[(.{1,2000}?)\\\]"
    r"|(\\begin\{([a-z]+\*?)\}.{1,2000}?\\end\{\6\})",
    re.DOTALL,
)
_PIECES = re.compile(r"\\\\|&|,\s|;|\\(?:text|mbox)\s*\{[^{}]*\}|\\q?quad|\n")
_SIDES = re.compile(r"(?<![<>!:])=|\\[lg]e(?:q|qslant)?(?![a-z])|[<>≤≥]|\\approx")


def read_prompt(prompt: Prompt) -> Expressions:
    """Return the expressions of a prompt; of messages, those of the user."""
    if not isinstance(prompt, str):
        said = (message["content"] for message in prompt if message["role"] == "user")
        prompt = "\n".join(text for text in said if isinstance(text, str))
    return _read(prompt[-MAX_PROMPT:])


@functools.lru_cache(maxsize=2048)
def _read(prompt: str) -> Expressions:
    trees: list[Node] = []
    for text in _texts(_DRAWING.sub(" ", prompt)):
        trees += (tree for tree in _trees(text) if tree not in trees)
        if len(trees) > MAX_TREES:
            break
    return expressions([*trees, *_inserted(trees)])


def _trees(text: str) -> tuple[Node, ...]:
    return readings(text, normal_text(plain(text)))[0] if len(text) <= MAX_RUN else ()


def _texts(prompt: str) -> Iterator[str]:
    """Yield what may be expressions: formulas, their pieces and sides, runs of mathematics in the rewritten prose."""
    prose, position = [], 0
    for match in _DISPLAYED.finditer(prompt):
        formula = next(group for group in match.groups() if group is not None).strip().rstrip(".,;:?")
        yield formula
        pieces = [piece.strip() for piece in _PIECES.split(formula)]
        yield from pieces if len(pieces) > 1 else ()
        for piece in pieces:
            sides = _SIDES.split(piece)
            yield from (side.strip() for side in sides if len(sides) > 1)
        prose += [prompt[position : match.start()], _in_prose(formula)]
        position = match.end()
    prose.append(prompt[position:])
    for run in _runs(_rewritten("".join(prose))):
        run = run.strip(" =:,")
        yield run
        sides = _SIDES.split(run)
        yield from (side.strip() for side in sides if len(sides) > 1)


_ATOM = re.compile(r"-?[\d.,]+|[A-Za-z]|\\[A-Za-z]+")


def _in_prose(formula: str) -> str:
    """A formula as an operand of the words around it."""
    if _ATOM.fullmatch(formula) or _SIDES.search(formula):
        return f" {formula} "
    return f" ({formula}) "


# --- operations in words ----------------------------------------------------------------------------------------------

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?"
_GROUP = r"\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,99}\)){0,99}\)){0,199}\)"
_OPERAND = rf"(?:-?{_NUMBER}|{_GROUP}|\\[a-z]+(?:\[\d\])?\{{[^{{}}\n]*\}}(?:\{{[^{{}}\n]*\}})?|\b[b-zB-HJ-Z]\b)"
_A, _B = rf"(?:the\s+)?(?P<a>{_OPERAND})", rf"(?:the\s+)?(?P<b>{_OPERAND})"
_NOUNS = r"(?:\s+(?!(?:and|is|are|by|from|to|of|than|times|minus|plus)\b)[a-z]+){0,2}"  # 57 apples minus 1 apple
_AND = r"\s*(?:,\s*(?:and\s+)?|\band\b)\s*"
_OPERATORS = {"sum": " + ", "total": " + ", "product": " * ", "difference": " - ", "quotient": " / ", "ratio": " / "}

_FRACTION = r"(?P<a>\d+/\d+|\(?\\[dt]?frac\{\d+\}\{\d+\}\)?)"
_GCD = r"(?:(?:greatest|highest)\s+common\s+(?:divisor|factor)|gcd)"


def _between(words: str) -> str:
    """A pattern of operator words between two operands, each with what is counted."""
    return rf"{_A}{_NOUNS}\s+(?:{words}){_NOUNS}\s+{_B}"


_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), form)
    for pattern, form in (
        (r"(?<=\d)\s+[a-z]+(?:\s+[a-z]+)?(?=\s*(?:[-+*/×÷·−]|\\times|\\cdot|\\div)\s*\(?\d)", ""),
        (rf"\b(?:positive\s+)?square\s+root\s+of\s+{_A}", r" (\\sqrt{\g<a>}) "),
        (rf"\bcube\s+root\s+of\s+{_A}", r" (\\sqrt[3]{\g<a>}) "),
        (rf"\bsquare\s+of\s+{_A}", r" (\g<a>^2) "),
        (rf"\bcube\s+of\s+{_A}", r" (\g<a>^3) "),
        (rf"{_A}\s+squared\b", r" (\g<a>^2) "),
        (rf"{_A}\s+cubed\b", r" (\g<a>^3) "),
        (rf"{_A}\s+factorial\b", r" (\g<a>!) "),
        (rf"{_A}\s+(?:raised\s+)?to\s+the\s+(?:power\s+(?:of\s+)?)?{_B}(?:th|nd|rd|st)?", r" (\g<a>^{\g<b>}) "),
        (rf"{_A}\s+choose\s+{_B}", r" (\\binom{\g<a>}{\g<b>}) "),
        (rf"\b{_GCD}\s+of\s+{_A}{_AND}{_B}", r" (\\gcd(\g<a>,\g<b>)) "),
        (rf"\bleast\s+common\s+multiple\s+of\s+{_A}{_AND}{_B}", r" (\\operatorname{lcm}(\g<a>,\g<b>)) "),
        (rf"\b(?:(?:one|1)[-\s]+)?half\s+(?:of\s+)?{_A}", r" (\g<a>/2) "),
        (rf"\b(?:an?|one|1)[-\s]+(?:quarter|fourth)\s+of\s+{_A}", r" (\g<a>/4) "),
        (rf"\b(?:an?|one|1)[-\s]+third\s+of\s+{_A}", r" (\g<a>/3) "),
        (rf"\b(?:twice|double)\s+(?:of\s+)?{_A}", r" (2*\g<a>) "),
        (rf"\b(?:thrice|triple)\s+(?:of\s+)?{_A}", r" (3*\g<a>) "),
        (rf"{_A}\s*(?:\\?%|percent)\s+of\s+{_B}", r" (\g<a>\\%*\g<b>) "),
        (rf"{_FRACTION}\s+of\s+{_B}", r" (\g<a>*\g<b>) "),
        (_between(r"times|multiplied\s+by"), r" \g<a> * \g<b> "),
        (_between(r"divided\s+by|over"), r" \g<a> / \g<b> "),
        (_between(r"plus|added\s+to|more\s+than|increased\s+by"), r" \g<a> + \g<b> "),
        (_between(r"minus|(?:decreased|reduced|diminished)\s+by"), r" \g<a> - \g<b> "),
        (_between(r"subtracted\s+from|taken\s+(?:away\s+)?from|less\s+than"), r" \g<b> - \g<a> "),
        (rf"\b(?:subtract|take(?:\s+away)?)\s+{_A}{_NOUNS}\s+from\s+{_B}", r" \g<b> - \g<a> "),
        (rf"\badd\s+{_A}{_NOUNS}\s+(?:to|and)\s+{_B}", r" \g<a> + \g<b> "),
        (rf"\bmultiply\s+{_A}{_NOUNS}\s+(?:by|and|with)\s+{_B}", r" \g<a> * \g<b> "),
        (rf"\bdivide\s+{_A}{_NOUNS}\s+by\s+{_B}", r" \g<a> / \g<b> "),
    )
)
_ENTRY = rf"(?:the\s+)?{_OPERAND}"
_LISTED = re.compile(
    r"\b(?P<name>sum|total|product|difference|quotient|ratio|average|mean)\s+(?:of|between)\s+(?:the\s+numbers?\s+)?"
    rf"(?P<items>{_ENTRY}{_NOUNS}(?:{_AND}{_ENTRY}{_NOUNS}){{0,9}}(?:{_AND}|\s+to\s+){_ENTRY})",
    re.IGNORECASE,
)
_ITEM = re.compile(_OPERAND)
_NUMERALS = "|".join(NUMBER_WORDS)
_SPELLED = re.compile(rf"\b(?:{_NUMERALS})(?:[-\s]+(?:and\s+)?(?:{_NUMERALS}|hundred|thousand))*\b", re.IGNORECASE)
MAX_ROUNDS = 4  # of operations within one another


def _rewritten(prose: str) -> str:
    """The prose with its operations as signs; inner ones first, so that outer ones find them as operands."""
    prose = _SPELLED.sub(_digits, prose)
    for _ in range(MAX_ROUNDS):
        before = prose
        for pattern, form in _RULES:
            prose = pattern.sub(form, prose)
        prose = _LISTED.sub(_listed, prose)
        if prose == before:
            break
    return prose


def _digits(match: re.Match[str]) -> str:
    words = re.split(r"[-\s]+", match[0].lower())
    found = number_words(words)
    return str(found[0]) if found is not None and found[1] == len(words) else match[0]


def _listed(match: re.Match[str]) -> str:
    """((2 + 3 + 4)/3) for "average of 2, 3 and 4"."""
    items = _ITEM.findall(match["items"])
    name = match["name"].lower()
    joined = _OPERATORS.get(name, " + ").join(items)
    return f" ({joined}) " if name in _OPERATORS else f" (({joined})/{len(items)}) "


_CHUNK = re.compile(r"\S+")
_END = re.compile(r"[.;:!?]+[)*_\"']*\Z")


def _runs(prose: str) -> Iterator[str]:
    """Yield the longest pieces of a text that look like mathematics."""
    run: list[str] = []
    for chunk in _CHUNK.finditer(prose):
        word = chunk.group()
        bare = _END.sub("", word) if not word.endswith("!") else word
        if is_mathematics(bare, bool(run) and run[-1][-1] in "-+*/^=<>("):
            run.append(bare)
            if bare == word:
                continue
        if run:
            yield " ".join(run)
        run = []
    if run:
        yield " ".join(run)


# --- definitions ------------------------------------------------------------------------------------------------------


def _inserted(trees: Sequence[Node]) -> list[Node]:
    """Return expressions of the trees with the functions that they define applied, and the values that they give."""
    values: dict[str, Node] = {}
    functions: dict[str, tuple[str, Node]] = {}
    for relation in (part for tree in trees for part in nodes(tree) if isinstance(part, Rel)):
        if len(relation.sides) != 2 or relation.ops != ("=",):
            continue
        left, right = relation.sides
        if isinstance(left, Sym) and not symbols(right):
            values.setdefault(left.name, right)
        elif (call := _call(left)) and isinstance(call[1], Sym):
            functions.setdefault(call[0], (call[1].name, right))
    if not values and not functions:
        return []
    found: list[Node] = []
    for part in dict.fromkeys(part for tree in trees for part in nodes(tree) if not isinstance(part, Rel)):
        new = substituted(_applied(part, functions), values)
        if new != part and isinstance(new, Op):
            found.append(new)
        if len(found) >= MAX_INSERTED:
            break
    return found


def _call(node: Node) -> tuple[str, Node] | None:
    """The name of a function and its argument: f(x), which may be read as a product."""
    if not isinstance(node, Op) or node.head not in ("apply", "mul") or len(node.args) != 2:
        return None
    name, argument = node.args
    return (name.name, argument) if isinstance(name, Sym) else None


def _applied(node: Node, functions: dict[str, tuple[str, Node]], depth: int = 0) -> Node:
    if not isinstance(node, Op) or not functions or depth > MAX_ROUNDS:
        return node
    call = _call(node)
    if call is not None and call[0] in functions:
        variable, body = functions[call[0]]
        return substituted(body, {variable: _applied(call[1], functions, depth + 1)})
    return Op(node.head, tuple(_applied(arg, functions, depth + 1) for arg in node.args))
