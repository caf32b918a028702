"""The hostile inputs of `bench.harm`: what one client, or several at once, may send to hurt others.

Each function returns the requests of one input; its name is the input's name and its docstring
says what is sent. They are sent at the same time, each over a connection of its own. Inputs that
do their harm only beside many others of their kind stand here at a size at which one does.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from random import Random
from typing import Any

from PIL import Image

from bench import harm_grammars
from bench.hangups import Hangup, random_hangup
from bench.texts import user
from selfserve.cli.sample_text import cold_text

CHAT, COMPLETION = "/v1/chat/completions", "/completion"
TEXT, VISION, SMALL = "text", "vision", "small"
"""Servers: of text, of text and pictures, of text with a context of SMALL_CONTEXT tokens."""
SMALL_CONTEXT = 512
LEAVES_S = 8.0
"""When a hostile client has had enough."""
LEAVES_SOON_S = 2.0
MIB = 2**20
MAX_BODY = 31 * MIB
"""Of the text in one body; what stands around it stays under the server's 32 MiB."""
HANGUP_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One request of a hostile client."""

    body: bytes = b""
    path: str = COMPLETION
    leaves_s: float = LEAVES_S
    """Seconds after which the client hangs up, if it has no whole answer by then."""
    reads: bool = True
    """False: it never takes a byte of the answer."""
    hangup: Hangup | None = None
    """Instead of all that: a client that leaves at this point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One line of the table."""

    name: str
    says: str
    make: Callable[[], Sequence[Hostile]]
    server: str = TEXT


def encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def completion(*, leaves_s: float = LEAVES_S, reads: bool = True, **fields: Any) -> Hostile:
    """A completion of a short prompt, unless `fields` says otherwise."""
    return Hostile(body=encoded({"prompt": "a", **fields}), leaves_s=leaves_s, reads=reads)


def chat(messages: Any, **fields: Any) -> Hostile:
    return Hostile(body=encoded({"messages": messages, **fields}), path=CHAT)


def wrapped(before: str, filling: bytes, after: str, path: str = COMPLETION) -> Hostile:
    """A body that is too large to be written by way of objects."""
    return Hostile(body=before.encode() + filling + after.encode(), path=path)


# --- fields of sampling and answers -------------------------------------------------------


def repeat_window() -> Sequence[Hostile]:
    """a window of 2^31 - 1 tokens for the penalties, 3 times"""
    fields: dict[str, Any] = {"n_predict": 1, "repeat_penalty": 1.1, "repeat_last_n": 2**31 - 1}
    return [completion(**fields)] * 3


def dry_window() -> Sequence[Hostile]:
    """a window of 2^31 - 1 tokens for DRY, 3 times"""
    return [completion(n_predict=1, dry_multiplier=0.8, dry_penalty_last_n=2**31 - 1)] * 3


def _dry(num_breakers: int, length: int, num_samplers: int) -> Hostile:
    breakers = [f"{number:02}".ljust(length, "x") for number in range(num_breakers)]
    return completion(
        n_predict=4,
        dry_multiplier=0.8,
        dry_sequence_breakers=breakers,
        samplers=["dry"] * num_samplers,
    )


def dry_64_64() -> Sequence[Hostile]:
    """64 short breakers, DRY 64 times in the chain"""
    return [_dry(64, 4, 64)]


def dry_at_limits() -> Sequence[Hostile]:
    """32 breakers of 64 characters, DRY 32 times in the chain, 4 at once"""
    return [_dry(32, 64, 32)] * 4


def dry_long_breakers() -> Sequence[Hostile]:
    """64 breakers of 100 kB, DRY once"""
    return [_dry(64, 100_000, 1)]


def probs_300000() -> Sequence[Hostile]:
    """probabilities of 300,000 tokens at each of 50 places"""
    return [completion(n_predict=50, n_probs=300_000, ignore_eos=True)]


def probs_1000() -> Sequence[Hostile]:
    """probabilities of 1,000 tokens at each of 50 places, 4 at once"""
    return [completion(n_predict=50, n_probs=1000, ignore_eos=True)] * 4


def stops_100000() -> Sequence[Hostile]:
    """100,000 stop strings"""
    stops = [f"never {number}" for number in range(100_000)]
    return [completion(n_predict=100, stop=stops, ignore_eos=True)]


def stops_1300000() -> Sequence[Hostile]:
    """1.3 million stop strings, 13 MB"""
    stops = [f"{number:07}" for number in range(1_300_000)]
    return [completion(n_predict=100, stop=stops, ignore_eos=True)]


def stops_at_limits() -> Sequence[Hostile]:
    """256 stop strings of 4,096 bytes that nearly come, 4 at once"""
    stops = [("a" * 4092) + f"{number:04}" for number in range(256)]
    bias = [["a", 100]]
    return [completion(n_predict=400, stop=stops, ignore_eos=True, logit_bias=bias)] * 4


def bias_100000() -> Sequence[Hostile]:
    """100,000 biases of token ids, 4 at once"""
    bias = [[number % 40_000, 0.1] for number in range(100_000)]
    return [completion(n_predict=50, logit_bias=bias, ignore_eos=True)] * 4


def bias_of_texts() -> Sequence[Hostile]:
    """100,000 biases of texts of 250 characters"""
    bias = [["word " * 48 + f"{number:010}", 0.1] for number in range(100_000)]
    return [completion(n_predict=50, logit_bias=bias, ignore_eos=True)]


def _chain(name: str, count: int) -> Hostile:
    strong: dict[str, Any] = {"repeat_penalty": 1.1, "repeat_last_n": -1, "typical_p": 0.5}
    return completion(n_predict=100, ignore_eos=True, top_k=0, samplers=[name] * count, **strong)


def chain_of_typical() -> Sequence[Hostile]:
    """typical sampling 32 times in the chain, 4 at once"""
    return [_chain("typ_p", 32)] * 4


def chain_of_penalties() -> Sequence[Hostile]:
    """penalties 32 times in the chain over the whole context, 4 at once"""
    return [_chain("penalties", 32)] * 4


def chain_of_top_p() -> Sequence[Hostile]:
    """top_p 32 times in the chain, without top_k, 4 at once"""
    return [_chain("top_p", 32)] * 4


def field_names() -> Sequence[Hostile]:
    """1,000 response_fields of 10 kB"""
    names = [f"generation_settings/{number}".ljust(10_000, "x") for number in range(1000)]
    return [completion(n_predict=4, response_fields=names)]


def endless_unread() -> Sequence[Hostile]:
    """an endless stream with 50 probabilities that its client never reads, twice"""
    fields = {"n_predict": -1, "n_probs": 50, "stream": True, "ignore_eos": True}
    return [completion(reads=False, n_keep=4, **fields)] * 2


def endless_shift() -> Sequence[Hostile]:
    """endless generation with n_keep, twice"""
    return [completion(n_keep=4, n_predict=-1, ignore_eos=True)] * 2


# --- much text ----------------------------------------------------------------------------


def prompts_64() -> Sequence[Hostile]:
    """64 prompts in one request"""
    return [completion(prompt=["a story of " * 20] * 64, n_predict=16)]


def prompts_1000000() -> Sequence[Hostile]:
    """a million prompts in one request"""
    return [completion(prompt=["a"] * 1_000_000, n_predict=1)]


def prompt_of_ids() -> Sequence[Hostile]:
    """a prompt of 15 million token ids"""
    return [wrapped('{"prompt":[1', b",1" * 15_000_000, "]}")]


def prompt_of_parts() -> Sequence[Hostile]:
    """a prompt of 3 million ids and texts in turn"""
    return [wrapped('{"prompt":[1', b',"a",1' * 3_000_000, "]}")]


def prompt_16k() -> Sequence[Hostile]:
    """a prompt of 16,000 tokens, once"""
    return [completion(prompt=cold_text(Random(1), 16_000), n_predict=4)]


def prompt_8k() -> Sequence[Hostile]:
    """a prompt that fills the context, once"""
    return [completion(prompt=cold_text(Random(2), 7_500), n_predict=4)]


def prompts_16k() -> Sequence[Hostile]:
    """64 prompts of 16,000 tokens at once"""
    random = Random(3)
    return [completion(prompt=cold_text(random, 16_000), n_predict=4) for _ in range(64)]


def prompts_8k() -> Sequence[Hostile]:
    """64 prompts that fill the context at once"""
    random = Random(4)
    return [completion(prompt=cold_text(random, 7_500), n_predict=4) for _ in range(64)]


def letters_31m() -> Sequence[Hostile]:
    """31 MiB of the letter a as a prompt, twice"""
    return [wrapped('{"prompt":"', b"a" * MAX_BODY, '"}')] * 2


def brackets_31m() -> Sequence[Hostile]:
    """31 MiB of < as a prompt, 4 at once"""
    return [wrapped('{"prompt":"', b"<" * MAX_BODY, '"}')] * 4


def message_20m() -> Sequence[Hostile]:
    """20 MB of text in one message"""
    return [chat([user("word " * 4_000_000)], max_tokens=4)]


def blanks_200000() -> Sequence[Hostile]:
    """a message of 200,000 blanks, 4 at once"""
    return [chat([user(" " * 200_000)], max_tokens=4)] * 4


def escapes_31m() -> Sequence[Hostile]:
    """31 MiB of escaped control characters in a message, twice"""
    text = b"\\u0001" * (MAX_BODY // 6)
    return [wrapped('{"messages":[{"role":"user","content":"', text, '"}]}', CHAT)] * 2


def messages_40000() -> Sequence[Hostile]:
    """40,000 messages, 1.4 MB, 4 at once"""
    return [chat([user("a")] * 40_000, max_tokens=4)] * 4


def parts_1000000() -> Sequence[Hostile]:
    """a message of 800,000 text parts"""
    part = b',{"type":"text","text":"a"}'
    before = '{"messages":[{"role":"user","content":[{"type":"text","text":"a"}'
    return [wrapped(before, part * 800_000, "]}]}", CHAT)]


def tokenize_pieces() -> Sequence[Hostile]:
    """/tokenize of 31 MiB with pieces"""
    before = '{"with_pieces":true,"content":"'
    return [wrapped(before, (b"word " * (MAX_BODY // 5)), '"}', "/tokenize")]


def detokenize_ids() -> Sequence[Hostile]:
    """/detokenize of 15 million ids"""
    return [wrapped('{"tokens":[1', b",1" * 15_000_000, "]}", "/detokenize")]


def template_31m() -> Sequence[Hostile]:
    """/apply-template of 31 MiB, twice"""
    before = '{"messages":[{"role":"user","content":"'
    return [wrapped(before, b"<" * MAX_BODY, '"}]}', "/apply-template")] * 2


# --- bodies that are hard to read ---------------------------------------------------------


def deep_arrays() -> Sequence[Hostile]:
    """31 MiB of opening brackets"""
    return [Hostile(body=b"[" * MAX_BODY)]


def deep_objects() -> Sequence[Hostile]:
    """a field with 1,000,000 nested objects"""
    return [wrapped('{"json_schema":', b'{"a":' * 1_000_000, "1" + "}" * 1_000_001)]


def long_number() -> Sequence[Hostile]:
    """a number of 30 million digits"""
    return [wrapped('{"prompt":"a","n_predict":', b"1" * 30_000_000, "}")]


def many_fields() -> Sequence[Hostile]:
    """a million unknown fields"""
    names = ",".join(f'"temperatur{number}":1' for number in range(1_000_000))
    return [wrapped('{"prompt":"a",', names.encode(), "}")]


def hangups_100() -> Sequence[Hostile]:
    """100 clients that hang up at random points"""
    random = Random(1)
    return [Hostile(hangup=random_hangup(random, HANGUP_HOST)) for _ in range(100)]


# --- pictures -----------------------------------------------------------------------------


def _picture_chat(*urls: str) -> Hostile:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": "What?"}, *parts]
    return chat([{"role": "user", "content": content}], max_tokens=2)


@cache
def _plain_picture(width: int, height: int, colour: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def _data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def pictures_of_4095() -> Sequence[Hostile]:
    """8 pictures of 4095 x 4095 in one chat, 4 at once"""
    colours = ("red", "green", "blue", "white", "black", "yellow", "cyan", "magenta")
    urls = [_data_url(_plain_picture(4095, 4095, colour)) for colour in colours]
    return [_picture_chat(*urls)] * 4


def pictures_at_limits() -> Sequence[Hostile]:
    """8 pictures of 12,000 x 3,333 in one chat, 4 at once"""
    colours = ("red", "green", "blue", "white", "black", "yellow", "cyan", "magenta")
    urls = [_data_url(_plain_picture(12_000, 3_333, colour)) for colour in colours]
    return [_picture_chat(*urls)] * 4


def picture_of_noise() -> Sequence[Hostile]:
    """a picture of 19 MB of noise, twice"""
    noise = Random(1).randbytes(2516 * 2516 * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", (2516, 2516), noise).save(file, "PNG", compress_level=1)
    return [_picture_chat(_data_url(file.getvalue()))] * 2


def picture_escaped() -> Sequence[Hostile]:
    """a data URL of 25 MB in percent-encoding, 6 at once"""
    picture = _plain_picture(64, 64, "red").ljust(25_000_000 // 3, b"\0")
    return [_picture_chat("data:image/png," + "".join(f"%{byte:02X}" for byte in picture))] * 6


# --- grammars whose text is forced --------------------------------------------------------


def forced_beyond_context() -> Sequence[Hostile]:
    """a grammar that forces 700 words in a context of 512 tokens, with n_keep"""
    text = cold_text(Random(1), 700)
    return [completion(n_predict=-1, n_keep=1, grammar=f'root ::= "{text}"')]


def banned_beginnings() -> Sequence[Hostile]:
    """a grammar all of whose first tokens are banned"""
    bans = [[text, False] for text in ("yes", "y", "ye")]
    return [completion(n_predict=4, grammar='root ::= "yes"', logit_bias=bans)]


# --- the list -----------------------------------------------------------------------------

FIELDS = (
    *(repeat_window, dry_window, dry_64_64, dry_at_limits, dry_long_breakers),
    *(probs_300000, probs_1000, stops_100000, stops_1300000, stops_at_limits),
    *(bias_100000, bias_of_texts, chain_of_typical, chain_of_penalties, chain_of_top_p),
    *(field_names, endless_unread, endless_shift, banned_beginnings),
)
TEXTS = (
    *(prompts_64, prompts_1000000, prompt_of_ids, prompt_of_parts, prompt_16k, prompt_8k),
    *(prompts_16k, prompts_8k, letters_31m, brackets_31m, message_20m, blanks_200000),
    *(escapes_31m, messages_40000, parts_1000000, tokenize_pieces, detokenize_ids),
    *(template_31m, deep_arrays, deep_objects, long_number, many_fields, hangups_100),
)
PICTURES = (pictures_of_4095, pictures_at_limits, picture_of_noise, picture_escaped)


def inputs(document: Mapping[str, Any]) -> list[Input]:
    """All inputs; `document` is the server's OpenAPI document."""
    return [
        *(_input(make) for make in FIELDS),
        *_extremes(document),
        *_constraints(),
        *(_input(make) for make in TEXTS),
        _input(forced_beyond_context, SMALL),
        *(_input(make, VISION) for make in PICTURES),
    ]


def _input(make: Callable[[], Sequence[Hostile]], server: str = TEXT) -> Input:
    return Input(name=make.__name__, says=make.__doc__ or "", make=make, server=server)


COMPANIONS: Mapping[str, Mapping[str, Any]] = {
    "repeat_last_n": {"repeat_penalty": 1.1},
    "dry_penalty_last_n": {"dry_multiplier": 0.8},
    "dry_base": {"dry_multiplier": 0.8},
    "dry_allowed_length": {"dry_multiplier": 0.8},
    "dynatemp_exponent": {"dynatemp_range": 1.0},
    "xtc_threshold": {"xtc_probability": 1.0},
    "min_keep": {"top_k": 10},
    "mirostat_tau": {"mirostat": 2},
    "mirostat_eta": {"mirostat": 2},
    "n_probs": {"n_predict": 50},
    "logprobs": {"n_predict": 50},
    "return_progress": {"stream": True},
}
"""What a field needs beside it to have an effect."""
UNBOUNDED = {"integer": 2**31 - 1, "number": 1e6}
"""Sent where the document names no limit."""


def _extremes(document: Mapping[str, Any]) -> Iterator[Input]:
    """Each numeric field of a completion at both its ends."""
    for name, values in numeric_fields(document).items():
        requests = [
            completion(**{"n_predict": 32, **COMPANIONS.get(name, {}), name: value})
            for value in values
        ]
        says = f"{name} at its ends: {' and '.join(map(str, values))}"
        yield Input(name=f"field_{name}", says=says, make=partial(list, requests))


def numeric_fields(document: Mapping[str, Any]) -> dict[str, list[float]]:
    """Field of a completion → its smallest and its largest value."""
    properties = document["components"]["schemas"]["CompletionRequest"]["properties"]
    found: dict[str, list[float]] = {}
    for name, schema in properties.items():
        for form in schema.get("anyOf", [schema]):
            largest = UNBOUNDED.get(form.get("type", ""))
            if largest is not None and "const" not in form:
                ends = {form.get("minimum", -largest), form.get("maximum", largest)}
                found[name] = sorted(ends)
    return found


AT_ONCE = 8


def _constraints() -> Iterator[Input]:
    """Schemas and grammars, AT_ONCE of each from clients that soon leave."""
    for field, table in (
        ("json_schema", harm_grammars.SCHEMAS),
        ("grammar", harm_grammars.GRAMMARS),
    ):
        for says, make in table.items():

            def requests(field: str = field, make: Callable[[], Any] = make) -> Sequence[Hostile]:
                fields = {field: make(), "n_predict": 64}
                return [completion(leaves_s=LEAVES_SOON_S, **fields)] * AT_ONCE

            name = re.sub(r"\W+", "_", f"{field}_{says}").lower()
            yield Input(name=name, says=f"{field}: {says}, {AT_ONCE} at once", make=requests)
