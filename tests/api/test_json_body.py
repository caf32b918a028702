"""Decoding of bodies: strict, bounded, and never an exception of another kind."""

from __future__ import annotations

import pytest

from selfserve.api import json_body
from selfserve.api.json_body import decode_json
from selfserve.errors import InvalidRequest
from selfserve.limits import MAX_DEPTH, MAX_VALUES


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + closing * depth


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \n",
        b"{",
        b'{"a":1}}',
        b"{'a':1}",
        b"[1,]",
        b'{"a":1,}',
        b"NaN",
        b'{"t":NaN}',
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b'{"t":1e999}',
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"True",
        b"undefined",
        b'"\\ud83d"',
        b'"\\ude00"',
        b'"\\ud83d\\u0041"',
        b'{"\\ud83d":1}',
        b'"\xff"',
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'{"\xff":1}',
        b'"\x01"',
        b'"\\u12G4"',
        b"9" * 5000,
        b"-" + b"9" * 5000,
        b"1" * 5000 + b".5",
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_is_no_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_json(body)
    caught.value.message.encode("utf-8")


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' {"a": [1, 1.0, -0.5e2, true, null]}\n', {"a": [1, 1.0, -50.0, True, None]}),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"😀"'.encode(), "😀"),
        (b'"\\u0000"', "\0"),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b"18446744073709551616", 2**64),
    ],
)
def test_strict_json_is_read(body: bytes, value: object) -> None:
    assert decode_json(body) == value


def test_nesting_ends_at_its_limit() -> None:
    decode_json(nested(MAX_DEPTH))
    decode_json(nested(MAX_DEPTH, b'{"a":', b"}").replace(b":}", b":1}"))
    for body in (
        nested(MAX_DEPTH + 1),
        nested(900),
        b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1),
        b"[" + b"[]," * 200 + nested(MAX_DEPTH) + b"]",
    ):
        with pytest.raises(InvalidRequest, match="nested at most 128"):
            decode_json(body)


def test_breadth_is_no_depth() -> None:
    assert len(decode_json(b"[" + b"[]," * 5000 + b"[]]")) == 5001  # type: ignore[arg-type]


def test_brackets_in_text_are_no_depth() -> None:
    assert decode_json(b'"' + b"[" * 5000 + b'"') == "[" * 5000


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"{}," * MAX_VALUES + b"1]",
        b"[" + b"1," * MAX_VALUES + b"1]",
        b"[" + b'"",' * MAX_VALUES * 3 + b'""]',
        b"[" + b'{"a":' * (MAX_VALUES // 3) + b"1" + b"}" * (MAX_VALUES // 3) + b"]",
    ],
    ids=["objects", "numbers", "strings", "nested objects"],
)
def test_the_number_of_values_is_bounded_before_decoding(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_body, "_decoder", None)
    with pytest.raises(InvalidRequest, match="at most 500000 values"):
        decode_json(body)


@pytest.mark.parametrize("text", [b"," * 600_000, b"[{" * 300_000, b'\\",' * 300_000])
def test_text_counts_as_one_value_whatever_it_holds(text: bytes) -> None:
    assert decode_json(b'{"a":"' + text + b'"}') is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages":[{"content":"hi"}],"stop":"\\ud83d"}', "stop"),
        (
            b'{"messages":[{"content":"hi"},{"content":[{"text":"a\\uDE00b"}]}]}',
            "messages[1].content[0].text",
        ),
        (b'"\\ud83d\\u0041"', None),
        (b'{"\\ud83d":1}', None),
        (b'{"user":{"a\\udead":1}}', "user"),
    ],
)
def test_half_a_surrogate_pair_is_named_with_its_place(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest, match="half of a surrogate pair") as caught:
        decode_json(body)
    assert caught.value.param == param


def test_other_faults_beside_surrogates_are_told_as_they_are() -> None:
    for body in (b'{"a":"\\ud83d"', b'{"a":"\\ud83d\\ude00"', b"[" * 500 + b'"\\ud83d"'):
        with pytest.raises(InvalidRequest) as caught:
            decode_json(body)
        assert "surrogate" not in caught.value.message
