"""Pictures in a prompt: which tokens stand for them, encoding them, and their rows for steps.

Rules of this file
- A picture's tokens are negative numbers made from its pixels' digest, so comparing tokens is
  comparing pictures, everywhere where prompts are compared.
- Tokens are counted in the context, positions are what the model computes with. They are the same
  until a picture of a model with M-RoPE comes, which takes fewer positions than tokens.
- A text prompt has no spans, and all questions about it are answered by the first comparison.
- Pixels are kept until the embeddings are there, and no longer.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from selfserve.engine.plan import Embeddings, PictureRows
from selfserve.engine.runner import ImageChunk
from selfserve.errors import ContextLengthExceeded, InternalError, SelfError
from selfserve.logs import get_logger
from selfserve.request import PICTURE_TOKEN, Picture, Request

if TYPE_CHECKING:
    from selfserve.engine.sequence import Sequence

log = get_logger("engine")

Piece = tuple[int, ...] | ImageChunk
"""A stretch of what a picture becomes: text tokens around it, or its own."""

Layout = Callable[[int, int], Iterable[Piece]]
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
    pixels: dict[str, Picture] = field(default_factory=dict)
    """By digest; only of those whose embeddings are not there yet."""

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

    def add_picture(self, digest: str, pieces: Iterable[Piece]) -> None:
        index = 0
        for piece in pieces:
            if isinstance(piece, tuple):
                self.add_text(piece)
                continue
            self.spans.append(MediaSpan(len(self.tokens), self._position, digest, index, piece))
            self.tokens += picture_tokens(digest, index, piece.num_tokens)
            self._position += piece.num_positions
            index += 1


CACHE_BYTES = 256 << 20
"""Of embeddings that no running request waits for. A picture takes between 20 kB and 64 MB."""

Encoded = tuple[Embeddings, ...]
"""The embeddings of each of a picture's chunks."""
Result = Encoded | SelfError


class PictureEncoder:
    """A thread of its own, and the embeddings by the digests of the pixels.

    The thread ends with the last picture that is ordered: libgomp counts the threads of each thread
    that ever computed, and with more of them than processors all wait in their sleep.

    What a request wants is kept until it forgets it; of the rest the newest are, within the limit.
    All methods belong to the engine's thread and none blocks, except `close`.
    """

    def __init__(
        self,
        encode: Callable[[Picture], Encoded],
        wake: Callable[[], None],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """`encode` and `wake` are called on the encoder's thread, `wake` whenever a picture is
        done."""
        self._encode = encode
        self._wake = wake
        self._cache_bytes = cache_bytes
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[Picture | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[str, Result | None]] = queue.SimpleQueue()
        self._wanted: dict[str, set[str]] = {}
        """Digest → the requests that want it."""
        self._ordered: set[str] = set()
        self._results: dict[str, Result] = {}
        """Of wanted pictures."""
        self._cache: OrderedDict[str, Encoded] = OrderedDict()
        """Of all others, least recently used first."""
        self.num_bytes = 0
        """Of the cache."""
        self.num_encoded = 0
        self.num_reused = 0

    def order(self, digest: str, picture: Picture | None, request_id: str) -> Result | None:
        """The request wants a picture's embeddings from now on. Returns them, or why there are
        none; None: they are being made. `picture`: None if its pixels are gone."""
        self._take_done()
        requests = self._wanted.setdefault(digest, set())
        is_new = request_id not in requests
        requests.add(request_id)
        result = self._results.get(digest)
        if result is None:
            result = self._from_cache(digest)
        if result is None and digest not in self._ordered:
            if picture is None:
                return InternalError("a picture was to be encoded again, but its pixels are gone")
            self._hand_over(picture)
        elif is_new:
            self.num_reused += 1
        return result

    def result(self, digest: str) -> Result | None:
        """The embeddings of a picture that was ordered, or why there are none, if it is done."""
        return self._results.get(digest)

    def forget(self, request_id: str) -> None:
        """The request wants nothing any more."""
        for digest in [d for d, requests in self._wanted.items() if request_id in requests]:
            requests = self._wanted[digest]
            requests.discard(request_id)
            if not requests:
                del self._wanted[digest]
                self._keep(digest, self._results.pop(digest, None))

    def close(self) -> None:
        """Ends the thread after the picture that it works on."""
        self._wanted.clear()
        self._end_thread()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def _hand_over(self, picture: Picture) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="pictures", daemon=True)
            self._thread.start()
        self._ordered.add(picture.digest)
        self._orders.put(picture)

    def _take_done(self) -> None:
        while not self._done.empty():
            digest, result = self._done.get()
            self._ordered.discard(digest)
            self.num_encoded += isinstance(result, tuple)
            if result is not None and digest in self._wanted:
                self._results[digest] = result
            else:
                self._keep(digest, result)
        if not self._ordered:
            self._end_thread()  # it has nothing left to do but to take this order

    def _from_cache(self, digest: str) -> Encoded | None:
        found = self._cache.pop(digest, None)
        if found is not None:
            self.num_bytes -= _size(found)
            self._results[digest] = found
        return found

    def _keep(self, digest: str, result: Result | None) -> None:
        """Puts embeddings that nobody waits for into the cache, if they fit."""
        if not isinstance(result, tuple) or _size(result) > self._cache_bytes:
            return
        while self.num_bytes + _size(result) > self._cache_bytes:
            _, oldest = self._cache.popitem(last=False)
            self.num_bytes -= _size(oldest)
        self._cache[digest] = result
        self.num_bytes += _size(result)

    def _work(self) -> None:
        while (picture := self._orders.get()) is not None:
            # Whoever wanted it may have left meanwhile.
            result = self._try(picture) if picture.digest in self._wanted else None
            self._done.put((picture.digest, result))
            self._wake()

    def _try(self, picture: Picture) -> Result:
        try:
            return self._encode(picture)
        except SelfError as error:
            return error
        except Exception:
            log.exception("a picture could not be encoded")
            return InternalError("the picture could not be encoded")


def _size(encoded: Encoded) -> int:
    return sum(embeddings.nbytes for embeddings in encoded)


class Pictures:
    """The pictures of all requests. Belongs to the engine's thread; nothing blocks."""

    def __init__(self, encoder: PictureEncoder) -> None:
        self.encoder = encoder

    def order(self, sequence: Sequence) -> None:
        """Has the pictures encoded that the sequence still needs, or forgets them once it needs
        none. Raises SelfError for a picture that cannot be encoded."""
        media = sequence.media
        if not media:
            return
        spans = list(media.spans_after(sequence.num_computed))
        if not spans:
            self.encoder.forget(sequence.id)
        for digest in dict.fromkeys(span.digest for span in spans):
            result = self.encoder.order(digest, media.pixels.get(digest), sequence.id)
            if isinstance(result, SelfError):
                raise result
            if result is not None:
                media.pixels.pop(digest, None)

    def rows(self, sequence: Sequence, most: int) -> PictureRows | None:
        """What to compute next of the picture that `sequence` has come to, at most `most` rows if
        it can be divided. None: it has come to none, or that one is still being encoded."""
        start = sequence.num_computed
        span = next(sequence.media.spans_after(start), None)
        if span is None or span.start > start:
            return None
        result = self.encoder.result(span.digest)
        if not isinstance(result, tuple):
            return None
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
