"""A client of a running server: questions, answers whole or in pieces."""

from __future__ import annotations

import base64
import contextlib
import json
import mimetypes
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from selfserve.cli.chat_stream import RequestFailed
from selfserve.errors import StartError, shown

SCHEMES = ("http://", "https://")
CONNECT_S = 10.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a streamed answer. The last one has no text but a finish reason or usage."""

    text: str = ""
    is_reasoning: bool = False
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None


def is_address(target: str) -> bool:
    """True for a server's address, false for a model."""
    return target.lower().startswith(SCHEMES)


class ServerClient:
    """One server. Blocks; raises RequestFailed for refusals and broken connections."""

    def __init__(self, url: str, key: str = "") -> None:
        parts = urlsplit(url)
        if not is_address(url) or not parts.hostname:
            raise StartError(f"the address must look like http://host:port, got {shown(url)}")
        base = url.rstrip("/").removesuffix("/v1")
        is_local = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
        self._client = httpx.Client(
            base_url=base,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            trust_env=not is_local,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()

    def model(self) -> dict[str, Any]:
        """The server's model as `/v1/models` describes it."""
        with self._translated():
            answer = self._client.get("/v1/models")
            _check(answer)
            return dict(answer.json()["data"][0])

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer of a chat."""
        with self._translated():
            answer = self._client.post(CHAT, json=body)
            _check(answer)
            return dict(answer.json())

    def stream(self, body: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer in pieces. Closing the iterator hangs up, which ends the answer."""
        request = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._translated(), self._client.stream("POST", CHAT, json=request) as answer:
            if answer.status_code != httpx.codes.OK:
                answer.read()
            _check(answer)
            for line in _lines(answer.iter_bytes()):
                if line.startswith(b"data: {"):
                    yield from _pieces(json.loads(line[6:]))

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise RequestFailed(f"{self._client.base_url}: {error or 'no answer'}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise RequestFailed(f"{self._client.base_url} sent something unexpected") from error


def image_part(path: Path) -> dict[str, Any]:
    """A picture file as a part of a message. Raises StartError if it cannot be read."""
    try:
        content = path.expanduser().read_bytes()
    except OSError as error:
        raise StartError(f"{path} cannot be read: {error.strerror}") from error
    kind = mimetypes.guess_type(path.name)[0] or "image/png"
    encoded = base64.b64encode(content).decode("ascii")
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{encoded}"}}


def _check(answer: httpx.Response) -> None:
    if answer.status_code == httpx.codes.OK:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"status {answer.status_code}"
    raise RequestFailed(str(message))


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines at LF only: other characters that some call line ends may stand inside JSON."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.rstrip(b"\r") for line in lines)
    if rest:
        yield rest


def _pieces(event: Mapping[str, Any]) -> Iterator[Piece]:
    if "error" in event:
        raise RequestFailed(str(event["error"].get("message", "the answer broke off")))
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if text := delta.get("reasoning_content"):
            yield Piece(text, is_reasoning=True)
        if text := delta.get("content"):
            yield Piece(text)
        if choice.get("finish_reason"):
            yield Piece(finish_reason=choice["finish_reason"])
    if event.get("usage"):
        yield Piece(usage=event["usage"])
