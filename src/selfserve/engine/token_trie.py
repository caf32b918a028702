"""A compressed trie over token sequences: which stored sequence begins like this one?

Rules of this file
- A path from the root spells a sequence. Nodes without an entry of their own have at least two
  children (the root excepted), so there are never more than twice as many nodes as entries.
- A node's `newest` is the most recently used entry at or below it, so that a look-up which ends
  anywhere, even inside an edge, knows its answer without a search.
- Looking up costs what the match costs: an edge is compared in pieces of doubling size, each one
  a comparison of two machine arrays, and nothing depends on how many entries there are.
- Links between removed objects are cut, so a removed value is freed at once, without the garbage
  collector: values are megabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

FIRST_PIECE = 32
"""Tokens in the first comparison of an edge: below this a smaller one is no faster."""


class TrieEntry(Generic[T]):
    """One stored sequence. Equal only to itself; several may have the same tokens."""

    __slots__ = ("_node", "_used", "num_tokens", "value")

    def __init__(self, value: T, num_tokens: int, node: _Node[T]) -> None:
        self.value = value
        self.num_tokens = num_tokens
        self._node: _Node[T] | None = node
        self._used = 0

    def tokens(self) -> array[int]:
        """The sequence, put together again. Raises KeyError if the entry was removed."""
        node = self._node
        if node is None:
            raise KeyError("the entry was removed from the trie")
        edges = []
        while node is not None:
            edges.append(node.edge)
            node = node.parent
        spelled = array("q")
        for edge in reversed(edges):
            spelled.extend(edge)
        return spelled


@dataclass(frozen=True, slots=True)
class Match(Generic[T]):
    """The answer of a look-up: the first `length` tokens of `entry` are those asked for."""

    entry: TrieEntry[T]
    length: int


class _Node(Generic[T]):
    __slots__ = ("children", "edge", "entries", "newest", "parent")

    def __init__(self, edge: array[int], parent: _Node[T] | None) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[int, _Node[T]] = {}  # by the first token of their edge
        self.entries: dict[TrieEntry[T], None] = {}  # in order of use, newest last
        self.newest: TrieEntry[T] | None = None

    def find_newest(self) -> TrieEntry[T] | None:
        candidates = [child.newest for child in self.children.values() if child.newest is not None]
        if self.entries:
            candidates.append(next(reversed(self.entries)))
        return max(candidates, key=lambda entry: entry._used, default=None)


class TokenTrie(Generic[T]):
    """Values under token sequences. Not thread-safe.

    A token is any integer of 64 bits; negative ones may stand for pictures. `OverflowError` if
    one is larger. Tokens that come as `array('q')` are compared as they are, other sequences are
    converted as far as they match.
    """

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(array("q"), None)
        self._num_entries = 0
        self._clock = 0

    def __len__(self) -> int:
        return self._num_entries

    def insert(self, tokens: Sequence[int], value: T) -> TrieEntry[T]:
        """Stores `value` and counts as its use. Raises ValueError if `tokens` is empty."""
        if not len(tokens):
            raise ValueError("an empty sequence cannot be stored")
        node, matched, rest = self._descend(tokens)
        new_edge = array("q", tokens[matched:])  # before any change: this may raise
        if rest:
            node = _split(node, len(node.edge) - rest)
        if new_edge:
            leaf = _Node(new_edge, node)
            node.children[new_edge[0]] = leaf
            node = leaf
        entry = TrieEntry(value, len(tokens), node)
        node.entries[entry] = None
        self._num_entries += 1
        self.touch(entry)
        return entry

    def touch(self, entry: TrieEntry[T]) -> None:
        """Makes `entry` the newest. Raises KeyError if it was removed."""
        node = entry._node
        if node is None:
            raise KeyError("the entry was removed from the trie")
        self._clock += 1
        entry._used = self._clock
        del node.entries[entry]
        node.entries[entry] = None
        above: _Node[T] | None = node
        while above is not None:
            above.newest = entry
            above = above.parent

    def remove(self, entry: TrieEntry[T]) -> None:
        """Takes `entry` out; other entries with the same tokens stay. KeyError if it is not in."""
        node = entry._node
        if node is None:
            raise KeyError("the entry was removed from the trie")
        del node.entries[entry]
        entry._node = None
        self._num_entries -= 1
        if not node.entries and not node.children and node.parent is not None:
            del node.parent.children[node.edge[0]]
            node = node.parent
        if not node.entries and len(node.children) == 1 and node.parent is not None:
            node = _join(node)
        above: _Node[T] | None = node
        while above is not None and (above.newest is entry or above is node):
            above.newest = above.find_newest()
            above = above.parent

    def longest(self, tokens: Sequence[int]) -> Match[T] | None:
        """The entry with the longest common beginning, and the length of that beginning.

        The entry may go on differently, or be longer than `tokens`. Of several the most recently
        used one. None if nothing stored begins with the same token.
        """
        node, matched, _ = self._descend(tokens)
        if not matched or node.newest is None:
            return None
        return Match(node.newest, matched)

    def longest_whole(self, tokens: Sequence[int]) -> Match[T] | None:
        """The longest entry all of whose tokens are the beginning of `tokens`."""
        entry = next(self.whole_prefixes(tokens), None)
        return None if entry is None else Match(entry, entry.num_tokens)

    def whole_prefixes(self, tokens: Sequence[int]) -> Iterator[TrieEntry[T]]:
        """All entries that are the beginning of `tokens`, or equal it: longest first, of equal
        ones the most recently used first. The trie must not change during the iteration."""
        last, _, rest = self._descend(tokens)
        node = last.parent if rest else last
        while node is not None:
            yield from reversed(node.entries)
            node = node.parent

    def __iter__(self) -> Iterator[TrieEntry[T]]:
        """All entries, in no particular order. The trie must not change meanwhile."""
        for node in self._nodes():
            yield from node.entries

    def check(self) -> None:
        """Raises AssertionError where a rule of this file does not hold. Costs O(nodes)."""
        num_entries = 0
        for node in self._nodes():
            num_entries += len(node.entries)
            if node.parent is not None:
                _check_inner(node)
            if node.newest is not node.find_newest():
                raise AssertionError("a node does not know its newest entry")
            if any(entry._node is not node for entry in node.entries):
                raise AssertionError("an entry does not know its node")
        if num_entries != self._num_entries:
            raise AssertionError(f"{num_entries} entries found, {self._num_entries} counted")

    def _nodes(self) -> Iterator[_Node[T]]:
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield node

    def _descend(self, tokens: Sequence[int]) -> tuple[_Node[T], int, int]:
        """Follows `tokens` as far as possible: (last node entered, tokens matched, tokens at the
        end of that node's edge that did not match)."""
        node, matched, num_tokens = self._root, 0, len(tokens)
        while matched < num_tokens:
            child = node.children.get(tokens[matched])
            if child is None:
                break
            common = _common_length(child.edge, tokens, matched)
            node, matched = child, matched + common
            if common < len(child.edge):
                return node, matched, len(child.edge) - common
        return node, matched, 0


def _split(node: _Node[T], at: int) -> _Node[T]:
    """Cuts the edge into `node` after `at` tokens; returns the new node in between."""
    parent = node.parent
    if parent is None:
        raise AssertionError("the root has no edge")
    upper: _Node[T] = _Node(node.edge[:at], parent)
    upper.newest = node.newest
    upper.children[node.edge[at]] = node
    parent.children[node.edge[0]] = upper
    node.edge = node.edge[at:]
    node.parent = upper
    return upper


def _join(node: _Node[T]) -> _Node[T]:
    """Replaces `node`, which has no entries, by its only child; returns that child."""
    (child,) = node.children.values()
    child.edge = node.edge + child.edge
    child.parent = node.parent
    if node.parent is not None:
        node.parent.children[child.edge[0]] = child
    return child


def _common_length(edge: array[int], tokens: Sequence[int], start: int) -> int:
    """How many tokens of `edge` equal those of `tokens` from `start` on."""
    limit = min(len(edge), len(tokens) - start)
    done, size = 0, FIRST_PIECE
    while done < limit:
        end = min(done + size, limit)
        ours, theirs = edge[done:end], array("q", tokens[start + done : start + end])
        if ours != theirs:
            return done + _first_difference(ours, theirs)
        done, size = end, 2 * size
    return limit


def _first_difference(left: array[int], right: array[int]) -> int:
    """The first index where two arrays of one length differ, which they do somewhere."""
    low, high = 0, len(left)  # left[:low] is equal, left[low:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _check_inner(node: _Node[T]) -> None:
    if not node.edge:
        raise AssertionError("an edge is empty")
    if not node.entries and len(node.children) < 2:
        raise AssertionError("a node has neither an entry nor two children")
    if node.parent is None or node.parent.children.get(node.edge[0]) is not node:
        raise AssertionError("a node is not its parent's child")
