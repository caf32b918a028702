from __future__ import annotations

import base64
import contextlib
import tracemalloc
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfserve.errors import ImageTooLarge, InvalidRequest
from selfserve.images.data_url import is_data_url, parse_base64, parse_data_url
from selfserve.images.limits import ImageLimits

PARAM = "messages[0].content[1].image_url.url"
LIMITS = ImageLimits(source_bytes=1000)
DATA = b"hi\xf9/\xbe\xff?\x00~"  # its base64 has +, / and, cut short, padding
BASE64 = base64.b64encode(DATA).decode()


def parse(url: str) -> bytes:
    return parse_data_url(url, param=PARAM, limits=LIMITS)


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{BASE64}",
        f"DATA:IMAGE/PNG;BASE64,{BASE64}",
        f"Data:;Base64,{BASE64}",
        f"data:image/png;charset=utf-8;name=a.png;base64,{BASE64}",
        f'data:image/png;name="a,b;c";base64,{BASE64}',
        f"data:image/png; base64 ,{BASE64}",
        f"  \n data:image/png;base64,{BASE64}\n",
        f"data:image/png;base64, {BASE64[:3]} \r\n\t{BASE64[3:]}",
        f"data:image/png;base64,{quote(BASE64, safe='')}",
        f"data:image/png;base64,{BASE64[:4]}%0A{BASE64[4:]}",
        f"data:image/png;base64,{base64.urlsafe_b64encode(DATA).decode()}",
        "data:image/png," + quote(DATA),
        "data:," + quote(DATA, safe="/?~") + "\n",
        f"data:text/html;base64,{BASE64}",
    ],
)
def test_every_clear_way_of_writing_gives_the_same_bytes(url: str) -> None:
    assert is_data_url(url)
    assert parse(url) == DATA


@pytest.mark.parametrize("size", [1 << 14, (1 << 14) + 1, 3 * ((1 << 14) - 1), 40_000])
@pytest.mark.parametrize("before", range(4))
def test_percent_encoding_is_read_in_pieces_that_cut_no_escape(size: int, before: int) -> None:
    data = b"a" * before + b"\xff%" * (size // 2)
    limits = ImageLimits(source_bytes=1 << 20)
    url = "data:image/png," + "a" * before + "%ff%25" * (size // 2)
    assert parse_data_url(url, param=PARAM, limits=limits) == data
    with pytest.raises(InvalidRequest, match="no two hex digits"):
        parse_data_url(url + "%4", param=PARAM, limits=limits)


def test_percent_encoding_is_read_in_bounded_memory() -> None:
    url = "data:image/png," + "%41" * 2_000_000
    tracemalloc.start()
    try:
        data = parse_data_url(url, param=PARAM, limits=ImageLimits())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data == b"A" * 2_000_000
    assert peak < 4 * len(url)


@given(data=st.binary(min_size=1, max_size=60), safe=st.booleans(), missing=st.integers(0, 2))
def test_both_alphabets_and_missing_padding_give_the_bytes_back(
    data: bytes, safe: bool, missing: int
) -> None:
    text = (base64.urlsafe_b64encode if safe else base64.b64encode)(data).decode()
    for _ in range(missing):
        text = text.removesuffix("=")
    assert parse_base64(text, param=PARAM, limits=LIMITS) == data


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,====",
        "data:,",
        "data:image/png;base64,aGk*",
        "data:image/png;base64,aG.k",
        "data:image/png;base64,aGk==",
        "data:image/png;base64,aGkh=",
        "data:image/png;base64,aGk=====",
        "data:image/png;base64,a",
        "data:image/png;base64,aGkha",
        "data:image/png;base64,aG=k",
        "data:image/png;base64,aGk=aGk=",
        "data:image/png;base64,aGkä",
        "data:image/png;base64,aGk\ud83d",
        "data:image/png;base64,aGk\x00",
        "data:image/png;base64,aG%k",
        "data:image/png;base64,aG%2",
        "data:image/png;base64,aGk%C3%A4",
        "data:image/png,%8",
        "data:image/png,ä",
        'data:image/png;name="a;base64,aGk=',
        "data:" + "x" * 2000 + ";base64,aGk=",
        "image/png;base64,aGk=",
    ],
)
def test_anything_unclear_is_refused_and_named(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(url)
    assert caught.value.param == PARAM
    assert PARAM in caught.value.message
    assert len(caught.value.message) < 300
    caught.value.message.encode()


def test_bare_base64_has_no_percent_escapes() -> None:
    with pytest.raises(InvalidRequest):
        parse_base64("aGk%3D", param=PARAM, limits=LIMITS)


@given(st.text(max_size=40))
def test_no_text_raises_anything_else(text: str) -> None:
    for url in (text, f"data:{text}", f"data:;base64,{text}", f"data:,{text}"):
        with contextlib.suppress(InvalidRequest):
            assert isinstance(parse(url), bytes)


def test_the_limit_holds_for_decoded_bytes_and_to_the_byte() -> None:
    fits = base64.b64encode(bytes(1000)).decode()
    assert len(parse(f"data:;base64,{fits}")) == 1000
    assert len(parse("data:," + "%00" * 1000)) == 1000
    over = base64.b64encode(bytes(1001)).decode()
    for url in (f"data:;base64,{over}", "data:," + "%00" * 1001, "data:;base64," + "!" * 5000):
        with pytest.raises(ImageTooLarge) as caught:
            parse(url)
        assert caught.value.param == PARAM


def test_other_schemes_are_not_data_urls() -> None:
    assert not is_data_url("https://example.org/data:image/png")
    assert not is_data_url("database:x")
    assert not is_data_url("")
