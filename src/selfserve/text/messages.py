"""A conversation, and the repairs that make it fit templates with narrow expectations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

SEPARATOR = "\n\n"
"""Stands between the texts of messages that are merged into one."""


@dataclass(frozen=True, slots=True)
class TextPart:
    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The place of a picture. `index` counts the pictures of the request from 0; the picture
    itself stays with the caller."""

    index: int


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is `system`, `developer`, `user` or `assistant`."""

    role: str
    content: str | tuple[Part, ...]
    name: str | None = None
    reasoning_content: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The content as parts in which no two texts are neighbours."""
        if isinstance(self.content, str):
            return (TextPart(self.content),)
        joined: list[Part] = []
        for is_text, run in groupby(self.content, lambda part: isinstance(part, TextPart)):
            if is_text:
                joined.append(TextPart("".join(p.text for p in run if isinstance(p, TextPart))))
            else:
                joined.extend(run)
        return tuple(joined)

    @property
    def num_images(self) -> int:
        return sum(isinstance(part, ImagePart) for part in self.parts)


def as_system(messages: Sequence[Message]) -> list[Message]:
    """The conversation with `developer` under its older name."""
    return [replace(m, role="system") if m.role == "developer" else m for m in messages]


def merge_system(messages: Sequence[Message]) -> list[Message]:
    """All system messages merged in order into one that stands first."""
    system = [m for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    return [_merged(system), *others] if system else others


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """The system text written at the head of the first user turn.

    Without a user turn the system text becomes one, so that it is not lost.
    """
    merged = merge_system(messages)
    if not merged or merged[0].role != "system":
        return merged
    as_user, others = replace(merged[0], role="user"), merged[1:]
    for index, message in enumerate(others):
        if message.role == "user":
            others[index] = replace(_merged([as_user, message]), name=message.name)
            return others
    return [as_user, *others]


def merge_neighbours(messages: Sequence[Message]) -> list[Message]:
    """Runs of messages of one role, each merged into one message."""
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][-1].role == message.role:
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_merged(run) for run in runs]


def _merged(run: Sequence[Message]) -> Message:
    if len(run) == 1:
        return run[0]
    parts: list[Part] = []
    for message in run:
        if parts and message.content:
            parts.append(TextPart(SEPARATOR))
        if message.content:
            parts.extend(message.parts)
    thoughts = [m.reasoning_content for m in run if m.reasoning_content]
    return Message(
        role=run[0].role,
        content=_plain(Message(run[0].role, tuple(parts)).parts),
        name=run[0].name,
        reasoning_content=SEPARATOR.join(thoughts) or None,
    )


def _plain(parts: tuple[Part, ...]) -> str | tuple[Part, ...]:
    """The parts as one string if they are all text."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(parts) else parts
