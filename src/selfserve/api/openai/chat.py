"""A chat from its body to the last byte of its answer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from functools import partial

from selfserve.api.budget import ByteShare
from selfserve.api.exchange import Exchange
from selfserve.api.messages import image_urls, template_messages
from selfserve.api.openai.render import ChatAnswer, ChatChunks
from selfserve.api.openai.schema import ChatRequest
from selfserve.api.sampling import sampling_params
from selfserve.api.service import Generated, Service
from selfserve.api.validation import read_model
from selfserve.engine.interface import Vocabulary
from selfserve.errors import UnsupportedCapability
from selfserve.request import (
    PICTURE_TOKEN,
    Constraint,
    Delta,
    Finished,
    Picture,
    Progress,
    ReasoningSpec,
    Request,
)
from selfserve.text.schema import json_object_constraint
from selfserve.text.segments import image_marker, tokenize_segments
from selfserve.text.template import ChatTemplate
from selfserve.threads import check_wanted


class ChatEndpoint:
    """Answers chats with the model of a service."""

    def __init__(self, service: Service, fingerprint: str) -> None:
        self._service = service
        self._fingerprint = fingerprint

    async def __call__(self, exchange: Exchange) -> None:
        """Handles one exchange. Raises SelfError where the request cannot be answered."""
        chat = await read_model(exchange, ChatRequest)
        self._check_images(chat)
        with self._service.admit(), closing(self._service.pictures.share()) as room:
            request = await self._prepare(exchange, chat, room)
            streams = bool(chat.stream)
            options = chat.stream_options
            usage = bool(options and options.include_usage)
            del chat, options  # the body is not kept while the engine works, nor are pixels
            exchange.body_done()
            names = (request.id, self._service.model.id, self._fingerprint)
            timings = request.timings_per_token
            events = self._service.run(request, room)
            del request
            if streams:
                chunks = ChatChunks(*names, timings=timings, usage=usage)
                await self._stream(exchange, events, chunks)
            else:
                body = await self._answer(events, ChatAnswer(*names, timings=timings))
        # The place is free again, however long the client takes to read the rest.
        if streams:
            await exchange.end_stream()
        else:
            await exchange.send_json(body)

    def _check_images(self, chat: ChatRequest) -> None:
        found = image_urls(chat.messages)
        if found and not self._service.has_vision:
            path, _ = found[0]
            raise UnsupportedCapability(
                f"{path} is a picture, but the loaded model takes text only", param=path
            )
        self._service.pictures.check_count(len(found), param="messages")

    async def _prepare(self, exchange: Exchange, chat: ChatRequest, room: ByteShare) -> Request:
        service = self._service
        slot = service.check_slot(chat.id_slot)
        if exchange.is_large:
            await exchange.work(service.check_messages, chat.messages)
        pictures = await service.pictures.from_urls(image_urls(chat.messages), room)
        template = await service.chat_template()
        draft = ChatDraft(chat, service, template, pictures)
        if draft.compiles:
            exchange.expect_cost()
        request = await exchange.work(draft.request, slot)
        service.check_length(len(request.prompt))
        return request

    async def _answer(self, events: AsyncGenerator[Generated, None], answer: ChatAnswer) -> bytes:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Delta):
                    answer.push(event)
                elif isinstance(event, Finished):
                    body = answer.finish(event)
        return body

    async def _stream(
        self, exchange: Exchange, events: AsyncGenerator[Generated, None], chunks: ChatChunks
    ) -> None:
        stream = exchange.open_stream(self._service.settings.ping_s)
        is_first = True
        async with aclosing(events):
            async for event in events:
                if is_first:
                    stream.push(chunks.first())
                    is_first = False
                if isinstance(event, Delta):
                    data = chunks.delta(event)
                    if data:
                        stream.push(data)
                elif isinstance(event, Progress):
                    stream.push(chunks.progress(event))
                else:
                    stream.push(chunks.last(event))
                await stream.ready()


class ChatDraft:
    """The work between a valid body and a request for the engine; runs in a worker thread."""

    def __init__(
        self,
        chat: ChatRequest,
        service: Service,
        template: ChatTemplate,
        pictures: tuple[Picture, ...] = (),
    ) -> None:
        self._chat = chat
        self._service = service
        self._pictures = pictures
        self._model = service.model
        self._sampling = service.recommended_sampling
        self._context_size = service.ready.context_size
        self._default_keep = service.keep_with(len(pictures))
        self._budgets = service.settings.reasoning_budgets
        self._vocabulary: Vocabulary = service.vocabulary
        self._template = template
        self._compiler = service.compiler
        self._reasoning = service.reasoning_format()

    @property
    def compiles(self) -> bool:
        """Whether there is a grammar or a schema to compile."""
        chat = self._chat
        form = chat.response_format
        has_form = form is not None and form.json_schema is not None
        return bool(chat.grammar) or chat.json_schema is not None or has_form

    def request(self, slot: int) -> Request:
        """Renders, tokenizes and compiles. Raises InvalidRequest; blocks, the GIL mostly free."""
        chat, vocabulary = self._chat, self._vocabulary
        constraint = self._constraint()
        prompt, reasoning = self._prompt(constrained=constraint is not None)
        return Request(
            id=f"chatcmpl-{secrets.token_hex(16)}",
            prompt=tuple(prompt),
            pictures=self._pictures,
            sampling=sampling_params(
                chat, self._sampling, vocabulary, self._context_size, penalize_answer_only=True
            ),
            max_tokens=chat.answer_limit,
            stop=tuple(chat.stop or ()),
            constraint=constraint,
            reasoning=reasoning,
            slot=slot,
            cache_prompt=chat.cache_prompt is not False,
            n_keep=self._default_keep,
            time_limit_ms=chat.t_max_predict_ms or 0,
            return_progress=bool(chat.stream and chat.return_progress),
            timings_per_token=bool(chat.timings_per_token),
        )

    def _prompt(self, *, constrained: bool) -> tuple[list[int], ReasoningSpec | None]:
        thinking, effort = self._chat.thinking_mode(self._model.thinking_default)
        marker = image_marker() if self._pictures else None
        rendered = self._template.render(
            template_messages(self._chat.messages),
            thinking=thinking,
            effort=effort,
            image_marker=marker,
            check=check_wanted,
        )
        thinks = thinking and self._template.supports_thinking and rendered.prefill is None
        if self._reasoning is not None and constrained and thinks:
            # A grammar holds from the first token on unless a block is open already.
            rendered = rendered.extended(self._reasoning.with_thinking(rendered.text))
        tokenizer = self._service.tokenizer()
        prompt = tokenize_segments(
            rendered.segments,
            tokenizer,
            marker=marker,
            picture=PICTURE_TOKEN,
            check_length=tokenizer.check,
        )
        if self._reasoning is None:
            return prompt, None
        spec = self._reasoning.spec(
            rendered.text,
            budget=None if effort is None else self._budgets.get(effort),
            tokenize=partial(self._vocabulary.tokenize, add_special=False, parse_special=True),
            prefill=rendered.prefill,
        )
        return prompt, spec

    def _constraint(self) -> Constraint | None:
        chat = self._chat
        if chat.grammar:
            return self._compiler.gbnf(chat.grammar, param="grammar")
        if chat.json_schema is not None:
            return self._compiler.json_schema(chat.json_schema, param="json_schema")
        if chat.response_format is None or chat.response_format.type == "text":
            return None
        schema = chat.response_format.json_schema
        if schema is None:
            return json_object_constraint()
        return self._compiler.json_schema(
            schema.schema_, param="response_format.json_schema.schema"
        )
