"""Masks, single tests, forced tokens and undoing, over bytes and over real vocabularies."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from llguidance import LLTokenizer
from tests.support.random_decoding import END, VOCAB_SIZE, byte_factory
from tests.support.real_vocabulary import real_factory, smollm2_path
from tests.support.shared_data import shared_data

from selfserve.engine.constraint import ConstraintFactory, ConstraintState
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
        allowed = [token for token in range(VOCAB_SIZE) if state.allows(token)]
        assert allowed == np.flatnonzero(state.allowed()).tolist()
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
    assert state.is_complete
    assert state.must_stop
    assert not state.allows(ord("b"))
    assert state.forced_tokens() == []


def test_a_refused_token_raises_and_changes_nothing() -> None:
    state = start('root ::= "ab"')
    for token in (ord("b"), END, -1, VOCAB_SIZE, 10**9):
        with pytest.raises(InternalError):
            state.accept(token)
    feed(state, "ab")
    assert state.is_complete


def test_a_row_in_which_nothing_is_left_raises() -> None:
    state = start('root ::= "a"')
    banned = row()
    banned[ord("a")] = -np.inf
    with pytest.raises(InternalError):
        state.apply(banned)
    state.accept(ord("a"))
    without_end = row()
    without_end[END] = -np.inf
    with pytest.raises(InternalError):
        state.apply(without_end)
    state.apply(row())


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
    assert state.allowed()[size - 1]
    assert state.allows(size - 1)


def test_completeness_is_told_apart_from_having_to_stop() -> None:
    state = start('root ::= "a" "b"?')
    assert (state.is_complete, state.must_stop) == (False, False)
    state.accept(ord("a"))
    assert (state.is_complete, state.must_stop) == (True, False)
    state.accept(ord("b"))
    assert (state.is_complete, state.must_stop) == (True, True)


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


def test_rollback_takes_tokens_back_the_end_too() -> None:
    state = start('root ::= "a" [0-9]*')
    feed(state, "a12")
    state.accept(END)
    state.rollback(2)
    assert not state.must_stop
    feed(state, "3")
    state.rollback(3)
    assert state.count_allowed(b"a9") == 2
    state.rollback(0)
    with pytest.raises(InternalError):
        state.rollback(1)


def test_a_copy_goes_its_own_way() -> None:
    state = start('root ::= "a" ("b" | "c")')
    state.accept(ord("a"))
    twin = state.copy()
    twin.accept(ord("b"))
    assert twin.must_stop
    assert state.allows(ord("c"))
    ended = twin.copy()
    ended.accept(END)
    assert ended.copy().must_stop
    assert not ended.copy().allows(END)


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


def test_states_of_a_remembered_grammar_do_not_share_progress() -> None:
    factory = byte_factory()
    first = start('root ::= "ab"', factory)
    assert factory.remembers(gbnf_constraint('root ::= "ab"'))
    first.accept(ord("a"))
    assert start('root ::= "ab"', factory).allows(ord("a"))
    assert first.allows(ord("b"))


def test_the_oldest_unused_grammar_is_forgotten() -> None:
    plain = byte_factory()
    factory = ConstraintFactory(
        plain.tokenizer, eog_ids=frozenset({END}), vocab_size=VOCAB_SIZE, cached_grammars=2
    )
    one, two, three = (gbnf_constraint(f'root ::= "{word}"') for word in ("x", "y", "z"))
    for constraint in (one, two, one, three):
        factory.compile(constraint)
    assert [factory.remembers(each) for each in (one, two, three)] == [True, False, True]


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
                assert state.is_complete
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
    assert np.flatnonzero(state.allowed()).tolist() == factory.eog_ids.tolist()


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
    allowed = state.allowed()
    special = [i for i in range(factory.vocab_size) if tokenizer.is_special_token(i)]
    inside = [i for i in special if allowed[i] and i not in factory.eog_ids]
    assert special
    assert inside == []


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
