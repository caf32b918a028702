"""Masks, single tests, forced tokens and undoing, over bytes and over real vocabularies."""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tests.support.random_decoding import END, VOCAB_SIZE, byte_factory
from tests.support.real_vocabulary import real_factory, smollm2_path
from tests.support.shared_data import shared_data

from selfserve.engine.constraint import (
    BYTES_PER_CHARACTER,
    BYTES_PER_GRAMMAR,
    ConstraintFactory,
    ConstraintState,
)
from selfserve.errors import InternalError, InvalidRequest
from selfserve.request import Constraint
from selfserve.text.grammar import gbnf_constraint
from selfserve.text.schema import json_object_constraint, json_schema_constraint

EMAIL = {"type": "string", "format": "email"}
COUNT = {"type": "integer", "minimum": 1}
ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
        "status": {"enum": ["open", "paid", "shipped"]},
        "customer": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "email": EMAIL},
            "required": ["name", "email"],
            "additionalProperties": False,
        },
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1000,
            "items": {
                "type": "object",
                "properties": {"sku": {"type": "string"}, "count": COUNT},
                "required": ["sku", "count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "status", "customer", "items"],
    "additionalProperties": False,
}  # fmt: skip
ANSWER = json.dumps(
    {
        "id": "AB-123456",
        "status": "paid",
        "customer": {"name": "Jürgen von der Heide 😀", "email": "a.b@example.org"},
        "items": [{"sku": "The quick brown fox", "count": 17}] * 3,
    },
    ensure_ascii=False,
)


def start(grammar: str, factory: ConstraintFactory | None = None) -> ConstraintState:
    return (factory or byte_factory()).compile(gbnf_constraint(grammar))


def row(value: float = 0.0) -> np.ndarray:
    return np.full(VOCAB_SIZE, value, dtype=np.float32)


def left(logits: np.ndarray) -> list[int]:
    return np.flatnonzero(logits > -np.inf).tolist()


def allowed(state: ConstraintState, size: int = VOCAB_SIZE) -> list[int]:
    logits = np.zeros(size, dtype=np.float32)
    state.apply(logits)
    return left(logits)


def feed(state: ConstraintState, text: str) -> None:
    for token in text.encode():
        state.accept(token)


def test_a_mask_leaves_only_what_the_grammar_allows() -> None:
    state = start('root ::= [a-c] "x"?')
    logits = row()
    state.apply(logits)
    assert left(logits) == [ord(char) for char in "abc"]
    assert logits[ord("a")] == 0
    state.accept(ord("b"))
    logits = row()
    state.apply(logits)
    assert left(logits) == [ord("x"), END]


def test_a_single_test_says_the_same_as_the_mask() -> None:
    state = start('root ::= ("ab" | "a" [0-9]+)+')
    for char in "aba17a9":
        assert [token for token in range(VOCAB_SIZE) if state.allows(token)] == allowed(state)
        state.accept(ord(char))


def test_every_end_token_is_allowed_exactly_where_the_grammar_is_complete() -> None:
    plain = byte_factory()
    factory = ConstraintFactory(
        plain.tokenizer, eog_ids=frozenset({END, 7, 9}), vocab_size=VOCAB_SIZE
    )
    state = start('root ::= "a" "b"?', factory)
    assert not any(state.allows(end) for end in (END, 7, 9))
    state.accept(ord("a"))
    assert all(state.allows(end) for end in (END, 7, 9))
    logits = row()
    state.apply(logits)
    assert left(logits) == [7, 9, ord("b"), END]
    state.accept(7)
    assert state.must_stop
    assert not state.allows(ord("b"))
    assert state.forced_tokens() == []


def test_a_refused_token_raises_and_changes_nothing() -> None:
    state = start('root ::= "ab"')
    for token in (ord("b"), END, -1, VOCAB_SIZE, 10**9):
        with pytest.raises(InternalError):
            state.accept(token)
    feed(state, "ab")
    assert state.must_stop


def without(*tokens: int) -> np.ndarray:
    logits = row()
    logits[list(tokens)] = -np.inf
    return logits


def test_bans_that_leave_nothing_the_grammar_allows_are_the_clients_fault() -> None:
    state = start('root ::= "a" "b"?')
    with pytest.raises(InvalidRequest) as caught:
        state.apply(without(ord("a")))
    assert (caught.value.param, caught.value.status) == ("logit_bias", 400)
    state.accept(ord("a"))
    state.apply(without(END))
    state.apply(without(ord("b")))
    with pytest.raises(InvalidRequest):
        state.apply(without(ord("b"), END))
    state.apply(row())


@pytest.mark.parametrize(
    ("grammar", "banned", "possible"),
    [
        ('root ::= "yes"', b"", True),
        ('root ::= "yes"', b"y", False),
        ('root ::= "yes"', b"es", True),
        ('root ::= "yes" | "no"', b"y", True),
        ('root ::= "yes" | "no"', b"yn", False),
        ('root ::= "a"?', b"a", True),
        ('root ::= "a"?', [ord("a"), END], False),
        ('root ::= "a"?', [-1, VOCAB_SIZE, 10**9], True),
    ],
)
def test_a_first_step_without_any_token_is_told_before_it(
    grammar: str, banned: Sequence[int], possible: bool
) -> None:
    state = start(grammar)
    if possible:
        state.check_possible(frozenset(banned))
    else:
        with pytest.raises(InvalidRequest) as caught:
            state.check_possible(frozenset(banned))
        assert caught.value.param == "logit_bias"
    assert allowed(state)


def test_a_complete_text_needs_no_end_token_to_stop() -> None:
    state = start('root ::= "ab"')
    feed(state, "ab")
    assert state.must_stop
    with pytest.raises(InvalidRequest):
        state.apply(without(END))


def test_a_row_of_nan_raises() -> None:
    with pytest.raises(InternalError):
        start('root ::= "a"').apply(row(np.nan))


def test_places_beyond_the_vocabulary_are_forbidden() -> None:
    logits = np.zeros(VOCAB_SIZE + 5, dtype=np.float32)
    start("root ::= .").apply(logits)
    assert (logits[VOCAB_SIZE:] == -np.inf).all()


@pytest.mark.parametrize("size", [200, VOCAB_SIZE, 300])
def test_a_row_may_be_shorter_or_longer_than_the_tokenizer(size: int) -> None:
    ends = frozenset({size - 1})
    factory = ConstraintFactory(byte_factory().tokenizer, eog_ids=ends, vocab_size=size)
    state = start("root ::= [a-z] .?", factory)
    logits = np.zeros(size, dtype=np.float32)
    state.apply(logits)
    assert left(logits) == list(range(ord("a"), ord("z") + 1))
    assert not state.allows(size - 2)
    state.accept(ord("q"))
    assert size - 1 in allowed(state, size)
    assert state.allows(size - 1)


def test_completeness_is_told_apart_from_having_to_stop() -> None:
    state = start('root ::= "a" "b"?')
    assert (state.allows(END), state.must_stop) == (False, False)
    state.accept(ord("a"))
    assert (state.allows(END), state.must_stop) == (True, False)
    state.accept(ord("b"))
    assert (state.allows(END), state.must_stop) == (True, True)


def test_forced_tokens_are_those_without_a_choice() -> None:
    state = start('root ::= "abc" [xy] "z"')
    assert bytes(state.forced_tokens()) == b"abc"
    feed(state, "abc")
    assert state.forced_tokens() == []
    state.accept(ord("x"))
    assert bytes(state.forced_tokens()) == b"z"
    state.accept(ord("z"))
    assert state.forced_tokens() == []


def test_counting_leaves_the_state_alone() -> None:
    state = start('root ::= "ab" [0-9]*')
    assert state.count_allowed(b"ab12x") == 4
    assert state.count_allowed(b"ba") == 0
    assert state.count_allowed([ord("a"), -1, ord("b")]) == 1
    assert state.count_allowed([ord("a"), VOCAB_SIZE]) == 1
    assert state.count_allowed([]) == 0
    feed(state, "ab12")


@pytest.mark.parametrize(
    ("banned", "forced"),
    [(b"", b"abcd"), (b"a", b""), (b"c", b"ab"), (b"db", b"a"), (b"x", b"abcd")],
)
def test_forced_tokens_end_before_the_first_that_is_banned(banned: bytes, forced: bytes) -> None:
    assert bytes(start('root ::= "abcd"').forced_tokens(frozenset(banned))) == forced


def test_lazy_and_full_masking_choose_the_same() -> None:
    constraint = json_object_constraint()
    factory = byte_factory()
    generator = np.random.default_rng(5)
    lazy, full = factory.compile(constraint), factory.compile(constraint)
    for _ in range(60):
        logits = generator.gumbel(size=VOCAB_SIZE).astype(np.float32)
        masked = logits.copy()
        full.apply(masked)
        chosen = int(logits.argmax())
        if not lazy.allows(chosen):
            lazy.apply(logits)
            chosen = int(logits.argmax())
        assert chosen == int(masked.argmax())
        if chosen == END:
            break
        lazy.accept(chosen)
        full.accept(chosen)


class CountingFactory(ConstraintFactory):
    """Counts what it compiles."""

    def __init__(self, **limits: int) -> None:
        super().__init__(
            byte_factory().tokenizer, eog_ids=frozenset({END}), vocab_size=VOCAB_SIZE, **limits
        )
        self.built: list[str] = []

    def _build(self, text: str) -> LLMatcher:
        self.built.append(text)
        return super()._build(text)

    def builds(self, constraint: Constraint) -> bool:
        before = len(self.built)
        self.compile(constraint)
        return len(self.built) > before


def test_states_of_a_remembered_grammar_do_not_share_progress() -> None:
    factory = CountingFactory()
    first = start('root ::= "ab"', factory)
    assert not factory.builds(gbnf_constraint('root ::= "ab"'))
    first.accept(ord("a"))
    assert start('root ::= "ab"', factory).allows(ord("a"))
    assert first.allows(ord("b"))


def test_the_oldest_unused_grammar_is_forgotten() -> None:
    factory = CountingFactory(cached_grammars=2)
    one, two, three = (gbnf_constraint(f'root ::= "{word}"') for word in ("x", "y", "z"))
    for constraint in (one, two, one, three):
        factory.compile(constraint)
    assert [factory.builds(each) for each in (one, three, two)] == [False, False, True]


@pytest.mark.parametrize(("kept", "room"), [(1, 1.5), (2, 2.5), (0, 0.5)])
def test_kept_grammars_take_no_more_than_their_bytes(kept: int, room: float) -> None:
    grammars = [gbnf_constraint(f'root ::= "{word}"') for word in ("x", "y", "z")]
    each = BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * len(grammars[0].text)
    factory = CountingFactory(cached_bytes=int(each * room))
    for constraint in grammars:
        factory.compile(constraint)
    remembered = [not factory.builds(constraint) for constraint in grammars[3 - kept :]]
    assert remembered == [True] * kept
    assert factory.builds(grammars[0])


def test_grammars_are_compiled_side_by_side() -> None:
    both = threading.Barrier(2, timeout=30)

    class Meeting(CountingFactory):
        def _build(self, text: str) -> LLMatcher:
            both.wait()  # breaks unless the other thread compiles too
            return super()._build(text)

    factory = Meeting()
    states: list[ConstraintState] = []
    threads = [
        threading.Thread(
            target=lambda word=word: states.append(start(f'root ::= "{word}"', factory))
        )
        for word in ("x", "y")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(states) == 2


def test_a_grammar_that_reaches_a_limit_ends_its_request_and_is_built_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = LLParserLimits(max_lexer_states=200)
    monkeypatch.setattr("selfserve.engine.constraint.LIMITS", limits)
    constraint = gbnf_constraint('root ::= [ab]* "a" [ab]{50}')
    factory = CountingFactory()
    state = factory.compile(constraint)

    def go_on() -> None:
        for token in random.Random(1).choices(b"ab", k=1_000):
            state.apply(row())
            state.accept(token)

    with pytest.raises(InvalidRequest, match="too complex"):
        go_on()
    assert factory.builds(constraint)


@pytest.mark.parametrize("text", ["", "nonsense", '{"grammars": []}', "start: missing"])
def test_a_grammar_that_cannot_be_compiled_is_an_invalid_request(text: str) -> None:
    with pytest.raises(InvalidRequest):
        byte_factory().compile(Constraint(text=text))


def test_states_of_one_grammar_work_in_several_threads() -> None:
    factory = byte_factory()
    constraint = json_schema_constraint(ORDER)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                state = factory.compile(constraint)
                for token in ANSWER.encode():
                    state.apply(row())
                    state.accept(token)
                assert state.must_stop
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


VOCABULARIES = ("smollm2", "qwen35", "gemma-4", "llama-spm")


@pytest.fixture(scope="module", params=VOCABULARIES)
def real(request: pytest.FixtureRequest) -> Iterator[tuple[ConstraintFactory, LLTokenizer]]:
    name = request.param
    path = smollm2_path() if name == "smollm2" else shared_data(f"vocab/ggml-vocab-{name}.gguf")
    with real_factory(path) as loaded:
        yield loaded


Real = tuple[ConstraintFactory, LLTokenizer]


def test_a_real_tokenizer_can_write_a_whole_answer_and_end(real: Real) -> None:
    factory, tokenizer = real
    state = factory.compile(json_schema_constraint(ORDER))
    tokens = tokenizer.tokenize_str(ANSWER)
    assert state.count_allowed(tokens) == len(tokens)
    for token in tokens:
        assert not any(state.allows(end) for end in factory.eog_ids)
        state.accept(token)
    assert state.must_stop
    assert allowed(state, factory.vocab_size) == factory.eog_ids.tolist()


def test_forced_tokens_are_the_tokenizers_own_cut(real: Real) -> None:
    factory, tokenizer = real
    state = factory.compile(json_schema_constraint(ORDER))
    tokens = tokenizer.tokenize_str(ANSWER)
    place = forced_count = 0
    while place < len(tokens):
        forced = state.forced_tokens()
        assert tokens[place : place + len(forced)] == forced
        for token in forced or tokens[place : place + 1]:
            state.accept(token)
        place += len(forced) or 1
        forced_count += len(forced)
    assert forced_count > 10
    assert state.must_stop


def test_control_tokens_are_never_allowed_inside_a_text(real: Real) -> None:
    factory, tokenizer = real
    state = factory.compile(gbnf_constraint("root ::= .*"))
    special = {i for i in range(factory.vocab_size) if tokenizer.is_special_token(i)}
    inside = special & set(allowed(state, factory.vocab_size)) - factory.eog_set
    assert special
    assert inside == set()


@pytest.mark.parametrize(
    "constraint", [json_object_constraint(), json_schema_constraint(ORDER)], ids=["object", "order"]
)
def test_masking_takes_less_than_a_millisecond_in_the_median(
    real: Real, constraint: Constraint
) -> None:
    factory, tokenizer = real
    state = factory.compile(constraint)
    logits = np.zeros(factory.vocab_size, dtype=np.float32)
    times = []
    for token in tokenizer.tokenize_str(ANSWER):
        logits[:] = 0
        begun = time.perf_counter()
        state.apply(logits)
        times.append(time.perf_counter() - begun)
        assert logits[token] == 0
        state.accept(token)
    assert statistics.median(times) < 0.001


def test_a_grammar_too_complex_for_its_first_step_is_an_invalid_request(real: Real) -> None:
    factory, _ = real
    with pytest.raises(InvalidRequest):
        factory.compile(gbnf_constraint("root ::= " + "[a-z]? " * 3_000))
