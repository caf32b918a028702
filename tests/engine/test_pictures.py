"""Scheduling of prompts with pictures, on the scripted runner."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.builders import Rig, make_request
from tests.support.scripted_pictures import (
    ScriptedEncoder,
    blind_layout,
    flat_layout,
    make_picture,
)
from tests.support.scripted_runner import ScriptedRunner, endless

from selfserve.engine.pictures import Layout, expand
from selfserve.engine.plan import Outcome, PicturePlan, Plan
from selfserve.errors import UnsupportedImage
from selfserve.request import PICTURE_TOKEN, Picture, Request

RUNNER_FIELDS = ("num_slots", "context_size", "batch_size", "can_cut", "predict")


class PictureRig(Rig):
    """A rig that takes pictures, and keeps the plans that it ran."""

    def __init__(
        self, encoder: ScriptedEncoder | None = None, layout: Layout = flat_layout, **fields: Any
    ) -> None:
        runner = ScriptedRunner(**{k: fields.pop(k) for k in RUNNER_FIELDS if k in fields})
        runner.pictures = SimpleNamespace(layout=layout)  # type: ignore[assignment]
        self.encoder = encoder or ScriptedEncoder()
        super().__init__(runner, encoder=self.encoder, **fields)
        self._layout = layout
        self.kinds: list[list[str]] = []
        """Of each step, what each of its chunks is."""
        self.runner.fault = self._note

    def _note(self, plan: Plan) -> Outcome | None:
        is_picture = isinstance(plan, PicturePlan)
        for chunk in plan.chunks:
            assert any(token < 0 for token in chunk.tokens) == is_picture
        if isinstance(plan, PicturePlan):
            assert len(plan.rows.embeddings) == len(plan.chunk.tokens)
            assert plan.rows.positions.shape[1] == len(plan.chunk.tokens)
            assert all(token < 0 for token in plan.chunk.tokens)
            # The very rows of this picture, and no others.
            span = next(plan.chunk.sequence.media.spans_after(plan.chunk.start))
            encoded = self.encoder.result(span.digest)
            assert isinstance(encoded, tuple)
            offset = plan.chunk.start - span.start
            part = encoded[span.index][offset : offset + len(plan.chunk.tokens)]
            assert np.array_equal(plan.rows.embeddings, part)
        self.kinds.append(["picture" if is_picture else "text"] * len(plan.chunks))
        return None

    def expected(self, request: Request) -> str:
        context_size = self.runner.capabilities.context_size
        return super().expected(expand(request, self._layout, context_size)[0])

    def check(self, request: Request) -> None:
        """The answer is that of a cold engine."""
        self.finished(request.id)
        assert self.text(request.id) == self.expected(request)


def asking(
    id: str,
    *names: str,
    text: bytes = b"What is it?",
    size: tuple[int, int] = (4, 3),
    **fields: Any,
) -> Request:
    """Pictures, then a question."""
    pictures: tuple[Picture, ...] = tuple(make_picture(name, *size) for name in names)
    prompt = [*b"user: ", *([PICTURE_TOKEN] * len(names)), *text]
    return make_request(id, prompt, pictures=pictures, **fields)


@pytest.fixture
def rig() -> PictureRig:
    return PictureRig()


def test_an_answer_depends_on_the_picture(rig: PictureRig) -> None:
    requests = [asking("a", "cat"), asking("b", "dog"), asking("c", "cat", "dog")]
    rig.run(requests)
    for request in requests:
        rig.check(request)
    assert len({rig.text(request.id) for request in requests}) == 3
    rig.check_idle()


def test_prompt_counts_hold_the_pictures_tokens(rig: PictureRig) -> None:
    rig.run([asking("a", "cat")])
    assert rig.finished("a").prompt_tokens == 6 + 1 + 12 + 1 + 11


def test_a_second_turn_encodes_nothing_and_computes_only_the_new_text(rig: PictureRig) -> None:
    first = asking("a", "cat")
    rig.run([first])
    computed, encoded = rig.runner.num_computed, rig.encoder.num_encoded
    text = b"What is it?" + rig.text("a").encode() + b" And now?"
    second = asking("b", "cat", text=text)
    rig.run([second])
    rig.check(second)
    assert rig.encoder.num_encoded == encoded == 1
    new = len(text) - len(b"What is it?")
    generated = rig.finished("b").completion_tokens
    assert rig.runner.num_computed - computed <= new + generated
    assert ["picture"] not in rig.kinds[-generated - 1 :]


def test_another_picture_of_the_same_size_is_no_hit(rig: PictureRig) -> None:
    rig.run([asking("a", "cat")])
    second = asking("b", "dog")
    rig.run([second])
    rig.check(second)
    assert rig.finished("b").cached_tokens == 7
    assert rig.encoder.num_encoded == 2


def test_a_prompt_may_end_with_a_picture_and_come_again() -> None:
    rig = PictureRig(layout=lambda width, height: flat_layout(width, height)[:2])
    for request_id in "ab":
        request = asking(request_id, "cat", text=b"")
        rig.run([request])
        rig.check(request)
    assert rig.finished("b").cached_tokens == 7


def test_everybody_else_goes_on_while_a_picture_is_encoded() -> None:
    rig = PictureRig(ScriptedEncoder(patience=10))
    talking = make_request("a", "Hello", max_tokens=30)
    rig.add(talking)
    rig.step()
    seeing = asking("b", "cat")
    rig.add(seeing)
    for _ in range(8):
        before = len(rig.tokens("a"))
        rig.step()
        assert len(rig.tokens("a")) > before or rig.ends("a")
        assert not rig.tokens("b")
    rig.run()
    for request in (talking, seeing):
        rig.check(request)


def test_nothing_is_planned_while_all_wait_for_pictures() -> None:
    rig = PictureRig(ScriptedEncoder(patience=5))
    rig.add(asking("a", "cat"))
    rig.step()
    assert rig.num_steps == 1
    rig.step()
    assert rig.num_steps == 1
    assert rig.scheduler.has_work
    rig.run()
    rig.check(asking("a", "cat"))


@pytest.mark.parametrize(
    ("layout", "num_steps"), [(flat_layout, 4), (blind_layout, 1)], ids=["causal", "blind"]
)
def test_a_picture_is_divided_only_if_its_tokens_look_back_only(
    layout: Callable[..., Any], num_steps: int
) -> None:
    rig = PictureRig(layout=layout, batch_size=64)
    request = asking("a", "cat", size=(20, 10) if num_steps > 1 else (8, 8))
    rig.run([request])
    rig.check(request)
    assert rig.kinds.count(["picture"]) == num_steps


def test_a_decoding_stream_has_a_step_between_the_parts_of_a_picture() -> None:
    rig = PictureRig(step_ms=20.0, predict=endless)
    talking = make_request("a", "Hello", max_tokens=100)
    rig.add(talking)
    rig.step()
    seeing = asking("b", "cat", size=(20, 10))
    rig.run([seeing])
    for request in (talking, seeing):
        rig.check(request)
    assert rig.kinds.count(["picture"]) > 5
    assert (["picture"], ["picture"]) not in pairwise(rig.kinds)


def test_two_who_ask_about_one_picture_share_its_computation(rig: PictureRig) -> None:
    long = b"What is it? " * 5
    first, second = asking("a", "cat", text=long + b"1"), asking("b", "cat", text=long + b"2")
    rig.run([first, second])
    for request in (first, second):
        rig.check(request)
    assert rig.kinds.count(["picture"]) == 1
    assert rig.finished("b").cached_tokens >= 20 + len(long)


@pytest.mark.parametrize("can_cut", [True, False])
def test_chats_about_pictures_take_turns_in_one_slot(can_cut: bool) -> None:
    rig = PictureRig(num_slots=1, can_cut=can_cut)
    chats = dict.fromkeys(("cat", "dog", "cow"), b"What do you see in this picture?")
    for turn in range(3):
        for name, text in chats.items():
            request = asking(f"{name}{turn}", name, text=text)
            rig.run([request])
            rig.check(request)
            chats[name] = text + rig.text(request.id).encode() + b" And what else is there?"
    assert rig.memory.num_hits > 0
    rig.check_idle()


def test_a_picture_that_cannot_be_encoded_fails_its_request_alone() -> None:
    rig = PictureRig(ScriptedEncoder(error=UnsupportedImage("no picture")))
    other = make_request("b", "Hello")
    rig.run([asking("a", "cat"), other])
    assert rig.failed("a").error == "UnsupportedImage"
    rig.check(other)
    assert rig.encoder.wanted == set()
    rig.check_idle()


def test_pictures_over_the_context_fail_before_anything_is_encoded(rig: PictureRig) -> None:
    rig.add(asking("a", *"abcdefghijkl", size=(8, 6)))
    rig.step()
    failure = rig.failed("a")
    assert failure.error == "ContextLengthExceeded"
    assert failure.details["n_prompt_tokens"] == 6 + 12 * 50 + 11
    assert rig.encoder.num_encoded == 0
    assert rig.runner.num_computed == 0


def test_who_leaves_while_a_picture_is_encoded_wants_nothing_any_more() -> None:
    rig = PictureRig(ScriptedEncoder(patience=100))
    rig.add(asking("a", "cat"))
    rig.step()
    rig.step()
    assert rig.encoder.wanted == {"a"}
    rig.scheduler.abort("a")
    assert rig.encoder.wanted == set()
    again = asking("b", "cat")
    rig.run([again], max_steps=200)
    rig.check(again)
    rig.check_idle()


@pytest.mark.parametrize("outcome", [Outcome.UNCHANGED, Outcome.PARTIAL])
@pytest.mark.parametrize("failing", range(1, 6))
def test_a_failed_step_loses_no_picture(rig: PictureRig, outcome: Outcome, failing: int) -> None:
    count = 0

    def fail_once(plan: Plan) -> Outcome | None:
        nonlocal count
        count += 1
        return outcome if count == failing else None

    rig.runner.fault = fail_once
    requests = [asking("a", "cat"), asking("b", "dog"), make_request("c", "Hello")]
    rig.run(requests)
    for request in requests:
        rig.check(request)


def test_the_sampler_and_the_drafter_see_text_only(rig: PictureRig) -> None:
    seen: list[list[int]] = []
    make = rig.runner.sampler
    rig.runner.sampler = lambda params, prompt: (  # type: ignore[method-assign]
        seen.append(list(prompt)) or make(params, prompt)  # type: ignore[func-returns-value]
    )
    rig.run([asking("a", "cat")])
    assert seen[0] == [*b"user: ", 60, 62, *b"What is it?"]


def test_a_full_context_with_a_picture_in_it_is_not_shifted() -> None:
    rig = PictureRig(context_size=64, predict=endless)
    rig.run([asking("a", "cat", n_keep=0, max_tokens=None)])
    assert rig.runner.calls["shift"] == 0
    assert rig.finished("a").truncated


def test_pixels_are_kept_until_they_are_encoded_and_no_longer() -> None:
    rig = PictureRig(ScriptedEncoder(patience=3))
    rig.add(asking("a", "cat", "dog"))
    media = rig.scheduler.waiting["a"].media
    assert len(media.pixels) == 2
    rig.step()
    assert len(media.pixels) == 2
    while rig.encoder.result(media.spans[0].digest) is None:
        rig.step()
    rig.step()
    assert not media.pixels
    rig.run()
    rig.check(asking("a", "cat", "dog"))
