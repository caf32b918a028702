"""Reads GBNF, the grammar notation of llama.cpp, into a tree.

Not a line of the text reaches llguidance: what does is written anew from this tree, so that a
mistake is told in terms of the text, and size and nesting are bounded before anything recurses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from selfserve.text.characters import LAST, CharSet
from selfserve.text.fuel import Fuel

MAX_TEXT = 200_000
MAX_NODES = 4_000
MAX_NESTING = 50
MAX_RULES = 2_000
MAX_RANGES = 10_000
"""Ranges of one character class: llguidance's time grows with their square."""
MAX_LOWER_BOUND = 2_000
MAX_UPPER_BOUND = 65_536
"""A larger upper bound of a repetition is as good as none: no answer gets there."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_COUNT = re.compile(r"\{\s*(\d{1,20})\s*(,)?\s*(\d{1,20})?\s*\}")
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}


class GrammarError(ValueError):
    """The grammar cannot be read or used; the text says why, with the line where it is known."""


# Nodes are keys by identity: a hash over all that a node holds would be computed anew each time.


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of a set."""

    of: CharSet


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A text, not empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    part: Node
    low: int
    high: int | None
    """None: without end."""


Node = Chars | Literal | Ref | Sequence | Choice | Repeat
EMPTY = Sequence(())


def parse_gbnf(text: str, fuel: Fuel) -> dict[str, Node]:
    """The rules of a grammar by name, in the order of the text. Raises GrammarError; OutOfFuel if
    that is too much work."""
    if len(text) > MAX_TEXT:
        raise GrammarError(f"longer than {MAX_TEXT} characters")
    fuel.spend(2 * len(text))
    return _Parser(text).rules()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._nodes = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(lines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip(lines=False)
            if not self._take("::="):
                raise self._error(f"expected ::= after the rule's name {name[:40]!r}")
            self._skip(lines=True)
            if name in rules:
                raise self._error(f"rule {name[:40]!r} is defined twice")
            rules[name] = self._choice(0)
            if len(rules) > MAX_RULES:
                raise GrammarError(f"more than {MAX_RULES} rules")
            if self._at < len(self._text) and self._text[self._at] not in "\r\n":
                raise self._error(f"unexpected {self._text[self._at]!r}")
            self._skip(lines=True)
        return rules

    def _error(self, reason: str) -> GrammarError:
        line = self._text.count("\n", 0, self._at) + 1
        return GrammarError(f"line {line}: {reason}")

    def _take(self, word: str) -> bool:
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, *, lines: bool) -> None:
        """Passes blanks and comments, and line ends if `lines`."""
        while char := self._peek():
            if char in " \t" or (lines and char in "\r\n"):
                self._at += 1
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                break

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if not found:
            raise self._error(f"expected the name of a rule, got {self._peek()!r}")
        self._at = found.end()
        return found[0]

    def _choice(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise self._error(f"groups are nested more than {MAX_NESTING} deep")
        options = [self._sequence(depth)]
        while self._continues_with_option(depth):
            self._at += 1
            self._skip(lines=True)
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _continues_with_option(self, depth: int) -> bool:
        """True before a `|`, which at the top level may also begin the next line."""
        start = self._at
        self._skip(lines=True)
        if self._peek() == "|":
            return True
        if depth == 0:
            self._at = start
        return False

    def _sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (part := self._element(depth)) is not None:
            self._skip(lines=depth > 0)
            while (repeated := self._repetition(part)) is not None:
                part = repeated
                self._skip(lines=depth > 0)
            self._nodes += 1
            if self._nodes > MAX_NODES:
                raise GrammarError(f"more than {MAX_NODES} elements")
            if part is not EMPTY:
                parts.append(part)
        if not parts:
            return EMPTY
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _element(self, depth: int) -> Node | None:
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._char_class()
        if char == "(":
            self._at += 1
            self._skip(lines=True)
            group = self._choice(depth + 1)
            if not self._take(")"):
                raise self._error("a group is not closed")
            return group
        if char == ".":
            self._at += 1
            return Chars(CharSet.any())
        if char and _NAME.match(char):
            return Ref(self._name())
        if char == "<":
            raise self._error("tokens as elements (<…>) are not supported")
        if char and char in "*+?{":
            raise self._error(f"{char!r} has nothing to repeat")
        return None

    def _repetition(self, part: Node) -> Node | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self._at += 1
            return Repeat(part, *simple)
        if self._peek() != "{":
            return None
        found = _COUNT.match(self._text, self._at)
        if not found:
            raise self._error("expected {count}, {from,} or {from,to}")
        low = int(found[1])
        high = int(found[3]) if found[3] else (None if found[2] else low)
        if found[3] and not found[2]:
            raise self._error("expected {count}, {from,} or {from,to}")
        if low > MAX_LOWER_BOUND:
            raise self._error(f"a repetition is asked for at most {MAX_LOWER_BOUND} times")
        if high is not None and high < low:
            raise self._error(f"the bounds of {found[0][:40]} are out of order")
        self._at = found.end()
        if high is not None and high > MAX_UPPER_BOUND:
            high = None
        return EMPTY if high == 0 else Repeat(part, low, high)

    def _literal(self) -> Node:
        self._at += 1
        chars: list[str] = []
        while not self._take('"'):
            chars.append(self._char("a text"))
        return Literal("".join(chars)) if chars else EMPTY

    def _char_class(self) -> Node:
        self._at += 1
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            first = ord(self._char("a character class"))
            last = first
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = ord(self._char("a character class"))
            if last < first:
                raise self._error("a range in a character class is out of order")
            ranges.append((first, last))
        found = CharSet.of(ranges)
        found = found.inverted() if negated else found
        if len(found.ranges) > MAX_RANGES:
            raise self._error(f"a character class of more than {MAX_RANGES} ranges")
        if not found.ranges:
            raise self._error("a character class matches nothing")
        return Chars(found)

    def _char(self, within: str) -> str:
        char = self._peek()
        if not char:
            raise self._error(f"{within} is not closed")
        self._at += 1
        if char != "\\":
            return char
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES and kind:
            return _ESCAPES[kind]
        length = _HEX_LENGTH.get(kind)
        digits = self._text[self._at : self._at + (length or 0)]
        if length is None or not re.fullmatch(f"[0-9a-fA-F]{{{length}}}", digits):
            raise self._error(f"unknown escape \\{kind}")
        self._at += length
        code = int(digits, 16)
        if code > LAST or 0xD800 <= code < 0xE000:
            raise self._error(f"U+{code:04X} is no character")
        return chr(code)
