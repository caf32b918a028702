"""A conversation with a server: what was said, and one answer after another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfserve.cli.server_client import Piece, ServerClient, image_part
from selfserve.errors import StartError


@dataclass(slots=True)
class Conversation:
    """The messages so far. `options` are fields that every request carries."""

    client: ServerClient
    options: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    messages: list[dict[str, Any]] = field(default_factory=list)
    _pictures: list[dict[str, Any]] = field(default_factory=list)

    def attach(self, path: Path) -> None:
        """Adds a picture to the next question. Raises StartError if it cannot be read."""
        self._pictures.append(image_part(path))

    def reset(self) -> None:
        """Forgets everything but the system message."""
        self.messages.clear()
        self._pictures.clear()

    def ask(self, text: str) -> Iterator[Piece]:
        """The answer, piece by piece. What came counts as said, also if the caller stops early;
        a question that got no answer is taken back."""
        content: Any = text
        if self._pictures:
            content = [*self._pictures, {"type": "text", "text": text}]
        question = {"role": "user", "content": content}
        said: list[str] = []
        pieces = self.client.stream({**self.options, "messages": [*self._history(), question]})
        try:
            for piece in pieces:
                if not piece.is_reasoning:
                    said.append(piece.text)
                yield piece
        finally:
            pieces.close()  # type: ignore[attr-defined]
            if any(said):
                self._pictures.clear()
                self.messages += [question, {"role": "assistant", "content": "".join(said)}]

    def save(self, path: Path) -> None:
        """Writes the conversation as JSON. Raises StartError if that fails."""
        text = json.dumps({"messages": self._history()}, ensure_ascii=False, indent=2)
        try:
            path.expanduser().write_text(text + "\n", "utf-8")
        except OSError as error:
            raise StartError(f"{path} cannot be written: {error.strerror}") from error

    def _history(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + self.messages
