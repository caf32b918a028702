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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt."""

    text: str
    special: bool
    """True: control tokens in it are read as such. False: it is text, whatever it looks like."""


class Tokenize(Protocol):
    """`Vocabulary.tokenize`."""

    def __call__(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class SpecialTexts:
    """The texts that a tokenizer would read as one special token."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = frozenset(text for text in texts if len(text.strip()) > 1)
        first = "".join(sorted({text[0] for text in self._texts}))
        self._first = re.compile(f"[{re.escape(first)}]") if first else None
        self._lengths = sorted({len(text) for text in self._texts}, reverse=True)

    def find(self, text: str, ignored: Collection[str] = ()) -> list[tuple[int, int]]:
        """Ranges `start, end` of the special texts in `text`, from left to right, longest first.

        Vocabularies have up to thousands of them: a look-up for each length at the few places
        where one can begin is much faster than one alternation of all.
        """
        if self._first is None:
            return []
        found: list[tuple[int, int]] = []
        position = 0
        while match := self._first.search(text, position):
            start = match.start()
            position = start + 1
            for length in self._lengths:
                candidate = text[start : start + length]
                if len(candidate) == length and candidate in self._texts:
                    if candidate not in ignored:
                        found.append((start, start + length))
                    position = start + length
                    break
        return found


class Guard:
    """Placeholders of one rendering. Not reusable, not shared between threads."""

    def __init__(self, specials: SpecialTexts) -> None:
        self._specials = specials
        self._nonce = secrets.token_hex(8)
        self._originals: list[str] = []

    def protect(self, text: str, ignored: Collection[str] = ()) -> str:
        """`text` with placeholders for the special texts in it, except the `ignored` ones."""
        pieces: list[str] = []
        position = 0
        for start, end in self._specials.find(text, ignored):
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
) -> list[int]:
    """The token ids of a prompt: what the model wants at its start (BOS) is added once. The id
    `picture` comes out where `marker` stands."""
    ids: list[int] = []
    for index, segment in enumerate(segments):
        first, *others = segment.text.split(marker) if marker else [segment.text]
        if index == 0:
            ids += tokenize(first, add_special=True, parse_special=segment.special)
        else:
            ids += _inside(first, segment.special, tokenize)
        for text in others:
            ids += [picture, *_inside(text, segment.special, tokenize)]
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
