"""Tokens to text: pieces, characters, reasoning, stop strings, in this order."""

from __future__ import annotations

from selfserve.engine.interface import Vocabulary
from selfserve.request import Request
from selfserve.text.detokenizer import Detokenizer
from selfserve.text.indentation import IndentationGuard
from selfserve.text.reasoning import ReasoningSplitter
from selfserve.text.stop import StopMatcher


class OutputStream:
    """The text of one sequence. Stop strings act on content, never on reasoning.

    `stopping_word` and `is_dedented` tell, after a push, that the text came to its end; what was
    pushed after that is ignored.
    """

    def __init__(self, vocabulary: Vocabulary, request: Request) -> None:
        spec = request.reasoning
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer()
        self._splitter = ReasoningSplitter(spec) if spec is not None else None
        self._hidden_ids = frozenset(spec.hidden_ids) if spec is not None else frozenset()
        self._stop = StopMatcher(request.stop)
        self._indentation = IndentationGuard(request.n_indent) if request.n_indent > 0 else None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.stopping_word = ""
        self.is_dedented = False

    @property
    def in_reasoning(self) -> bool:
        return self._splitter is not None and self._splitter.in_reasoning

    @property
    def num_reasoning_tokens(self) -> int:
        return self._splitter.num_reasoning_tokens if self._splitter is not None else 0

    @property
    def closing_due(self) -> bool:
        """The thinking budget is used up: the engine has to write the end marker now."""
        if self._splitter is None or self._detokenizer.is_pending:
            return False  # not in the middle of a character
        return self._splitter.closing_due

    @property
    def has_ended(self) -> bool:
        return bool(self.stopping_word) or self.is_dedented

    def push(self, token_id: int) -> None:
        piece = self._vocabulary.piece(token_id, special=token_id in self._hidden_ids)
        text = self._detokenizer.push(piece)
        if self._splitter is None:
            self._push_content(text)
            return
        split = self._splitter.push(token_id, text)
        if split.reasoning:
            self._reasoning.append(split.reasoning)
        self._push_content(split.content)

    def finish(self) -> None:
        """The generation ended by itself: what was held back is text after all."""
        if self.has_ended:
            return
        text = self._detokenizer.flush()
        if self._splitter is not None:
            # Not a token of its own: the end of a character that the last tokens began.
            split, rest = self._splitter.push(-1, text), self._splitter.flush()
            self._reasoning.append(split.reasoning + rest.reasoning)
            text = split.content + rest.content
        self._push_content(text)
        if not self.has_ended:
            self._give(self._stop.flush())
            # Of overlapping stop strings a shorter one can turn out to stand in the held text.
            if self._stop.matched is not None and not self.is_dedented:
                self._end_at(self._stop.matched)
        if self._indentation is not None and not self.has_ended:
            self._content.append(self._indentation.flush())

    def take(self) -> tuple[str, str]:
        """(content, reasoning) that became certain since the last call."""
        if not (self._content or self._reasoning):
            return "", ""
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        self._content.clear()
        self._reasoning.clear()
        return content, reasoning

    def _push_content(self, text: str) -> None:
        if not text or self.has_ended:
            return
        result = self._stop.push(text)
        self._give(result.text)
        if result.matched is not None and not self.is_dedented:
            self._end_at(result.matched)

    def _end_at(self, stopping_word: str) -> None:
        """A stop string was found; blanks that stood right before it are text."""
        self.stopping_word = stopping_word
        if self._indentation is not None:
            self._content.append(self._indentation.flush())

    def _give(self, text: str) -> None:
        if text and self._indentation is not None:
            text = self._indentation.push(text)
            self.is_dedented = self._indentation.is_dedented
        if text:
            self._content.append(text)
