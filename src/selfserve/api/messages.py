"""The messages of a chat request: how clients write them, and what templates get to see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic.config import JsonDict

from selfserve.api.field_types import invalid, is_empty, unsupported
from selfserve.api.sampling_fields import Text
from selfserve.limits import MAX_MESSAGES
from selfserve.text.messages import ImagePart, Message, Part, TextPart

ROLES = ("system", "developer", "user", "assistant")
REFUSED_ROLES = frozenset({"tool", "function"})
PART_TYPES = ("text", "image_url")
REFUSED_PARTS = frozenset({"input_audio", "file", "refusal"})
REFUSED_MESSAGE_FIELDS = ("tool_calls", "function_call", "audio", "tool_call_id")


class _MessageModel(BaseModel):
    """Inside messages, fields of other servers and newer clients are ignored."""

    model_config = ConfigDict(
        extra="ignore", strict=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )


class TextContent(_MessageModel):
    """Text. Parts are joined without a separator."""

    type: Literal["text"]
    text: Text


class ImageUrl(_MessageModel):
    """Where a picture is: an HTTPS URL, or a data URL of a JPEG, PNG or WebP."""

    url: Text


class ImageContent(_MessageModel):
    """A picture; only in user messages, only for models that see."""

    type: Literal["image_url"]
    image_url: ImageUrl


def _check_part(value: object) -> object:
    if not isinstance(value, dict):
        raise invalid("must be an object", got=value)
    kind = value.get("type")
    if kind is None:
        raise invalid("is required", path=".type")
    if isinstance(kind, str) and kind in REFUSED_PARTS:
        raise unsupported(f"{kind} is not supported by this server", path=".type")
    if kind not in PART_TYPES:
        raise invalid(f"must be one of {', '.join(PART_TYPES)}", path=".type", got=kind)
    return value


def _part_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else value.type
    return f"={kind}"


ContentPart = Annotated[
    Annotated[
        Annotated[TextContent, Tag("=text")] | Annotated[ImageContent, Tag("=image_url")],
        Discriminator(_part_tag),
    ],
    BeforeValidator(_check_part),
]


def _check_content(value: object) -> object:
    if value is not None and not isinstance(value, str | list):
        raise invalid("must be a string or an array of content parts", got=value)
    return value


def _content_tag(value: Any) -> str:
    return "=parts" if isinstance(value, list) else "=text"


Content = Annotated[
    Annotated[
        Annotated[Text, Tag("=text")]
        | Annotated[list[ContentPart], Field(fail_fast=True), Tag("=parts")],
        Discriminator(_content_tag),
    ]
    | None,
    BeforeValidator(_check_content),
]


def _check_role(value: object) -> object:
    if isinstance(value, str) and value in REFUSED_ROLES:
        raise unsupported(f"{value} is not supported by this server")
    return value


def refuse_unless_empty(value: object) -> object:
    """Validator of fields that exist in the API but not here; their empty forms pass."""
    if not is_empty(value):
        raise unsupported("is not supported by this server")
    return None


EMPTY_SCHEMA: dict[str, Any] = {
    "description": "Not supported: only its empty forms pass.",
    "enum": [None, False, 0, "", [], {}, "none"],
}
Refused = Annotated[Any, BeforeValidator(refuse_unless_empty), WithJsonSchema(EMPTY_SCHEMA)]


_NO_PICTURES: JsonDict = {"items": {"properties": {"type": {"const": "text"}}}}
_NOT_NULL: JsonDict = {"not": {"type": "null"}}
_CONTENT_BY_ROLE: JsonDict = {
    "anyOf": [
        {
            "properties": {"role": {"const": "user"}, "content": _NOT_NULL},
            "required": ["content"],
        },
        {
            "properties": {
                "role": {"enum": ["system", "developer"]},
                "content": {**_NOT_NULL, **_NO_PICTURES},
            },
            "required": ["content"],
        },
        {"properties": {"role": {"const": "assistant"}, "content": _NO_PICTURES}},
    ]
}


class ChatMessage(_MessageModel):
    """One turn of the conversation. Only the assistant's may be without content, only the user's
    may hold pictures."""

    model_config = ConfigDict(json_schema_extra=_CONTENT_BY_ROLE)

    role: Annotated[
        Literal["system", "developer", "user", "assistant"], BeforeValidator(_check_role)
    ]
    content: Content = None
    name: Text | None = None
    reasoning_content: Text | None = None
    """Thinking of an earlier assistant turn, for templates that show it."""
    tool_calls: Refused = None
    function_call: Refused = None
    audio: Refused = None
    tool_call_id: Refused = None

    @model_validator(mode="after")
    def _check_combination(self) -> ChatMessage:
        if self.content == [] and self.role != "assistant":
            raise invalid(f"must not be empty in a message of role {self.role}", path=".content")
        if self.content is None and self.role != "assistant":
            raise invalid(f"is required in a message of role {self.role}", path=".content")
        if self.role != "user":
            for index, part in enumerate(self.parts):
                if isinstance(part, ImageContent):
                    raise invalid(
                        f"must be text in a message of role {self.role}, got image_url",
                        path=f".content[{index}]",
                    )
        return self

    @property
    def parts(self) -> list[TextContent | ImageContent]:
        """The content's parts; a string has none."""
        return self.content if isinstance(self.content, list) else []


def _check_count(value: object) -> object:
    if isinstance(value, list) and len(value) > MAX_MESSAGES:
        raise invalid(f"must have at most {MAX_MESSAGES} entries", got=len(value))
    return value


def _check_end(messages: list[ChatMessage]) -> list[ChatMessage]:
    if [message.role for message in messages[-2:]] == ["assistant", "assistant"]:
        raise invalid(
            "must not follow another message of the assistant: at the end of a conversation it "
            "could not be told which of them is to be continued",
            path=f"[{len(messages) - 1}]",
        )
    return messages


Messages = Annotated[
    list[ChatMessage],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    AfterValidator(_check_end),
    BeforeValidator(_check_count),  # else all that are allowed would be looked at first
]


def template_messages(messages: list[ChatMessage]) -> list[Message]:
    """The conversation as templates take it; pictures are counted through the request."""
    num_images = 0
    found: list[Message] = []
    for message in messages:
        content: str | tuple[Part, ...] = ""
        if isinstance(message.content, str):
            content = message.content
        elif message.parts:
            parts: list[Part] = []
            for part in message.parts:
                if isinstance(part, TextContent):
                    parts.append(TextPart(part.text))
                else:
                    parts.append(ImagePart(num_images))
                    num_images += 1
            content = tuple(parts)
        found.append(
            Message(
                role=message.role,
                content=content,
                name=message.name,
                reasoning_content=message.reasoning_content,
            )
        )
    return found


def shown_texts(messages: list[ChatMessage], thinking_end: str | None) -> Iterator[str]:
    """Texts that every template shows: without what was thought earlier, and without the white
    space around."""
    for message in messages:
        if isinstance(message.content, str):
            text = message.content
        else:
            text = "".join(part.text for part in message.parts if isinstance(part, TextContent))
        if message.role == "assistant" and thinking_end:
            text = text.rpartition(thinking_end)[2]
        yield text.strip()


def image_urls(messages: list[ChatMessage]) -> list[tuple[str, str]]:
    """(path of the field, URL) of each picture, in order."""
    return [
        (f"messages[{i}].content[{j}].image_url.url", part.image_url.url)
        for i, message in enumerate(messages)
        for j, part in enumerate(message.parts)
        if isinstance(part, ImageContent)
    ]
