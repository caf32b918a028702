"""Whether a text obeys a constraint, byte by byte."""

from __future__ import annotations

from tests.support.random_decoding import END, byte_factory

from selfserve.request import Constraint


def accepts(constraint: Constraint, text: str) -> bool:
    """True if `text` is a whole answer under `constraint`."""
    state = byte_factory().compile(constraint)
    tokens = list(text.encode())
    if state.count_allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        state.accept(token)
    return state.allows(END)
