"""What slots remember: nothing is computed twice that memory allows to keep, nothing is taken that
is not the same text, and host memory stays under its limit."""

from __future__ import annotations

import pytest
from tests.support.builders import Rig, make_request, random_text
from tests.support.byte_vocabulary import EOS
from tests.support.scripted_runner import endless

from selfserve.engine.remembered import MAX_CHECKPOINTS
from selfserve.request import Request

CUTTABLE = pytest.mark.parametrize("can_cut", [True, False], ids=["plain", "hybrid"])


def computed_by(rig: Rig, *requests: Request) -> int:
    """Tokens that the runner computes for these requests, which all get the right answer."""
    before = rig.runner.num_computed
    rig.run(requests)
    for request in requests:
        assert rig.text(request.id) == rig.expected(request)
    rig.check_idle()
    return rig.runner.num_computed - before


# --- one slot after the other -------------------------------------------------------------


def test_the_next_prompt_pays_only_for_what_is_new() -> None:
    rig = Rig(num_slots=2)
    assert computed_by(rig, make_request("a", "x" * 100, max_tokens=1)) == 100
    assert computed_by(rig, make_request("b", "x" * 100 + "yes", max_tokens=1)) == 3
    assert computed_by(rig, make_request("c", "x" * 60 + "no", max_tokens=1)) == 2
    assert rig.finished("c").cached_tokens == 60


@CUTTABLE
def test_a_repeated_prompt_computes_one_token_again(can_cut: bool) -> None:
    rig = Rig(can_cut=can_cut)
    prompt = random_text(1, 100)
    computed_by(rig, make_request("a", prompt, max_tokens=1))
    assert computed_by(rig, make_request("b", prompt, max_tokens=1)) == 1


@CUTTABLE
def test_the_turns_of_a_chat_pay_only_for_what_is_new(can_cut: bool) -> None:
    rig = Rig(num_slots=2, can_cut=can_cut, context_size=2048)
    chat = random_text(0, 300)
    computed_by(rig, make_request("0", chat, max_tokens=30))
    for turn in range(1, 6):
        # The next prompt renders the turn's last few tokens otherwise and adds the user's words.
        added = rig.text(str(turn - 1)).rstrip() + random_text(turn, 40)
        chat = chat[:-6] + "|" + added
        request = make_request(str(turn), chat, max_tokens=30)
        computed = computed_by(rig, request)
        assert computed <= 30 + len(added) + 7 + (0 if can_cut else 64), f"turn {turn}"


@CUTTABLE
def test_a_prompt_that_goes_on_after_the_answer_pays_for_what_is_new_alone(can_cut: bool) -> None:
    rig = Rig(can_cut=can_cut, predict=endless)
    first = make_request("a", random_text(1, 80), max_tokens=20)
    computed_by(rig, first)
    prompt = [*first.prompt, *rig.tokens("a"), *b"and then?"]
    computed_by(rig, make_request("b", prompt, max_tokens=1))
    assert rig.finished("b").cached_tokens == 80 + 20 - 1  # the last one was never computed


@CUTTABLE
def test_what_must_not_be_kept_leaves_nothing_behind(can_cut: bool) -> None:
    rig = Rig(can_cut=can_cut)
    request = make_request("a", "secret" * 20, max_tokens=5, cache_prompt=False)
    assert computed_by(rig, request) >= 120
    assert not any(rig.runner.memory)
    assert not rig.memory.host.records
    assert not any(slot.checkpoints for slot in rig.memory.slots)
    computed_by(rig, make_request("b", "secret" * 20 + "?", max_tokens=1))
    assert rig.finished("b").cached_tokens == 0


@CUTTABLE
def test_who_asks_for_a_cold_evaluation_gets_one(can_cut: bool) -> None:
    rig = Rig(can_cut=can_cut)
    prompt = random_text(1, 90)
    computed_by(rig, make_request("a", prompt, max_tokens=1))
    cold = make_request("b", prompt, max_tokens=1, cache_prompt=False)
    assert computed_by(rig, cold) == 90
    assert rig.finished("b").cached_tokens == 0


def test_an_empty_slot_is_taken_before_one_that_remembers() -> None:
    rig = Rig(num_slots=3)
    for name in "abc":
        computed_by(rig, make_request(name, name * 50, max_tokens=1))
    assert sorted(slot.tokens[0] for slot in rig.memory.slots) == [97, 98, 99]
    computed_by(rig, make_request("d", "d" * 50, max_tokens=1))
    assert rig.finished("d").slot == rig.finished("a").slot  # the one that was not used the longest


# --- several at once ----------------------------------------------------------------------


@CUTTABLE
def test_simultaneous_prompts_compute_their_common_beginning_once(can_cut: bool) -> None:
    rig = Rig(num_slots=4, can_cut=can_cut)
    stem = random_text(1, 200)
    requests = [
        make_request(str(i), f"{stem}{i}" + random_text(i, 19), max_tokens=1) for i in range(4)
    ]
    assert computed_by(rig, *requests) == 200 + 4 * 20


@CUTTABLE
def test_a_common_beginning_is_computed_once_for_more_prompts_than_slots(can_cut: bool) -> None:
    rig = Rig(num_slots=2, can_cut=can_cut)
    stem = random_text(1, 200)
    requests = [make_request(str(i), f"{stem}{i}" + "z" * 19, max_tokens=1) for i in range(6)]
    assert computed_by(rig, *requests) == 200 + 6 * 20


@CUTTABLE
def test_equal_prompts_at_once_compute_one_of_them(can_cut: bool) -> None:
    rig = Rig(num_slots=4, can_cut=can_cut)
    prompt = random_text(1, 200)
    requests = [make_request(str(i), prompt, max_tokens=1) for i in range(4)]
    assert computed_by(rig, *requests) == 200 + 3


@CUTTABLE
def test_beginnings_of_different_length_are_each_computed_once(can_cut: bool) -> None:
    rig = Rig(num_slots=4, can_cut=can_cut)
    first, second = random_text(1, 100), random_text(2, 100)
    prompts = [first + "A" * 50, first + second + "B" * 50, first + second + "C" * 50]
    requests = [make_request(str(i), prompt, max_tokens=1) for i, prompt in enumerate(prompts)]
    assert computed_by(rig, *requests) == 100 + 50 + 100 + 2 * 50


@CUTTABLE
def test_later_copies_of_a_running_prompt_are_longer_than_earlier_ones(can_cut: bool) -> None:
    rig = Rig(num_slots=4, can_cut=can_cut)
    first, second = random_text(1, 100), random_text(2, 150)
    prompts = [first + second + "A" * 50, first + "B" * 50, first + second + "C" * 50]
    requests = [make_request(str(i), prompt, max_tokens=1) for i, prompt in enumerate(prompts)]
    assert computed_by(rig, *requests) == 100 + 150 + 3 * 50


@CUTTABLE
def test_nothing_is_taken_from_a_running_prompt_that_must_not_be_kept(can_cut: bool) -> None:
    rig = Rig(num_slots=2, can_cut=can_cut, predict=endless)
    stem = random_text(1, 150)
    rig.add(make_request("private", stem, max_tokens=60, cache_prompt=False))
    while not rig.tokens("private"):
        rig.step()
    rig.add(make_request("new", stem, max_tokens=1))
    rig.run()
    assert rig.finished("new").cached_tokens == 0


def test_a_newcomer_takes_the_beginning_from_one_who_still_decodes() -> None:
    rig = Rig(num_slots=2, predict=endless)
    stem = random_text(1, 150)
    rig.add(make_request("long", stem + "long", max_tokens=200))
    while not rig.tokens("long"):
        rig.step()
    rig.add(make_request("new", stem + "new", max_tokens=1))
    rig.run()
    assert rig.finished("new").cached_tokens == 150
    for request in rig.requests.values():
        assert rig.text(request.id) == rig.expected(request)


def test_who_waits_for_a_beginning_is_not_left_waiting_when_it_goes_away() -> None:
    rig = Rig(num_slots=2)
    stem = random_text(1, 300)
    rig.add(make_request("first", stem, max_tokens=1))
    rig.add(make_request("second", stem + "?", max_tokens=1))
    rig.step()
    assert rig.scheduler.waiting
    rig.scheduler.abort("first")
    rig.run()
    assert rig.text("second") == rig.expected(rig.requests["second"])
    assert rig.finished("second").cached_tokens > 0  # what the first one had computed


# --- host memory --------------------------------------------------------------------------


@CUTTABLE
def test_what_a_slot_loses_is_found_again(can_cut: bool) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut)
    talks = [random_text(i, 120) for i in range(4)]
    for i, talk in enumerate(talks):
        computed_by(rig, make_request(f"a{i}", talk, max_tokens=1))
    for i, talk in enumerate(talks):
        request = make_request(f"b{i}", talk + "go on", max_tokens=1)
        assert computed_by(rig, request) == 5
        assert rig.finished(f"b{i}").cached_tokens == 120


@CUTTABLE
@pytest.mark.parametrize("limit", [0, 700, 2_500, 10_000])
def test_saved_states_and_checkpoints_never_grow_beyond_the_limit(
    limit: int, can_cut: bool
) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut, cache_ram_bytes=limit)
    for i in range(8):
        computed_by(rig, make_request(str(i), random_text(i, 100), max_tokens=3))
        assert rig.memory.host.num_bytes <= limit


@CUTTABLE
def test_room_is_made_before_memory_is_taken(can_cut: bool) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut, cache_ram_bytes=2_000)

    def check(name: str, slot: int) -> bool:
        if name == "save":
            assert rig.memory.host.num_bytes + rig.runner.state_size(slot) <= 2_000
        return True

    rig.runner.on_operation = check
    for i in range(6):
        computed_by(rig, make_request(str(i), random_text(i, 100), max_tokens=1))
    assert rig.runner.calls["save"] >= 5
    assert rig.memory.host.num_bytes > 1_000


def test_a_state_larger_than_the_limit_is_not_even_copied() -> None:
    rig = Rig(num_slots=1, cache_ram_bytes=500)
    for i in range(3):
        computed_by(rig, make_request(str(i), random_text(i, 100), max_tokens=1))
    assert rig.runner.calls["save"] == 0


@CUTTABLE
def test_a_state_that_cannot_be_restored_costs_time_and_nothing_else(can_cut: bool) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut)
    talks = [random_text(i, 120) for i in range(3)]
    for i, talk in enumerate(talks):
        computed_by(rig, make_request(f"a{i}", talk, max_tokens=1))
    rig.runner.on_operation = lambda name, slot: name != "restore"
    for i, talk in enumerate(talks):
        computed_by(rig, make_request(f"b{i}", talk + "!", max_tokens=3))
        assert rig.finished(f"b{i}").cached_tokens in (0, 120)


def test_a_beginning_that_two_talks_share_is_taken_from_either() -> None:
    rig = Rig(num_slots=1)
    stem = random_text(1, 100)
    computed_by(rig, make_request("a", stem + "a" * 60, max_tokens=1))
    computed_by(rig, make_request("b", "unlike" * 20, max_tokens=1))
    assert computed_by(rig, make_request("c", stem + "c" * 60, max_tokens=1)) == 60


def test_what_was_used_last_leaves_host_memory_last() -> None:
    rig = Rig(num_slots=1, cache_ram_bytes=2 * 8 * 102)
    talks = {name: name * 100 for name in "abc"}
    for name, talk in talks.items():
        computed_by(rig, make_request(name, talk, max_tokens=1))
    computed_by(rig, make_request("again", talks["a"] + "!", max_tokens=1))
    assert rig.finished("again").cached_tokens == 100
    assert {chr(record.tokens[0]) for record in rig.memory.host.records} == {"a", "c"}


@pytest.mark.parametrize(("can_cut", "lengths"), [(True, [40, 90]), (False, [40, 60, 90])])
def test_a_longer_saved_state_replaces_those_it_begins_with_if_it_can_be_cut(
    can_cut: bool, lengths: list[int]
) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut)
    talk = random_text(1, 90)
    for name, prompt in {"a": talk[:60], "b": "b" * 40, "c": talk, "d": "d" * 10}.items():
        rig.run([make_request(name, prompt, max_tokens=1)])
    assert sorted(len(record.tokens) for record in rig.memory.host.records) == lengths
    assert rig.memory.host.num_evictions == 0


@CUTTABLE
def test_what_is_saved_already_is_not_saved_again(can_cut: bool) -> None:
    rig = Rig(num_slots=1, can_cut=can_cut)
    for i in range(3):
        computed_by(rig, make_request(f"a{i}", "a" * 100, max_tokens=1))
        computed_by(rig, make_request(f"b{i}", "b" * 100, max_tokens=1))
    assert sorted(len(record.tokens) for record in rig.memory.host.records) == [100, 100]


def test_host_memory_holds_a_bounded_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfserve.engine.host.MAX_RECORDS", 3)
    rig = Rig(num_slots=1)
    rig.run([make_request(name, name * 50, max_tokens=1) for name in "abcdef"])
    assert [chr(record.tokens[0]) for record in rig.memory.host.records] == ["c", "d", "e"]


def test_a_slot_has_a_bounded_number_of_checkpoints_and_keeps_the_newest() -> None:
    rig = Rig(num_slots=1, can_cut=False, cache_ram_bytes=1 << 20)
    rig.add(make_request("a", random_text(1, 400), max_tokens=1))
    rig.step()
    for length in range(70, 390, 20):
        rig.memory.await_fork(rig.scheduler.running["a"], length)
    rig.run()
    lengths = [c.length for c in rig.memory.slots[0].checkpoints]
    assert len(lengths) == MAX_CHECKPOINTS
    assert lengths[-1] == 399
    assert lengths == sorted(lengths)


def test_checkpoints_of_a_forgotten_text_are_never_used_for_another() -> None:
    rig = Rig(num_slots=1, can_cut=False)
    stem, other = random_text(1, 84), random_text(2, 200)
    computed_by(rig, make_request("stem", stem + "x" * 16, max_tokens=1))
    computed_by(rig, make_request("old", stem + "O" * 100, max_tokens=1))
    computed_by(rig, make_request("new", stem + "N" + other, max_tokens=1))
    # Shares more with the new text than the length of a checkpoint of the old one.
    computed_by(rig, make_request("third", stem + "N" + other[:150] + "?" * 9, max_tokens=4))


# --- privacy ------------------------------------------------------------------------------


@CUTTABLE
def test_a_shifted_context_is_never_taken_for_the_text_it_began_with(can_cut: bool) -> None:
    rig = Rig(num_slots=1, context_size=64, can_cut=can_cut, predict=endless)
    prompt = random_text(1, 50)
    rig.run([make_request("a", prompt, max_tokens=60, n_keep=10)])
    assert rig.finished("a").truncated
    rig.check_idle()
    assert not rig.runner.memory[0]
    computed_by(rig, make_request("b", prompt, max_tokens=5))
    assert rig.finished("b").cached_tokens == 0


def test_an_end_token_in_memory_is_compared_like_any_other() -> None:
    rig = Rig(num_slots=1)
    computed_by(rig, make_request("a", [*b"x" * 60, EOS, *b"y" * 40], max_tokens=1))
    rig.run([make_request("b", [*b"x" * 60, *b"y" * 40], max_tokens=1)])
    assert rig.finished("b").cached_tokens == 60
