"""Text to tokens and back, for clients that count or cut prompts."""

from __future__ import annotations

from collections.abc import Iterable
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
from selfserve.api.validation import read_model
from selfserve.engine.interface import Vocabulary
from selfserve.request import PICTURE_TOKEN
from selfserve.text.detokenizer import Detokenizer


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
        answer = await self._service.workers.run(_tokenized, body, self._service.vocabulary)
        await exchange.send_json(answer)

    async def detokenize(self, exchange: Exchange) -> None:
        body = await read_model(exchange, DetokenizeRequest)
        answer = await self._service.workers.run(_detokenized, body, self._service.vocabulary)
        await exchange.send_json(answer)


def _tokenized(body: TokenizeRequest, vocabulary: Vocabulary) -> bytes:
    ids = tokenize_parts(
        body.content,
        vocabulary,
        path="content",
        add_special=bool(body.add_special),
        parse_special=body.parse_special is not False,
    )
    tokens: list[Any] = list(ids)
    if body.with_pieces:
        tokens = [{"id": i, "piece": _piece(vocabulary.piece(i, special=True))} for i in ids]
    return dumps({"tokens": tokens}).encode("ascii")


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
