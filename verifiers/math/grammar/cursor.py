"""The position of the parser among its tokens, and what is open around it.

The grammar modules read and move it through the methods below; no other file assigns its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from ..values.tree import Node, ParseError, Rel, TooLarge, Unit
from .lex import Token

MAX_DEPTH = 48


def quote(token: Token) -> str:
    """Return a token as messages quote it, "the end" for the last."""
    return "the end" if token.kind == "end" else repr(token.text[:40])


class Cursor:
    """Reads a list of tokens that ends with one of kind "end".

    It starts at the first token, outside all groups. depth: the level of nesting. bars: the number of open | signs in
    this group. in_set: whether the condition of a set may still come. groups: the number of open brackets and braces.
    """

    def __init__(self, tokens: list[Token], depth: int = 0) -> None:
        self._tokens = tokens
        # The sign of each token, "" for other tokens and behind the last one.
        self._signs = [token.text if token.kind == "op" else "" for token in tokens] + [""]
        self._at = 0
        self.depth = depth
        self.bars = 0
        self.in_set = False
        self.groups = 0
        self._replaced: list[tuple[int, Token]] = []  # places of tokens that were replaced, and what stood there

    @property
    def token(self) -> Token:
        """The token at the position."""
        return self._tokens[self._at]

    @property
    def kind(self) -> str:
        """The kind of the token at the position."""
        return self._tokens[self._at].kind

    @property
    def before(self) -> Token:
        """The token before the position."""
        return self._tokens[self._at - 1]

    def peek(self, offset: int = 1) -> Token:
        """Return the token `offset` places ahead; beyond the end, the last one."""
        try:
            return self._tokens[self._at + offset]
        except IndexError:
            return self._tokens[-1]

    def op(self, offset: int = 0) -> str:
        """Return the sign `offset` places ahead, "" if the token is not a sign."""
        try:
            return self._signs[self._at + offset]
        except IndexError:
            return ""

    def word(self) -> str:
        """Return the name at the position in lower case, "" if the token is not a name."""
        token = self._tokens[self._at]
        return token.text.lower() if token.kind == "name" else ""

    def advance(self, count: int = 1) -> Token:
        """Skip `count` tokens; return the last of them."""
        self._at += count
        return self._tokens[self._at - 1]

    def take(self, text: str) -> bool:
        """Skip the sign `text` if it is here."""
        if self._signs[self._at] != text:
            return False
        self._at += 1
        return True

    def skip(self, *texts: str) -> None:
        """Skip these signs, as many as there are."""
        while self._signs[self._at] in texts:
            self._at += 1

    def skip_words(self, words: Collection[str]) -> bool:
        """Skip these words (lower case), as many as there are; return whether there was one."""
        start = self._at
        while self.word() in words:
            self._at += 1
        return self._at > start

    def expect(self, *texts: str) -> str:
        """Skip one of these signs and return it. Raise ParseError where another token comes."""
        for text in texts:
            if self.take(text):
                return text
        raise ParseError(f"expected {' or '.join(texts)}, found {quote(self.token)}")

    def argument_text(self) -> str:
        """Skip a group or one token (an index); return its raw text."""
        if not self.take("{"):
            text = self.token.text
            if self.kind == "end":
                raise ParseError("the index is missing")
            self.advance()
            return text
        parts: list[str] = []
        level = 1
        while level:
            if self.kind == "end":
                raise ParseError("a brace is not closed")
            level += {"{": 1, "}": -1}.get(self.op(), 0)
            parts.append(self.token.text)
            self.advance()
        return "".join(parts[:-1])

    def replace(self, token: Token) -> None:
        """Put `token` in the place of the one at the position: what is left of it when a part has been read."""
        self._replaced.append((self._at, self._tokens[self._at]))
        self._put(self._at, token)

    def _put(self, place: int, token: Token) -> None:
        self._tokens[place] = token
        self._signs[place] = token.text if token.kind == "op" else ""

    def place(self) -> str:
        """Return the token at the position and the one before it, for messages: "'@' after '3'"."""
        return quote(self.token) + (f" after {quote(self.before)}" if self._at else "")

    def mark(self) -> tuple[int, int, int, bool, int, int]:
        """Return the present state for `backtrack`."""
        return (self._at, self.depth, self.bars, self.in_set, self.groups, len(self._replaced))

    def backtrack(self, mark: tuple[int, int, int, bool, int, int]) -> None:
        """Return to a mark, with the tokens that were there."""
        self._at, self.depth, self.bars, self.in_set, self.groups, count = mark
        while len(self._replaced) > count:
            place, token = self._replaced.pop()
            self._put(place, token)

    def deeper(self) -> None:
        """Enter a level of nesting; `shallower` leaves it. Raise TooLarge beyond MAX_DEPTH."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    def shallower(self) -> None:
        """Leave a level of nesting."""
        self.depth -= 1

    @contextmanager
    def group(self, *, in_set: bool = False) -> Iterator[None]:
        """Enter brackets, within which open | signs and sets outside do not matter."""
        outer = self.bars, self.in_set
        self.bars, self.in_set = 0, in_set
        self.groups += 1
        yield
        self.groups -= 1
        self.bars, self.in_set = outer

    def start_condition(self) -> None:
        """Skip the bar or colon before a set's condition."""
        self._at += 1
        self.in_set = False

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Enter a pair of | signs."""
        self.bars += 1
        yield
        self.bars -= 1


class Parser(Cursor):
    """The interface between the grammar and the handlers of single constructs, which call each other.

    units: letters after a number may be a unit. named: the variables of the sides before this one. label: of the last
    side, in words. dropped: conditions beside the answer. `rlvr.verifiers.math.grammar.parse.Grammar` implements it.
    """

    units: bool
    named: frozenset[str]
    label: str
    dropped: list[Rel]

    part: Callable[[list[Token]], Parser]  # a parser of some tokens of this answer, which must be read to their end
    may_try_condition: Callable[[], bool]  # counts an attempt to read a condition; whether it may be made
    answer: Callable[[], Node]  # items with separators between them
    separator: Callable[[], str]  # skips what separates two items: ",", "and", "or" or "" for none
    item: Callable[[], Node]  # a side, or a chain of relations
    side: Callable[[], Node]  # an expression with the words, the currency and the unit around it
    quantity: Callable[[], tuple[Node, Unit]]  # a value without sums and its unit
    expression: Callable[[int], Node]  # operators that bind more tightly than a level
    prefix: Callable[[], Node]  # an operand with the signs before it
