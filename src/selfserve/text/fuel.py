"""How much work a schema or grammar may cause before it is refused.

Size alone does not bound it: a few kilobytes of references can be followed along more paths than
there are seconds. Every pass over what a client sent spends from one budget, counted in steps and
not in time, so that a schema is accepted on every machine or on none.
"""

from __future__ import annotations

from collections.abc import Callable

MAX_STEPS = 500_000
"""A step is about a microsecond of work, here or (where a pass can tell) in llguidance."""
_STEPS_BETWEEN_CHECKS = 5_000


class OutOfFuel(ValueError):
    """The work exceeds the budget."""


class Fuel:
    """The budget of one schema or grammar."""

    def __init__(self, check: Callable[[], None] | None = None, *, steps: int = MAX_STEPS) -> None:
        """`check` is called now and then, on the thread that spends; it raises when nobody waits
        for the grammar any more."""
        self._check = check
        self._steps = steps
        self.spent = 0
        self._next_check = _STEPS_BETWEEN_CHECKS

    def spend(self, steps: int = 1) -> None:
        """Raises OutOfFuel if the budget is used up, and what `check` raises."""
        self.spent += steps
        if self.spent > self._steps:
            raise OutOfFuel(f"it is too complex: it takes more than {self._steps} steps of work")
        if self.spent > self._next_check:
            self.check_wanted()

    def check_wanted(self) -> None:
        """To be called before work that cannot be interrupted."""
        self._next_check = self.spent + _STEPS_BETWEEN_CHECKS
        if self._check is not None:
            self._check()
