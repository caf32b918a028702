"""A completion from its body to the last byte of its answer."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from selfserve.api.budget import ByteShare
from selfserve.api.exchange import Exchange
from selfserve.api.llamacpp.merge import merged
from selfserve.api.llamacpp.probabilities import ProbabilityRenderer, prepare
from selfserve.api.llamacpp.prompts import Prompt, tokenize_prompt
from selfserve.api.llamacpp.render import (
    CompletionAnswer,
    CompletionEvents,
    PreparedPrompt,
    dumps,
    joined,
    select_fields,
    total_usage,
)
from selfserve.api.llamacpp.schema import CompletionRequest
from selfserve.api.llamacpp.settings import generation_settings
from selfserve.api.llamacpp.tokens import text_of
from selfserve.api.sampling import resolve_seed, sampling_params
from selfserve.api.service import Generated, Service
from selfserve.api.sse import DONE, data_event
from selfserve.api.timings import usage_object
from selfserve.api.validation import read_model
from selfserve.errors import InvalidRequest, UnsupportedCapability
from selfserve.limits import MAX_BIASES, MAX_PROBS_IN_ALL, check_count
from selfserve.request import (
    Constraint,
    Delta,
    Finished,
    Picture,
    Progress,
    Request,
    SamplingParams,
)

Events = AsyncGenerator[tuple[int, Generated], None]
"""(index of the prompt, event)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What all answers of one request have in common."""

    head: dict[str, Any]
    fields: tuple[str, ...]
    """`response_fields`; none: all."""
    tells_usage: bool

    def last(self, event: dict[str, Any]) -> dict[str, Any]:
        """A prompt's last event: whatever its fields, it tells which prompt's end it is."""
        if not self.fields:
            return event
        return {"index": event["index"], "stop": True, **select_fields(event, self.fields)}


class CompletionEndpoint:
    """Continues prompts with the model of a service."""

    def __init__(self, service: Service, fingerprint: str, *, openai: bool) -> None:
        """`openai`: several prompts are one answer, and a stream ends with `[DONE]`."""
        self._service = service
        self._fingerprint = fingerprint
        self._openai = openai

    async def __call__(self, exchange: Exchange) -> None:
        """Handles one exchange. Raises SelfError where the request cannot be answered."""
        body = await read_model(exchange, CompletionRequest)
        self._check(body)
        room = self._service.pictures.share()
        with self._service.admit(len(body.prompts)), closing(room):
            head = self._head()
            prompts, pictures = await self._prepare(exchange, body, head["id"], room)
            answer = Answer(
                head=head,
                fields=tuple(body.response_fields or ()),
                tells_usage=bool(
                    self._openai and body.stream_options and body.stream_options.include_usage
                ),
            )
            streams = bool(body.stream)
            del body  # it is not kept while the engine works, nor are pixels
            exchange.body_done()
            events = merged(
                [
                    self._service.run(msgspec.structs.replace(p.request, pictures=found), room)
                    for p, found in zip(prompts, pictures, strict=True)
                ]
            )
            del pictures
            if streams:
                await self._stream(exchange, events, answer, prompts)
            else:
                data = await self._answer(events, answer, prompts)
        # The places are free again, however long the client takes to read the rest.
        if streams:
            await exchange.end_stream()
        else:
            await exchange.send_json(data)

    def _check(self, body: CompletionRequest) -> None:
        """Raises for what no waiting would mend."""
        settings, ready = self._service.settings, self._service.ready
        capacity = ready.num_slots + settings.queue_size
        if len(body.prompts) > capacity:
            raise InvalidRequest(
                f"prompt must hold at most {capacity} prompts, got {len(body.prompts)}",
                param="prompt",
            )
        if body.n_keep is not None and not ready.can_shift:
            raise UnsupportedCapability(
                "n_keep must be absent: the loaded model's memory cannot be shifted",
                param="n_keep",
            )
        for prompt in body.prompts:
            if prompt.media:
                self._check_media(prompt, shifts=body.n_keep is not None)

    def _check_media(self, prompt: Prompt, *, shifts: bool) -> None:
        path = prompt.media_path
        if not self._service.has_vision:
            raise UnsupportedCapability(
                f"{path} must be absent: the loaded model takes text only", param=path
            )
        if shifts:
            raise UnsupportedCapability(
                "n_keep must be absent: a prompt with pictures cannot be shifted", param="n_keep"
            )
        self._service.pictures.check_count(len(prompt.media), param=path)

    async def _prepare(
        self, exchange: Exchange, body: CompletionRequest, request_id: str, room: ByteShare
    ) -> tuple[list[PreparedPrompt], list[tuple[Picture, ...]]]:
        """Prompts without their pictures, and these."""
        slot = self._service.check_slot(body.id_slot)
        if exchange.is_large:
            await exchange.work(self._check_sizes, body.prompts)
        items = [
            (f"{prompt.media_path}[{i}]", data)
            for prompt in body.prompts
            for i, data in enumerate(prompt.media)
        ]
        found = iter(await self._service.pictures.from_base64(items, room))
        pictures = [tuple(islice(found, len(prompt.media))) for prompt in body.prompts]
        counts = [len(prompt.media) for prompt in body.prompts]
        draft = CompletionDraft(body, self._service, request_id, slot, counts)
        if body.grammar or body.json_schema is not None:
            exchange.expect_cost()
        return await exchange.work(draft.prompts), pictures

    def _check_sizes(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            texts = (part for part in prompt.parts if isinstance(part, str))
            self._service.check_size(texts, param=prompt.path)

    def _head(self) -> dict[str, Any]:
        return {
            "id": f"cmpl-{secrets.token_hex(16)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._service.model.id,
            "system_fingerprint": self._fingerprint,
        }

    async def _answer(self, events: Events, answer: Answer, prompts: list[PreparedPrompt]) -> bytes:
        answers = [
            CompletionAnswer(answer.head, p, self._probabilities(p.request)) for p in prompts
        ]
        found: dict[int, dict[str, Any]] = {}
        async with aclosing(events):
            async for index, event in events:
                if isinstance(event, Delta):
                    answers[index].push(event)
                elif isinstance(event, Finished):
                    found[index] = answers[index].finish(event)
        ordered = [found[index] for index in range(len(prompts))]
        return dumps(self._combined(answer, ordered)).encode("ascii")

    def _combined(self, answer: Answer, answers: list[dict[str, Any]]) -> object:
        if len(answers) == 1:
            return select_fields(answers[0], answer.fields)
        if self._openai:
            return select_fields(joined(answer.head, answers), answer.fields)
        return [select_fields(found, answer.fields) for found in answers]

    async def _stream(
        self, exchange: Exchange, events: Events, answer: Answer, prompts: list[PreparedPrompt]
    ) -> None:
        head, tells_usage = answer.head, answer.tells_usage
        writers = [
            CompletionEvents(head, p, self._probabilities(p.request), names_usage=tells_usage)
            for p in prompts
        ]
        usages: list[dict[str, Any]] = []
        stream = exchange.open_stream(self._service.settings.ping_s)
        async with aclosing(events):
            async for index, event in events:
                if isinstance(event, Delta):
                    data = writers[index].delta(event)
                    if data:
                        stream.push(data)
                elif isinstance(event, Progress):
                    stream.push(writers[index].progress(event))
                else:
                    usages.append(usage_object(event))
                    stream.push(data_event(dumps(answer.last(writers[index].last(event)))))
                await stream.ready()
        if tells_usage:
            usage = {**head, "choices": [], "usage": total_usage(usages)}
            stream.push(data_event(dumps(usage)))
        if self._openai:
            stream.push(DONE)

    def _probabilities(self, request: Request) -> ProbabilityRenderer:
        return ProbabilityRenderer(
            self._service.vocabulary, after_sampling=request.post_sampling_probs
        )


class CompletionDraft:
    """The work between a valid body and requests for the engine; runs in a worker thread."""

    def __init__(
        self,
        body: CompletionRequest,
        service: Service,
        request_id: str,
        slot: int,
        num_pictures: list[int],
    ) -> None:
        """`num_pictures` are those of each prompt."""
        self._id = request_id
        self._body = body
        self._service = service
        self._vocabulary = service.vocabulary
        self._recommended = service.recommended_sampling
        self._slot = slot
        self._num_pictures = num_pictures

    def prompts(self) -> list[PreparedPrompt]:
        """Tokenizes and compiles. Raises InvalidRequest; blocks, the GIL mostly free."""
        prepare(self._vocabulary, self._body.num_probs)
        sampling = self._sampling()
        constraint = self._constraint()
        prepared = []
        for index, prompt in enumerate(self._body.prompts):
            tokenizer = self._service.tokenizer(param=prompt.path)
            ids = tokenize_prompt(prompt, self._vocabulary, tokenizer)
            self._service.check_length(len(ids), param=prompt.path)
            if index > 0:  # a random seed is another one for each prompt
                seed = resolve_seed(self._body.seed)
                sampling = msgspec.structs.replace(sampling, seed=seed)
            prepared.append(self._prepared(index, ids, sampling, constraint))
        return prepared

    def _prepared(
        self, index: int, ids: list[int], sampling: SamplingParams, constraint: Constraint | None
    ) -> PreparedPrompt:
        body = self._body
        request = Request(
            id=self._id if len(body.prompts) == 1 else f"{self._id}-{index}",
            prompt=tuple(ids),
            sampling=sampling,
            max_tokens=self._max_tokens(),
            stop=tuple(body.stop or ()),
            constraint=constraint,
            n_probs=body.num_probs,
            post_sampling_probs=bool(body.post_sampling_probs),
            slot=self._slot,
            cache_prompt=body.cache_prompt is not False,
            n_keep=(
                self._service.keep_with(self._num_pictures[index])
                if body.n_keep is None
                else body.n_keep
            ),
            time_limit_ms=body.t_max_predict_ms or 0,
            n_indent=body.n_indent or 0,
            return_progress=bool(body.stream and body.return_progress),
            timings_per_token=bool(body.timings_per_token),
        )
        return PreparedPrompt(
            index=index,
            request=request,
            text=text_of(ids, self._vocabulary),
            settings=generation_settings(body, request, self._service),
            returns_tokens=bool(body.return_tokens),
        )

    def _max_tokens(self) -> int | None:
        """What the request says; an answer that is sent whole has as many tokens as their
        probabilities have room for."""
        body = self._body
        limits = [body.limit] if body.limit >= 0 else []
        if body.num_probs and not body.stream:
            limits.append(max(1, MAX_PROBS_IN_ALL // (body.num_probs * len(body.prompts))))
        return min(limits, default=None)

    def _sampling(self) -> SamplingParams:
        context_size = self._service.ready.context_size
        sampling = sampling_params(self._body, self._recommended, self._vocabulary, context_size)
        # Each prompt has biases of its own in the engine, and tells them.
        check_count("logit_bias", len(sampling.logit_bias) * len(self._body.prompts), MAX_BIASES)
        return sampling

    def _constraint(self) -> Constraint | None:
        body = self._body
        if body.grammar:
            return self._service.compiler.gbnf(body.grammar, param="grammar")
        if body.json_schema is not None:
            return self._service.compiler.json_schema(body.json_schema, param="json_schema")
        return None
