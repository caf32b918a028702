"""Which markers part a model's thinking from its answer, and whether a prompt ends inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from selfserve.request import ReasoningSpec
from selfserve.text.splitter import (
    CHANNEL,
    CHANNEL_MARKERS,
    MESSAGE,
    THINKING_CHANNEL,
    TURN,
    TURN_END,
    ReasoningSplitter,
    Split,
)

__all__ = ["FORMATS", "ReasoningFormat", "ReasoningSplitter", "Split", "find_format"]


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one family of models writes its thinking."""

    start: str
    """Text that opens a thinking block."""
    end: str
    """Text that closes it; the answer follows."""
    opening: str
    """What a model writes to begin to think, where a new turn has just been opened."""
    closing: str
    """What the engine writes to end the thinking; the answer follows."""
    header: str = ""
    """A line of the format that follows `start`."""
    channels: bool = False
    """True: every part of an answer stands in a named channel of its own (gpt-oss)."""
    answer: str = ""
    """What opens an answer without thinking; only with channels."""
    marker_ids: tuple[tuple[int, str], ...] = ()
    """(token id, text) of those markers that are one token of the loaded model."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that a reader of the answer watches for."""
        return CHANNEL_MARKERS if self.channels else (self.start, self.end)

    @property
    def kept(self) -> tuple[str, ...]:
        """Markers in an earlier answer that templates take apart by themselves."""
        return () if self.channels else self.markers

    def is_open(self, rendered: str) -> bool:
        """True if the prompt ends inside a thinking block: nothing follows its start."""
        return rendered.rstrip().endswith(self.start + self.header.rstrip())

    def is_closed(self, rendered: str) -> bool:
        """True if the prompt ends with a closed block, so that the answer follows."""
        return rendered.rstrip().endswith(self.answer if self.channels else self.end)

    def without_thinking(self, rendered: str, *, switched: bool) -> str:
        """What must follow the prompt so that the answer begins at once.

        `switched`: the template itself has a switch for thinking, and it was turned off. Such a
        template is left to say how, unless it opened a block all the same.
        """
        if self.is_open(rendered):
            return self.closing
        if self.is_closed(rendered) or switched:
            return ""
        return self.answer if self.channels else self.opening + self.closing

    def with_thinking(self, rendered: str) -> str:
        """What must follow the prompt so that a block is open.

        A model usually opens its block itself. A grammar, though, that is to begin after the
        thinking must know that there is some.
        """
        return "" if self.is_open(rendered) else self.opening

    def spec(
        self,
        rendered: str,
        *,
        budget: int | None,
        tokenize: Callable[[str], list[int]],
        prefill: str | None = None,
    ) -> ReasoningSpec:
        """How the answer to this prompt is to be read.

        `tokenize` reads control tokens and adds nothing. `prefill` is the text of an assistant
        turn that the answer continues: a block that it leaves open stays open.
        """
        is_closed = self.is_closed(rendered)
        if prefill is None:
            is_open = self.is_open(rendered)
        else:
            is_open = not self.channels and prefill.rfind(self.start) > prefill.rfind(self.end)
        return ReasoningSpec(
            start=self.start,
            end=self.end,
            header=self.header,
            channels=self.channels,
            marker_ids=self.marker_ids,
            open=is_open,
            answering=not is_open and (is_closed or prefill is not None),
            trims=is_closed and prefill is None,
            budget=budget,
            closing_ids=tuple(tokenize(self.closing)),
            hidden_ids=() if self.channels else tuple(i for i, _ in self.marker_ids),
        )


_ANSWER = f"{CHANNEL}final{MESSAGE}"
_ANALYSIS = f"{CHANNEL}{THINKING_CHANNEL}{MESSAGE}"


def _block(start: str, end: str, gap: str = "\n") -> ReasoningFormat:
    return ReasoningFormat(start, end, opening=f"{start}{gap}", closing=f"{gap}{end}{gap}{gap}")


FORMATS = (
    ReasoningFormat(
        start=_ANALYSIS,
        end=TURN_END,
        opening=_ANALYSIS,
        closing=f"{TURN_END}{TURN}assistant{_ANSWER}",
        channels=True,
        answer=_ANSWER,
    ),
    ReasoningFormat(
        start="<|channel>",
        end="<channel|>",
        opening="<|channel>thought\n",
        closing="<channel|>",
        header="thought\n",
    ),
    _block("<seed:think>", "</seed:think>"),
    _block("[THINK]", "[/THINK]", gap=""),
    _block("<|START_THINKING|>", "<|END_THINKING|>", gap=""),
    _block("◁think▷", "◁/think▷", gap=""),
    _block("<think>", "</think>"),
)
"""From the most particular to the most common: gpt-oss; gemma 4; Seed-OSS; Ministral; Command A;
Kimi-VL; Qwen 3 and 3.5, QwQ, DeepSeek R1, SmolLM3, GLM, MiniMax, Kimi K2."""


def find_format(template_source: str, special_ids: Mapping[str, int]) -> ReasoningFormat | None:
    """The format that the template writes or takes apart; else the one that is in the vocabulary.

    Some published templates leave all markers to the model, whose vocabulary then has them.
    """
    for known in FORMATS:
        if (known.start if known.channels else known.end) in template_source:
            return _bound(known, special_ids)
    for known in FORMATS:
        if all(marker in special_ids for marker in known.markers):
            return _bound(known, special_ids)
    return None


def _bound(known: ReasoningFormat, special_ids: Mapping[str, int]) -> ReasoningFormat:
    ids = tuple((special_ids[text], text) for text in known.markers if text in special_ids)
    return replace(known, marker_ids=ids)
