"""POST /apply-template: what the chat endpoint would make of messages, as a prompt to complete."""

from __future__ import annotations

from selfserve.api.exchange import Exchange
from selfserve.api.llamacpp.prompts import MEDIA_MARKER
from selfserve.api.llamacpp.render import dumps
from selfserve.api.messages import Messages, Refused, image_urls, template_messages
from selfserve.api.sampling_fields import Boolean, Ignored
from selfserve.api.service import Service
from selfserve.api.thinking_fields import ThinkingFields
from selfserve.api.validation import read_model
from selfserve.errors import UnsupportedCapability
from selfserve.text.segments import image_marker
from selfserve.text.template import ChatTemplate
from selfserve.threads import check_wanted


class ApplyTemplateRequest(ThinkingFields):
    """A conversation to be written as the model expects it."""

    messages: Messages
    add_generation_prompt: Boolean | None = None
    """False: the prompt ends with the last turn, and no header of an answer follows."""
    model: Ignored = None
    tools: Refused = None


class ApplyTemplate:
    """Handler of /apply-template."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange) -> None:
        body = await read_model(exchange, ApplyTemplateRequest)
        for path, _ in image_urls(body.messages):
            if not self._service.has_vision:
                raise UnsupportedCapability(
                    f"{path} is a picture, but the loaded model takes text only", param=path
                )
        template = await self._service.chat_template()
        prompt = await exchange.work(self._rendered, body, template)
        await exchange.send_json(dumps({"prompt": prompt}).encode("ascii"))

    def _rendered(self, body: ApplyTemplateRequest, template: ChatTemplate) -> str:
        thinking, effort = body.thinking_mode(self._service.model.thinking_default)
        self._service.check_messages(body.messages)
        # Not MEDIA_MARKER: it may stand in a text, where it is no place of a picture.
        marker = image_marker()
        rendered = template.render(
            template_messages(body.messages),
            thinking=thinking,
            effort=effort,
            image_marker=marker,
            opens_answer=body.add_generation_prompt is not False,
            check=check_wanted,
        )
        return rendered.text.replace(marker, MEDIA_MARKER)
