"""The encoder's thread and its cache, with an encoding that waits to be let go."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from tests.support.scripted_pictures import make_picture

from selfserve.engine.pictures import Encoded, PictureEncoder, Result
from selfserve.errors import InternalError, UnsupportedImage
from selfserve.request import Picture

PATIENCE_S = 10.0
SIZE = 4 * 3 * 4
"""Bytes of the embeddings of a picture of the default size."""


class Bench:
    """An encoder whose pictures take until `gate` is open."""

    def __init__(self, cache_bytes: int = 10 * SIZE) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.encoded: list[str] = []
        self.failure: Exception | None = None
        self._woken = threading.Semaphore(0)
        self.encoder = PictureEncoder(self._encode, self._woken.release, cache_bytes=cache_bytes)

    def _encode(self, picture: Picture) -> Encoded:
        assert self.gate.wait(PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        self.encoded.append(picture.digest)
        return (np.zeros((picture.width * picture.height, 1), dtype=np.float32),)

    def await_done(self) -> None:
        assert self._woken.acquire(timeout=PATIENCE_S)

    def result(self, picture: Picture, request_id: str = "a") -> Result:
        found = self.encoder.order(picture.digest, picture, request_id)
        while found is None:
            self.await_done()
            found = self.encoder.order(picture.digest, picture, request_id)
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.gate.set()
    made.encoder.close()


def test_a_picture_that_several_want_is_encoded_once(bench: Bench) -> None:
    picture = make_picture("cat")
    bench.gate.clear()
    assert bench.encoder.order(picture.digest, picture, "a") is None
    assert bench.encoder.order(picture.digest, picture, "b") is None
    bench.gate.set()
    assert bench.result(picture, "a") is bench.result(picture, "b")
    assert len(bench.encoded) == bench.encoder.num_encoded == 1
    assert bench.encoder.num_reused == 1


def test_between_pictures_there_is_no_thread(bench: Bench) -> None:
    for name in ("cat", "dog"):
        bench.result(make_picture(name))
        assert "pictures" not in [thread.name for thread in threading.enumerate()]


def test_what_was_forgotten_is_found_in_the_cache(bench: Bench) -> None:
    picture = make_picture("cat")
    bench.result(picture)
    bench.encoder.forget("a")
    assert bench.encoder.num_bytes == SIZE
    assert bench.encoder.order(picture.digest, picture, "b") is not None
    assert bench.encoder.num_bytes == 0
    assert bench.encoded == [picture.digest]


def test_the_cache_keeps_to_its_limit_and_drops_the_oldest() -> None:
    bench = Bench(cache_bytes=2 * SIZE)
    pictures = [make_picture(name) for name in "abc"]
    for picture in pictures:
        bench.result(picture)
        bench.encoder.forget("a")
        assert bench.encoder.num_bytes <= 2 * SIZE
    bench.result(pictures[2])
    bench.result(pictures[1])
    assert len(bench.encoded) == 3
    bench.result(pictures[0])
    assert len(bench.encoded) == 4
    bench.encoder.close()


def test_what_is_wanted_stays_without_a_cache() -> None:
    bench = Bench(cache_bytes=0)
    pictures = [make_picture(name) for name in "abc"]
    for picture in pictures:
        bench.result(picture)
    assert all(
        bench.encoder.order(picture.digest, picture, "a") is not None for picture in pictures
    )
    assert len(bench.encoded) == 3
    bench.encoder.close()


def test_what_nobody_wants_any_more_is_not_encoded(bench: Bench) -> None:
    first, second, third = (make_picture(name) for name in "abc")
    bench.gate.clear()
    for picture, request_id in ((first, "a"), (second, "b"), (third, "c")):
        bench.encoder.order(picture.digest, picture, request_id)
    bench.encoder.forget("b")
    bench.gate.set()
    bench.result(third, "c")
    assert second.digest not in bench.encoded


def test_what_is_wanted_again_after_all_is_encoded_after_all(bench: Bench) -> None:
    first, second = make_picture("a"), make_picture("b")
    bench.gate.clear()
    bench.encoder.order(first.digest, first, "a")
    bench.encoder.order(second.digest, second, "b")
    bench.encoder.forget("b")
    bench.gate.set()
    bench.result(first, "a")
    assert isinstance(bench.result(second, "c"), tuple)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(UnsupportedImage("no"), UnsupportedImage), (ValueError("a fault"), InternalError)],
)
def test_a_failure_is_the_result_and_is_not_kept(
    bench: Bench, failure: Exception, kind: type[Exception]
) -> None:
    picture = make_picture("cat")
    bench.failure = failure
    assert isinstance(bench.result(picture), kind)
    bench.encoder.forget("a")
    bench.failure = None
    assert isinstance(bench.result(picture, "b"), tuple)


def test_a_result_is_there_for_as_long_as_somebody_wants_it(bench: Bench) -> None:
    picture = make_picture("cat")
    assert bench.encoder.result(picture.digest) is None
    made = bench.result(picture)
    bench.encoder.order(picture.digest, None, "b")
    bench.encoder.forget("a")
    assert bench.encoder.result(picture.digest) is made
    bench.encoder.forget("b")
    assert bench.encoder.result(picture.digest) is None


def test_pixels_are_not_needed_where_the_embeddings_are(bench: Bench) -> None:
    picture = make_picture("cat")
    made = bench.result(picture)
    assert bench.encoder.order(picture.digest, None, "a") is made
    assert bench.encoder.order(picture.digest, None, "b") is made


def test_pixels_that_are_gone_too_early_are_told_as_a_fault(bench: Bench) -> None:
    assert isinstance(bench.encoder.order("digest", None, "a"), InternalError)
