"""A client that shows pictures to a running server."""

from __future__ import annotations

import base64
import io
import random
import re
from dataclasses import dataclass
from typing import Any

import httpx
from PIL import Image
from tests.support.chat_client import CHAT, events_of, joined, text_of
from tools.tiny_vision.shapes import NAMES, SHAPES, SOLID, Label, make

from selfserve.catalogue.entries import resolve

MODEL = "smollm2-vision:135m"
SHAPE_COLOR = "What color is the shape? Answer with one word."
SOLID_COLOR = "What color is the image? Answer with one word."
NTH_COLOR = "What color is the shape in the {} image? Answer with one word."


def projector_path() -> Any:
    """The projector that comes with the package."""
    return resolve(MODEL).projector


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def base64_of(image: Image.Image) -> str:
    return base64.b64encode(png(image)).decode()


def solid(color: str, width: int = 64, height: int = 64) -> Image.Image:
    return Image.new("RGB", (width, height), color)


def picture_part(image: Image.Image | str) -> dict[str, Any]:
    """A content part; a string is a URL."""
    url = image if isinstance(image, str) else f"data:image/png;base64,{base64_of(image)}"
    return {"type": "image_url", "image_url": {"url": url}}


def content(*parts: Image.Image | str) -> list[dict[str, Any]]:
    """Content of pictures and texts in order; texts that begin with https: are pictures too."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str) and not part.startswith("https:")
        else picture_part(part)
        for part in parts
    ]


def user(*parts: Image.Image | str) -> dict[str, Any]:
    return {"role": "user", "content": content(*parts)}


def generated(name: str, count: int, *, solids: bool = False) -> list[tuple[Image.Image, Label]]:
    """Pictures of a seed that no training saw."""
    rng = random.Random(f"held out {name}")
    return [make(rng, shape=SOLID if solids else rng.choice(SHAPES)) for _ in range(count)]


def first_color(text: str) -> str | None:
    """The first word of an answer that names a colour."""
    words = re.findall("[a-z]+", text.lower().replace("grey", "gray"))
    return next((word for word in words if word in NAMES), None)


@dataclass(frozen=True)
class PictureChat:
    """Asks greedily and briefly."""

    http: httpx.Client

    def post(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        body = {"messages": list(messages), "temperature": 0, "max_tokens": 12, **fields}
        return self.http.post(CHAT, json=body)

    def answer(self, *messages: dict[str, Any], **fields: Any) -> Any:
        """The whole answer."""
        response = self.post(*messages, **fields)
        assert response.status_code == 200, response.text
        return response.json()

    def ask(self, *parts: Image.Image | str, **fields: Any) -> str:
        """The text of the answer to one user message."""
        return text_of(self.answer(user(*parts), **fields))

    def stream(self, *parts: Image.Image | str) -> str:
        """As `ask`, streamed."""
        response = self.post(user(*parts), stream=True)
        assert response.status_code == 200, response.text
        return joined(events_of(response.text))
