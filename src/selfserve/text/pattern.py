"""Regular expressions of JSON Schema (ECMA-262), checked and rewritten for llguidance.

llguidance reads Rust's dialect. Where the two differ the meaning would change in silence
(`[a&&b]`, `.`, `\\s`) or a mistake would pass (`^+a`), so each construct is read here once and
written again in a form that means the same over there. The size of what a pattern expands to is
bounded on the way, before llguidance sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, TypeGuard

from selfserve.text.characters import LAST, CharSet

MAX_GROUPS_DEEP = 40
MAX_PATTERN_LENGTH = 10_000
MAX_EXPANDED_SIZE = 10_000
"""Characters of the pattern after repetitions are written out: bounds time and memory."""

_BLANKS = (
    r"\t\n\x{0b}\x{0c}\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
)
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
WITHOUT_SHORT_ESCAPE = CharSet.of([(0, 7), (0x0B, 0x0B), (0x0E, 0x1F), (0x7F, 0x7F)])
"""Characters that stand in JSON text only as `\\u00..`."""
Ranges = tuple[tuple[int, int], ...]
_CLASSES: dict[str, Ranges] = {
    "d": ((0x30, 0x39),),
    "w": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "s": ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A),
          (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
}  # fmt: skip
_CLASSES |= {name.upper(): CharSet.of(chars).inverted().ranges for name, chars in _CLASSES.items()}
_QUANTIFIER = re.compile(r"\{(\d{1,10})(?:(,)(\d{1,10})?)?\}")
_PROPERTY = re.compile(r"[pP]\{[A-Za-z_0-9=]{1,64}\}")
_HEX = (re.compile(r"x([0-9a-fA-F]{2})"), re.compile(r"u([0-9a-fA-F]{4})"),
        re.compile(r"u\{([0-9a-fA-F]{1,6})\}"))  # fmt: skip
_GROUP_NAME = re.compile(r"\(\?<[A-Za-z_$][A-Za-z_$0-9]*>")


class PatternError(ValueError):
    """The pattern is no regular expression, is too large, or uses what cannot be enforced."""


class Rewritten(NamedTuple):
    text: str
    """The pattern in Rust's dialect."""
    needs_controls: bool
    """True if somewhere in it nothing but a character of WITHOUT_SHORT_ESCAPE can stand."""


@dataclass(slots=True)
class _Level:
    """One open group: sizes of the alternatives so far, and of the last atom."""

    size: int = 0
    atom: int = 0
    """Size of the last atom; 0: there is nothing that a quantifier could repeat."""


@dataclass(slots=True)
class _Reader:
    text: str
    at: int = 0
    out: list[str] = field(default_factory=list)
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    needs_controls: bool = False

    def emit(self, written: str, size: int) -> None:
        level = self.levels[-1]
        level.size += size
        level.atom = size
        self.out.append(written)
        if level.size > MAX_EXPANDED_SIZE:
            raise PatternError(f"repetitions expand to more than {MAX_EXPANDED_SIZE} characters")

    def note(self, chars: Ranges) -> None:
        """A place in which one of `chars` has to stand."""
        if not chars or 0x1F < min(chars)[0] != 0x7F:
            return
        together = CharSet.of((*WITHOUT_SHORT_ESCAPE.ranges, *chars))
        if together.ranges == WITHOUT_SHORT_ESCAPE.ranges:
            self.needs_controls = True


def rewrite(pattern: str) -> Rewritten:
    """`pattern` with the same meaning in Rust's dialect. Raises PatternError."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise PatternError(f"longer than {MAX_PATTERN_LENGTH} characters")
    if any("\ud800" <= char <= "\udfff" for char in pattern):
        raise PatternError("half of a surrogate pair is no character")
    reader = _Reader(pattern)
    while reader.at < len(pattern):
        _read_one(reader)
    if len(reader.levels) > 1:
        raise PatternError("a group is not closed")
    return Rewritten("".join(reader.out), reader.needs_controls)


def _read_one(reader: _Reader) -> None:
    char = reader.text[reader.at]
    if char == "(":
        _open_group(reader)
    elif char == ")":
        _close_group(reader)
    elif char in "*+?" or (char == "{" and _QUANTIFIER.match(reader.text, reader.at)):
        _repeat(reader)
    elif char == "\\":
        reader.at += 1
        written, chars = _escape(reader, in_class=False)
        reader.emit(written, 1)
        if chars is not None:
            reader.note(chars)
    elif char == "[":
        reader.emit(_read_class(reader), 1)
    else:
        reader.at += 1
        if char in "^$|":
            reader.out.append(char)
            reader.levels[-1].atom = 0
        else:
            reader.emit(r"[^\n\r\x{2028}\x{2029}]" if char == "." else _literal(char), 1)
            if char < " " or char == "\x7f":
                reader.note(((ord(char), ord(char)),))


def _open_group(reader: _Reader) -> None:
    text, at = reader.text, reader.at
    if len(reader.levels) > MAX_GROUPS_DEEP:
        raise PatternError(f"groups are nested more than {MAX_GROUPS_DEEP} deep")
    named = _GROUP_NAME.match(text, at)
    if named:
        reader.at = named.end()
    elif text.startswith("(?:", at):
        reader.at += 3
    elif text.startswith(("(?=", "(?!", "(?<=", "(?<!"), at):
        raise PatternError("look-around cannot be enforced")
    elif text.startswith("(?", at):
        raise PatternError(f"unknown group {text[at : at + 4]!r}")
    else:
        reader.at += 1
    reader.out.append("(?:")
    reader.levels.append(_Level())


def _close_group(reader: _Reader) -> None:
    if len(reader.levels) == 1:
        raise PatternError("a group is closed that was not opened")
    closed = reader.levels.pop()
    reader.at += 1
    reader.emit(")", max(closed.size, 1))


def _repeat(reader: _Reader) -> None:
    text, level = reader.text, reader.levels[-1]
    if not level.atom:
        raise PatternError(f"the quantifier at character {reader.at} has nothing to repeat")
    counted = _QUANTIFIER.match(text, reader.at)
    if counted:
        low, comma, high = int(counted[1]), counted[2], counted[3]
        most = int(high) if high else low + bool(comma)
        if high and int(high) < low:
            raise PatternError(f"the bounds of {counted[0]} are out of order")
        written, reader.at = counted[0], counted.end()
    else:
        written, most = text[reader.at], 1
        reader.at += 1
    if text.startswith("?", reader.at):  # lazy: which match is found, not which strings match
        reader.at += 1
    again = level.atom * max(most - 1, 0)
    reader.emit(written, again)
    level.atom = 0


def _literal(char: str) -> str:
    if char < " " or char == "\x7f":
        return _by_number(ord(char))[0]
    return "\\" + char if char in r"\.+*?()|[]{}^$#&-~" else char


def _escape(reader: _Reader, *, in_class: bool) -> tuple[str, Ranges | None]:
    """Reads what follows a backslash: what to write, and which characters that means, None where
    only the other side knows."""
    text, at = reader.text, reader.at
    if at >= len(text):
        raise PatternError("ends with a backslash")
    char = text[at]
    for form in _HEX:
        if found := form.match(text, at):
            reader.at = found.end()
            return _code_point(int(found[1], 16), reader)
    reader.at += 1
    if char == "s":
        return (_BLANKS if in_class else f"[{_BLANKS}]"), _CLASSES[char]
    if char in _CLASSES:
        return ("\\" + char if in_class or char != "S" else f"[^{_BLANKS}]"), _CLASSES[char]
    if char in _CONTROLS:
        return _by_number(ord(_CONTROLS[char]))
    if char == "b" and in_class:
        return _by_number(8)
    if found := _PROPERTY.match(text, at):
        reader.at = found.end()
        return "\\" + found[0], None
    if char == "0" and not text[at + 1 : at + 2].isdigit():
        return _by_number(0)
    if char == "c" and text[at + 1 : at + 2].isalpha() and text[at + 1].isascii():
        reader.at += 1
        return _by_number(ord(text[at + 1]) % 32)
    if char in "bB":
        raise PatternError("a word boundary cannot be enforced")
    if char.isdigit() or char == "k":
        raise PatternError("a back-reference cannot be enforced")
    if char.isalpha():
        raise PatternError(f"unknown escape \\{char}")
    return _literal(char), ((ord(char), ord(char)),)


def _by_number(code: int) -> tuple[str, Ranges]:
    return f"\\x{{{code:x}}}", ((code, code),)


def _code_point(code: int, reader: _Reader) -> tuple[str, Ranges]:
    if 0xD800 <= code < 0xDC00:
        low = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(reader.text, reader.at)
        if low:
            reader.at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise PatternError(f"U+{code:04X} is no character")
    return _by_number(code)


def _read_class(reader: _Reader) -> str:
    """Reads `[…]`. In Rust's dialect `[`, `&&`, `--` and `~~` have a meaning inside; here not."""
    text = reader.text
    reader.at += 1
    negated = text.startswith("^", reader.at)
    reader.at += negated
    parts: list[str] = []
    known: list[tuple[int, int]] = []
    properties = ""
    while not text.startswith("]", reader.at):
        first, chars = _class_atom(reader)
        is_range = text.startswith("-", reader.at) and not text.startswith("-]", reader.at)
        if _is_single(chars) and is_range:
            reader.at += 1
            last, end = _class_atom(reader)
            if not _is_single(end):
                raise PatternError("a range in a character class ends with a class")
            first += "-" + last
            known.append((chars[0][0], end[0][0]))
        elif chars is not None:
            known.extend(chars)
        else:
            properties += first[1]
        parts.append(first)
    reader.at += 1
    if not parts:
        if negated:
            return "(?s:.)"
        raise PatternError("an empty character class matches nothing")
    _note_class(reader, tuple(known), properties, negated=negated)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _note_class(reader: _Reader, known: Ranges, properties: str, *, negated: bool) -> None:
    """`known` is what the class names itself, `properties` the letters of its `\\p{…}`."""
    if not negated:
        if not properties:
            reader.note(known)
    elif properties or any(high == LAST for _, high in known):
        left = CharSet.of(known).inverted()
        reader.note(left.ranges)
        # What a property takes away is not known here. None takes single control characters away
        # but for the blanks, so that where many are left to it, more than these or nothing remains.
        controls = sum(1 for code in (*range(0x20), 0x7F) if left.holds(code))
        if "P" in properties or (properties and controls < 10):
            reader.needs_controls = True


def _is_single(chars: Ranges | None) -> TypeGuard[Ranges]:
    return chars is not None and len(chars) == 1 and chars[0][0] == chars[0][1]


def _class_atom(reader: _Reader) -> tuple[str, Ranges | None]:
    if reader.at >= len(reader.text):
        raise PatternError("a character class is not closed")
    char = reader.text[reader.at]
    reader.at += 1
    if char == "\\":
        return _escape(reader, in_class=True)
    return _literal(char), ((ord(char), ord(char)),)
