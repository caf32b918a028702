"""A saved sequence in the form of a context with another number of sequences."""

from __future__ import annotations

import numpy as np
import pytest

from selfserve.native.state import Bytes, StateForm

CELLS = b"cells of one sequence"
HEADER = b"mgicseq0"


def number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def block(num_streams: int, own: int, cells: bytes = CELLS) -> bytes:
    streams = [number(0)] * num_streams
    streams[own] = number(3) + cells if cells else number(0)
    return number(num_streams) + b"".join(streams)


def as_bytes(data: bytes) -> Bytes:
    return np.frombuffer(data, dtype=np.uint8)


FORMS = {
    "plain": (StateForm(), lambda n, own: (block(n, own), b"")),
    "window": (
        StateForm(has_window=True),
        lambda n, own: (block(n, own), block(n, own, b"of the window, an odd length")),
    ),
    "hybrid": (StateForm(has_state=True), lambda n, own: (block(n, own), b"a recurrent state")),
    "recurrent": (
        StateForm(has_keys=False, has_state=True),
        lambda n, own: (b"", b"a recurrent state"),
    ),
    "empty": (StateForm(), lambda n, own: (block(n, own, b""), b"")),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("before", "own", "after"), [(8, 0, 1), (8, 3, 1), (8, 7, 1), (1, 0, 8)])
def test_a_blob_becomes_what_the_other_context_would_have_saved(
    name: str, before: int, own: int, after: int
) -> None:
    form, parts = FORMS[name]
    body, tail = parts(before, own)
    blob = as_bytes(HEADER + body + tail)
    partial_size = len(HEADER) + len(tail) if tail else blob.size
    converted = form.convert(blob, partial_size, after)
    assert converted.tobytes() == HEADER + b"".join(parts(after, 0))
