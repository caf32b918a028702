"""What the scheduler does about pictures: counting their tokens, encoding, and rows for steps."""

from __future__ import annotations

from selfserve.engine.encoder import PictureEncoder
from selfserve.engine.media import Layout, PromptMedia, expand
from selfserve.engine.plan import PictureRows
from selfserve.engine.sequence import Sequence
from selfserve.errors import SelfError
from selfserve.request import Request


class Pictures:
    """The pictures of all requests. Belongs to the engine's thread; nothing blocks."""

    def __init__(self, layout: Layout, encoder: PictureEncoder, context_size: int) -> None:
        self._layout = layout
        self._context_size = context_size
        self.encoder = encoder

    def expand(self, request: Request) -> tuple[Request, PromptMedia]:
        """The request with its pictures' tokens in the prompt. Nothing is encoded yet, for their
        beginning may be in a slot's memory. Raises ContextLengthExceeded, UnsupportedImage."""
        return expand(request, self._layout, self._context_size)

    def rows(self, sequence: Sequence, most: int) -> PictureRows | None:
        """What to compute next of the picture that `sequence` has come to, at most `most` rows if
        it can be divided. None: it has come to none, or that one is still being encoded.

        Orders all that the sequence will need. Raises SelfError for a picture that cannot be
        encoded.
        """
        start = sequence.num_computed
        spans = list(sequence.media.spans_after(start))
        if not spans:
            self.encoder.forget(sequence.id)
            return None
        pictures = sequence.media.pictures
        results = [self.encoder.get(pictures[span.digest], sequence.id) for span in spans]
        span, result = spans[0], results[0]
        if span.start > start or result is None:
            return None
        if isinstance(result, SelfError):
            raise result
        offset = start - span.start
        end = span.chunk.num_tokens
        if span.chunk.is_causal:
            end = min(end, offset + most)
        return PictureRows(
            embeddings=result[span.index][offset:end],
            positions=span.chunk.positions(span.position)[:, offset:end],
            is_causal=span.chunk.is_causal,
        )

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        if sequence.media:
            self.encoder.forget(sequence.id)
