"""A catalogue of small files behind the real one's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from tests.support.fake_hub import FakeHub
from tests.support.tiny_gguf import gguf_bytes

from selfserve.catalogue.known import catalogue


class SmallCatalogue:
    """The catalogue's large models with other files in place of theirs, pinned and on a hub."""

    def __init__(self, hub: FakeHub, path: Path) -> None:
        self._hub, self.path = hub, path
        self._models: list[dict[str, Any]] = [
            entry.model_dump(exclude_none=True) for entry in catalogue().models[:3]
        ]
        for entry in self._models:
            for quant in entry["quants"].values():
                for file in (*quant["files"], quant["projector"]):
                    name = file["name"]
                    self._pin(file, gguf_bytes({"general.name": name}, padding=100_000))
        self._write()

    def replace(self, reference: str, content: bytes) -> None:
        """Another file for the model `name:size@quant`; it loses its projector."""
        name, _, quant = reference.partition("@")
        [entry] = [entry for entry in self._models if entry["id"] == name]
        entry["quants"][quant].pop("projector")
        self._pin(entry["quants"][quant]["files"][0], content)
        self._write()

    def _pin(self, file: dict[str, Any], content: bytes) -> None:
        file["size"] = len(content)
        file["sha256"] = self._hub.add(file["repository"], file["name"], content)

    def _write(self) -> None:
        self.path.write_text(yaml.safe_dump({"models": self._models}))
