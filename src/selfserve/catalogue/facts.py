"""What a model file's own header says about a model, in the words of ModelInfo."""

from __future__ import annotations

from dataclasses import replace

from selfserve.catalogue.gguf import Header
from selfserve.config import ModelInfo


def described(info: ModelInfo, header: Header) -> ModelInfo:
    """`info` with its empty fields filled from the file's header."""
    return replace(
        info,
        architecture=info.architecture or header.architecture,
        family=info.family or _text(header, "general.basename").lower() or header.architecture,
        parameters=info.parameters or _text(header, "general.size_label"),
        license=info.license or _text(header, "general.license"),
        quant=info.quant or header.file_type,
        context_length=info.context_length
        or _number(header, f"{header.architecture}.context_length"),
    )


def _text(header: Header, key: str) -> str:
    value = header.metadata.get(key)
    return value if isinstance(value, str) else ""


def _number(header: Header, key: str) -> int:
    value = header.metadata.get(key)
    return value if isinstance(value, int) else 0
