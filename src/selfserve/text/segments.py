"""Text that a client wrote must not become control tokens of the model.

A chat template mixes its own control tokens (`<|im_end|>`) with the text of messages. Where a
message contains the text of a control token, that text is taken out before rendering, an
unguessable placeholder stands in its place, and afterwards the output is cut there: the pieces
from the template are read with control tokens, the client's are not. Messages without such text
pass untouched, so their tokens are exactly those of the whole prompt.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt."""

    text: str
    special: bool
    """True: control tokens in it are read as such. False: it is text, whatever it looks like."""


class Tokenize(Protocol):
    """`Vocabulary.tokenize`."""

    def __call__(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


SCANNED_AT_ONCE = 1 << 16
"""Characters that are searched in one call, which holds the GIL."""


def nothing() -> None:
    """The check of work that nobody cancels."""


class SpecialTexts:
    """The texts that a tokenizer would read as one special token."""

    def __init__(self, texts: Collection[str]) -> None:
        known = {text for text in texts if len(text.strip()) > 1}
        self._longest = max(map(len, known), default=0)
        self._pattern = re.compile(_alternatives(known)) if known else None

    def find(
        self,
        text: str,
        ignored: Collection[str] = (),
        check: Callable[[], None] = nothing,
    ) -> Iterator[tuple[int, int]]:
        """Ranges `start, end` of the special texts in `text`, from left to right, longest first.
        `check` is called now and then."""
        if self._pattern is None:
            return
        position = 0
        for begin in range(0, len(text), SCANNED_AT_ONCE):
            check()
            end = begin + SCANNED_AT_ONCE
            while match := self._pattern.search(text, max(begin, position), end + self._longest):
                if match.start() >= end:
                    break
                position = match.end()
                if match.group() not in ignored:
                    yield match.span()

    def first_apart(self, text: str, start: int, check: Callable[[], None] = nothing) -> int | None:
        """Where, from `start` on, a special text begins that no other one reaches into, and no
        white space stands before: some swallow it. Cut there, a text has the same tokens."""
        if self._pattern is None:
            return None
        position = start
        while position < len(text):
            check()
            match = self._pattern.search(text, position, position + SCANNED_AT_ONCE)
            if match is None:
                position += SCANNED_AT_ONCE - self._longest
            elif text[match.start() - 1].isspace() or self._reaches(text, match.start()):
                position = match.start() + 1
            else:
                return match.start()
        return None

    def _reaches(self, text: str, place: int) -> bool:
        """True if a special text begins before `place` and ends behind it."""
        assert self._pattern is not None, "asked about a match"
        for begin in range(max(0, place - self._longest), place):
            match = self._pattern.match(text, begin)
            if match is not None and match.end() > place:
                return True
        return False


def _alternatives(texts: Collection[str]) -> str:
    """A pattern that finds the longest of the texts at a place in one pass over its letters.

    Vocabularies have up to thousands of them, which an alternation of whole texts would try one
    by one; this one branches at each letter.
    """
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern_of(tree)


def _pattern_of(tree: dict[str, Any]) -> str:
    """The pattern of what may follow; texts have some hundred letters at most, so it recurses."""
    prefix = ""
    while len(tree) == 1 and "" not in tree:  # the letters that all have in common
        ((letter, tree),) = tree.items()
        prefix += re.escape(letter)
    branches = [re.escape(k) + _pattern_of(tree[k]) for k in sorted(tree) if k]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)})" + ("?" if "" in tree else "")


class Guard:
    """Placeholders of one rendering. Not reusable, not shared between threads."""

    def __init__(self, specials: SpecialTexts, check: Callable[[], None] = nothing) -> None:
        """`check` is called now and then while it searches."""
        self._specials = specials
        self._check = check
        self._nonce = secrets.token_hex(8)
        self._originals: list[str] = []

    def protect(self, text: str, ignored: Collection[str] = ()) -> str:
        """`text` with placeholders for the special texts in it, except the `ignored` ones."""
        pieces: list[str] = []
        position = 0
        for start, end in self._specials.find(text, ignored, self._check):
            pieces += [text[position:start], self._placeholder(len(self._originals))]
            self._originals.append(text[start:end])
            position = end
        return "".join([*pieces, text[position:]]) if pieces else text

    def end_mark(self) -> str:
        """A text to find again in the output that no message contains."""
        return self._placeholder("end")

    def restore(self, text: str) -> tuple[Segment, ...]:
        """The rendered `text` with the originals back in their places."""
        if not self._originals:
            return (Segment(text, True),)
        pieces = re.split(self._placeholder(r"(\d+)"), text)
        segments: list[Segment] = []
        for index, piece in enumerate(pieces):
            if index % 2:
                segments.append(Segment(self._originals[int(piece)], False))
            elif piece:
                segments.append(Segment(piece, True))
        return tuple(segments)

    def _placeholder(self, key: int | str) -> str:
        # Private-use characters survive what templates do to text: trim, split, lower, replace.
        return f"\ue000{self._nonce}:{key}\ue001"


def image_marker() -> str:
    """A text for the place of a picture in a rendered prompt, which nobody can have written."""
    return f"\ue000{secrets.token_hex(8)}:image\ue001"


def tokenize_segments(
    segments: Sequence[Segment],
    tokenize: Tokenize,
    *,
    marker: str | None = None,
    picture: int = -1,
    check_length: Callable[[int], None] = lambda _: None,
) -> list[int]:
    """The token ids of a prompt: what the model wants at its start (BOS) is added once. The id
    `picture` comes out where `marker` stands. `check_length` is told how many tokens there are
    while they become more."""
    ids: list[int] = []
    for index, segment in enumerate(segments):
        first, *others = segment.text.split(marker) if marker else [segment.text]
        if index == 0:
            ids += tokenize(first, add_special=True, parse_special=segment.special)
        else:
            ids += _inside(first, segment.special, tokenize)
        for text in others:
            ids += [picture, *_inside(text, segment.special, tokenize)]
            check_length(len(ids))
        check_length(len(ids))
    return ids


def _inside(text: str, special: bool, tokenize: Tokenize) -> Iterable[int]:
    if not text:
        return ()
    return _continue(text, tokenize, parse_special=True) if special else _as_text(text, tokenize)


def _as_text(text: str, tokenize: Tokenize) -> Iterable[int]:
    """Some vocabularies read user-defined tokens in any text; cut in two, they cannot match."""
    ids = _continue(text, tokenize, parse_special=False)
    if len(ids) == 1 and len(text) > 1:
        halves = (text[:1], text[1:])
        return [i for half in halves for i in _continue(half, tokenize, parse_special=False)]
    return ids


def _continue(text: str, tokenize: Tokenize, *, parse_special: bool) -> list[int]:
    """The ids of text inside a prompt.

    Sentencepiece vocabularies put a blank before the first text that they are given. A line break
    in front takes that blank, and falls away again; where it joins `text`, the blank stays.
    """
    alone = tokenize("\n", add_special=False, parse_special=False)
    together = tokenize("\n" + text, add_special=False, parse_special=parse_special)
    if together[: len(alone)] == alone:
        return together[len(alone) :]
    return tokenize(text, add_special=False, parse_special=parse_special)
