"""Step 2: a small vision transformer that learns to turn pixels into the words' vectors.

It is plain regression; the text model takes no part. The graph is the one that libmtmd builds for
the projector type `nemotron_v2_vl`: patches, a class token in front, merged neighbours, RMS norm,
two layers without bias around a squared ReLU. GELU is the tanh form, as in ggml.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as functional
from tools.tiny_vision.shapes import Label, every_label, make, preprocess
from tools.tiny_vision.words import SEED, Words
from torch import Tensor, nn

GRID, PATCH, MERGE = 6, 16, 2
WIDTH, HEADS, LAYERS, FEED_FORWARD, PROJECTOR_WIDTH = 192, 3, 4, 576, 384
MERGED = WIDTH * MERGE * MERGE
NUM_TRAINING, NUM_HELD_OUT, PORTION = 24_000, 500, 500
"""Pictures, and how many one job makes."""
BATCH = 64
LEARNING_RATE = 1.2e-3
EVALUATE_EVERY = 250
FLIPS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.flip(3),
    lambda x: x.flip(2),
    lambda x: x.transpose(2, 3),
)
"""No label depends on the direction, so each picture counts eightfold."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln1(x)
        q, k, v = (
            layer(h).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        rows: Tensor = x + self.down(functional.gelu(self.up(self.ln2(x)), approximate="tanh"))
        return rows


class Encoder(nn.Module):
    """(batch, 3, 96, 96) in −1 … 1 → (batch, 9, width of the text model)."""

    def __init__(self, output_width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.pos = nn.Parameter(torch.randn(GRID * GRID, WIDTH) * 0.02)
        self.cls = nn.Parameter(torch.randn(1, WIDTH) * 0.02)
        self.blk = nn.ModuleList(Block() for _ in range(LAYERS))
        self.post = nn.LayerNorm(WIDTH, 1e-6)
        self.norm = nn.Parameter(torch.ones(MERGED))
        self.fc1 = nn.Linear(MERGED, PROJECTOR_WIDTH, bias=False)
        self.fc2 = nn.Linear(PROJECTOR_WIDTH, output_width, bias=False)
        # A squared ReLU is steep: without this it begins at 20 times the size of the targets.
        self.fc2.weight.data.mul_(0.1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch(images).flatten(2).transpose(1, 2) + self.pos
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1)
        for block in self.blk:
            x = block(x)
        x = self.post(x)[:, 1:]
        side = GRID // MERGE
        x = x.view(-1, side, MERGE, side, MERGE, WIDTH).transpose(2, 3).reshape(-1, side**2, MERGED)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.norm
        vectors: Tensor = self.fc2(functional.relu(self.fc1(x)).square())
        return vectors


def make_pictures(seed: int) -> tuple[npt.NDArray[np.uint8], list[Label]]:
    rng = random.Random(seed)
    made = [make(rng) for _ in range(PORTION)]
    return np.stack([preprocess(image) for image, _ in made]), [label for _, label in made]


class EncoderTrainer:
    """Makes pictures, trains on them, and tells how it goes on held-out ones."""

    def __init__(self, words: Words) -> None:
        torch.manual_seed(SEED)
        num_jobs = (NUM_TRAINING + NUM_HELD_OUT) // PORTION
        with ProcessPoolExecutor(2) as pool:
            portions = list(pool.map(make_pictures, [SEED * 1000 + i for i in range(num_jobs)]))
        pixels = np.concatenate([images for images, _ in portions])
        self._pixels = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        self._labels = every_label()
        numbers = {label: number for number, label in enumerate(self._labels)}
        self._truth = torch.tensor([numbers[label] for _, labels in portions for label in labels])
        with torch.no_grad():
            self._table = words(self._labels)
        # So that a loss of 1 means "always says the average".
        self._spread = (self._table - self._table.mean(0)).pow(2).mean()
        self._began_s = time.monotonic()

    def train(self, num_steps: int, start: dict[str, Tensor] | None = None) -> Encoder:
        """`start`: the state of an encoder to go on with."""
        net = Encoder(self._table.shape[2])
        if start is not None:
            net.load_state_dict(start)
        optimizer = torch.optim.AdamW(
            net.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.02
        )
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, LEARNING_RATE, num_steps, pct_start=0.08
        )
        for step in range(num_steps):
            if step % EVALUATE_EVERY == 0:
                self._tell(net, step)
            loss = self._loss(net)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        self._tell(net, num_steps)
        return net

    def _images(self, which: Tensor | slice) -> Tensor:
        return self._pixels[which].float() / 127.5 - 1

    def _loss(self, net: Encoder) -> Tensor:
        which = torch.randint(NUM_TRAINING, (BATCH,))
        images, truth = self._images(which), self._truth[which]
        for flip in FLIPS:
            if torch.rand(()) < 0.5:
                images = flip(images)
        target = self._table[truth]
        output = net(images)
        error = (output - target).pow(2).mean() / self._spread
        distance = torch.cdist(output.flatten(1), self._table.flatten(1)).pow(2)
        distance = distance / (self._spread * target[0].numel())
        # Nearer to the true vectors than to those of all other labels.
        return error + 0.2 * functional.cross_entropy(-10 * distance, truth)

    def _tell(self, net: Encoder, step: int) -> None:
        """Of held-out pictures: how often the nearest label's parts are the true ones."""
        with torch.no_grad():
            starts = range(NUM_TRAINING, NUM_TRAINING + NUM_HELD_OUT, 100)
            output = torch.cat([net(self._images(slice(i, i + 100))) for i in starts])
        truth = self._truth[NUM_TRAINING:]
        nearest = torch.cdist(output.flatten(1), self._table.flatten(1)).argmin(1)
        pairs = [
            (self._labels[found], self._labels[true])
            for found, true in zip(nearest.tolist(), truth.tolist(), strict=True)
        ]
        rights = [
            sum(getattr(found, part) == getattr(true, part) for found, true in pairs) / len(pairs)
            for part in ("color", "shape", "background")
        ]
        loss = ((output - self._table[truth]).pow(2).mean() / self._spread).item()
        spent_s = time.monotonic() - self._began_s
        shown = " ".join(f"{right:.3f}" for right in rights)
        print(f"encoder {step} right {shown} loss {loss:.4f} {spent_s:.0f}s", flush=True)
