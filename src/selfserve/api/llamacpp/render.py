"""Engine events as the answer of a completion: an object for each prompt, or stream events."""

from __future__ import annotations

import itertools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import Any

from selfserve.api.llamacpp.probabilities import LegacyProbs, ProbabilityRenderer
from selfserve.api.timings import finish_reason, progress_object, timings_object, usage_object
from selfserve.request import Delta, Finished, Progress, Request


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt of a request, ready for the engine."""

    index: int
    request: Request
    text: str
    """The prompt as it is evaluated, control tokens included."""
    settings: Mapping[str, Any]
    """`generation_settings`."""
    returns_tokens: bool


class CompletionAnswer:
    """One prompt's answer that is sent whole: `push` each delta, then `finish`."""

    def __init__(
        self, head: Mapping[str, Any], prompt: PreparedPrompt, probabilities: ProbabilityRenderer
    ) -> None:
        self._head = head
        self._prompt = prompt
        self._probabilities = probabilities
        self._content: list[str] = []
        self._tokens: list[int] = []
        self._native: list[str] = []
        self._legacy = LegacyProbs()

    def push(self, delta: Delta) -> None:
        self._content.append(delta.content)
        self._tokens += delta.tokens
        if delta.probs:
            self._native += self._probabilities.native(delta.probs)
            self._legacy.extend(self._probabilities.legacy(delta.probs))

    def finish(self, finished: Finished) -> dict[str, Any]:
        """The whole answer."""
        prompt = self._prompt
        tokens = self._tokens if prompt.returns_tokens else []
        answer = last_object(self._head, prompt, finished, "".join(self._content), tokens)
        if prompt.request.n_probs > 0:
            answer["choices"][0]["logprobs"] = RawJson(self._legacy.json())
            answer["completion_probabilities"] = RawJson(f"[{','.join(self._native)}]")
        return answer


class CompletionEvents:
    """Writes the events of one prompt's stream. The parts that never change are encoded once:
    this runs for each token of each stream."""

    def __init__(
        self,
        head: Mapping[str, Any],
        prompt: PreparedPrompt,
        probabilities: ProbabilityRenderer,
        *,
        names_usage: bool,
    ) -> None:
        """With `names_usage` each event has a usage of null, since one of its own will follow."""
        self._head = head
        self._prompt = prompt
        self._probabilities = probabilities
        self._names_usage = names_usage
        self._has_probs = prompt.request.n_probs > 0
        self._before = f'data: {dumps(head)[:-1]},"choices":[{{"index":{prompt.index},"text":'
        usage = ',"usage":null' if names_usage else ""
        self._after = f'}}],"index":{prompt.index}{usage},"content":'

    def delta(self, delta: Delta) -> bytes:
        """The event of new text; empty if there is nothing to tell."""
        tokens = delta.tokens if self._prompt.returns_tokens else ()
        if not (delta.content or tokens or delta.probs):
            return b""
        logprobs, more = "null", ""
        if self._has_probs:
            logprobs = self._probabilities.legacy(delta.probs).json()
            native = ",".join(self._probabilities.native(delta.probs))
            more = f',"completion_probabilities":[{native}]'
        if delta.timings is not None:
            more += f',"timings":{dumps(timings_object(delta.timings))}'
        return self._event(delta.content, tokens, logprobs, more)

    def progress(self, progress: Progress) -> bytes:
        """An event about a prompt that is being evaluated."""
        more = f',"prompt_progress":{dumps(progress_object(progress))}'
        return self._event("", (), "null", more)

    def last(self, finished: Finished) -> dict[str, Any]:
        """The event that ends the prompt's part of the stream; its text was sent before."""
        answer = last_object(self._head, self._prompt, finished, "", [])
        if self._names_usage:
            answer["usage"] = None
        return answer

    def _event(self, text: str, tokens: Sequence[int], logprobs: str, more: str) -> bytes:
        written = encode_basestring_ascii(text)
        ids = ",".join(map(str, tokens))
        return (
            f'{self._before}{written},"finish_reason":null,"logprobs":{logprobs}{self._after}'
            f'{written},"tokens":[{ids}],"stop":false{more}}}\n\n'
        ).encode("ascii")


def last_object(
    head: Mapping[str, Any],
    prompt: PreparedPrompt,
    finished: Finished,
    content: str,
    tokens: list[int],
) -> dict[str, Any]:
    """Everything about a prompt whose answer has ended, without probabilities."""
    choice = {
        "index": prompt.index,
        "text": content,
        "finish_reason": finish_reason(finished),
        "logprobs": None,
    }
    return {
        **head,
        "choices": [choice],
        "usage": usage_object(finished),
        "index": prompt.index,
        "content": content,
        "tokens": tokens,
        "id_slot": finished.slot,
        "stop": True,
        "stop_type": str(finished.stop_type),
        "stopping_word": finished.stopping_word,
        "prompt": prompt.text,
        "truncated": finished.truncated,
        "tokens_predicted": finished.completion_tokens,
        "tokens_evaluated": finished.prompt_tokens,
        "tokens_cached": finished.cached_tokens,
        "generation_settings": prompt.settings,
        "timings": timings_object(finished.timings),
    }


def joined(head: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of several prompts as one object with a choice for each."""
    choices = [choice for answer in answers for choice in answer["choices"]]
    return {**head, "choices": choices, "usage": total_usage([a["usage"] for a in answers])}


def total_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of all counts."""
    first = usages[0]
    return {
        name: total_usage([usage[name] for usage in usages])
        if isinstance(value, dict)
        else sum(usage[name] for usage in usages)
        for name, value in first.items()
    }


def select_fields(answer: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The named fields of `answer`, all without names. `a/b` is the field b of the object a; it
    keeps that name. Names without a field are left out."""
    if not names:
        return answer
    found: dict[str, Any] = {}
    for name in names:
        value: Any = answer
        for step in name.split("/"):
            if not isinstance(value, Mapping) or step not in value:
                break
            value = value[step]
        else:
            found[name] = value
    return found


@dataclass(frozen=True, slots=True)
class RawJson:
    """A value that is JSON already."""

    text: str


PLACE = secrets.token_hex(16)
"""Stands for a RawJson until all around it is written; nobody outside can know it."""


def dumps(value: object) -> str:
    """Compact ASCII JSON. Raises ValueError for infinities."""
    raws: list[str] = []

    def put_down(raw: object) -> str:
        assert isinstance(raw, RawJson)
        raws.append(raw.text)
        return PLACE

    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=put_down)
    if not raws:
        return text
    parts = text.split(f'"{PLACE}"')
    return "".join(itertools.chain(*zip(parts, [*raws, ""], strict=True)))
