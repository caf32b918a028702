"""Pictures in a prompt: which tokens stand for them, and which positions those take.

Rules of this file
- A picture's tokens are negative numbers made from its pixels' digest, so comparing tokens is
  comparing pictures, everywhere where prompts are compared.
- Tokens are counted in the context, positions are what the model computes with. They are the same
  until a picture of a model with M-RoPE comes, which takes fewer positions than tokens.
- A text prompt has no spans, and all questions about it are answered by the first comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from selfserve.errors import ContextLengthExceeded, InternalError
from selfserve.request import PICTURE_TOKEN, Picture, Request

Embeddings = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int32]


class ImageChunk(Protocol):
    """Tokens of a picture that are encoded together."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_positions(self) -> int:
        """Positions that it takes up: fewer than tokens with M-RoPE."""
        ...

    @property
    def is_causal(self) -> bool:
        """False: its tokens look at each other in both directions, so they are computed in one
        step."""
        ...

    def positions(self, first: int) -> Positions:
        """Where the tokens stand if the first one stands at `first`: (sections, num_tokens)."""
        ...


Piece = tuple[int, ...] | ImageChunk
"""A stretch of what a picture becomes: text tokens around it, or its own."""

Layout = Callable[[int, int], Sequence[Piece]]
"""The pieces that a picture of (width, height) becomes."""

BEYOND = 1 << 62
"""A length that no prompt reaches."""


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Neighbouring tokens of one picture that are encoded together."""

    start: int
    """Index of the first one in the prompt."""
    position: int
    """Position of the first one."""
    digest: str
    index: int
    """Which of the picture's chunks it is."""
    chunk: ImageChunk

    @property
    def end(self) -> int:
        return self.start + self.chunk.num_tokens


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """The pictures of one prompt."""

    spans: tuple[MediaSpan, ...] = ()
    """In order."""
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    """By digest."""

    def __bool__(self) -> bool:
        return bool(self.spans)

    def position_of(self, length: int) -> int:
        """The position that follows the first `length` tokens. Inside a picture it is a guess
        that is never behind the picture's end."""
        position = length
        for span in self.spans:
            if span.end > length:
                if span.start < length:
                    return min(position, span.position + span.chunk.num_positions)
                break
            position = span.position + span.chunk.num_positions + length - span.end
        return position

    def whole(self, length: int) -> int:
        """`length`, or where the picture begins that it would cut in two."""
        for span in self.spans:
            if span.start < length < span.end:
                return span.start
        return length

    def span_at(self, index: int) -> MediaSpan | None:
        """The span that the token at `index` belongs to."""
        return next((span for span in self.spans if span.start <= index < span.end), None)

    def text_end(self, index: int) -> int:
        """Where the text that holds the token at `index` ends; `index` itself in a picture."""
        if not self.spans:
            return BEYOND
        span = next((span for span in self.spans if span.end > index), None)
        return BEYOND if span is None else max(span.start, index)

    def spans_after(self, length: int) -> Iterator[MediaSpan]:
        """Those that are not whole within the first `length` tokens."""
        return (span for span in self.spans if span.end > length)


NO_MEDIA = PromptMedia()


def picture_tokens(digest: str, index: int, count: int) -> list[int]:
    """The tokens of a picture's chunk: negative, below PICTURE_TOKEN, 62 bits each. As many bits
    as the tokens have come from a hash, so two pictures agree in the first token already only by
    an accident of one in 2**62."""
    stream = hashlib.shake_256(f"{digest}:{index}".encode()).digest(8 * count)
    values = np.frombuffer(stream, dtype="<u8") >> np.uint64(2)
    tokens: list[int] = (PICTURE_TOKEN - 1 - values.astype(np.int64)).tolist()
    return tokens


def expand(request: Request, layout: Layout, context_size: int) -> tuple[Request, PromptMedia]:
    """The request with all tokens of its pictures in the prompt, and where they stand. Nothing is
    encoded.

    Raises ContextLengthExceeded if they leave no room for an answer, UnsupportedImage.
    """
    if request.prompt.count(PICTURE_TOKEN) != len(request.pictures):
        raise InternalError("the prompt must have one place for each picture")
    prompt = _Prompt()
    pictures = iter(request.pictures)
    for token in request.prompt:
        if token == PICTURE_TOKEN:
            picture = next(pictures)
            prompt.add_picture(picture.digest, layout(picture.width, picture.height))
        else:
            prompt.add_text((token,))
    _check_length(len(prompt.tokens), context_size)
    expanded = msgspec.structs.replace(request, prompt=tuple(prompt.tokens), pictures=())
    return expanded, PromptMedia(tuple(prompt.spans), {p.digest: p for p in request.pictures})


def _check_length(count: int, context_size: int) -> None:
    if count > context_size - 1:
        raise ContextLengthExceeded(
            f"the prompt must have at most {context_size - 1} tokens, got {count}, those of "
            f"pictures among them: the context is {context_size} tokens, prompt and answer "
            "together",
            details={"n_prompt_tokens": count, "n_ctx": context_size},
        )


class _Prompt:
    """A prompt that grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.spans: list[MediaSpan] = []
        self._position = 0

    def add_text(self, tokens: tuple[int, ...]) -> None:
        self.tokens += tokens
        self._position += len(tokens)

    def add_picture(self, digest: str, pieces: Sequence[Piece]) -> None:
        index = 0
        for piece in pieces:
            if isinstance(piece, tuple):
                self.add_text(piece)
                continue
            self.spans.append(MediaSpan(len(self.tokens), self._position, digest, index, piece))
            self.tokens += picture_tokens(digest, index, piece.num_tokens)
            self._position += piece.num_positions
            index += 1
