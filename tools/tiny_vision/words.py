"""Step 1: vectors for each label that make the frozen text model answer truly.

They begin as the text model's own embeddings of the caption "The image shows a red circle on white"
and are tuned through the frozen model: after the plain caption a model of this size answers some
wordings truly, and others with "The shape is a circle" when asked for a colour. Only a table of 28
times NUM_TOKENS vectors is trained, so some hundred small steps do, and no picture is needed.
"""

from __future__ import annotations

import random
import time

import torch
import torch.nn.functional as functional
from tools.tiny_vision.questions import SYSTEMS, dialogue
from tools.tiny_vision.shapes import NAMES, SHAPES, SOLID, Label, random_label
from tools.tiny_vision.textmodel import Past, Text
from torch import Tensor, nn

SEED = 7
CAPTION = ("The", " image", " shows", " a", "{color}", "{shape}", " on", "{background}", "\n")
NUM_TOKENS = len(CAPTION)
KINDS = (*SHAPES, SOLID)
BATCH = 16
LEARNING_RATE = 4e-3
NOISE = 0.15
"""Of the embeddings' own size: the encoder will not hit the vectors exactly."""
PICTURE_LAST = 0.15
"""Share of the dialogues: some clients send the picture after the text."""
IGNORED = -100


class Words(nn.Module):
    """Label → (NUM_TOKENS, width): each place may carry each part of the label, so they are sums
    of four tables."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        width = text.embeddings.shape[1]
        base = torch.zeros(NUM_TOKENS, width)
        parts = {
            "{color}": torch.zeros(len(NAMES), NUM_TOKENS, width),
            "{shape}": torch.zeros(len(KINDS), NUM_TOKENS, width),
            "{background}": torch.zeros(len(NAMES), NUM_TOKENS, width),
        }
        for place, word in enumerate(CAPTION):
            if word not in parts:
                base[place] = _mean(text, word)
                continue
            for index, name in enumerate(KINDS if word == "{shape}" else NAMES):
                parts[word][index, place] = _mean(text, " color" if name == SOLID else f" {name}")
        self.base = nn.Parameter(base)
        self.colors = nn.Parameter(parts["{color}"])
        self.shapes = nn.Parameter(parts["{shape}"])
        self.backgrounds = nn.Parameter(parts["{background}"])

    def forward(self, labels: list[Label]) -> Tensor:
        """Shape (len(labels), NUM_TOKENS, width)."""
        colors = self.colors[[NAMES.index(label.color) for label in labels]]
        shapes = self.shapes[[KINDS.index(label.shape) for label in labels]]
        backgrounds = self.backgrounds[[NAMES.index(label.background) for label in labels]]
        vectors: Tensor = self.base + colors + shapes + backgrounds
        return vectors


def _mean(text: Text, word: str) -> Tensor:
    return text.embeddings[text.tokenize(word)].mean(0)


class WordTuner:
    """Tunes words through the text model."""

    def __init__(self, text: Text) -> None:
        self._text = text
        self._rng = random.Random(SEED)
        self._noise = NOISE * text.embeddings.pow(2).mean().sqrt()
        self._suffix = text.tokenize("<|im_end|>\n<|im_start|>assistant\n")
        self._stop = text.vocabulary["<|im_end|>"]
        with torch.no_grad():  # all dialogues begin alike, and that needs no gradient
            self._openings = [self._opening(system) for system in SYSTEMS]

    def _opening(self, system: str) -> Past:
        opening = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
        return self._text.run(self._text.embeddings[self._text.tokenize(opening)][None])[1]

    def tune(self, num_steps: int) -> Words:
        words = Words(self._text)
        optimizer = torch.optim.Adam(words.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1, (step + 1) / 10, 1.05 - step / num_steps)
        )
        began_s = time.monotonic()
        for step in range(num_steps):
            loss = self._loss(words)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(words.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 10 == 0:
                spent_s = time.monotonic() - began_s
                print(f"words {step} loss {loss.item():.3f} {spent_s:.0f}s", flush=True)
        return words

    def _loss(self, words: Words) -> Tensor:
        rows, targets = [], []
        for _ in range(BATCH):
            row, target = self._example(words)
            rows.append(row)
            targets.append(target)
        longest = max(map(len, rows))  # padding at the end is harmless under a causal mask
        x = torch.stack([functional.pad(row, (0, 0, 0, longest - len(row))) for row in rows])
        y = torch.tensor([each + [IGNORED] * (longest - len(each)) for each in targets])
        hidden, _ = self._text.run(x, self._rng.choice(self._openings))
        counted = y != IGNORED
        return functional.cross_entropy((hidden[counted] @ self._text.head.T).float(), y[counted])

    def _example(self, words: Words) -> tuple[Tensor, list[int]]:
        """Input vectors of a dialogue, and the token that each of them has to be followed by."""
        rng, text = self._rng, self._text
        labels = [random_label(rng) for _ in range(2 if rng.random() < 0.35 else 1)]
        question, answer = dialogue(rng, labels)
        vectors = words(labels)
        pictures = (vectors + torch.randn_like(vectors) * self._noise).flatten(0, 1)
        asked = text.embeddings[torch.tensor(text.tokenize(question), dtype=torch.long)]
        told = [*text.tokenize(answer), self._stop]
        parts = [asked, pictures] if rng.random() < PICTURE_LAST else [pictures, asked]
        row = torch.cat([*parts, text.embeddings[self._suffix + told[:-1]]])
        return row, [IGNORED] * (len(row) - len(told)) + told
