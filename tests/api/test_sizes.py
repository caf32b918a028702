"""Texts of any size: refused by length before anything costly, tokenized in bounded pieces."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp
from tests.support.asgi_call import Call, call
from tests.support.byte_vocabulary import CONTROL_TEXTS
from tests.support.fake_engine import ByteVocabulary, FakeEngine
from tests.support.shared_data import shared_data

from selfserve.api import tokenizing
from selfserve.api.llamacpp import tokens
from selfserve.api.messages import MAX_MESSAGES
from selfserve.api.service import read_template
from selfserve.api.tokenizing import WHOLE, PromptTokenizer, TextMeasure
from selfserve.errors import ContextLengthExceeded
from selfserve.native.model import Model
from selfserve.text.messages import Message, TextPart
from selfserve.text.template import ChatTemplate
from selfserve.threads import Unwanted

AppMaker = Callable[..., ASGIApp]
MIB = 1 << 20


class Counting(ByteVocabulary):
    """Counts what it is asked to tokenize. Runs of blanks are one token for each `run` of them."""

    def __init__(self, *args: Any, run: int = 1, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.sizes: list[int] = []
        self.run = run

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.sizes.append(len(text))
        text = text.replace(" " * self.run, " ")
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


@pytest.fixture
def vocabulary(engine: FakeEngine) -> Counting:
    engine.vocabulary = Counting("{% for m in messages %}{{ m.content }}{% endfor %}")
    return engine.vocabulary


def chat(*texts: str, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": text} for text in texts]}


LONG = "x" * MIB
TOO_LONG = [
    ("/v1/chat/completions", chat(LONG)),
    ("/v1/chat/completions", chat(*["y" * 1000] * 1000, role="system")),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
    ),
    ("/apply-template", chat(LONG)),
    ("/completion", {"prompt": LONG}),
    ("/completion", {"prompt": ["a", LONG]}),
    ("/completion", {"prompt": [5, "a" * 60000, "b" * 60000]}),
    ("/v1/completions", {"prompt": {"prompt_string": LONG}}),
]


@pytest.mark.parametrize(("path", "body"), TOO_LONG, ids=range(len(TOO_LONG)))
def test_what_cannot_fit_is_refused_by_its_length_before_it_is_rendered_or_tokenized(
    make_app: AppMaker,
    vocabulary: Counting,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    body: dict[str, Any],
) -> None:
    app = make_app()
    assert call(app, chat("hi")).status == 200  # the template is read at the first chat
    vocabulary.sizes.clear()
    monkeypatch.setattr(ChatTemplate, "render", None)
    refused = call(app, body, path=path)
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert refused.error["n_ctx"] == 4096
    assert refused.error["n_prompt_tokens"] > 4095
    assert "at least" in refused.error["message"]
    assert vocabulary.sizes == []


def test_thinking_of_earlier_turns_and_blanks_around_are_not_counted(
    make_app: AppMaker, engine: FakeEngine
) -> None:
    engine.vocabulary = Counting(
        "{% for m in messages %}{{ (m.content.split('</think>') | last).strip() }}{% endfor %}"
    )
    messages = [
        {"role": "user", "content": " " * MIB + "hi"},
        {"role": "assistant", "content": f"<think>{LONG}</think>yo"},
        {"role": "user", "content": "hi"},
    ]
    assert call(make_app(), {"messages": messages}).status == 200


@pytest.mark.parametrize(
    "body",
    [{"prompt": LONG[: WHOLE + 1]}, {"prompt": ["<|im_end|>" * 50_000]}, {"prompt": "é" * WHOLE}],
    ids=["text", "control tokens", "two bytes"],
)
def test_a_text_that_may_fit_is_counted_in_pieces_until_it_does_not(
    make_app: AppMaker, vocabulary: Counting, body: dict[str, Any]
) -> None:
    vocabulary.longest_piece = 128
    refused = call(make_app(), body, path="/completion")
    assert refused.error["code"] == "context_length_exceeded"
    assert max(vocabulary.sizes) <= WHOLE
    assert sum(vocabulary.sizes) <= 8 * 4096 + 2 * WHOLE


def test_blanks_that_are_few_tokens_pass(make_app: AppMaker, engine: FakeEngine) -> None:
    engine.vocabulary = Counting(run=128)
    engine.vocabulary.longest_piece = 128
    answered = call(make_app(), {"prompt": " " * 200_000}, path="/completion")
    assert answered.json["usage"]["prompt_tokens"] == 200_000 // 128 + 200_000 % 128


def refusal(least: int) -> ContextLengthExceeded:
    return ContextLengthExceeded(f"at least {least}")


class CostlyMarks(Counting):
    """As libllama: for each control token the rest of the whole text is searched again."""

    cost = 0

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self.cost += len(text) * sum(map(text.count, CONTROL_TEXTS))
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def test_a_text_with_many_control_tokens_costs_what_its_length_says() -> None:
    costs = []
    for count in (10_000, 20_000):
        vocabulary = CostlyMarks()
        tokenizer = PromptTokenizer(TextMeasure(vocabulary), 1 << 30, refusal)
        ids = tokenizer("<|im_start|>hi<|im_end|>" * count, add_special=True, parse_special=True)
        assert len(ids) == 4 * count
        costs.append(vocabulary.cost)
    assert costs[1] < 2.5 * costs[0]


MARKED = ["word ", "  ", "\n", "é🦙", "1234", "<", "<|im", "\u2581"]


@pytest.mark.parametrize("name", ["qwen35", "gemma-4", "llama-spm", "llama-bpe", "gpt-2"])
def test_a_text_that_is_cut_has_the_tokens_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201
    rng = random.Random(seed)
    monkeypatch.setattr(tokenizing, "WHOLE", 100)
    monkeypatch.setattr(tokenizing, "PIECE", 40)
    model = Model(shared_data(f"vocab/ggml-vocab-{name}.gguf"), vocab_only=True)
    vocab = model.vocab
    specials = sorted(vocab.special_ids)
    chosen = [*MARKED, *rng.sample(specials, min(8, len(specials)))]
    tokenizer = PromptTokenizer(TextMeasure(vocab), 1 << 30, refusal)
    for add_special in (True, False):
        for _ in range(40):
            text = "".join(rng.choices(chosen, k=200))
            cut = tokenizer(text, add_special=add_special, parse_special=True)
            whole = vocab.tokenize(text, add_special=add_special, parse_special=True)
            assert cut == whole, text
    model.close()


def test_tokenizing_ends_when_nobody_wants_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Counting()

    def gone() -> None:
        if len(vocabulary.sizes) > 3:
            raise Unwanted

    monkeypatch.setattr(tokenizing, "check_wanted", gone)
    tokenizer = PromptTokenizer(TextMeasure(vocabulary), 1 << 30, refusal)
    with pytest.raises(Unwanted):
        tokenizer(LONG, add_special=False, parse_special=False)
    assert len(vocabulary.sizes) == 4


@pytest.mark.parametrize("stop_at", [1, 50, 500])
def test_rendering_ends_when_nobody_wants_it_any_more(stop_at: int) -> None:
    calls = [0]

    def gone() -> None:
        calls[0] += 1
        if calls[0] == stop_at:
            raise Unwanted

    messages = [Message("user", "hi <|im_end|>"), Message("assistant", "yo")] * 500
    with pytest.raises(Unwanted):
        read_template(ByteVocabulary()).render(messages, check=gone)
    assert calls[0] == stop_at


def test_the_number_of_messages_is_limited(app: ASGIApp) -> None:
    refused = call(app, chat(*["a"] * (MAX_MESSAGES + 1)))
    assert (refused.status, refused.error["param"]) == (400, "messages")
    assert f"at most {MAX_MESSAGES}" in refused.error["message"]


def test_many_parts_of_one_message_are_joined_once() -> None:
    class Watched(str):
        copied = 0

        def __add__(self, other: str) -> Watched:
            Watched.copied += len(self)
            return Watched(str(self) + other)

    parts = tuple(TextPart(Watched("abc")) for _ in range(1000))
    assert [part.text for part in Message("user", parts).parts if isinstance(part, TextPart)] == [
        "abc" * 1000
    ]
    assert Watched.copied == 0


@pytest.mark.parametrize("with_pieces", [False, True])
def test_tokenize_has_a_limit_and_nothing_beyond_is_tokenized(
    make_app: AppMaker, vocabulary: Counting, with_pieces: bool
) -> None:
    app = make_app()
    most = 256 << 10

    def post(content: Any) -> Call:
        return call(app, {"content": content, "with_pieces": with_pieces}, path="/tokenize")

    assert len(post("x" * most).json["tokens"]) == most
    vocabulary.sizes.clear()
    for content in ("x" * (most + 1), ["é" * (most // 2), 5, "x"]):
        refused = post(content)
        assert (refused.status, refused.error["param"]) == (413, "content")
        assert str(most) in refused.error["message"]
    assert vocabulary.sizes == []


def test_pieces_are_written_a_few_at_a_time(
    make_app: AppMaker, vocabulary: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def dumps(value: list[Any]) -> str:
        written.append(len(value))
        return tokens_dumps(value)

    tokens_dumps = tokens.dumps
    monkeypatch.setattr(tokens, "dumps", dumps)
    body = {"content": "ab" * 10_000, "with_pieces": True}
    found = call(make_app(), body, path="/tokenize").json["tokens"]
    assert found == [{"id": 97, "piece": "a"}, {"id": 98, "piece": "b"}] * 10_000
    assert max(written) == tokens.ENTRIES_AT_ONCE


def test_detokenize_has_a_limit(app: ASGIApp) -> None:
    most = 256 << 10
    assert call(app, {"tokens": [97] * most}, path="/detokenize").json["content"] == "a" * most
    refused = call(app, {"tokens": [97] * (most + 1)}, path="/detokenize")
    assert (refused.status, refused.error["param"]) == (413, "tokens")
