"""Prompts as clients write them: text, token ids, mixtures of both, pictures' markers, and several
of all these in one request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from selfserve.api.field_types import as_integer, invalid
from selfserve.api.tokenizing import PromptTokenizer
from selfserve.engine.interface import Vocabulary
from selfserve.errors import InvalidRequest
from selfserve.limits import MAX_PROMPTS
from selfserve.request import PICTURE_TOKEN

MEDIA_MARKER = "<__media__>"
"""Stands in a prompt where a picture goes."""

MAX_ID = 2**31 - 1
PROMPT_KEYS = ("prompt_string", "multimodal_data")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: texts and token ids in order."""

    parts: tuple[str | int, ...]
    media: tuple[str, ...] = ()
    """Base64 data of what stands at the markers in the text."""
    path: str = "prompt"
    """The field that it was read from."""

    @property
    def media_path(self) -> str:
        """The field that `media` was read from."""
        head, dot, _ = self.path.rpartition(".prompt_string")
        return f"{head}.multimodal_data" if dot else "multimodal_data"


def parse_prompts(value: object) -> tuple[Prompt, ...]:
    """The prompts of a request, at least one; for use as a validator.

    An array that holds an id is one prompt; any other array holds a prompt in each entry.
    """
    if not isinstance(value, list) or any(as_integer(entry) is not None for entry in value):
        return (_parse_prompt(value, ""),)
    if not value:
        raise invalid("must not be empty")
    if len(value) > MAX_PROMPTS:
        raise invalid(f"must have at most {MAX_PROMPTS} prompts", got=len(value))
    return tuple(_parse_prompt(entry, f"[{index}]") for index, entry in enumerate(value))


def _parse_prompt(value: object, path: str) -> Prompt:
    if isinstance(value, dict):
        return _parse_object(value, path)
    return Prompt(parse_parts(value, path), path=f"prompt{path}")


def parse_parts(value: object, path: str = "") -> tuple[str | int, ...]:
    """Texts and ids from a string, or an array of strings and ids that is not empty."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise invalid("must be a string or an array of token ids and strings", path=path, got=value)
    if not value:
        raise invalid("must not be empty", path=path)
    return tuple(_parse_part(entry, f"{path}[{index}]") for index, entry in enumerate(value))


def _parse_part(entry: object, path: str) -> str | int:
    if isinstance(entry, str):
        return entry
    token = as_integer(entry)
    if token is None:
        raise invalid("must be a token id or a string", path=path, got=entry)
    if not 0 <= token <= MAX_ID:
        raise invalid("must be a token of the model", path=path, got=entry)
    return token


def _parse_object(value: dict[str, Any], path: str) -> Prompt:
    for key in value:
        if key not in PROMPT_KEYS:
            raise invalid("is unknown", path=f"{path}.{key[:100]}")
    if "prompt_string" not in value:
        raise invalid("is required", path=f"{path}.prompt_string")
    text = value["prompt_string"]
    if not isinstance(text, str):
        given = "null" if text is None else text
        raise invalid("must be a string", path=f"{path}.prompt_string", got=given)
    data = value.get("multimodal_data")
    if data is None:
        return Prompt((text,), path=f"prompt{path}.prompt_string")
    media = parse_media(data, f"{path}.multimodal_data")
    check_markers(text, media, f"{path}.multimodal_data")
    return Prompt((text,), media, path=f"prompt{path}.prompt_string")


def parse_media(value: object, path: str = "") -> tuple[str, ...]:
    """Base64 strings, one for each picture; not decoded."""
    if not isinstance(value, list):
        raise invalid("must be an array of base64 strings", path=path, got=value)
    for index, entry in enumerate(value):
        if not isinstance(entry, str):
            raise invalid("must be a base64 string", path=f"{path}[{index}]", got=entry)
    return tuple(value)


def check_markers(text: str, media: tuple[str, ...], path: str) -> None:
    """Each item has its marker, and each marker its item."""
    found = text.count(MEDIA_MARKER)
    if found != len(media):
        raise invalid(
            f"must have one item for each {MEDIA_MARKER} of the prompt:"
            f" {len(media)} items, {found} markers",
            path=path,
        )


def tokenize_prompt(
    prompt: Prompt, vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> list[int]:
    """The prompt's tokens, with BOS once in front of a text that begins it, if the model wants
    it, and a PICTURE_TOKEN for each marker of a picture. Raises InvalidRequest for an id that the
    model does not have, and what `tokenizer` raises. For a worker thread."""
    if prompt.media:
        ids = _tokenize_with_media(str(prompt.parts[0]), tokenizer)
    else:
        ids = tokenize_parts(
            prompt.parts, vocabulary, tokenizer, path=prompt.path, add_special=True
        )
    if vocabulary.add_bos and isinstance(prompt.parts[0], str):
        while len(ids) > 1 and ids[0] == ids[1] == vocabulary.bos_id:
            del ids[0]  # the text began with it already
    return ids


def _tokenize_with_media(text: str, tokenizer: PromptTokenizer) -> list[int]:
    first, *others = text.split(MEDIA_MARKER)
    ids = tokenizer(first, add_special=True, parse_special=True)
    for other in others:
        ids.append(PICTURE_TOKEN)
        if other:
            ids += tokenizer(other, add_special=False, parse_special=True)
            tokenizer.check(len(ids))
    return ids


def tokenize_parts(
    parts: tuple[str | int, ...],
    vocabulary: Vocabulary,
    tokenizer: PromptTokenizer,
    *,
    path: str,
    add_special: bool,
    parse_special: bool = True,
) -> list[int]:
    """Tokens of texts and ids in order; `add_special` applies to a text in front."""
    ids: list[int] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            ids += tokenizer(
                part, add_special=add_special and index == 0, parse_special=parse_special
            )
            tokenizer.check(len(ids))
        else:
            check_id(part, vocabulary, f"{path}[{index}]")
            ids.append(part)
    tokenizer.check(len(ids))
    return ids


def check_id(token: int, vocabulary: Vocabulary, path: str) -> None:
    """Raises InvalidRequest for an id that the model does not have."""
    if not 0 <= token < vocabulary.size:
        raise InvalidRequest(
            f"{path} must be a token between 0 and {vocabulary.size - 1}, got {token}", param=path
        )


_PARTS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string"}]},
            "minItems": 1,
        },
    ]
}
_MEDIA_SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
_OBJECT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"prompt_string": {"type": "string"}, "multimodal_data": _MEDIA_SCHEMA},
    "required": ["prompt_string"],
    "additionalProperties": False,
}
Parts = Annotated[Any, BeforeValidator(parse_parts), WithJsonSchema(_PARTS_SCHEMA)]
Media = Annotated[Any, BeforeValidator(parse_media), WithJsonSchema(_MEDIA_SCHEMA)]
Prompts = Annotated[
    Any,
    BeforeValidator(parse_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                *_PARTS_SCHEMA["anyOf"],
                _OBJECT_SCHEMA,
                {
                    "type": "array",
                    "items": {"anyOf": [*_PARTS_SCHEMA["anyOf"], _OBJECT_SCHEMA]},
                    "minItems": 1,
                    "maxItems": MAX_PROMPTS,
                },
            ]
        }
    ),
]
