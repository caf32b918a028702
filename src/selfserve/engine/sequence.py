"""One running request: its tokens, how many of them are computed, and what turns them into text."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from selfserve.engine.choice import TokenChooser
from selfserve.engine.media import NO_MEDIA, PromptMedia
from selfserve.engine.output import OutputStream
from selfserve.engine.speculation import Drafter, NoDrafter
from selfserve.request import Delta, Request, Timings, TokenProbs

TokenArray = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A request inside the engine. Only the scheduler changes it.

    There are no phases: a sequence has tokens, and some of them are computed. While the rest is
    long it is called prefill, and decode when it is the one token chosen last.

        tokens   |<---------- prompt ---------->|<---- generated ---->|
        computed |<-- cached -->|<-- by steps -->          ...  |<- pending ->|
    """

    request: Request
    prompt: TokenArray
    """The prompt once more, for comparing it with what slots hold."""
    media: PromptMedia = NO_MEDIA
    """The pictures in it."""
    tokens: list[int]
    output: OutputStream
    arrived_s: float
    chooser: TokenChooser | None = None
    """Made when the sequence gets a slot."""
    drafter: Drafter = field(default_factory=NoDrafter)
    slot: int = -1
    num_computed: int = 0
    num_cached: int = 0
    """Prompt tokens that were found in memory instead of being computed."""
    places: list[int] = field(default_factory=list)
    """Prompt lengths, rising, at which its memory is to be noted."""
    next_stop: int = 0
    """Prompt tokens up to which the next chunk may go, since memory is to be noted there."""
    num_generated: int = 0
    num_shifted: int = 0
    """Tokens that context shifts have dropped from `tokens`."""
    started_s: float = 0.0
    first_token_s: float = 0.0
    num_failures: int = 0
    stays: bool = False
    """Whether its prompt is left to the steps, since it could not be read on the side."""
    probs: list[TokenProbs] = field(default_factory=list)
    """Of tokens whose text was not sent yet."""
    unsent_tokens: list[int] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def num_text_pending(self) -> int:
        """Tokens that can be computed before a picture comes; a large number if none comes."""
        return self.media.text_end(self.num_computed) - self.num_computed

    @property
    def num_left(self) -> int:
        """Tokens that the request may still generate; a large number if it sets no limit."""
        limit = self.request.max_tokens
        return (1 << 31 if limit is None else limit) - self.num_generated

    @property
    def is_decoding(self) -> bool:
        return self.num_generated > 0

    def append(self, token: int) -> None:
        """Takes a generated token, whoever chose it."""
        self.tokens.append(token)
        self.unsent_tokens.append(token)
        self.drafter.append(token)
        self.num_generated += 1

    def timings(self, now_s: float) -> Timings:
        """Counts and times up to `now_s`; the queue's time is not part of the prompt's."""
        first_s = self.first_token_s or now_s
        return Timings(
            cache_n=self.num_cached,
            prompt_n=self.num_prompt - self.num_cached,
            prompt_ms=(first_s - self.started_s) * 1e3,
            predicted_n=self.num_generated,
            predicted_ms=(now_s - first_s) * 1e3,
            draft_n=self.drafter.num_drafted,
            draft_n_accepted=self.drafter.num_accepted,
        )

    def take_delta(self, now_s: float, *, is_last: bool = False) -> Delta | None:
        """The text that became certain since the last call, if there is anything to tell. The last
        one also carries tokens without text, such as the end token or those of a stop string."""
        content, reasoning = self.output.take()
        if not (content or reasoning or self.probs or (is_last and self.unsent_tokens)):
            return None
        delta = Delta(
            id=self.id,
            content=content,
            reasoning=reasoning,
            tokens=tuple(self.unsent_tokens),
            probs=tuple(self.probs),
            timings=self.timings(now_s) if self.request.timings_per_token else None,
        )
        self.unsent_tokens.clear()
        self.probs.clear()
        return delta
