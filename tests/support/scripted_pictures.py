"""Pictures without an encoder: what stands for them follows from their digests alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from selfserve.engine.pictures import Piece, Result
from selfserve.engine.plan import Embeddings
from selfserve.errors import SelfError
from selfserve.request import Picture

BEFORE, AFTER = 60, 62
"""Text tokens around each picture."""


@dataclass(frozen=True)
class FlatChunk:
    """Takes a position for each token, as pictures of most models do."""

    num_tokens: int
    is_causal: bool = True

    @property
    def num_positions(self) -> int:
        return self.num_tokens

    def positions(self, first: int) -> npt.NDArray[np.int32]:
        return np.arange(first, first + self.num_tokens, dtype=np.int32)[None, :]


@dataclass(frozen=True)
class GridChunk:
    """M-RoPE: all tokens stand at one time, and the next text comes after the longer side."""

    width: int
    height: int
    is_causal: bool = True

    @property
    def num_tokens(self) -> int:
        return self.width * self.height

    @property
    def num_positions(self) -> int:
        return max(self.width, self.height)

    def positions(self, first: int) -> npt.NDArray[np.int32]:
        rows, columns = np.divmod(np.arange(self.num_tokens, dtype=np.int32), self.width)
        zeros = np.zeros_like(rows)
        return np.stack([zeros + first, rows + first, columns + first, zeros])


def make_picture(name: str, width: int = 4, height: int = 3) -> Picture:
    """A picture of noise that is another one for each name and size."""
    seed = hashlib.sha256(f"{name} {width} {height}".encode())
    pixels = hashlib.shake_256(seed.digest()).digest(3 * width * height)
    return Picture(width=width, height=height, rgb=pixels, digest=seed.hexdigest())


def flat_layout(width: int, height: int) -> tuple[Piece, ...]:
    """One token for each pixel, between two text tokens."""
    return ((BEFORE,), FlatChunk(width * height), (AFTER,))


def blind_layout(width: int, height: int) -> tuple[Piece, ...]:
    """As `flat_layout`, of a model whose picture tokens look at each other."""
    return ((BEFORE,), FlatChunk(width * height, is_causal=False), (AFTER,))


def grid_layout(width: int, height: int) -> tuple[Piece, ...]:
    """As `flat_layout`, with M-RoPE."""
    return ((BEFORE,), GridChunk(width, height), (AFTER,))


class ScriptedEncoder:
    """Gives embeddings of `num_embedding` values that follow from the digest, after it was asked
    `patience` times; or `error`. It has no cache: what is wanted again is encoded again."""

    def __init__(
        self, num_embedding: int = 2, *, patience: int = 0, error: SelfError | None = None
    ) -> None:
        self.num_encoded = 0
        self.num_reused = 0
        self.is_closed = False
        self._num_embedding = num_embedding
        self._patience = patience
        self._error = error
        self._pictures: dict[str, Picture] = {}
        self._asked: Counter[tuple[str, str]] = Counter()

    @property
    def wanted(self) -> set[str]:
        """Ids of the requests that want something."""
        return {request_id for _, request_id in self._asked}

    def order(self, digest: str, picture: Picture | None, request_id: str) -> Result | None:
        key = digest, request_id
        self._asked[key] += 1
        if self._asked[key] == 1:
            assert picture is not None, "the pixels are gone before they were seen"
            self._pictures[digest] = picture
            self.num_encoded += 1
        return self.result(digest)

    def result(self, digest: str) -> Result | None:
        asked = max((n for (d, _), n in self._asked.items() if d == digest), default=0)
        if asked <= self._patience:
            return None
        return self._error or (self._embeddings(self._pictures[digest]),)

    def _embeddings(self, picture: Picture) -> Embeddings:
        generator = np.random.default_rng(int(picture.digest[:12], 16))
        shape = (picture.width * picture.height, self._num_embedding)
        return generator.normal(0, 0.5, shape).astype(np.float32)

    def forget(self, request_id: str) -> None:
        for key in [key for key in self._asked if key[1] == request_id]:
            del self._asked[key]

    def close(self) -> None:
        self.is_closed = True
