"""The slots: whose sequence each one holds, what it still remembers, and what can be reused.

Rules of this file
    A slot's memory is used only up to where its tokens equal those of the new prompt.
    At least one prompt token is always computed again, because its logits are needed.
    A picture is used whole or not at all. The runner is told positions, all else counts tokens.
    What a slot is about to lose is saved first, if the pool has room for it under its limit.
    A runner call that may refuse is checked; after a refusal the slot is cleared and the prompt
    computed from its start: correct before fast.

Theory of operation
    Some memories can be cut at any place (plain KV), others only be brought back to a state that
    was saved before (recurrent, hybrid, sliding window). For the second kind a slot carries
    checkpoints (see that module), each good for one length. `_usable` is the only place that
    knows the difference.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from selfserve.engine import checkpoints
from selfserve.engine.checkpoints import Checkpoint
from selfserve.engine.media import PromptMedia
from selfserve.engine.prefixes import Entry, PrefixPool
from selfserve.engine.runner import Blob, Runner
from selfserve.engine.sequence import Sequence, TokenArray

MIN_SAVED = 32
"""Tokens; computing fewer again costs less than keeping account of them."""
WORTH_A_COPY = 32
"""Tokens by which a copy must beat what an idle slot offers for free."""
EMPTY: TokenArray = np.empty(0, dtype=np.int64)


@dataclass(slots=True, frozen=True)
class SavedState:
    """A whole slot's memory in host RAM."""

    length: int
    position: int
    """The one that follows these tokens."""
    blob: Blob
    checkpoints: tuple[Checkpoint, ...]


@dataclass(slots=True, eq=False)
class Slot:
    id: int
    tokens: TokenArray = field(default_factory=lambda: EMPTY)
    """What the memory holds while nobody owns the slot."""
    position: int = 0
    """The one that follows these tokens."""
    owner: Sequence | None = None
    used: int = 0
    """Rank of the last use; higher is newer."""
    checkpoints: list[Checkpoint] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Source:
    """Where the beginning of a prompt can be had: `length` tokens of an idle slot, of a running
    sequence or of a saved state."""

    length: int
    slot: Slot | None = None
    saved: SavedState | None = None
    entry: Entry[SavedState] | None = None


def common_length(a: TokenArray, b: TokenArray) -> int:
    """How many tokens the two begin with in common."""
    size = min(len(a), len(b))
    different = np.flatnonzero(a[:size] != b[:size])
    return int(different[0]) if len(different) else size


def _key(tokens: TokenArray) -> array[int]:
    """The form in which the pool compares tokens fastest."""
    return array("q", tokens.tobytes())


class SlotTable:
    """Owns the slots and the pool of saved states; the only caller of the runner's memory."""

    def __init__(self, runner: Runner, cache_ram_bytes: int) -> None:
        self._runner = runner
        self._can_cut = runner.capabilities.can_cut
        self._end_ids = runner.vocabulary.eog_ids
        self.slots = [Slot(i) for i in range(runner.capabilities.num_slots)]
        self._checkpoint_limit = 0 if self._can_cut else cache_ram_bytes // 2
        """Of the slots' own checkpoints; those of saved states count as part of these."""
        self.pool: PrefixPool[SavedState] = PrefixPool(
            cache_ram_bytes - self._checkpoint_limit, keeps_contained=not self._can_cut
        )
        self._uses = 0
        self._shared: dict[int, SavedState] = {}
        """Copies of running slots, made since the last step: several prompts may want the same."""

    @property
    def num_free(self) -> int:
        return sum(slot.owner is None for slot in self.slots)

    def free_slot_exists(self, wanted: int) -> bool:
        if wanted >= 0:
            return self.slots[wanted].owner is None
        return any(slot.owner is None for slot in self.slots)

    # --- taking a slot --------------------------------------------------------------------

    def attach(self, sequence: Sequence) -> None:
        """Gives the sequence a free slot, with as much of its prompt in it as can be had.

        Sets `slot`, `num_computed` and `num_cached`. There must be a free slot that it may use.
        """
        source = self._find(sequence) if sequence.request.cache_prompt else Source(0)
        if source.entry is not None:
            self.pool.touch(source.entry)  # or making room for others might evict it
        slot = self._choose(sequence, source)
        slot.owner, sequence.slot = sequence, slot.id  # also if something fails from here on
        length = self._fill(slot, source, sequence.media)
        self._uses += 1
        slot.used, slot.tokens = self._uses, EMPTY
        sequence.num_computed = sequence.num_cached = length
        if not self._can_cut and sequence.request.cache_prompt:
            sequence.places = checkpoints.places(sequence.prompt, self._end_ids)

    def _usable(self, common: int, length: int, checkpoints: list[Checkpoint]) -> int:
        """To which length a memory of `length` tokens can be brought, at most `common`."""
        if self._can_cut or length <= common:
            return min(common, length)
        return max((c.length for c in checkpoints if c.length <= common), default=0)

    def _find(self, sequence: Sequence, *, without: int = -1) -> Source:
        """The best source for the sequence's prompt, leaving the running slot `without` aside."""
        prompt = sequence.prompt[:-1]  # the last token is computed in any case
        wanted = sequence.request.slot
        best = Source(0)
        for slot in self.slots:
            if slot.owner is not None or (0 <= wanted != slot.id):
                continue
            common = sequence.media.whole(common_length(prompt, slot.tokens))
            length = self._usable(common, len(slot.tokens), slot.checkpoints)
            if length > best.length or (
                length and length == best.length and self._newer(slot, best)
            ):
                best = Source(length, slot=slot)
        for slot in self.slots:
            length = 0 if slot.id == without else self._usable_of_running(slot, sequence)
            if length >= best.length + WORTH_A_COPY:
                best = Source(length, slot=slot)
        return self._find_saved(sequence, best)

    def _find_saved(self, sequence: Sequence, best: Source) -> Source:
        """The better of `best` and what the pool has."""
        key = _key(sequence.prompt[:-1])
        # Where a memory cannot be cut, a shorter state may serve when the longest does not.
        for exact in (False,) if self._can_cut else (False, True):
            found = self.pool.find(key, exact=exact)
            if found is None:
                continue
            saved = found.entry.blob
            common = sequence.media.whole(found.length)
            length = self._usable(common, saved.length, list(saved.checkpoints))
            if length >= best.length + WORTH_A_COPY:
                best = Source(length, saved=saved, entry=found.entry)
        return best

    def _newer(self, slot: Slot, best: Source) -> bool:
        return best.slot is None or slot.used > best.slot.used

    def _usable_of_running(self, slot: Slot, sequence: Sequence) -> int:
        owner = slot.owner
        if owner is None or owner.num_shifted or not owner.request.cache_prompt:
            return 0
        # Generated tokens are compared too rarely to be worth an array of them.
        held = owner.prompt[: owner.num_computed]
        common = sequence.media.whole(common_length(sequence.prompt[:-1], held))
        return self._usable(common, owner.num_computed, slot.checkpoints)

    def promise(self, sequence: Sequence, running: Sequence) -> int:
        """Tokens that `sequence` can take over once `running` has computed its prompt, beyond
        what it could have without; 0 if it is not worth waiting."""
        if not (sequence.request.cache_prompt and running.request.cache_prompt):
            return 0
        common = sequence.media.whole(common_length(sequence.prompt[:-1], running.prompt))
        if common <= running.num_computed:
            return 0
        elsewhere = self._find(sequence, without=running.slot).length
        return common if common >= elsewhere + WORTH_A_COPY else 0

    def _choose(self, sequence: Sequence, source: Source) -> Slot:
        wanted = sequence.request.slot
        if wanted >= 0:
            return self.slots[wanted]
        if source.slot is not None and source.slot.owner is None:
            return source.slot
        free = [slot for slot in self.slots if slot.owner is None]
        # libllama computes sequences together only while their ids follow one another, so of
        # equally good slots the one beside a busy one is best.
        return min(free, key=lambda s: (len(s.tokens) > 0, s.used, self._is_lonely(s), s.id))

    def _is_lonely(self, slot: Slot) -> bool:
        beside = (slot.id - 1, slot.id + 1)
        return not any(s.owner is not None for s in self.slots if s.id in beside)

    def _fill(self, slot: Slot, source: Source, media: PromptMedia) -> int:
        """Brings `slot` to the first `source.length` tokens of its source, which begin a prompt
        with `media`; returns how many it holds then, which is 0 if the runner refused."""
        if source.slot is slot:
            if len(slot.tokens) - source.length >= MIN_SAVED:
                self._save(slot)
            return self._roll_back(slot, len(slot.tokens), source.length, media)
        saved = source.saved
        if source.slot is not None:
            saved = self._copy_of(source.slot)
        self._save(slot)
        self._clear(slot)
        if saved is None or source.length == 0:
            return 0
        if not self._runner.restore(slot.id, saved.blob, length=saved.position):
            return 0
        slot.checkpoints = list(saved.checkpoints)
        length = self._roll_back(slot, saved.length, source.length, media)
        self._make_checkpoint_room(slot, 0)
        return length

    def _roll_back(self, slot: Slot, held: int, length: int, media: PromptMedia) -> int:
        """Shortens a slot's memory from `held` to `length` tokens; returns what it holds then."""
        if length == held:
            return length
        slot.checkpoints = [c for c in slot.checkpoints if c.length <= length]
        if length == 0:
            self._clear(slot)
            return 0
        if self._can_cut:
            done = self._runner.cut(slot.id, media.position_of(length))
        else:
            saved = next((c for c in slot.checkpoints if c.length == length), None)
            done = saved is not None and self._runner.restore(
                slot.id, saved.blob, length=saved.position, partial=True
            )
        if done:
            return length
        self._clear(slot)
        return 0

    def _copy_of(self, slot: Slot) -> SavedState | None:
        """The memory of a running slot as it is now."""
        if slot.id not in self._shared and slot.owner is not None:
            blob = self._runner.save(slot.id)
            if blob is None:
                return None
            length = slot.owner.num_computed
            self._shared[slot.id] = SavedState(
                length, slot.owner.media.position_of(length), blob, tuple(slot.checkpoints)
            )
        return self._shared.get(slot.id)

    def step_begins(self) -> None:
        """The running slots are about to change: copies of them are out of date."""
        self._shared.clear()

    # --- while a sequence runs ------------------------------------------------------------

    def next_stop(self, sequence: Sequence) -> int:
        """The length at which a chunk of the prompt should end, for a checkpoint; the prompt's
        own length where none is due."""
        stops = (sequence.media.whole(place) for place in sequence.places)
        return next((s for s in stops if s > sequence.num_computed), sequence.num_prompt)

    def computed(self, sequence: Sequence) -> None:
        """Takes a checkpoint if the sequence has just reached a place for one."""
        if self._can_cut or not sequence.request.cache_prompt:
            return
        if not sequence.num_computed == sequence.next_stop < sequence.num_prompt:
            return
        size = self._runner.state_size(sequence.slot, partial=True)
        slot = self.slots[sequence.slot]
        if not self._make_checkpoint_room(slot, size):
            return
        blob = self._runner.save(sequence.slot, partial=True)
        if blob is not None:
            position = sequence.media.position_of(sequence.num_computed)
            slot.checkpoints.append(Checkpoint(sequence.num_computed, position, blob))

    def _make_checkpoint_room(self, slot: Slot, size: int) -> bool:
        """Makes room for `size` bytes of checkpoints of a slot; False if they never fit."""
        by_use = [s.checkpoints for s in sorted(self.slots, key=lambda s: s.used)]
        return checkpoints.make_room(slot.checkpoints, by_use, size, self._checkpoint_limit)

    def move(self, sequence: Sequence, target_id: int) -> None:
        """Moves a running sequence into a free slot; it stays where it is if that fails."""
        source, target = self.slots[sequence.slot], self.slots[target_id]
        blob = self._runner.save(source.id)
        if blob is None or target.owner is not None:
            return
        self._save(target)
        self._clear(target)
        position = sequence.media.position_of(sequence.num_computed)
        if not self._runner.restore(target.id, blob, length=position):
            return
        target.owner, target.used, target.checkpoints = sequence, source.used, source.checkpoints
        sequence.slot = target.id
        source.owner = None
        self._clear(source)

    def take_over(self, sequence: Sequence, length: int, blob: Blob) -> bool:
        """Brings a running sequence to the first `length` tokens, whose memory was computed
        elsewhere. False: it is back at its start."""
        position = sequence.media.position_of(length)
        done = self._runner.restore(sequence.slot, blob, length=position)
        sequence.num_computed = length if done else 0
        self.computed(sequence)
        return done

    def cut(self, sequence: Sequence, length: int) -> bool:
        """Drops a running sequence's memory behind `length`: refused drafts."""
        return self._runner.cut(sequence.slot, sequence.media.position_of(length))

    def shift(self, sequence: Sequence, keep: int, drop: int) -> bool:
        """Drops `drop` tokens behind the first `keep` of a running sequence's memory."""
        self.slots[sequence.slot].checkpoints.clear()
        return self._runner.shift(sequence.slot, keep, drop)

    def restart(self, sequence: Sequence, length: int) -> None:
        """After a failed step: back to `length` tokens if the runner can, else to none."""
        slot = self.slots[sequence.slot]
        length = sequence.media.whole(length)
        if not (self._can_cut and self._runner.cut(slot.id, sequence.media.position_of(length))):
            self._clear(slot)
            length = 0
        sequence.num_computed = length

    # --- giving a slot back ---------------------------------------------------------------

    def release(self, sequence: Sequence) -> None:
        """Frees the sequence's slot; what it computed stays there until the slot is needed."""
        slot = self.slots[sequence.slot]
        slot.owner = None
        self._shared.pop(slot.id, None)
        if sequence.num_shifted or not sequence.request.cache_prompt:
            self._clear(slot)
            return
        slot.tokens = np.array(sequence.tokens[: sequence.num_computed], dtype=np.int64)
        slot.position = sequence.media.position_of(sequence.num_computed)

    def discard(self, sequence: Sequence) -> None:
        """Frees the sequence's slot and forgets what it holds, which cannot be trusted."""
        slot = self.slots[sequence.slot]
        slot.owner = None
        self._clear(slot)

    def _save(self, slot: Slot) -> None:
        """Puts what an idle slot holds into the pool, unless it is there or not worth it."""
        tokens = slot.tokens
        if len(tokens) < MIN_SAVED or self.pool.covers(_key(tokens)):
            return
        size = self._runner.state_size(slot.id) + sum(c.blob.nbytes for c in slot.checkpoints)
        if not self.pool.make_room(size):
            return
        blob = self._runner.save(slot.id)
        if blob is not None:
            state = SavedState(len(tokens), slot.position, blob, tuple(slot.checkpoints))
            self.pool.put(_key(tokens), state, size)

    def _clear(self, slot: Slot) -> None:
        self._runner.clear(slot.id)
        slot.tokens = EMPTY
        slot.checkpoints = []

    def check(self) -> None:
        """Raises AssertionError if the books are wrong. For tests and idle moments."""
        self.pool.check()
        for slot in self.slots:
            assert slot.owner is None or slot.owner.slot == slot.id
            assert slot.owner is None or len(slot.tokens) == 0
