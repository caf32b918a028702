"""When sequences are moved to lie side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from selfserve.engine.gaps import PATIENCE, GapCloser


def running(**slots: int) -> list[Any]:
    """Sequences by name: slot number; the memory of each is ten times its slot."""
    return [
        SimpleNamespace(slot=slot, num_computed=10 * slot, request=SimpleNamespace(slot=-1))
        for slot in slots.values()
    ]


def moves(closer: GapCloser, sequences: list[Any], num_steps: int) -> list[Any]:
    found = (closer.next_move(sequences) for _ in range(num_steps))
    return [move for move in found if move is not None]


def test_neighbours_are_left_alone() -> None:
    assert moves(GapCloser(), running(a=3, b=4, c=5), 50) == []
    assert moves(GapCloser(), [], 50) == []


def test_a_gap_is_closed_only_after_it_has_lasted() -> None:
    closer, sequences = GapCloser(), running(a=0, b=2)
    assert moves(closer, sequences, PATIENCE - 1) == []
    assert moves(closer, sequences, 1) == [(sequences[0], 1)]


def test_a_gap_that_was_filled_meanwhile_starts_the_patience_anew() -> None:
    closer = GapCloser()
    moves(closer, running(a=0, b=2), PATIENCE - 1)
    moves(closer, running(a=0, b=1), 1)
    assert moves(closer, running(a=0, b=2), PATIENCE - 1) == []


def test_the_outer_sequence_with_less_memory_moves_into_the_first_gap() -> None:
    sequences = running(a=1, b=3, c=6)
    assert moves(GapCloser(), sequences, PATIENCE) == [(sequences[0], 2)]
    sequences[0].num_computed = 1000
    assert moves(GapCloser(), sequences, PATIENCE) == [(sequences[2], 2)]


def test_a_sequence_that_asked_for_its_slot_stays_there() -> None:
    sequences = running(a=0, b=2)
    sequences[0].request.slot = 0
    assert moves(GapCloser(), sequences, PATIENCE) == [(sequences[1], 1)]
    sequences[1].request.slot = 2
    assert moves(GapCloser(), sequences, PATIENCE) == []
