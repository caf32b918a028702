"""Which tokens and positions stand for pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders import make_request
from tests.support.scripted_pictures import (
    AFTER,
    BEFORE,
    flat_layout,
    grid_layout,
    make_picture,
)

from selfserve.engine.pictures import NO_MEDIA, PromptMedia, expand, picture_tokens
from selfserve.errors import ContextLengthExceeded, InternalError
from selfserve.request import PICTURE_TOKEN, Request


def with_pictures(*names: str, layout=grid_layout) -> tuple[Request, PromptMedia]:
    """Two text tokens before each picture, and three at the end."""
    prompt = [token for _ in names for token in (1, 2, PICTURE_TOKEN)] + [7, 8, 9]
    pictures = tuple(make_picture(name) for name in names)
    return expand(make_request("a", prompt, pictures=pictures), layout, 1000)


def test_a_picture_becomes_its_pieces_in_place() -> None:
    request, media = with_pictures("cat")
    assert request.prompt[:3] == (1, 2, BEFORE)
    assert all(token < PICTURE_TOKEN for token in request.prompt[3:15])
    assert request.prompt[15:] == (AFTER, 7, 8, 9)
    assert request.pictures == ()
    assert (media.spans[0].start, media.spans[0].end) == (3, 15)


def test_positions_go_on_behind_a_picture_that_takes_fewer() -> None:
    _, media = with_pictures("cat", "dog")
    first, second = media.spans
    assert (first.position, first.end, media.position_of(first.end)) == (3, 15, 7)
    assert second.start == 19
    assert second.position == 11
    assert media.position_of(second.end + 4) == 11 + 4 + 4


def test_positions_are_indices_where_pictures_take_one_for_each_token() -> None:
    request, media = with_pictures("cat", "dog", layout=flat_layout)
    assert [media.position_of(i) for i in range(len(request.prompt))] == list(
        range(len(request.prompt))
    )


@given(st.integers(0, 40))
def test_positions_never_fall_and_a_cut_never_divides_a_picture(length: int) -> None:
    _, media = with_pictures("cat", "dog")
    assert media.position_of(length) <= media.position_of(length + 1)
    whole = media.whole(length)
    assert whole <= length
    assert not any(span.start < whole < span.end for span in media.spans)
    assert whole == length or any(span.start == whole for span in media.spans)


def test_text_ends_where_a_picture_begins() -> None:
    _, media = with_pictures("cat")
    assert [media.text_end(i) for i in (0, 2, 3, 9)] == [3, 3, 3, 9]
    assert media.text_end(15) > 1 << 60
    assert NO_MEDIA.text_end(5) > 1 << 60


def test_two_pictures_differ_in_their_first_token_already() -> None:
    one, other = make_picture("cat"), make_picture("dog")
    tokens = picture_tokens(one.digest, 0, 12)
    assert tokens == picture_tokens(one.digest, 0, 12)
    assert tokens[0] != picture_tokens(other.digest, 0, 12)[0]
    assert tokens[0] != picture_tokens(one.digest, 1, 12)[0]
    assert len(set(tokens)) == 12
    assert all(-(2**63) <= token < PICTURE_TOKEN for token in tokens)


def test_pictures_count_for_the_context() -> None:
    request = make_request("a", [1, PICTURE_TOKEN, 2], pictures=(make_picture("x", 10, 10),))
    with pytest.raises(ContextLengthExceeded) as caught:
        expand(request, flat_layout, 104)
    assert caught.value.details == {"n_prompt_tokens": 104, "n_ctx": 104}
    expand(request, flat_layout, 105)


@pytest.mark.parametrize("num_places", [0, 2])
def test_places_and_pictures_must_be_as_many(num_places: int) -> None:
    prompt = [1] + [PICTURE_TOKEN] * num_places
    with pytest.raises(InternalError):
        expand(make_request("a", prompt, pictures=(make_picture("x"),)), flat_layout, 100)
