"""Engine events as the answer of a chat: one object, or chunks of a stream."""

from __future__ import annotations

import json
import time
from json.encoder import encode_basestring_ascii
from typing import Any

from selfserve.api.sse import DONE, data_event
from selfserve.api.timings import finish_reason, progress_object, timings_object, usage_object
from selfserve.request import Delta, Finished, Progress, Timings


class ChatAnswer:
    """Collects an answer that is sent whole: `push` each delta, then `finish`."""

    def __init__(self, answer_id: str, model: str, fingerprint: str, *, timings: bool) -> None:
        self._head = {
            "id": answer_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._timings = timings
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def push(self, delta: Delta) -> None:
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)

    def finish(self, finished: Finished) -> bytes:
        """The whole answer."""
        message = {"role": "assistant", "content": "".join(self._content)}
        reasoning = "".join(self._reasoning)
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": finish_reason(finished),
            "logprobs": None,
        }
        answer = {**self._head, "choices": [choice], "usage": usage_object(finished)}
        if self._timings:
            answer["timings"] = timings_object(finished.timings)
        return _dumps(answer).encode("ascii")


class ChatChunks:
    """Writes the events of a stream. The parts that never change are encoded once: this runs for
    each token of each stream."""

    def __init__(
        self, answer_id: str, model: str, fingerprint: str, *, timings: bool, usage: bool
    ) -> None:
        head = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint,
        }
        self._timings = timings
        self._usage = usage
        self._head = _dumps(head)[:-1]
        usage_part = ',"usage":null' if usage else ""
        before = f'data: {self._head},"choices":[{{"index":0,"delta":'
        self._content = f'{before}{{"content":'
        self._reasoning = f'{before}{{"reasoning_content":'
        self._after = f',"finish_reason":null,"logprobs":null}}]{usage_part}'
        self._text_end = f"}}{self._after}}}\n\n"
        self._before = before

    def first(self) -> bytes:
        """The event that names the role."""
        return self._chunk({"role": "assistant", "content": ""})

    def progress(self, progress: Progress) -> bytes:
        """An event about a prompt that is being evaluated."""
        return self._chunk({}, f',"prompt_progress":{_dumps(progress_object(progress))}')

    def delta(self, delta: Delta) -> bytes:
        """The events of new text, thinking before content; empty while text is held back."""
        end = self._text_end
        if self._timings and delta.timings is not None:
            end = f"}}{self._after}{_timings_part(delta.timings)}}}\n\n"
        text = ""
        if delta.reasoning:
            text = f"{self._reasoning}{encode_basestring_ascii(delta.reasoning)}{end}"
        if delta.content:
            text += f"{self._content}{encode_basestring_ascii(delta.content)}{end}"
        return text.encode("ascii")

    def last(self, finished: Finished) -> bytes:
        """The finish reason, the usage if it was asked for, and the end mark."""
        part = f',"finish_reason":"{finish_reason(finished)}","logprobs":null}}]'
        part += ',"usage":null' if self._usage else ""
        part += _timings_part(finished.timings) if self._timings else ""
        events = [f"{self._before}{{}}{part}}}\n\n".encode("ascii")]
        if self._usage:
            usage = _dumps(usage_object(finished))
            events.append(data_event(f'{self._head},"choices":[],"usage":{usage}}}'))
        return b"".join([*events, DONE])

    def _chunk(self, delta: dict[str, Any], more: str = "") -> bytes:
        return f"{self._before}{_dumps(delta)}{self._after}{more}}}\n\n".encode("ascii")


def _timings_part(timings: Timings) -> str:
    return f',"timings":{_dumps(timings_object(timings))}'


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
