"""What both endpoints need of engine, vocabulary and template, from admission to the last event."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, cast

from selfserve.api.budget import ByteBudget, ByteShare
from selfserve.api.compiler import Compiler
from selfserve.api.messages import ChatMessage, shown_texts
from selfserve.api.pictures import PictureIntake
from selfserve.api.sampling import file_sampling
from selfserve.api.tokenizing import PromptTokenizer, TextMeasure
from selfserve.api.workers import Workers
from selfserve.config import ModelInfo, ServerSettings
from selfserve.engine.interface import Engine, Vocabulary
from selfserve.errors import (
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    ModelLoading,
    from_name,
)
from selfserve.limits import BODY_BYTES, BODY_WAIT_S
from selfserve.request import Delta, Event, Failed, Finished, Progress, Ready, Request
from selfserve.sampling import SamplingParams, effective
from selfserve.text.reasoning import ReasoningFormat, find_format
from selfserve.text.template import CHATML, ChatTemplate

Generated = Progress | Delta | Finished
"""Events of a request that runs; failures are exceptions instead."""


class Service:
    """The engine behind the endpoints. Belongs to the event loop's thread."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        model: ModelInfo,
        workers: Workers,
        compiler: Compiler,
    ) -> None:
        self.engine = engine
        self.settings = settings
        self.model = model
        self.workers = workers
        self.compiler = compiler
        self.bodies = ByteBudget(BODY_BYTES, wait_s=BODY_WAIT_S, what="large bodies at a time")
        self.pictures = PictureIntake(settings)
        self._template: ChatTemplate | None = None
        self._measure: TextMeasure | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        return self.engine.vocabulary

    @property
    def ready(self) -> Ready:
        """The loaded model's facts. Raises ModelLoading before there are any."""
        ready = self.engine.ready
        if ready is None:
            raise ModelLoading("the model is still loading")
        return ready

    @property
    def has_vision(self) -> bool:
        return bool(self.ready.info.get("vision", False))

    @cached_property
    def recommended_sampling(self) -> Mapping[str, Any]:
        """Settings between a request's own and the contract's defaults: the catalogue's, else
        those in the model file. Raises ModelLoading before the file was read."""
        return {**file_sampling(self.vocabulary.metadata), **self.model.sampling}

    @property
    def default_sampling(self) -> SamplingParams:
        """The sampling of a request that says nothing; its seed is drawn anew for each."""
        return effective(self.recommended_sampling, self.ready.context_size)

    @property
    def default_keep(self) -> int | None:
        """`n_keep` of requests that say nothing: None, unless the server shifts full contexts."""
        return 0 if self.settings.context_shift and self.ready.can_shift else None

    def keep_with(self, num_pictures: int) -> int | None:
        """`default_keep` of a prompt with so many pictures, none of which can be shifted."""
        return None if num_pictures else self.default_keep

    def admit(self, count: int = 1) -> AbstractContextManager[None]:
        """Places for `count` prompts until the request ends. Raises QueueFull or
        EngineUnavailable at once."""
        return self.engine.reserve(count)

    async def chat_template(self) -> ChatTemplate:
        """The model's template; read at the first call, in a worker thread."""
        if self._template is None:
            self._template = await self.workers.run(read_template, self.vocabulary)
        return self._template

    def reasoning_format(self) -> ReasoningFormat | None:
        """How the model writes its thinking, if it is one that thinks."""
        source = self.vocabulary.chat_template or CHATML
        return find_format(source, self.vocabulary.special_ids)

    def check_length(self, num_prompt: int, *, param: str | None = None) -> None:
        """Raises InvalidRequest for a prompt that is empty or leaves no room for an answer.
        `param` is the path of the field that holds it."""
        context = self.ready.context_size
        name = param or "the prompt"
        if num_prompt == 0:
            raise InvalidRequest(f"{name} must have at least 1 token, got 0", param=param)
        if num_prompt > context - 1:
            raise self._too_long(str(num_prompt), num_prompt, param)

    def check_size(self, texts: Iterable[str], *, param: str | None = None) -> None:
        """Raises ContextLengthExceeded for texts that are too long for the context, whatever
        their tokens are. Nothing is tokenized; for a worker thread where the texts are large."""
        least = self.measure().least_tokens(texts)
        if least > self.ready.context_size - 1:
            raise self._too_long(f"at least {least}", least, param)

    def check_messages(self, messages: list[ChatMessage]) -> None:
        """As `check_size`, of a conversation, before it is rendered."""
        reasoning = self.reasoning_format()
        self.check_size(shown_texts(messages, reasoning.end if reasoning else None))

    def tokenizer(self, *, param: str | None = None) -> PromptTokenizer:
        """For the texts of one prompt, which together must leave room for an answer."""

        def refusal(least: int) -> ContextLengthExceeded:
            return self._too_long(f"at least {least}", least, param)

        return PromptTokenizer(self.measure(), self.ready.context_size - 1, refusal)

    def measure(self) -> TextMeasure:
        """What the vocabulary says about the length of texts."""
        if self._measure is None or self._measure.vocabulary is not self.vocabulary:
            self._measure = TextMeasure(self.vocabulary)
        return self._measure

    def _too_long(self, got: str, num_prompt: int, param: str | None) -> ContextLengthExceeded:
        context = self.ready.context_size
        # Clients know an overflow by the words "this model's maximum context length is".
        return ContextLengthExceeded(
            f"{param or 'the prompt'} must have at most {context - 1} tokens, got {got}:"
            f" this model's maximum context length is {context} tokens,"
            " prompt and answer together",
            param=param,
            details={"n_prompt_tokens": num_prompt, "n_ctx": context},
        )

    def check_slot(self, slot: int | None) -> int:
        """The slot to run in, −1 for any. Raises InvalidRequest if there is no such slot."""
        num_slots = self.ready.num_slots
        if slot is not None and not -1 <= slot < num_slots:
            raise InvalidRequest(
                f"id_slot must be between -1 and {num_slots - 1}, got {slot}", param="id_slot"
            )
        return -1 if slot is None else slot

    async def run(self, request: Request, room: ByteShare) -> AsyncGenerator[Generated, None]:
        """The request's events, the last one Finished. Raises what the engine reports.

        Closing the generator aborts the request. What the request's pictures take of `room` is
        given back with the first token: then the engine has read them.
        """
        num_pixel_bytes = sum(len(picture.rgb) for picture in request.pictures)
        events = cast(AsyncGenerator[Event, None], self.engine.submit(request))
        del request  # it holds the pixels of all pictures, and answers take long
        try:
            async for event in events:
                if isinstance(event, Failed):
                    raise from_name(
                        event.error, event.message, param=event.param, details=event.details
                    )
                if num_pixel_bytes and not isinstance(event, Progress):
                    room.give(num_pixel_bytes)
                    num_pixel_bytes = 0
                yield event
                if isinstance(event, Finished):
                    return
            raise InternalError("the engine ended a request without a final event")
        finally:
            await events.aclose()


def read_template(vocabulary: Vocabulary) -> ChatTemplate:
    """The chat template of a vocabulary, ChatML where it has none. Takes some milliseconds."""

    def text_of(token: int | None) -> str:
        piece = b"" if token is None else vocabulary.piece(token, special=True)
        return piece.decode("utf-8", "replace")

    return ChatTemplate(
        vocabulary.chat_template or CHATML,
        bos_text=text_of(vocabulary.bos_id),
        eos_text=text_of(vocabulary.eos_id),
        special_texts=vocabulary.special_ids.keys(),
        add_bos=vocabulary.add_bos,
    )
