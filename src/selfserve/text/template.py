"""Conversation in, prompt out: the model's own chat template, with the repairs it needs.

What a template tolerates is found by trying it on small conversations once, when it is loaded:
whether it shows a system message, several of them, or two turns of one role in a row. A request
is then written in the form that the template takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from selfserve.errors import InvalidRequest, ModelLoadError
from selfserve.text.messages import (
    ImagePart,
    Message,
    TextPart,
    as_system,
    fold_system,
    merge_neighbours,
    merge_system,
)
from selfserve.text.reasoning import find_format
from selfserve.text.sandbox import CompiledTemplate, TemplateFailed, TemplateRefused, go_on
from selfserve.text.segments import Guard, Segment, SpecialTexts

CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""For models that bring no template."""

MARKUP = re.compile(
    r"</?(a|b|blockquote|body|caption|code|div|em|h[1-6]|hr|html|i|img|li|ol|p|pre|span|strong"
    r"|sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""HTML tags that some vocabularies hold as ordinary tokens of their own: no control tokens."""

MAX_REFUSAL = 1000
"""Characters of a template's own error text."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt. `text` is its segments joined."""

    text: str
    segments: tuple[Segment, ...]
    prefill: str | None = None
    """The text of the assistant turn that the answer continues; None: the answer is a new turn."""

    def extended(self, text: str) -> Rendered:
        """The prompt with `text` of the model's own format at its end."""
        if not text:
            return self
        segments = (*self.segments, Segment(text, True))
        if self.segments and self.segments[-1].special:
            last = Segment(self.segments[-1].text + text, True)
            segments = (*self.segments[:-1], last)
        return replace(self, text=self.text + text, segments=segments)


@dataclass(frozen=True, slots=True)
class _Mode:
    """How a request wants its prompt: what it says about thinking (None: nothing), whether a new
    answer is opened, and what is called to see whether it still wants one."""

    enabled: bool | None = None
    effort: str | None = None
    opens_answer: bool = True
    check: Callable[[], None] = go_on


class ChatTemplate:
    """The chat template of a loaded model. Any thread may render; rendering holds the GIL."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str = "",
        eos_text: str = "",
        special_texts: Collection[str] = (),
        add_bos: bool = True,
    ) -> None:
        """Parses the template and tries it out: some milliseconds.

        `special_texts` are those of all control and user-defined tokens. `add_bos` says whether
        the tokenizer adds BOS to a prompt by itself: then a BOS that the template writes at the
        start is taken away, so that the prompt has one. Raises ModelLoadError if the source is
        no template.
        """
        try:
            self._template = CompiledTemplate(source)
        except TemplateFailed as error:
            raise ModelLoadError(f"the model's chat template does not parse: {error}") from error
        self._bos_text = bos_text
        self._eos_text = eos_text
        self._strips_bos = add_bos and bool(bos_text)
        self._specials = SpecialTexts(
            {text for text in special_texts if text in source or not MARKUP.fullmatch(text)}
            | {bos_text, eos_text}
        )
        self._format = find_format(source, {})
        self._probe()

    @property
    def supports_thinking(self) -> bool:
        """True if thinking can be switched, or the template knows the markers of thinking."""
        return self._has_switch or self._format is not None

    @property
    def accepts_effort(self) -> bool:
        """True if the template reads a variable `reasoning_effort`."""
        return "reasoning_effort" in self._template.names

    def render(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        effort: str | None = None,
        now: datetime | None = None,
        image_marker: str | None = None,
        opens_answer: bool = True,
        check: Callable[[], None] = go_on,
    ) -> Rendered:
        """The prompt of a conversation that is not empty.

        A last message of the assistant is continued: the prompt ends with its text, and there is
        no thinking. `image_marker` is a text that no message contains; it comes out where the
        pictures stand. Without `opens_answer` the prompt ends with the last turn, and no header
        of an answer follows. `check` is called now and then; it ends the work by an exception that
        is no `Exception`. Raises InvalidRequest with the template's own text where it refuses.
        """
        mode = _Mode(thinking, effort, opens_answer, check)
        clock = now or datetime.now().astimezone()
        usual = self._usual_form(as_system(messages))
        try:
            return self._render(usual, mode, clock, image_marker)
        except TemplateRefused as refusal:
            if rendered := self._try_repaired(usual, mode, clock, image_marker):
                return rendered
            raise InvalidRequest(str(refusal)[:MAX_REFUSAL], param="messages") from refusal
        except TemplateFailed as failure:
            raise InvalidRequest(
                f"the model's chat template cannot render this conversation: {failure}",
                param="messages",
            ) from failure

    def _probe(self) -> None:
        user, again = Message("user", "first probe"), Message("user", "second probe")
        answer = Message("assistant", "third probe")
        rule, late = Message("system", "fourth probe"), Message("system", "fifth probe")
        self._wants_parts = False
        self._wants_parts = not self._shows([user]) and self._shows([user], parts=True)
        self._takes_system = self._shows([rule, user])
        self._loses_lone_system = self._try_out([rule]) is not None and not self._shows([rule])
        self._takes_any_system = self._shows([rule, late, user]) and self._shows(
            [rule, user, answer, late, again]
        )
        self._takes_neighbours = self._shows([user, again]) and self._shows(
            [user, answer, Message("assistant", "sixth probe"), again]
        )
        self._has_switch = self._try_out([user], thinking=True) != self._try_out(
            [user], thinking=False
        )

    def _shows(self, messages: Sequence[Message], *, parts: bool = False) -> bool:
        """True if the template shows the text of each message, in order."""
        text = self._try_out(messages, parts=parts) or ""
        position = 0
        for message in messages:
            position = text.find(str(message.content), position)
            if position < 0:
                return False
        return True

    def _try_out(
        self, messages: Sequence[Message], *, thinking: bool | None = None, parts: bool = False
    ) -> str | None:
        records = [_record(m, str(m.content), None, parts or self._wants_parts) for m in messages]
        variables = self._variables(records, _Mode(thinking), continued=False)
        try:
            return self._template.render(variables, now=datetime(2025, 1, 1))
        except (TemplateRefused, TemplateFailed):
            return None

    def _usual_form(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation in the form that the template was seen to take."""
        usual = list(messages)
        is_lost = self._loses_lone_system and all(m.role != "user" for m in usual)
        if is_lost or not self._takes_system:
            usual = fold_system(usual)
        elif not self._takes_any_system:
            usual = merge_system(usual)
        if not self._takes_neighbours:
            return merge_neighbours(usual)
        return usual

    def _try_repaired(
        self,
        messages: list[Message],
        mode: _Mode,
        now: datetime,
        image_marker: str | None,
    ) -> Rendered | None:
        """What a refused conversation becomes with all repairs, if that is another one.

        None if it is refused all the same: the refusal of what was really sent tells more.
        """
        if not any(message.role == "user" for message in messages):
            return None
        repaired = merge_neighbours(fold_system(messages))
        if repaired == messages:
            return None
        try:
            return self._render(repaired, mode, now, image_marker)
        except (TemplateRefused, TemplateFailed):
            return None

    def _render(
        self,
        messages: Sequence[Message],
        mode: _Mode,
        now: datetime,
        image_marker: str | None,
    ) -> Rendered:
        guard = Guard(self._specials, mode.check)
        last = messages[-1]
        continued = last.role == "assistant"
        if continued:
            mode = replace(mode, enabled=False)
        records = [self._guarded(message, guard, image_marker) for message in messages]
        mark = guard.end_mark()
        if continued:
            records[-1] = self._guarded(last, guard, image_marker, mark)
        variables = self._variables(records, mode, continued)
        text = self._template.render(variables, now=now, check=mode.check)
        if continued:
            text, found, _ = text.rpartition(mark)
            if not found:
                raise TemplateFailed("it does not show the last assistant message")
        _check_images(text, messages, image_marker)
        prefill = "".join(part.text for part in last.parts if isinstance(part, TextPart))
        return self._finished(guard.restore(text), mode, prefill if continued else None)

    def _guarded(
        self, message: Message, guard: Guard, image_marker: str | None, mark: str = ""
    ) -> dict[str, Any]:
        """A message as the template sees it, with nothing in it that reads as a control token.

        Templates part an assistant's thinking from its answer by the markers, so these stay.
        """
        kept = self._format.kept if self._format and message.role == "assistant" else ()
        pieces: list[str] = []
        for part in message.parts:
            if isinstance(part, TextPart):
                pieces.append(guard.protect(part.text, kept))
            elif isinstance(part, ImagePart):
                if image_marker is None:
                    raise ValueError("a conversation with pictures needs an image_marker")
                pieces.append(image_marker)
        content = "".join(pieces)
        name = None if message.name is None else guard.protect(message.name)
        record = _record(message, content + mark, name, self._wants_parts)
        if message.reasoning_content is not None:
            record["reasoning_content"] = guard.protect(message.reasoning_content)
        return record

    def _variables(
        self, records: list[dict[str, Any]], mode: _Mode, continued: bool
    ) -> dict[str, Any]:
        names = self._template.names
        variables: dict[str, Any] = {
            "messages": records,
            "tools": None,
            "documents": None,
            "add_generation_prompt": mode.opens_answer and not continued,
            "bos_token": self._bos_text,
            "eos_token": self._eos_text,
        }
        if mode.enabled is not None:
            variables["enable_thinking"] = mode.enabled
            if "thinking" in names:
                variables["thinking"] = mode.enabled
            if not mode.enabled and "thinking_budget" in names:
                variables["thinking_budget"] = 0
        if mode.effort is not None and self.accepts_effort:
            variables["reasoning_effort"] = mode.effort
        return variables

    def _finished(
        self, segments: tuple[Segment, ...], mode: _Mode, prefill: str | None
    ) -> Rendered:
        if self._strips_bos and segments and segments[0].special:
            text = segments[0].text
            while text.startswith(self._bos_text):
                text = text.removeprefix(self._bos_text)
            segments = (Segment(text, True), *segments[1:])
        rendered = Rendered("".join(s.text for s in segments), segments, prefill)
        opens = mode.opens_answer and prefill is None
        if mode.enabled is False and opens and self._format is not None:
            return rendered.extended(
                self._format.without_thinking(rendered.text, switched=self._has_switch)
            )
        return rendered


def _record(message: Message, content: str, name: str | None, as_parts: bool) -> dict[str, Any]:
    """A message as templates take it: they look for keys, so absent ones are left out."""
    record: dict[str, Any] = {"role": message.role, "content": content}
    if as_parts:
        record["content"] = [{"type": "text", "text": content}]
    if name is not None:
        record["name"] = name
    return record


def _check_images(text: str, messages: Sequence[Message], image_marker: str | None) -> None:
    expected = sum(message.num_images for message in messages)
    found = text.count(image_marker) if image_marker else 0
    if found != expected:
        raise InvalidRequest(
            "the model's chat template has no place for pictures in such a conversation:"
            f" {expected} were sent, {found} would be seen",
            param="messages",
        )
