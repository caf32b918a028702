"""Pictures that come inside the request: data URLs and bare base64.

Read leniently where the meaning is clear (letter case, blanks, missing padding, both alphabets)
and refused where it is not: a character that is skipped silently would change the picture.
"""

from __future__ import annotations

import binascii
import re
from urllib.parse import unquote_to_bytes

from selfserve.errors import ImageTooLarge, InvalidRequest, shown
from selfserve.images.limits import ImageLimits

_MAX_HEADER = 1024
"""Characters of `data:…,` that are searched for the comma: parameters are short."""

_HEADER = re.compile(r'\s*data:((?:[^,"]|"[^"]*")*),', re.IGNORECASE)
_BASE64_FLAG = re.compile(r";\s*base64\s*\Z", re.IGNORECASE)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_UNQUOTED_AT_ONCE = 1 << 14
_BLANKS = b" \t\r\n\f\v"
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_LONGEST_ENCODING = 4
"""No encoding that is read here needs more characters for one byte (`%41`: 3), blanks aside."""


def is_data_url(url: str) -> bool:
    """True if `url` has the scheme `data`, in any case, after any blanks."""
    return url[:_MAX_HEADER].lstrip()[:5].lower() == "data:"


def parse_data_url(url: str, *, param: str | None, limits: ImageLimits) -> bytes:
    """The bytes inside a data URL; its media type and other parameters are ignored.

    Raises InvalidRequest if the URL is malformed, ImageTooLarge before anything over the limit
    is decoded.
    """
    header = _HEADER.match(url[:_MAX_HEADER])
    if header is None:
        raise InvalidRequest(
            f"{param} must be a data URL of the form data:image/png;base64,…, got {shown(url)}",
            param=param,
        )
    body = _ascii(url[header.end() :], param, limits).encode("ascii")
    if _BASE64_FLAG.search(header[1]):
        return _decode_base64(_unquoted(body, param), param, limits)
    data = _unquoted(body.translate(None, b"\t\r\n"), param)
    limits.check_source(len(data), param=param)
    return _not_empty(data, param)


def _unquoted(body: bytes, param: str | None) -> bytes:
    """`body` without percent-encoding. Done in pieces: each escape becomes an object on the way."""
    if b"%" not in body:
        return body
    pieces: list[bytes] = []
    begin = 0
    while begin < len(body):
        end = begin + _UNQUOTED_AT_ONCE
        cut = body.find(b"%", end - 2, end)  # an escape that the end would cut in two
        end = cut if cut >= 0 else end
        piece = body[begin:end]
        if _BAD_ESCAPE.search(piece):
            raise InvalidRequest(f"{param} has a % that no two hex digits follow", param=param)
        pieces.append(unquote_to_bytes(piece))
        begin = end
    return b"".join(pieces)


def parse_base64(text: str, *, param: str | None, limits: ImageLimits) -> bytes:
    """The bytes of bare base64, in either alphabet, with or without padding and blanks.

    Raises InvalidRequest and ImageTooLarge as `parse_data_url` does.
    """
    return _decode_base64(_ascii(text, param, limits).encode("ascii"), param, limits)


def _ascii(text: str, param: str | None, limits: ImageLimits) -> str:
    if len(text) > _LONGEST_ENCODING * limits.source_bytes:
        raise ImageTooLarge(f"the picture must be at most {limits.source_bytes} bytes", param=param)
    if not text.isascii():
        raise InvalidRequest(f"{param} holds characters that are not ASCII", param=param)
    return text


def _decode_base64(encoded: bytes, param: str | None, limits: ImageLimits) -> bytes:
    compact = encoded.translate(_URL_SAFE, delete=_BLANKS)
    digits = compact.rstrip(b"=")
    limits.check_source(len(digits) * 3 // 4, param=param)
    missing = -len(digits) % 4
    if missing == 3 or len(compact) - len(digits) > missing:
        raise InvalidRequest(
            f"{param} is not base64: {len(digits)} digits with {len(compact) - len(digits)} "
            "padding characters",
            param=param,
        )
    try:
        data = binascii.a2b_base64(digits + b"=" * missing, strict_mode=True)
    except binascii.Error as error:
        raise InvalidRequest(f"{param} is not base64: {error}", param=param) from error
    return _not_empty(data, param)


def _not_empty(data: bytes, param: str | None) -> bytes:
    if not data:
        raise InvalidRequest(f"{param} holds no data", param=param)
    return data
