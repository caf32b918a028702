"""What a request with messages says about thinking, as a client writes it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema

from selfserve.api.field_types import invalid, unsupported
from selfserve.api.sampling_fields import RequestModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def _check_template_kwargs(value: object) -> object:
    if not isinstance(value, dict):
        raise invalid("must be an object", got=value)
    for key, entry in value.items():
        if key == "enable_thinking":
            if entry is not None and not isinstance(entry, bool):
                raise invalid("must be true or false", path=f".{key}", got=entry)
        else:
            raise unsupported("cannot be set; only enable_thinking can", path=f".{key[:100]}")
    return value


TemplateKwargs = Annotated[
    dict[str, Any],
    BeforeValidator(_check_template_kwargs),
    WithJsonSchema(
        {
            "type": "object",
            "properties": {"enable_thinking": {"type": ["boolean", "null"]}},
            "additionalProperties": False,
        }
    ),
]


class ThinkingFields(RequestModel):
    """Fields of every request that is rendered by the model's chat template."""

    reasoning_effort: Effort | None = None
    """none: no thinking; else thinking with a budget."""
    chat_template_kwargs: TemplateKwargs | None = None
    """enable_thinking wins over reasoning_effort."""

    @property
    def enable_thinking(self) -> bool | None:
        """What the request says about thinking, if anything."""
        switch = (self.chat_template_kwargs or {}).get("enable_thinking")
        if isinstance(switch, bool):
            return switch
        return None if self.reasoning_effort is None else self.reasoning_effort != "none"

    def thinking_mode(self, default: bool) -> tuple[bool, str | None]:
        """Whether to think, and how hard if the request says so; `default`: what it does if the
        request says nothing."""
        switch = self.enable_thinking
        thinking = default if switch is None else switch
        effort = self.reasoning_effort if thinking and self.reasoning_effort != "none" else None
        return thinking, effort
