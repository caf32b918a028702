"""The memory operations of a step: what costs decide, how many fit into it, and whom a failure of
one concerns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.builders import SMALL_MODEL_ON_CPU, Rig, make_request, random_text
from tests.support.scripted_runner import endless

from selfserve.engine.plan import Outcome, Plan
from selfserve.engine.remembered import Drop
from selfserve.engine.sequence import Sequence
from selfserve.request import Failed, Finished

CUTTABLE = pytest.mark.parametrize("can_cut", [True, False], ids=["plain", "hybrid"])
COPYING = ("save", "restore")


def state_bytes(num_tokens: int) -> int:
    """Of a slot of the scripted runner."""
    return 8 * (num_tokens + 1)


def run_until_decoding(rig: Rig, *ids: str) -> None:
    while not all(rig.tokens(name) for name in ids):
        rig.step()


def assert_expected(rig: Rig, *ids: str) -> None:
    for name in ids:
        assert rig.text(name) == rig.expected(rig.requests[name])


# --- thresholds follow costs: a prompt token takes 1 ms and a pass 4 ms -------------------


@pytest.mark.parametrize(("copy_ms", "is_saved"), [(12.0, True), (14.0, False)])
def test_a_slot_is_saved_if_eight_copies_beat_computing_it(copy_ms: float, is_saved: bool) -> None:
    rig = Rig(num_slots=1, copy=(state_bytes(100), copy_ms))
    rig.run([make_request(name, name * 100, max_tokens=1) for name in "ab"])
    assert (rig.runner.calls["save"] > 0) == is_saved


@pytest.mark.parametrize(("copy_ms", "is_used"), [(90.0, True), (120.0, False)])
def test_a_saved_state_is_restored_if_that_beats_computing_it(
    copy_ms: float, is_used: bool
) -> None:
    rig = Rig(num_slots=1)
    rig.run([make_request(name, name * 100, max_tokens=1) for name in "ab"])
    for _ in range(100):
        rig.costs.record_copy(state_bytes(100), copy_ms)
    rig.run([make_request("again", "a" * 100 + "!", max_tokens=1)])
    assert (rig.finished("again").cached_tokens > 0) == is_used
    assert_expected(rig, "again")


@pytest.mark.parametrize(("copy_ms", "is_used"), [(70.0, True), (85.0, False)])
def test_a_running_prompt_is_copied_if_two_copies_beat_computing_it(
    copy_ms: float, is_used: bool
) -> None:
    rig = Rig(num_slots=2, predict=endless, copy=(state_bytes(155), copy_ms))
    stem = random_text(1, 150)
    rig.add(make_request("long", stem + "long", max_tokens=200))
    run_until_decoding(rig, "long")
    rig.add(make_request("new", stem + "new", max_tokens=1))
    rig.run()
    assert rig.finished("new").cached_tokens == (150 if is_used else 0)
    assert_expected(rig, "new", "long")


@pytest.mark.parametrize(("copy_ms", "num_running"), [(90.0, 1), (110.0, 2)])
def test_a_common_beginning_is_waited_for_if_two_copies_beat_computing_it(
    copy_ms: float, num_running: int
) -> None:
    # The memory is known to be about that large once a third of the beginning is computed.
    rig = Rig(num_slots=2, copy=(state_bytes(108), copy_ms))
    stem = random_text(1, 200)
    for name in "ab":
        rig.add(make_request(name, stem + name * 50, max_tokens=1))
        rig.step()
    assert len(rig.scheduler.running) == num_running
    rig.run()
    assert_expected(rig, "a", "b")


@pytest.mark.parametrize(("length", "num_running"), [(3, 2), (10, 1)])
@CUTTABLE
def test_a_common_beginning_shorter_than_a_pass_is_not_waited_for(
    can_cut: bool, length: int, num_running: int
) -> None:
    rig = Rig(num_slots=2, can_cut=can_cut)
    for name in "ab":
        rig.add(make_request(name, "x" * length + name * 50, max_tokens=5))
    rig.step()
    assert len(rig.scheduler.running) == num_running
    assert rig.runner.plans[0][0][2] > length or num_running == 1
    rig.run()
    assert_expected(rig, "a", "b")


# --- gaps ---------------------------------------------------------------------------------


def is_moved(rig: Rig, before: dict[str, int]) -> bool:
    now = {name: sequence.slot for name, sequence in rig.scheduler.running.items()}
    return any(now.get(name, slot) != slot for name, slot in before.items())


def three_decoding(rig: Rig, **slots: int) -> None:
    for name in "abc":
        prompt = random_text(ord(name), 40 if name == "a" else 20)
        rig.add(make_request(name, prompt, max_tokens=300, slot=slots.get(name, -1)))
    run_until_decoding(rig, "a", "b", "c")
    assert [rig.scheduler.running[name].slot for name in "abc"] == [0, 1, 2]


def test_a_gap_is_closed_in_the_step_in_which_it_has_cost_as_much_as_the_move() -> None:
    rig = Rig(num_slots=3, predict=endless, copy=(1_000, 40.0))
    three_decoding(rig)
    rig.scheduler.abort("b")
    lost_ms, times = 0.0, []
    for step in range(100):
        slots = {name: s.slot for name, s in rig.scheduler.running.items()}
        used = sorted(slots.values())
        has_gap = used[-1] - used[0] >= len(used) and not rig.scheduler.waiting
        lost_ms = lost_ms + rig.costs.pass_ms if has_gap else 0.0
        size = 2 * min(state_bytes(s.num_computed) for s in rig.scheduler.running.values())
        is_due = has_gap and lost_ms >= rig.costs.copy_ms(size)
        rig.step()
        assert is_moved(rig, slots) == is_due, step
        if is_due:
            times.append(step)
            assert rig.scheduler.running["c"].slot == 1, "the one with less memory moves"
        if step == 2:  # the gap is filled for a while, which counts as closed
            rig.add(make_request("filler", "f", max_tokens=3, slot=1))
    assert len(times) == 1
    assert times[0] > 8
    rig.run()
    assert_expected(rig, "a", "c")
    rig.check_idle()


@pytest.mark.parametrize(
    ("slots", "moved"), [({"c": 2}, "a"), ({"a": 0}, "c"), ({"a": 0, "c": 2}, None)]
)
def test_who_asked_for_a_slot_is_not_moved_out_of_it(
    slots: dict[str, int], moved: str | None
) -> None:
    rig = Rig(num_slots=3, predict=endless)
    three_decoding(rig, **slots)
    rig.scheduler.abort("b")
    for _ in range(20):
        rig.step()
    now = [name for name, s in rig.scheduler.running.items() if s.slot == 1]
    assert now == ([moved] if moved else [])
    rig.run()
    assert_expected(rig, "a", "c")


def test_what_an_idle_slot_remembers_is_saved_before_somebody_moves_there() -> None:
    rig = Rig(num_slots=3, predict=endless)
    three_decoding(rig)
    prompt, answer = rig.requests["b"].prompt, rig.tokens("b")
    rig.scheduler.abort("b")
    for _ in range(20):
        rig.step()
    assert [r.tokens.tolist() for r in rig.memory.host.records] == [[*prompt, *answer[:-1]]]


# --- the allowance ------------------------------------------------------------------------


def with_slow_copies(rig: Rig, ms: float) -> None:
    """Each copy takes so long by the clock."""

    def wait(name: str, slot: int) -> bool:
        rig.clock.now_s += ms / 1e3 * (name in COPYING)
        return True

    rig.runner.on_operation = wait


def rig_with_memories(count: int, *, is_watched: bool) -> Rig:
    """`count` slots with prompts whose saving takes 15 ms of the 20 ms that a step may add to
    decoding. In the last slot somebody decodes who `is_watched`, or nobody does."""
    rig = Rig(num_slots=count + 1, predict=endless, step_ms=20.0, copy=(state_bytes(200), 15.0))
    if is_watched:
        rig.add(make_request("watched", "w" * 10, max_tokens=400, slot=count))
        run_until_decoding(rig, "watched")
    for i in range(count):
        rig.run_one(make_request(f"old{i}", random_text(i, 200), max_tokens=1, slot=i))
    with_slow_copies(rig, 15.0)
    return rig


def test_a_step_begins_operations_only_while_they_stay_within_its_allowance() -> None:
    rig = rig_with_memories(4, is_watched=True)
    for i in range(4):
        rig.add(make_request(f"new{i}", f"{i}" + random_text(10 + i, 100), max_tokens=1, slot=i))
    saves = []
    while not all(rig.ends(f"new{i}") for i in range(4)):
        before = rig.runner.calls["save"]
        rig.step()
        saves.append(rig.runner.calls["save"] - before)
        assert rig.scheduler._spent_ms <= 20.0 or saves[-1] == 1
        assert rig.runner.plans[-1][-1] == (4, rig.runner.plans[-1][-1][1], 1), "the watched one"
    assert saves[:5] == [1, 1, 1, 1, 0]
    assert_expected(rig, *(f"new{i}" for i in range(4)))


def test_while_nobody_decodes_all_operations_are_done_at_once() -> None:
    rig = rig_with_memories(4, is_watched=False)
    for i in range(4):
        rig.add(make_request(f"new{i}", f"{i}" + random_text(10 + i, 100), max_tokens=1, slot=i))
    rig.step()
    assert rig.runner.calls["save"] == 4
    assert len(rig.scheduler.running) == 4


def test_prompts_get_what_the_operations_of_a_step_leave() -> None:
    sizes = []
    for ms in (0.0, 10.0):
        rig = rig_with_memories(1, is_watched=True)
        with_slow_copies(rig, ms)
        rig.add(make_request("new", random_text(9, 100), max_tokens=1, slot=0))
        rig.step()
        (size,) = (size for _, _, size in rig.runner.plans[-1] if size > 1)
        sizes.append(size)
    per_ms = 1 / rig.costs.token_ms
    assert sizes[0] - sizes[1] == pytest.approx(10 * per_ms, abs=2)


def test_an_operation_larger_than_the_allowance_is_done_all_the_same() -> None:
    rig = rig_with_memories(2, is_watched=True)
    with_slow_copies(rig, 50.0)
    for i in range(2):
        rig.add(make_request(f"new{i}", f"{i}" + random_text(10 + i, 100), max_tokens=1, slot=i))
    for expected in (1, 2):
        rig.step()
        assert len(rig.scheduler.running) == 1 + expected
        assert rig.scheduler._spent_ms == pytest.approx(50.0)


# --- what is due --------------------------------------------------------------------------


def test_a_checkpoint_that_has_to_wait_keeps_its_sequence_where_it_is() -> None:
    rig = Rig(
        num_slots=3, can_cut=False, predict=endless, step_ms=100.0, copy=(state_bytes(34), 60.0)
    )
    rig.add(make_request("watched", "w", max_tokens=400))
    run_until_decoding(rig, "watched")
    with_slow_copies(rig, 60.0)
    for i in range(2):
        rig.add(make_request(str(i), random_text(i, 50), max_tokens=1))
    num_late = 0
    while not all(rig.ends(str(i)) for i in range(2)):
        plan = rig.plan()
        assert plan is not None
        due = {slot.slot for slot in rig.memory.slots if slot.due}
        num_late += len(due)
        assert not due & {chunk.slot for chunk in plan.chunks}
        rig.commit(plan)
    assert num_late > 0, "no checkpoint had to wait"
    for slot in rig.memory.slots[1:]:
        assert [c.length for c in slot.checkpoints] == [34, 49]
        assert [c.position for c in slot.checkpoints] == [34, 49]


def running_in_slot(rig: Rig) -> Sequence:
    """A sequence whose prompt of 60 tokens is computed."""
    rig.add(make_request("a", random_text(1, 60), max_tokens=50))
    run_until_decoding(rig, "a")
    return rig.scheduler.running["a"]


@pytest.mark.parametrize("length", [50, 0])
def test_what_a_cut_left_is_remembered_after_the_end(length: int) -> None:
    rig = Rig(num_slots=1, predict=endless)
    sequence = running_in_slot(rig)
    rig.memory.restart(sequence, length)
    rig.scheduler.abort("a")
    rig.scheduler.operate()
    held = rig.memory.slots[0].tokens.tolist()
    assert held == rig.runner.memory[0] == list(sequence.tokens[:length])
    rig.run([make_request("b", sequence.tokens[:60], max_tokens=1)])
    assert rig.finished("b").cached_tokens == length


def test_a_memory_that_cannot_be_cut_starts_anew_after_a_failed_step() -> None:
    rig = Rig(num_slots=1, can_cut=False, predict=endless)
    sequence = running_in_slot(rig)
    rig.memory.restart(sequence, 50)
    assert sequence.num_computed == 0
    assert rig.memory.slots[0].due == [Drop()]
    rig.run()
    assert_expected(rig, "a")


# --- failures -----------------------------------------------------------------------------


class Broken:
    """Raises in the next call of that name; the slot's memory is not to be trusted then."""

    def __init__(self, rig: Rig, name: str) -> None:
        self._rig, self._name = rig, name
        self.num_raised = 0
        rig.runner.on_operation = self

    def __call__(self, name: str, slot: int) -> bool:
        if name == self._name and not self.num_raised:
            self.num_raised += 1
            if name != "save":
                self._rig.runner.damaged.add(slot)
            raise RuntimeError("injected")
        return True


def displace(rig: Rig) -> str:
    rig.add(make_request("new", random_text(9, 90), max_tokens=3))
    return "new"


def come_back(rig: Rig) -> str:
    displace(rig)
    rig.step()
    rig.add(make_request("back", [*rig.requests["old"].prompt, 33], max_tokens=3))
    return "back"


def share(rig: Rig) -> str:
    rig.add(make_request("late", [*rig.requests["other"].prompt, 33], max_tokens=3))
    return "late"


def edit(rig: Rig) -> str:
    rig.add(make_request("edit", rig.requests["old"].prompt[:60], max_tokens=3))
    return "edit"


def shift(rig: Rig) -> str:
    rig.add(make_request("shift", random_text(8, 500), max_tokens=40, n_keep=10))
    return "shift"


@pytest.mark.parametrize(
    ("cause", "operation"),
    [
        (displace, "save"),
        (come_back, "restore"),
        (share, "save"),
        (share, "restore"),
        (edit, "cut"),
        (shift, "shift"),
    ],
)
def test_an_exception_in_a_memory_operation_ends_only_the_request_it_belongs_to(
    cause: Callable[[Rig], str], operation: str
) -> None:
    rig = Rig(num_slots=2, predict=endless)
    rig.run([make_request("old", random_text(1, 120), max_tokens=1, slot=1)])
    rig.add(make_request("other", random_text(2, 80), max_tokens=300, slot=0))
    run_until_decoding(rig, "other")
    broken = Broken(rig, operation) if cause is not come_back else None
    victim = cause(rig)
    broken = broken or Broken(rig, operation)
    rig.run()
    assert broken.num_raised == 1
    assert rig.failed(victim).error == "InternalError"
    assert [e.id for e in rig.events if isinstance(e, Failed)] == [victim]
    assert_expected(rig, *(name for name in rig.requests if name != victim))
    rig.check_idle()


@pytest.mark.parametrize("operation", COPYING)
def test_a_move_that_fails_leaves_the_sequence_where_it_is(operation: str) -> None:
    rig = Rig(num_slots=3, predict=endless)
    three_decoding(rig)
    rig.scheduler.abort("b")
    broken = Broken(rig, operation)
    while not broken.num_raised:
        rig.step()
    rig.add(make_request("again", rig.requests["b"].prompt, max_tokens=3))
    rig.run()
    assert_expected(rig, "a", "c", "again")
    rig.check_idle()


def test_who_gets_a_slot_in_the_step_in_which_another_failed_in_it_gets_the_right_answer() -> None:
    rig = Rig(num_slots=1, predict=endless)
    rig.run([make_request(name, name * 120, max_tokens=1) for name in "abc"])
    Broken(rig, "restore")
    rig.add(make_request("first", "b" * 120 + "!", max_tokens=9))
    rig.add(make_request("second", "a" * 120 + "!", max_tokens=9))
    rig.step()
    assert rig.failed("first").error == "InternalError"
    assert list(rig.scheduler.running) == ["second"]
    rig.run()
    assert rig.finished("second").cached_tokens == 120
    assert_expected(rig, "second")
    rig.check_idle()


def test_an_exception_in_a_slot_that_nobody_owns_ends_nobodys_request() -> None:
    rig = Rig(num_slots=2, predict=endless)
    rig.add(make_request("other", random_text(2, 80), max_tokens=100, slot=1))
    sequence = running_in_slot(rig)
    rig.memory.restart(sequence, 50)
    rig.scheduler.abort("a")
    broken = Broken(rig, "cut")
    rig.step()
    assert broken.num_raised == 1
    rig.run([make_request("again", random_text(1, 60), max_tokens=3, slot=0)])
    assert_expected(rig, "other", "again")
    rig.check_idle()


class Trouble:
    """Now and then a memory operation or a step is refused or fails."""

    def __init__(self, rig: Rig, rng: random.Random, rate: float) -> None:
        self._rig, self._rng, self._rate = rig, rng, rate
        rig.runner.on_operation = self.operation
        rig.runner.fault = self.step

    def operation(self, name: str, slot: int) -> bool:
        chance = self._rng.random()
        if name == "clear" or chance > self._rate:
            return True
        if chance > self._rate / 2:
            return False
        if name != "save":
            self._rig.runner.damaged.add(slot)
        raise RuntimeError("injected")

    def step(self, plan: Plan) -> Outcome | None:
        if self._rng.random() > self._rate / 4:
            return None
        return self._rng.choice([Outcome.UNCHANGED, Outcome.PARTIAL])


@CUTTABLE
@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(8))
def test_the_books_agree_after_every_step_of_a_random_history(
    seed: int, rate: float, can_cut: bool
) -> None:
    rng = random.Random(f"{seed} {rate}")
    rig = Rig(
        num_slots=rng.choice([1, 2, 4]),
        can_cut=can_cut,
        context_size=192,
        cache_ram_bytes=rng.choice([0, 2_000, 6_000, 1 << 20]),
        has_drafts=True,
        batches=SMALL_MODEL_ON_CPU,
        predict=endless,
    )
    Trouble(rig, rng, rate)
    stems = [random_text(rng.randrange(1 << 30), 120) for _ in range(3)]
    gone: set[str] = set()
    for number in range(150):
        if rng.random() < 0.3:
            prompt = rng.choice(stems)[: rng.randrange(1, 120)] + random_text(number, 9)
            limit = rng.choice([1, 5, 20, 100])
            rig.add(make_request(str(number), prompt, max_tokens=limit, n_keep=5))
        for name in [n for n in rig.requests if not rig.ends(n) and n not in gone]:
            chance = rng.random()
            if chance < 0.02:
                rig.scheduler.abort(name)
                gone.add(name)
            elif chance < 0.1:
                rig.scheduler.hold(name, rng.random() < 0.5)
        rig.step()
        rig.memory.check()
    for name in rig.requests:
        rig.scheduler.hold(name, False)
    rig.run()
    rig.runner.on_operation = lambda name, slot: True
    rig.check_idle()
    ends = [end for name in rig.requests if name not in gone for end in rig.ends(name)]
    assert len(ends) == len(rig.requests) - len(gone)
    whole = [e.id for e in ends if isinstance(e, Finished) and not e.truncated]
    assert len(whole) > len(ends) // 3
    assert_expected(rig, *whole)
    if rate == 0.0:
        assert not [e for e in ends if isinstance(e, Failed)]
