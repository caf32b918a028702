"""What is remembered of prompts: one record for each, wherever it lies, and one owner.

Rules of this file
    A memory is used only up to where its tokens equal those of the new prompt.
    At least one prompt token is always computed again, because its logits are needed.
    A picture is used whole or not at all. The runner is told positions, all else counts tokens.
    The runner's memory changes only in the memory phase of a step (`admit`, `settle`,
    `close_gap`), within an `Allowance`. What commit finds out until then is put down as due.
    A runner call that may refuse is checked; after a refusal the slot is cleared and the prompt
    computed from its start: correct before fast.

Theory of operation
    A prompt is remembered in a running slot, in an idle one until that is needed, or in host RAM
    after it was. `best` finds the source that saves most; what lies in an idle slot is free, all
    else has to be worth its copy. Some memories can be cut at any place (plain KV), others only be
    brought back to a state that was saved before (recurrent, hybrid, sliding window). For the
    second kind a record carries checkpoints, each good for one length (see `remembered`).
    `_usable` is the only place that knows the difference.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from selfserve.engine.costs import Allowance, Costs, Operation
from selfserve.engine.host import HostRam
from selfserve.engine.pictures import PromptMedia
from selfserve.engine.remembered import (
    EMPTY,
    HOST,
    MAX_CHECKPOINTS,
    Checkpoint,
    Cut,
    Drop,
    Record,
    Shift,
    Source,
    TakeCheckpoint,
    common_length,
    places,
    thin_out,
)
from selfserve.engine.runner import Blob, Runner
from selfserve.engine.sequence import Sequence, TokenArray

RARELY_NEEDED = 4
"""How many times over a saved state must be worth its copies: most are never asked for again."""


class PromptMemory:
    """Owns the slots and the saved states; the only caller of the runner's memory."""

    def __init__(self, runner: Runner, costs: Costs, limit_bytes: int) -> None:
        """`limit_bytes`: host RAM for saved states and checkpoints together."""
        self._runner = runner
        self._costs = costs
        self._can_cut = runner.capabilities.can_cut
        self._end_ids = runner.vocabulary.eog_ids
        self.slots = [Record(slot=i) for i in range(runner.capabilities.num_slots)]
        self.host = HostRam(limit_bytes, self.slots, can_cut=self._can_cut)
        self._uses = 0
        self._copies: dict[int, tuple[int, Blob]] = {}
        """Of running slots: length and state, for whoever else wants them in the same phase."""
        self._lost_ms = 0.0
        """What the gap between running slots has cost so far."""
        self.num_hits = 0
        self.num_cached_tokens = 0

    @property
    def num_free(self) -> int:
        return sum(slot.owner is None for slot in self.slots)

    def free_slot_exists(self, wanted: int) -> bool:
        if wanted >= 0:
            return self.slots[wanted].owner is None
        return any(slot.owner is None for slot in self.slots)

    # --- finding --------------------------------------------------------------------------

    def best(self, sequence: Sequence, *, without: Record | None = None) -> Source:
        """The source that saves most of computing the sequence's prompt, leaving one aside."""
        if not sequence.request.cache_prompt:
            return Source()
        prompt = sequence.prompt[:-1]  # the last token is computed in any case
        wanted = sequence.request.slot
        best = Source()
        for record in self.slots:
            if record.owner is None and wanted in (HOST, record.slot):
                length = self._usable(record, prompt, sequence.media)
                if length and (length, record.used) > (best.length, _used(best)):
                    best = Source(length, record)
        for record in (*self.slots, *self.host.records):
            if record is without or (record.slot != HOST and record.owner is None):
                continue
            length = self._usable(record, prompt, sequence.media)
            if length > best.length and self._is_worth_a_copy(record, length - best.length):
                best = Source(length, record)
        return best

    def _usable(self, record: Record, prompt: TokenArray, media: PromptMedia) -> int:
        """To which length a record's memory can be brought that begins `prompt`."""
        held, size = record.tokens, len(record.tokens)
        owner = record.owner
        if owner is not None:
            if owner.num_shifted or not owner.request.cache_prompt:
                return 0
            # Generated tokens are compared too rarely to be worth an array of them.
            held, size = owner.prompt[: owner.num_computed], owner.num_computed
        common = media.whole(common_length(prompt, held))
        if self._can_cut or size <= common:
            return common
        return max((c.length for c in record.checkpoints if c.length <= common), default=0)

    def _is_worth_a_copy(self, record: Record, num_tokens: int) -> bool:
        if record.blob is not None:
            return self._costs.worth_copying(num_tokens, record.blob.nbytes, 1)
        return self._costs.worth_copying(num_tokens, self._runner.state_size(record.slot), 2)

    def fork(self, sequence: Sequence, running: Sequence) -> int:
        """The length at which the two prompts part, if it is worth waiting until `running` has
        computed so much of its own; else 0."""
        if not (sequence.request.cache_prompt and running.request.cache_prompt):
            return 0
        common = sequence.media.whole(common_length(sequence.prompt[:-1], running.prompt))
        if common <= running.num_computed:
            return 0
        if not self._costs.worth_a_stop(common):
            return 0
        record = self.slots[running.slot]
        gain = common - self.best(sequence, without=record).length
        size = self._runner.state_size(record.slot)
        size += size * (common - running.num_computed) // max(running.num_computed, common)
        is_worth_it = self._costs.worth_a_stop(gain) and self._costs.worth_copying(gain, size, 2)
        return common if is_worth_it else 0

    def await_fork(self, running: Sequence, length: int) -> None:
        """Somebody waits for the first `length` tokens of a running prompt. A memory that cannot be
        cut serves it only as it is exactly there."""
        self.slots[running.slot].stops.add(length)

    # --- taking a slot --------------------------------------------------------------------

    def begin_phase(self) -> None:
        """The running slots have changed since the last memory phase."""
        self._copies.clear()

    def admit(self, sequence: Sequence, allowance: Allowance) -> bool:
        """Gives the sequence a free slot, with as much of its prompt in it as can be had. False:
        the allowance of this step is used up; ask again in the next one.

        There must be a free slot that it may use. Once `slot` of the sequence is set, whoever
        catches an exception has to `discard` it.
        """
        source = self.best(sequence)
        if source.record is not None and source.record.slot == HOST:
            self._uses += 1  # before room is made: what is needed now must not leave for it
            source.record.used = self._uses
        slot = self._choose(sequence, source)
        lost = len(slot.tokens) - (source.length if source.record is slot else 0)
        if not self._keep(slot, lost, allowance):
            return False
        if not allowance.permits(self._copy_size(source, slot)):
            return False
        slot.owner, sequence.slot = sequence, slot.slot
        slot.due.clear()  # of a free slot at most a Drop, and what follows replaces all it holds
        length = self._fill(slot, source, sequence.media, allowance)
        self._uses += 1
        slot.used, slot.tokens = self._uses, EMPTY
        sequence.restored(length)
        sequence.num_cached = length
        self.num_hits += length > 0
        self.num_cached_tokens += length
        slot.stops = set()
        if not self._can_cut and sequence.request.cache_prompt:
            ends = places(sequence.prompt, self._end_ids)
            slot.stops = {sequence.media.whole(end) for end in ends}
        return True

    def _choose(self, sequence: Sequence, source: Source) -> Record:
        wanted = sequence.request.slot
        if wanted >= 0:
            return self.slots[wanted]
        record = source.record
        if record is not None and record.slot != HOST and record.owner is None:
            return record
        free = [slot for slot in self.slots if slot.owner is None]
        # libllama computes sequences together only while their ids follow one another, so of
        # equally good slots the one beside a busy one is best.
        return min(free, key=lambda s: (len(s.tokens) > 0, s.used, self._is_lonely(s), s.slot))

    def _is_lonely(self, slot: Record) -> bool:
        beside = (slot.slot - 1, slot.slot + 1)
        return not any(s.owner is not None for s in self.slots if s.slot in beside)

    def _copy_size(self, source: Source, slot: Record) -> int:
        """Bytes that filling `slot` copies."""
        record = source.record
        if record is None or record is slot:
            return 0
        if record.blob is not None:
            return record.blob.nbytes
        size = self._runner.state_size(record.slot)
        return size if record.slot in self._copies else 2 * size

    def _fill(self, slot: Record, source: Source, media: PromptMedia, allowance: Allowance) -> int:
        """Brings `slot` to the first `source.length` tokens of its source, which begin a prompt
        with `media`; returns how many it holds then, which is 0 if the runner refused."""
        record = source.record
        if record is slot:
            return self._roll_back(slot, len(slot.tokens), source.length, media, allowance)
        if record is None:
            self._clear(slot, allowance)
            return 0
        if record.slot == HOST:
            assert record.blob is not None
            kind, blob, held, position = (
                Operation.RESTORE,
                record.blob,
                len(record.tokens),
                record.position,
            )
        else:
            assert record.owner is not None
            copied = self._copy_of(record, record.owner, allowance)
            if copied is None:
                self._clear(slot, allowance)
                return 0
            held, blob = copied
            kind, position = Operation.COPY, record.owner.media.position_of(held)
        self._clear(slot, allowance)  # hybrid memory mixes a state with what the slot held
        with allowance.operation(kind, blob.nbytes):
            if not self._runner.restore(slot.slot, blob, length=position):
                return 0
        slot.checkpoints = list(record.checkpoints)
        return self._roll_back(slot, held, source.length, media, allowance)

    def _copy_of(
        self, record: Record, owner: Sequence, allowance: Allowance
    ) -> tuple[int, Blob] | None:
        """Length and state of a running slot as it is now."""
        if record.slot not in self._copies:
            with allowance.operation(Operation.SAVE, self._runner.state_size(record.slot)):
                blob = self._runner.save(record.slot)
            if blob is None:
                return None
            self._copies[record.slot] = owner.num_computed, blob
        return self._copies[record.slot]

    def _roll_back(
        self, slot: Record, held: int, length: int, media: PromptMedia, allowance: Allowance
    ) -> int:
        """Shortens a slot's memory from `held` to `length` tokens; returns what it holds then."""
        if length == held:
            return length
        slot.checkpoints = [c for c in slot.checkpoints if c.length <= length]
        if length == 0:
            self._clear(slot, allowance)
            return 0
        if self._can_cut:
            with allowance.operation(Operation.CUT):
                done = self._runner.cut(slot.slot, media.position_of(length))
        else:
            saved = next((c for c in slot.checkpoints if c.length == length), None)
            done = saved is not None
            if saved is not None:
                with allowance.operation(Operation.RESTORE, saved.blob.nbytes):
                    done = self._runner.restore(
                        slot.slot, saved.blob, length=saved.position, partial=True
                    )
        if done:
            return length
        self._clear(slot, allowance)
        return 0

    # --- while a sequence runs ------------------------------------------------------------

    def next_stop(self, sequence: Sequence) -> int:
        """The length at which a chunk of the prompt has to end; the prompt's own at last."""
        stops = self.slots[sequence.slot].stops
        ahead = (stop for stop in stops if stop > sequence.num_computed)
        return min(ahead, default=sequence.num_prompt)

    def computed(self, sequence: Sequence) -> None:
        """A step of the sequence was computed: a checkpoint may be due."""
        slot = self.slots[sequence.slot]
        if self._can_cut or not sequence.request.cache_prompt:
            return
        if sequence.num_computed in slot.stops and sequence.num_computed < sequence.num_prompt:
            slot.due.append(TakeCheckpoint())

    def cut(self, sequence: Sequence, length: int) -> None:
        """Memory holds more than the first `length` tokens: refused drafts, a failed step."""
        self.slots[sequence.slot].due.append(Cut(length, sequence.media.position_of(length)))

    def shift(self, sequence: Sequence, keep: int, drop: int) -> None:
        """The sequence dropped `drop` tokens behind the first `keep`."""
        slot = self.slots[sequence.slot]
        slot.checkpoints.clear()
        slot.due.append(Shift(keep, drop))

    def restart(self, sequence: Sequence, length: int) -> None:
        """After a failed step: back to `length` tokens if the memory can be cut, else to none."""
        slot = self.slots[sequence.slot]
        slot.due.clear()
        length = sequence.media.whole(length) if self._can_cut else 0
        sequence.rewind(length)
        if length:
            self.cut(sequence, length)
        else:
            slot.due.append(Drop())

    def is_settled(self, sequence: Sequence) -> bool:
        """Whether nothing is due, so that the sequence may be computed."""
        return not self.slots[sequence.slot].due

    def settle(self, slot: Record, allowance: Allowance) -> bool:
        """Does what is due in a slot; False: the rest has to wait for the next step."""
        while slot.due:
            match slot.due[0]:
                case TakeCheckpoint():
                    size = self._runner.state_size(slot.slot, partial=True)
                    if not allowance.permits(size):
                        return False
                    self._take_checkpoint(slot, size, allowance)
                case Cut(length=length, position=position):
                    with allowance.operation(Operation.CUT):
                        done = self._runner.cut(slot.slot, position)
                    if not done:
                        self._lose(slot, allowance)
                        return True
                    slot.checkpoints = [c for c in slot.checkpoints if c.length <= length]
                case Shift(keep=keep, drop=drop):
                    with allowance.operation(Operation.SHIFT):
                        done = self._runner.shift(slot.slot, keep, drop)
                    if not done:
                        self._lose(slot, allowance)
                        return True
                case Drop():
                    self._clear(slot, allowance)
            del slot.due[:1]
        return True

    def _lose(self, slot: Record, allowance: Allowance) -> None:
        """The runner refused: the slot is emptied, and its owner begins from the start."""
        slot.due.clear()
        self._clear(slot, allowance)
        if slot.owner is not None:
            slot.owner.rewind(0)

    def _take_checkpoint(self, slot: Record, size: int, allowance: Allowance) -> None:
        owner = slot.owner
        if owner is None:
            return
        if len(slot.checkpoints) >= MAX_CHECKPOINTS:
            thin_out(slot.checkpoints)
        if not self.host.make_room(size):
            return
        with allowance.operation(Operation.CHECKPOINT, size):
            blob = self._runner.save(slot.slot, partial=True)
        if blob is not None:
            slot.checkpoints.append(Checkpoint(owner.num_computed, owner.position, blob))

    def close_gap(self, running: Iterable[Sequence], allowance: Allowance) -> None:
        """Moves a running sequence into a gap between running slots, once the gap has cost as much
        as the move will.

        libllama computes sequences together only while their ids follow one another; over a gap it
        begins another pass over the weights.
        """
        by_slot = {sequence.slot: sequence for sequence in running}
        ids = sorted(by_slot)
        if not ids or ids[-1] - ids[0] == len(ids) - 1:
            self._lost_ms = 0.0
            return
        self._lost_ms += self._costs.pass_ms
        movable = [by_slot[i] for i in (ids[0], ids[-1]) if by_slot[i].request.slot < 0]
        if not movable:
            return
        sequence = min(movable, key=lambda s: s.num_computed)
        size = 2 * self._runner.state_size(sequence.slot)
        if self._lost_ms < self._costs.copy_ms(size) or not self.is_settled(sequence):
            return
        target = self.slots[next(i for i in range(ids[0], ids[-1]) if i not in by_slot)]
        lost_ms, self._lost_ms = self._lost_ms, 0.0  # a move that fails is not tried at once again
        is_kept = self._keep(target, len(target.tokens), allowance)
        if is_kept and allowance.permits(size):
            self._move(sequence, target, size, allowance)
        else:
            self._lost_ms = lost_ms

    def _move(self, sequence: Sequence, target: Record, size: int, allowance: Allowance) -> None:
        """Moves a running sequence into a free slot; it stays where it is if that fails."""
        source = self.slots[sequence.slot]
        self.forget(target)
        self._clear(target, allowance)
        with allowance.operation(Operation.MOVE, size):
            blob = self._runner.save(source.slot)
            if blob is None:
                return
            if not self._runner.restore(target.slot, blob, length=sequence.position):
                return
        target.owner, target.used, source.owner = sequence, source.used, None
        target.due.clear()
        target.checkpoints, target.stops = source.checkpoints, source.stops
        sequence.slot = target.slot
        source.checkpoints, source.stops = [], set()
        self._clear(source, allowance)

    # --- giving a slot back ---------------------------------------------------------------

    def release(self, sequence: Sequence) -> None:
        """Frees the sequence's slot; what it computed stays there until the slot is needed."""
        slot = self.slots[sequence.slot]
        slot.owner = None
        slot.due = [due for due in slot.due if not isinstance(due, TakeCheckpoint)]
        if sequence.num_shifted or not sequence.request.cache_prompt:
            self.forget(slot)
            return
        slot.tokens = np.array(sequence.tokens[: sequence.num_computed], dtype=np.int64)
        slot.position = sequence.position

    def discard(self, sequence: Sequence) -> None:
        """Frees the sequence's slot and forgets what it holds, which cannot be trusted."""
        slot = self.slots[sequence.slot]
        slot.owner = None
        self.forget(slot)

    def forget(self, slot: Record) -> None:
        """What a free slot holds is of no use any more, or not to be trusted."""
        slot.tokens, slot.checkpoints, slot.due = EMPTY, [], [Drop()]

    def _clear(self, slot: Record, allowance: Allowance) -> None:
        with allowance.operation(Operation.DROP):
            self._runner.clear(slot.slot)
        slot.tokens, slot.checkpoints = EMPTY, []

    # --- host RAM -------------------------------------------------------------------------

    def _keep(self, slot: Record, num_lost: int, allowance: Allowance) -> bool:
        """Saves what an idle slot holds, `num_lost` tokens of which it is about to lose, unless
        that is not worth it. False: the allowance does not permit it now."""
        if num_lost == 0 or self.host.holds(slot.tokens):
            return True
        size = self._runner.state_size(slot.slot)
        if not self._costs.worth_copying(num_lost, size, 2 * RARELY_NEEDED):
            return True
        if not allowance.permits(size):
            return False
        if not self.host.make_room(size, sparing=slot):
            return True
        with allowance.operation(Operation.SAVE, size):
            blob = self._runner.save(slot.slot)
        if blob is not None:
            self.host.put(
                Record(
                    tokens=slot.tokens,
                    position=slot.position,
                    used=slot.used,
                    checkpoints=list(slot.checkpoints),
                    blob=blob,
                )
            )
        return True

    def check(self) -> None:
        """Raises AssertionError if the books are wrong. For tests and idle moments."""
        self.host.check()
        for index, slot in enumerate(self.slots):
            assert slot.slot == index
            assert slot.blob is None
            assert slot.owner is None or slot.owner.slot == index
            assert slot.owner is None or len(slot.tokens) == 0


def _used(source: Source) -> int:
    return -1 if source.record is None else source.record.used
