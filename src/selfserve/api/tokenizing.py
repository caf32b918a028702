"""Prompts to tokens, whatever their size.

Rules of this file
- What cannot fit the context is refused by its length: no token is longer than the longest.
- A vocabulary with long tokens (128 blanks) makes that a weak bound, so a long text is counted in
  small pieces first, and refused as soon as the count is far beyond the context.
- libllama searches the whole text for each control token again and again; a long text is cut in
  front of control tokens, where its tokens are the same as in the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from selfserve.engine.interface import Vocabulary
from selfserve.errors import ContextLengthExceeded
from selfserve.text.segments import SpecialTexts
from selfserve.threads import check_wanted

PIECE = 1 << 14
"""Characters of the pieces that long texts are counted and cut in."""
WHOLE = 1 << 16
"""Characters up to which a text is tokenized in one call without being counted first."""
SURE = 2
"""A text cut in pieces has some tokens more than the whole. It is refused by the sum only if that
is so many times too large."""


class TextMeasure:
    """What a vocabulary's tokens say about the length of texts. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest token."""
        return max(1, self.vocabulary.longest_piece)

    @cached_property
    def specials(self) -> SpecialTexts:
        return SpecialTexts(self.vocabulary.special_ids.keys())

    @cached_property
    def ends_texts(self) -> bool:
        """True if the model wants a token after a prompt, too."""
        added = self.vocabulary.tokenize("", add_special=True, parse_special=False)
        return added != ([self.vocabulary.bos_id] if self.vocabulary.add_bos else [])

    def least_tokens(self, texts: Iterable[str]) -> int:
        """The texts have at least so many tokens."""
        size = sum(num_bytes(text) for text in texts)
        # Most texts are so short that the longest token need not be known.
        return size // self.longest_piece if size > WHOLE else 0


def num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


class PromptTokenizer:
    """Tokenizes texts of one prompt. For a worker thread, which it lets end between pieces."""

    def __init__(
        self, measure: TextMeasure, most: int, refusal: Callable[[int], ContextLengthExceeded]
    ) -> None:
        """`refusal` makes the error of a prompt with more than `most` tokens: at least so many."""
        self._measure = measure
        self._most = most
        self._refusal = refusal

    def __call__(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """`Vocabulary.tokenize`. Raises what the refusal makes for a text that is too long."""
        check_wanted()
        self.check(self._measure.least_tokens((text,)))
        ids: list[int] = []
        is_cut = len(text) > WHOLE and parse_special
        if is_cut and not (add_special and self._measure.ends_texts):
            parts = self._cut(text)
        else:
            parts = iter((text,))
        for index, part in enumerate(parts):
            if len(part) > WHOLE:
                self.check(len(ids) + self._estimate(part, parse_special))
            check_wanted()
            ids += self._measure.vocabulary.tokenize(
                part, add_special=add_special and index == 0, parse_special=parse_special
            )
            self.check(len(ids))
        return ids

    def check(self, num_tokens: int) -> None:
        """Raises the refusal if the prompt has too many tokens."""
        if num_tokens > self._most:
            raise self._refusal(num_tokens)

    def _estimate(self, text: str, parse_special: bool) -> int:
        """Fewer tokens than `text` has; counted only until they are too many."""
        total = 0
        for begin in range(0, len(text), PIECE):
            check_wanted()
            piece = text[begin : begin + PIECE]
            total += len(
                self._measure.vocabulary.tokenize(
                    piece, add_special=False, parse_special=parse_special
                )
            )
            if total // SURE > self._most:
                break
        return total // SURE

    def _cut(self, text: str) -> Iterator[str]:
        """Parts of `text`, all but the first with a control token in front."""
        begin = 0
        specials = self._measure.specials
        while len(text) - begin > WHOLE:
            place = specials.first_apart(text, begin + PIECE, check_wanted)
            if place is None:
                break
            yield text[begin:place]
            begin = place
        yield text[begin:]
