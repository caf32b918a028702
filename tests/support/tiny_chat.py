"""Conversations with a tiny model: prompts through its template, and what each turn brings anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import takewhile

from tests.support.tiny_vocabulary import TinyVocabulary

from selfserve.api.service import read_template
from selfserve.engine.interface import Vocabulary
from selfserve.text.messages import Message
from selfserve.text.template import ChatTemplate

END_OF_THINKING = "</think>"


@cache
def _words() -> list[str]:
    return TinyVocabulary().words


def random_words(rng: random.Random, count: int) -> str:
    """`count` words, each one token."""
    words = _words()
    return "".join(" " + rng.choice(words)[1:] for _ in range(count))


class TinyChat:
    """One client's conversation. `prompt` is what it asks next, `hear` what it gets."""

    def __init__(
        self, vocabulary: Vocabulary, *, system: str = "", thinking: bool | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._template: ChatTemplate = read_template(vocabulary)
        self._thinks = thinking
        self.messages = [Message("system", system)] if system else []
        self._seen: list[int] = []
        """The last prompt and its answer, as tokens."""
        self._prompt: list[int] = []
        self.num_new = 0
        """Tokens of the last prompt behind what it has in common with `_seen`."""

    def say(self, text: str) -> list[int]:
        """Adds a turn of the user; returns the prompt of the answer."""
        self.messages.append(Message("user", text))
        rendered = self._template.render(self.messages, thinking=self._thinks)
        self._prompt = self._vocabulary.tokenize(
            rendered.text, add_special=True, parse_special=True
        )
        pairs = zip(self._seen, self._prompt, strict=False)
        self.num_new = len(self._prompt) - sum(1 for _ in takewhile(lambda p: p[0] == p[1], pairs))
        return self._prompt

    def hear(self, tokens: Sequence[int]) -> None:
        """Adds the answer to the last prompt; what it thought is not kept, as in real chats."""
        self._seen = [*self._prompt, *tokens]
        text = b"".join(self._vocabulary.piece(t) for t in tokens).decode()  # no control tokens
        if self._thinks is not False:
            text = text.rpartition(END_OF_THINKING)[2]
        self.messages.append(Message("assistant", text))

    def go_back(self, turn: int) -> None:
        """Forgets the user's turn of that number, counted from 0, and all after it."""
        place = [i for i, m in enumerate(self.messages) if m.role == "user"][turn]
        del self.messages[place:]
