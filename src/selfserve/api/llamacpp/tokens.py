"""Text to tokens and back, for clients that count or cut prompts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from selfserve.api.exchange import Exchange
from selfserve.api.field_types import as_integer, invalid
from selfserve.api.llamacpp.prompts import (
    MAX_ID,
    MEDIA_MARKER,
    Parts,
    check_id,
    tokenize_parts,
)
from selfserve.api.llamacpp.render import dumps
from selfserve.api.sampling_fields import Boolean, RequestModel
from selfserve.api.service import Service
from selfserve.api.tokenizing import PromptTokenizer, num_bytes
from selfserve.api.validation import read_model
from selfserve.engine.interface import Vocabulary
from selfserve.errors import ContextLengthExceeded, RequestTooLarge
from selfserve.limits import BYTES_PER_TOKEN, MIN_MOST_BYTES
from selfserve.request import PICTURE_TOKEN
from selfserve.text.detokenizer import Detokenizer
from selfserve.threads import check_wanted


def _parse_ids(value: object) -> list[int]:
    if not isinstance(value, list):
        raise invalid("must be an array of token ids", got=value)
    ids = []
    for index, entry in enumerate(value):
        token = as_integer(entry)
        if token is None or not 0 <= token <= MAX_ID:
            raise invalid("must be a token of the model", path=f"[{index}]", got=entry)
        ids.append(token)
    return ids


Ids = Annotated[
    Any,
    BeforeValidator(_parse_ids),
    WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}}),
]


UNLIMITED = 1 << 62
ENTRIES_AT_ONCE = 4096


class TokenizeRequest(RequestModel):
    """Text whose tokens are asked for."""

    content: Parts
    """Text, or an array of texts and token ids."""
    add_special: Boolean | None = None
    """Adds what the model wants around a prompt, such as BOS."""
    parse_special: Boolean | None = None
    """False: the text of control tokens stays text. Default: true."""
    with_pieces: Boolean | None = None
    """Tells the text of each token too."""


class DetokenizeRequest(RequestModel):
    """Tokens whose text is asked for."""

    tokens: Ids


class TokenRoutes:
    """Handlers of /tokenize and /detokenize."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def tokenize(self, exchange: Exchange) -> None:
        body = await read_model(exchange, TokenizeRequest)
        size = sum(num_bytes(part) if isinstance(part, str) else 0 for part in body.content)
        if size > (most := self._most_bytes()):
            raise RequestTooLarge(
                f"content must have at most {most} bytes of text, got {size}", param="content"
            )
        answer = await exchange.work(self._tokenized, body)
        await exchange.send_json(answer)

    async def detokenize(self, exchange: Exchange) -> None:
        body = await read_model(exchange, DetokenizeRequest)
        if len(body.tokens) > (most := self._most_bytes()):
            raise RequestTooLarge(
                f"tokens must have at most {most} entries, got {len(body.tokens)}", param="tokens"
            )
        answer = await exchange.work(_detokenized, body, self._service.vocabulary)
        await exchange.send_json(answer)

    def _most_bytes(self) -> int:
        """Of a text, and ids of a text: no client needs more than to see what a context holds."""
        return max(MIN_MOST_BYTES, BYTES_PER_TOKEN * self._service.ready.context_size)

    def _tokenized(self, body: TokenizeRequest) -> bytes:
        vocabulary = self._service.vocabulary
        ids = tokenize_parts(
            body.content,
            vocabulary,
            PromptTokenizer(self._service.measure(), UNLIMITED, _unlimited),
            path="content",
            add_special=bool(body.add_special),
            parse_special=body.parse_special is not False,
        )
        if not body.with_pieces:
            return dumps({"tokens": ids}).encode("ascii")
        return b'{"tokens":[%b]}' % b",".join(_entries(ids, vocabulary))


def _unlimited(_: int) -> ContextLengthExceeded:
    raise AssertionError("no text has so many tokens")


def _entries(ids: list[int], vocabulary: Vocabulary) -> Iterator[bytes]:
    """The tokens with their pieces as JSON, some at a time: all as objects would take much more
    memory, and one call that writes them would hold the GIL."""
    for begin in range(0, len(ids), ENTRIES_AT_ONCE):
        check_wanted()
        entries = [
            {"id": i, "piece": _piece(vocabulary.piece(i, special=True))}
            for i in ids[begin : begin + ENTRIES_AT_ONCE]
        ]
        yield dumps(entries)[1:-1].encode("ascii")


def _piece(piece: bytes) -> str | list[int]:
    """The text of a token, or its bytes where it is only a part of a character."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def _detokenized(body: DetokenizeRequest, vocabulary: Vocabulary) -> bytes:
    for index, token in enumerate(body.tokens):
        check_id(token, vocabulary, f"tokens[{index}]")
    return dumps({"content": text_of(body.tokens, vocabulary)}).encode("ascii")


def text_of(ids: Iterable[int], vocabulary: Vocabulary) -> str:
    """The text of tokens, control tokens included; what is no whole character becomes U+FFFD, and
    a picture its marker."""
    detokenizer = Detokenizer()
    marker = MEDIA_MARKER.encode()
    pieces = (
        marker if token == PICTURE_TOKEN else vocabulary.piece(token, special=True) for token in ids
    )
    return "".join(map(detokenizer.push, pieces)) + detokenizer.flush()
