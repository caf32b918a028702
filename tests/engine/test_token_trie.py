"""The trie against a list that compares every entry token by token."""

from __future__ import annotations

import gc
import time
import weakref
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfserve.engine.token_trie import TokenTrie, TrieEntry


class NaiveTrie:
    """The same answers from a list in order of use, newest last."""

    def __init__(self) -> None:
        self.rows: list[tuple[tuple[int, ...], int]] = []

    def touch(self, value: int) -> None:
        row = next(row for row in self.rows if row[1] == value)
        self.rows.remove(row)
        self.rows.append(row)

    def longest(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        for key, value in reversed(self.rows):
            length = common(key, tokens)
            if length > (best[1] if best else 0):
                best = (value, length)
        return best

    def longest_whole(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        best: tuple[int, int] | None = None
        for key, value in reversed(self.rows):
            if common(key, tokens) == len(key) > (best[1] if best else 0):
                best = (value, len(key))
        return best


def common(left: Sequence[int], right: Sequence[int]) -> int:
    length = 0
    for ours, theirs in zip(left, right, strict=False):
        if ours != theirs:
            break
        length += 1
    return length


# Few distinct tokens and common beginnings make entries share, split and join edges.
BEGINNINGS = st.sampled_from([(), (1,), (1, 2) * 3, (7,) * 40, tuple(range(100, 300)), (-(2**62),)])
KEYS = st.builds(
    lambda beginning, rest: (*beginning, *rest),
    BEGINNINGS,
    st.lists(st.integers(1, 3), max_size=4),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_look_up_agrees_with_a_list_of_all_entries(data: st.DataObject) -> None:
    trie: TokenTrie[int] = TokenTrie()
    naive = NaiveTrie()
    entries: dict[int, TrieEntry[int]] = {}
    for value in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["insert", "insert", "insert", "touch", "remove"]))
        if action == "insert" or not entries:
            key = data.draw(KEYS.filter(bool))
            entries[value] = trie.insert(key, value)
            naive.rows.append((key, value))
            assert tuple(entries[value].tokens()) == key
        elif action == "touch":
            chosen = data.draw(st.sampled_from(sorted(entries)))
            trie.touch(entries[chosen])
            naive.touch(chosen)
        else:
            chosen = data.draw(st.sampled_from(sorted(entries)))
            trie.remove(entries.pop(chosen))
            naive.rows = [row for row in naive.rows if row[1] != chosen]
        trie.check()
        asked = data.draw(KEYS)
        for form in (asked, list(asked), array("q", asked)):
            match = trie.longest(form)
            assert (match and (match.entry.value, match.length)) == naive.longest(asked)
            whole = trie.longest_whole(form)
            assert (whole and (whole.entry.value, whole.length)) == naive.longest_whole(asked)
        assert len(trie) == len(naive.rows) == len(list(trie))


@settings(deadline=None)
@given(length=st.integers(1, 400), at=st.integers(0, 399))
def test_the_first_difference_inside_a_long_edge_is_found_at_every_place(
    length: int, at: int
) -> None:
    trie: TokenTrie[str] = TokenTrie()
    key = list(range(length))
    trie.insert(key, "only")
    at %= length
    match = trie.longest([*key[:at], -1, *key[at + 1 :]])
    assert (match.length if match else 0) == at


def test_whole_prefixes_come_longest_first_and_of_equal_ones_the_newest_first() -> None:
    trie: TokenTrie[str] = TokenTrie()
    for key, name in [([1], "a"), ([1, 2], "b"), ([1, 2], "c"), ([1, 2, 3], "d"), ([1, 9], "e")]:
        trie.insert(key, name)
    assert [entry.value for entry in trie.whole_prefixes([1, 2, 4])] == ["c", "b", "a"]


def test_an_entry_inside_an_edge_is_not_a_whole_prefix() -> None:
    trie: TokenTrie[str] = TokenTrie()
    trie.insert([1, 2, 3, 4], "long")
    assert trie.longest_whole([1, 2, 3]) is None
    match = trie.longest([1, 2, 3])
    assert match is not None
    assert (match.entry.value, match.length) == ("long", 3)


def test_a_removed_value_is_freed_without_the_garbage_collector() -> None:
    class Blob:
        pass

    trie: TokenTrie[Blob] = TokenTrie()
    gc.disable()
    try:
        kept = trie.insert([1, 2, 3, 4], Blob())
        entry = trie.insert([1, 2, 5], Blob())
        freed = weakref.ref(entry.value)
        trie.remove(entry)
        del entry
        assert freed() is None
    finally:
        gc.enable()
    trie.check()
    assert list(kept.tokens()) == [1, 2, 3, 4]


def test_a_removed_entry_and_an_empty_sequence_are_refused() -> None:
    trie: TokenTrie[int] = TokenTrie()
    entry = trie.insert([1], 1)
    trie.remove(entry)
    for call in (trie.remove, trie.touch):
        with pytest.raises(KeyError):
            call(entry)
    with pytest.raises(KeyError):
        entry.tokens()
    with pytest.raises(ValueError, match="empty"):
        trie.insert([], 1)
    assert trie.longest([1]) is None
    trie.check()


class CountingTokens(Sequence[int]):
    """A list that counts how many of its tokens were looked at."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.seen = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = self.tokens[index]
        self.seen += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.parametrize("match_length", [3, 100, 5_000])
def test_a_look_up_reads_at_most_twice_the_match_however_many_entries_there_are(
    match_length: int,
) -> None:
    tokens = list(range(20_000))
    asked = CountingTokens([*tokens[:match_length], -1_000_000, *tokens[match_length:]])
    trie: TokenTrie[int] = TokenTrie()
    trie.insert(tokens, 0)
    for value in range(1, 301):
        if value % 100 == 0:
            asked.seen = 0
            match = trie.longest(asked)
            assert match is not None
            assert match.length == match_length
            assert asked.seen <= 2 * match_length + 70  # pieces double; the first has 32 tokens
        trie.insert([-value, 5, 6], value)


def test_a_number_beyond_64_bits_is_refused_and_leaves_the_trie_as_it_was() -> None:
    trie: TokenTrie[int] = TokenTrie()
    entry = trie.insert([1, 2, 3], 1)
    with pytest.raises(OverflowError):
        trie.insert([1, 2, 9, 2**63], 2)
    trie.check()
    assert list(trie) == [entry]


def test_eight_thousand_matching_tokens_among_a_thousand_entries_take_under_a_millisecond() -> None:
    trie: TokenTrie[int] = TokenTrie()
    tokens = list(range(8_192))
    for value in range(1_000):
        trie.insert([value, *tokens], value)
    asked = array("q", [500, *tokens])
    best = 1.0
    for _ in range(20):
        started = time.perf_counter()
        match = trie.longest(asked)
        best = min(best, time.perf_counter() - started)
    assert match is not None
    assert match.length == len(asked)
    assert best < 1e-3, f"{best * 1e6:.0f} µs"
