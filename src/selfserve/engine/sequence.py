"""One running request: its tokens, and how many of them are computed."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly

import numpy as np
import numpy.typing as npt

from selfserve.engine.answer import Answer
from selfserve.engine.pictures import NO_MEDIA, PromptMedia
from selfserve.request import Request

TokenArray = npt.NDArray[np.int64]


class Sequence:
    """A request inside the engine.

    There are no phases: a sequence has tokens, and some of them are computed.

        tokens   |<---------- prompt ---------->|<---- generated ---->|
        computed |<-- cached -->|<-- by steps -->          ...  |<- pending ->|

    Tokens and the computed count move only by the methods below, each of which keeps
    `0 <= num_computed <= len(tokens)`.
    """

    def __init__(
        self,
        request: Request,
        answer: Answer,
        *,
        media: PromptMedia = NO_MEDIA,
        arrived_s: float = 0.0,
    ) -> None:
        """Owns `answer`; whoever ends the sequence closes that."""
        self.request = request
        self.answer = answer
        self.media = media
        """The pictures in the prompt."""
        self.arrived_s = arrived_s
        self.prompt: TokenArray = np.array(request.prompt, dtype=np.int64)
        """The prompt once more, for comparing it with what is remembered."""
        self._tokens: list[int] = list(request.prompt)
        self._num_computed = 0
        self.slot = -1
        self.num_cached = 0
        """Prompt tokens that were found in memory instead of being computed."""
        self.num_generated = 0
        self.num_shifted = 0
        """Tokens that context shifts have dropped."""
        self.is_held = False
        """Nobody reads its stream at the moment: it gets no share of a step."""

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def tokens(self) -> ReadOnly[int]:
        return self._tokens

    @property
    def num_computed(self) -> int:
        return self._num_computed

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def num_pending(self) -> int:
        return len(self._tokens) - self._num_computed

    @property
    def num_text_pending(self) -> int:
        """Tokens that can be computed before a picture comes; a large number if none comes."""
        return self.media.text_end(self._num_computed) - self._num_computed

    @property
    def num_left(self) -> int:
        """Tokens that the request may still generate; a large number if it sets no limit."""
        limit = self.request.max_tokens
        return (1 << 31 if limit is None else limit) - self.num_generated

    @property
    def is_decoding(self) -> bool:
        return self.num_generated > 0

    @property
    def position(self) -> int:
        """The one that follows the computed tokens."""
        return self.media.position_of(self._num_computed)

    # --- what moves -----------------------------------------------------------------------

    def append(self, token: int) -> None:
        """Takes a generated token, whoever chose it."""
        self._tokens.append(token)
        self.num_generated += 1

    def computed(self, count: int) -> None:
        """The next `count` tokens are in memory now."""
        assert 0 <= count <= self.num_pending
        self._num_computed += count

    def rewind(self, length: int) -> None:
        """Only the first `length` tokens are in memory any more."""
        assert 0 <= length <= self._num_computed
        self._num_computed = length

    def restored(self, length: int) -> None:
        """Memory was brought to the first `length` tokens."""
        assert 0 <= length <= len(self._tokens)
        self._num_computed = length

    def drop(self, keep: int, count: int) -> None:
        """Forgets `count` tokens behind the first `keep`: a context shift. What is not computed
        has no place in memory that could be moved."""
        assert 0 <= keep < keep + count <= self._num_computed
        del self._tokens[keep : keep + count]
        self._num_computed -= count
        self.num_shifted += count
