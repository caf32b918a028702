"""The pool: never over its limit, never an entry for tokens that are not its own."""

from __future__ import annotations

import gc
import random
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfserve.engine.prefixes import Entry, PrefixPool


def lengths(pool: PrefixPool[bytes], *sequences: list[int]) -> list[int]:
    """How many tokens of each sequence the pool can restore."""
    return [found.length if (found := pool.find(tokens)) else 0 for tokens in sequences]


def test_a_cuttable_state_serves_all_that_begins_alike() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100)
    entry = pool.put([1, 2, 3, 4], b"state", 10)
    assert lengths(pool, [1, 2, 9], [1, 2, 3, 4, 5], [9]) == [2, 4, 0]
    found = pool.find([1, 2, 9])
    assert found is not None
    assert found.entry is entry
    assert found.entry.blob == b"state"
    assert pool.find([1, 2, 9], exact=True) is None
    assert pool.find([1, 2, 3, 4, 9], exact=True) is not None


def test_a_whole_state_serves_only_what_begins_with_all_of_it() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100, cuttable=False)
    pool.put([1, 2], b"turn 1", 10)
    pool.put([1, 2, 3, 4], b"turn 2", 10)
    assert lengths(pool, [1, 2, 3], [1, 2, 3, 4], [1, 9], [1]) == [2, 4, 0, 0]


def test_a_checkpoint_in_a_cuttable_pool_is_whole_and_stays() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100)
    checkpoint = pool.put([1, 2, 3], b"checkpoint", 10, checkpoint=True)
    assert lengths(pool, [1, 2], [1, 2, 3]) == [0, 3]
    pool.put([1, 2, 3, 4], b"longer", 10)
    assert checkpoint in pool
    assert lengths(pool, [1, 2]) == [2]


def test_a_longer_cuttable_state_replaces_its_beginnings_and_nothing_else() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100)
    for tokens in ([1, 2], [1, 2, 3], [1, 5], [1, 2, 3, 4, 5, 6]):
        pool.put(tokens, b"", 10)
    longer = pool.put([1, 2, 3, 4], b"", 10)
    assert len(pool) == 3
    assert longer in pool
    assert pool.num_bytes == 30
    assert pool.num_evictions == 0
    assert lengths(pool, [1, 5], [1, 2, 3, 4, 5, 6]) == [2, 6]


def test_whole_states_replace_only_the_same_tokens() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100, cuttable=False)
    turn = pool.put([1, 2], b"", 10)
    old = pool.put([1, 2, 3], b"old", 10)
    new = pool.put([1, 2, 3], b"new", 10)
    assert [turn in pool, old in pool, new in pool] == [True, False, True]


@pytest.mark.parametrize(("cuttable", "covered"), [(True, True), (False, False)])
def test_a_longer_entry_covers_tokens_only_if_it_can_be_cut(cuttable: bool, covered: bool) -> None:
    pool: PrefixPool[bytes] = PrefixPool(100, cuttable=cuttable)
    pool.put([1, 2, 3], b"", 10)
    assert pool.covers([1, 2]) is covered
    assert pool.covers([1, 2, 3])
    assert not pool.covers([1, 2, 3, 4])
    assert not pool.covers([9])
    assert pool.covers([])


def test_the_least_recently_used_leaves_first() -> None:
    pool: PrefixPool[bytes] = PrefixPool(30)
    first, second, third = (pool.put([n, n], b"", 10) for n in (1, 2, 3))
    pool.touch(first)
    assert pool.make_room(10)
    assert [first in pool, second in pool, third in pool] == [True, False, True]
    assert (pool.num_hits, pool.num_evictions, pool.num_bytes) == (1, 1, 20)


def test_what_can_never_fit_evicts_nothing_and_is_not_stored() -> None:
    pool: PrefixPool[bytes] = PrefixPool(30)
    pool.put([1], b"", 30)
    assert not pool.make_room(31)
    with pytest.raises(ValueError, match="31 is over the limit of 30"):
        pool.put([2], b"", 31)
    assert (len(pool), pool.num_bytes, pool.num_evictions) == (1, 30, 0)


def test_a_pool_of_no_bytes_stores_nothing() -> None:
    assert not PrefixPool[bytes](0).make_room(1)


def test_making_room_for_a_longer_state_spends_its_beginning_before_others() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100)
    other = pool.put([9, 9], b"", 50)
    turn = pool.put([1, 2], b"", 50)  # used more recently than the other
    assert pool.make_room(50, tokens=[1, 2, 3])
    assert [other in pool, turn in pool] == [True, False]


def test_making_room_for_a_checkpoint_leaves_cuttable_beginnings_alone() -> None:
    pool: PrefixPool[bytes] = PrefixPool(100)
    turn = pool.put([1, 2], b"", 10)
    assert pool.make_room(10, tokens=[1, 2, 3], checkpoint=True)
    assert turn in pool


def test_an_evicted_blob_is_freed_without_the_garbage_collector() -> None:
    class Blob:
        pass

    pool: PrefixPool[Blob] = PrefixPool(10)
    gc.disable()
    try:
        blob = Blob()
        freed = weakref.ref(blob)
        pool.put([1, 2], blob, 10)
        del blob
        assert freed() is not None
        pool.make_room(10)
        assert freed() is None
    finally:
        gc.enable()


def test_an_entry_that_left_is_refused() -> None:
    pool: PrefixPool[bytes] = PrefixPool(10)
    entry = pool.put([1], b"", 10)
    pool.clear()
    for call in (pool.touch, pool.remove):
        with pytest.raises(KeyError):
            call(entry)
    assert (len(pool), pool.num_bytes, pool.num_hits) == (0, 0, 0)


def test_sizes_that_make_no_sense_are_refused() -> None:
    pool: PrefixPool[bytes] = PrefixPool(10)
    with pytest.raises(ValueError, match="num_bytes"):
        pool.make_room(0)
    with pytest.raises(ValueError, match="empty"):
        pool.put([], b"", 1)
    with pytest.raises(ValueError, match="limit_bytes"):
        PrefixPool[bytes](-1)


def test_a_thousand_different_prompts_hold_no_more_than_the_limit() -> None:
    pool: PrefixPool[bytes] = PrefixPool(50_000)
    peak = 0
    for number in range(1_000):
        tokens = [number, *range(500)]
        assert pool.make_room(1_000, tokens=tokens)
        assert pool.num_bytes <= 49_000
        pool.put(tokens, bytes(8), 1_000)
        peak = max(peak, pool.num_bytes)
    assert (peak, len(pool), pool.num_evictions) == (50_000, 50, 950)
    pool.check()


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_client_ever_finds_the_state_of_another(seed: int) -> None:
    rng = random.Random(seed)
    pools = [PrefixPool[tuple[int, ...]](3_000, cuttable=cuttable) for cuttable in (True, False)]
    for _ in range(400):
        client = rng.randrange(20)
        tokens = [1, 2, 3, 1_000 + client, *rng.choices(range(4), k=rng.randrange(12))]
        for pool in pools:
            if found := pool.find(tokens):
                assert list(found.entry.blob[: found.length]) == tokens[: found.length]
                pool.touch(found.entry)
            if not pool.covers(tokens):
                pool.put(tokens, tuple(tokens), rng.randrange(1, 400))
    for pool in pools:
        assert pool.num_hits > 0
        assert pool.num_evictions > 0
        pool.check()


TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), cuttable=st.booleans())
def test_the_books_agree_and_the_best_entry_is_found_after_every_step(
    data: st.DataObject, cuttable: bool
) -> None:
    pool: PrefixPool[tuple[int, ...]] = PrefixPool(100, cuttable=cuttable)
    ever: list[Entry[tuple[int, ...]]] = []
    for _ in range(data.draw(st.integers(1, 20))):
        tokens = data.draw(TOKENS)
        checkpoint = data.draw(st.booleans())
        size = data.draw(st.integers(1, 60))
        ever.append(pool.put(tokens, tuple(tokens), size, checkpoint=checkpoint))
        assert pool.covers(tokens)
        pool.check()
        asked, exact = data.draw(TOKENS), data.draw(st.booleans())
        found = pool.find(asked, exact=exact)
        usable = [
            usable_length(entry, asked, exact or not cuttable) for entry in ever if entry in pool
        ]
        assert (found.length if found else 0) == max(usable)
        if found and data.draw(st.booleans()):
            pool.touch(found.entry)


def usable_length(entry: Entry[tuple[int, ...]], asked: list[int], exact: bool) -> int:
    length = 0
    while length < min(len(entry.blob), len(asked)) and entry.blob[length] == asked[length]:
        length += 1
    return length if length == len(entry.blob) or not (exact or entry.whole) else 0
