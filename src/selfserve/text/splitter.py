"""Parts a model's thinking from its answer while both stream in.

Theory of operation. A reader follows the markers of the format and knows whether the text at hand
is thinking, answer, or part of the format. A marker that is one token is known by the id of that
token; other markers are looked for in the text, and only so much text is held back as may still
become the marker that is awaited. A trimmer takes off the white space with which models surround
their markers. Both are driven by tokens, so it makes no difference where the stream is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from selfserve.request import ReasoningSpec

CHANNEL, MESSAGE, TURN, TURN_END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
CHANNEL_MARKERS = (CHANNEL, MESSAGE, TURN, TURN_END)
THINKING_CHANNEL = "analysis"
WHITE_SPACE = " \t\r\n"
NO_TOKEN = -1
"""Stands for the token of a text that belongs to none, such as the last of a detokenizer."""


@dataclass(frozen=True, slots=True)
class Split:
    """What one push gives out; either text may be empty."""

    reasoning: str = ""
    content: str = ""


class _Mode(Enum):
    OPENING = auto()
    """Nothing but white space so far: a block may begin, or the answer."""
    HEADER = auto()
    """Inside a text of the format that nobody is shown."""
    REASONING = auto()
    CONTENT = auto()


class _Trimmer:
    """Takes off white space after a start marker, and on both sides of an end marker."""

    def __init__(self, *, trims: bool) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._blanks = ""
        """White space in the thinking that an end marker would make superfluous."""
        self._at_start = True
        self._at_answer = trims

    def add_reasoning(self, text: str) -> None:
        if self._at_start:
            text = text.lstrip(WHITE_SPACE)
        if not text:
            return
        self._at_start = False
        text = self._blanks + text
        shown = text.rstrip(WHITE_SPACE)
        self._blanks = text[len(shown) :]
        self._reasoning.append(shown)

    def add_content(self, text: str) -> None:
        if self._at_answer:
            text = text.lstrip(WHITE_SPACE)
        if text:
            self._at_answer = False
            self._content.append(text)

    def close_block(self) -> None:
        if not self._at_start:
            self._blanks = "\n"  # a second block, if there is one, begins on a line of its own
            self._at_start = True
        self._at_answer = True

    def end(self) -> None:
        """The stream was cut off inside the thinking: the white space was thought, too."""
        if not self._at_start:
            self._reasoning.append(self._blanks)

    def take(self) -> Split:
        split = Split("".join(self._reasoning), "".join(self._content))
        self._reasoning.clear()
        self._content.clear()
        return split


class _Reader:
    """Follows the markers. Subclasses say which are awaited, and what they mean."""

    def __init__(self, spec: ReasoningSpec, trimmer: _Trimmer) -> None:
        self.mode = _Mode.OPENING
        if spec.open:
            self.mode = _Mode.REASONING
        elif spec.answering:
            self.mode = _Mode.CONTENT
        self._trimmer = trimmer
        self._ids = dict(spec.marker_ids)
        self._single = frozenset(self._ids.values())
        self._held = ""
        self._blanks = ""
        """White space of the OPENING mode."""

    def awaited(self) -> tuple[str, ...]:
        """The markers that mean something in this mode."""
        raise NotImplementedError

    def on_marker(self, marker: str) -> None:
        raise NotImplementedError

    def on_text(self, text: str) -> None:
        """Text between markers, in the mode that holds now."""
        if self.mode is _Mode.REASONING:
            self._trimmer.add_reasoning(text)
        elif self.mode is _Mode.CONTENT:
            self._trimmer.add_content(text)
        elif self.mode is _Mode.OPENING:
            self._blanks += text
            if self._blanks.strip(WHITE_SPACE):
                self.mode = _Mode.CONTENT
                self._trimmer.add_content(self._blanks)
                self._blanks = ""

    def push(self, token_id: int, text: str) -> None:
        marker = self._ids.get(token_id)
        if marker is None or marker not in self.awaited():
            self._held += text
            self._scan()
            return
        # Before the marker stands what the detokenizer still held, as text that now ends.
        self._held += text.removesuffix(marker)
        self._release()
        if marker in self.awaited():
            self.on_marker(marker)
        elif text.endswith(marker):
            self.on_text(marker)

    def flush(self) -> None:
        self._release()
        if self.mode is _Mode.OPENING and self._blanks:
            self._trimmer.add_content(self._blanks)
            self._blanks = ""

    def _release(self) -> None:
        self._scan()
        if self._held:
            text, self._held = self._held, ""
            self.on_text(text)

    def _scan(self) -> None:
        """Hands on all text up to what may still become a marker. Each step may change the mode,
        and with it the markers that are awaited."""
        while self._held:
            spelled = [marker for marker in self.awaited() if marker not in self._single]
            at, marker = _first(self._held, spelled)
            if marker and at == 0:
                self._held = self._held[len(marker) :]
                self.on_marker(marker)
                continue
            end = at if marker else len(self._held) - _overlap(self._held, spelled)
            if end == 0:
                return
            text, self._held = self._held[:end], self._held[end:]
            self.on_text(text)


def _first(text: str, markers: list[str]) -> tuple[int, str]:
    """The place of the first marker in `text` and the marker; "" if there is none."""
    found = [(at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    return min(found, default=(-1, ""))


def _overlap(text: str, markers: list[str]) -> int:
    """Characters at the end of `text` that begin a marker."""
    longest = max(map(len, markers), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


class _Blocks(_Reader):
    """One block of thinking before the answer: `<think>…</think>` and its relatives."""

    def __init__(self, spec: ReasoningSpec, trimmer: _Trimmer) -> None:
        super().__init__(spec, trimmer)
        self._start, self._end, self._header = spec.start, spec.end, spec.header
        self._head = ""
        """The beginning of the thinking while it may still be the format's header."""
        self._in_head = False

    def awaited(self) -> tuple[str, ...]:
        if self.mode is _Mode.OPENING:
            return (self._start,)
        return (self._end,) if self.mode is _Mode.REASONING else ()

    def on_marker(self, marker: str) -> None:
        if marker == self._start:
            self._blanks = ""
            self.mode = _Mode.REASONING
            self._in_head = bool(self._header)
            return
        if self._in_head and self._head != self._header.strip(WHITE_SPACE):
            self._trimmer.add_reasoning(self._head)
        self._in_head = False
        self.mode = _Mode.CONTENT
        self._trimmer.close_block()

    def on_text(self, text: str) -> None:
        if self._in_head and self.mode is _Mode.REASONING:
            self._head += text
            if self._header.startswith(self._head) and self._head != self._header:
                return
            self._in_head = False
            text = self._head.removeprefix(self._header)
        super().on_text(text)

    def flush(self) -> None:
        super().flush()
        if self._in_head:
            self._trimmer.add_reasoning(self._head)


class _Channels(_Reader):
    """gpt-oss: `<|channel|>analysis<|message|>…<|end|>` is thinking, every other channel answer."""

    def __init__(self, spec: ReasoningSpec, trimmer: _Trimmer) -> None:
        super().__init__(spec, trimmer)
        self._header = ""

    def awaited(self) -> tuple[str, ...]:
        return CHANNEL_MARKERS

    def on_marker(self, marker: str) -> None:
        if self.mode is _Mode.REASONING and marker != MESSAGE:
            self._trimmer.close_block()
        if marker == TURN_END:
            self.mode = _Mode.OPENING
        elif marker in (CHANNEL, TURN):
            self.mode = _Mode.HEADER
            self._header = ""
        elif self.mode is _Mode.HEADER:
            is_thinking = self._header.split()[:1] == [THINKING_CHANNEL]
            self.mode = _Mode.REASONING if is_thinking else _Mode.CONTENT
        self._blanks = ""

    def on_text(self, text: str) -> None:
        if self.mode is _Mode.HEADER:
            self._header += text
        else:
            super().on_text(text)


class ReasoningSplitter:
    """Thinking and answer of one sequence, in the shape push and flush."""

    def __init__(self, spec: ReasoningSpec) -> None:
        self._trimmer = _Trimmer(trims=spec.trims)
        reader = _Channels if spec.channels else _Blocks
        self._reader: _Reader = reader(spec, self._trimmer)
        self._has_channels = spec.channels
        self._budget = spec.budget
        self._num_reasoning_tokens = 0

    @property
    def in_reasoning(self) -> bool:
        """True if the next token is not the answer's: a block is open, or a channel not named.

        The token that makes this False is the last before the answer, so that a grammar is armed
        right after it. Where a block may be opened but is not, this is False.
        """
        if self._has_channels:
            return self._reader.mode is not _Mode.CONTENT
        return self._reader.mode is _Mode.REASONING

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens that came while a block was open, those of its end marker included."""
        return self._num_reasoning_tokens

    @property
    def closing_due(self) -> bool:
        """True if the budget is spent and a block is open: `closing_ids` are to be fed now."""
        return (
            self._budget is not None
            and self._reader.mode is _Mode.REASONING
            and self._num_reasoning_tokens >= self._budget
        )

    def push(self, token_id: int, text: str) -> Split:
        """What becomes certain with this token. `text` is what its piece decodes to.

        `token_id` is NO_TOKEN for text that belongs to no token, and is not counted then.
        """
        if self._reader.mode is _Mode.REASONING and token_id != NO_TOKEN:
            self._num_reasoning_tokens += 1
        self._reader.push(token_id, text)
        return self._trimmer.take()

    def flush(self) -> Split:
        """End of generation: the text that was held back, on the side where it stands."""
        self._reader.flush()
        if self._reader.mode is _Mode.REASONING:
            self._trimmer.end()
        return self._trimmer.take()
