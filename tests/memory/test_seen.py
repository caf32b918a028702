"""Pictures in every kind of memory: what is taken over, cut off, copied or restored with a picture
in it answers as if everything had been computed anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.support.builders import make_request
from tests.support.scripted_pictures import (
    blind_layout,
    flat_layout,
    grid_layout,
    make_picture,
)
from tests.support.tiny_engine import ColdAnswer, ColdAnswers, TinyEngine

from selfserve.engine.pictures import Layout
from selfserve.request import PICTURE_TOKEN, Delta, Request

LAYOUTS: dict[str, Layout] = {
    "llama": flat_layout,
    "gemma3": blind_layout,
    "qwen35": grid_layout,
    "mamba": flat_layout,
}
"""M-RoPE where the model has it, and a mask without direction where such models have it."""


class Seeing:
    """An engine with scripted pictures."""

    def __init__(self, engine: TinyEngine) -> None:
        self.engine = engine

    def ask(
        self,
        id: str,
        picture: str,
        text: str,
        *,
        max_tokens: int = 12,
        size: tuple[int, int] = (6, 5),
    ) -> Request:
        return make_request(
            id,
            [*self._ids("user says: "), PICTURE_TOKEN, *self._ids(text)],
            pictures=(make_picture(picture, *size),),
            max_tokens=max_tokens,
        )

    def _ids(self, text: str) -> list[int]:
        return self.engine.vocabulary.tokenize(text, add_special=False, parse_special=True)

    def answer(self, request: Request) -> list[int]:
        return self.engine.answer(request)

    def cold(self, request: Request) -> ColdAnswer:
        """The answer that this engine gives when it may use nothing that it knows."""
        fresh = make_request(
            "cold",
            request.prompt,
            pictures=request.pictures,
            max_tokens=request.max_tokens,
            cache_prompt=False,
            n_probs=2,
        )
        tokens = self.engine.answer(fresh)
        deltas = (e for e in self.engine.events["cold"] if isinstance(e, Delta))
        tops = [probs.top for delta in deltas for probs in delta.probs]
        return ColdAnswer(
            tokens=tuple(tokens),
            runners_up=tuple(second[0] for _, second in tops),
            margins=tuple(first[1] - second[1] for first, second in tops),
        )


@pytest.fixture(scope="module")
def reference(cold: ColdAnswers, arch: str) -> Iterator[Seeing]:
    engine = TinyEngine(cold.path, num_slots=1, layout=LAYOUTS[arch])
    yield Seeing(engine)
    engine.close()


@pytest.fixture
def make_seeing(make_engine: Callable[..., TinyEngine], arch: str) -> Callable[..., Seeing]:
    return lambda **options: Seeing(make_engine(layout=LAYOUTS[arch], **options))


def test_an_answer_depends_on_the_picture(reference: Seeing) -> None:
    one, other = (reference.cold(reference.ask("a", name, " hello")) for name in ("cat", "dog"))
    assert one.tokens != other.tokens


def test_a_second_turn_encodes_nothing(
    make_seeing: Callable[..., Seeing], reference: Seeing
) -> None:
    seeing = make_seeing()
    text = " What is to be seen here, and how many of them are there altogether?"
    first = seeing.ask("a", "cat", text)
    answer = seeing.answer(first)
    assert reference.cold(first).agrees(answer)
    second = seeing.ask("b", "cat", text + seeing.engine.text(answer) + " And what else?")
    assert reference.cold(second).agrees(seeing.answer(second))
    assert seeing.engine.encoder.num_encoded == 1
    assert seeing.engine.finished("b").cached_tokens > 30


def test_a_chat_is_edited_behind_its_picture(
    make_seeing: Callable[..., Seeing], reference: Seeing
) -> None:
    seeing = make_seeing(num_slots=1)
    for number, text in enumerate((" What is this?", " Who is this?", " What is this? Why?")):
        request = seeing.ask(str(number), "cat", text)
        assert reference.cold(request).agrees(seeing.answer(request))


def test_chats_about_two_pictures_take_turns_in_one_slot(
    make_seeing: Callable[..., Seeing], reference: Seeing
) -> None:
    seeing = make_seeing(num_slots=1)
    chats = dict.fromkeys(("cat", "dog"), " What is to be seen here, and how many of them?")
    for turn in range(3):
        for name, text in chats.items():
            request = seeing.ask(f"{name}{turn}", name, text, max_tokens=6)
            answer = seeing.answer(request)
            assert reference.cold(request).agrees(answer)
            chats[name] = text + seeing.engine.text(answer) + " And what else is there?"
    assert seeing.engine.memory.num_hits > 0


def test_sequences_with_pictures_run_side_by_side(
    make_seeing: Callable[..., Seeing], reference: Seeing
) -> None:
    """While one answers, the pictures of the others are computed in parts, where they can be."""
    seeing = make_seeing(num_slots=3, step_ms=10.0)
    requests = [
        seeing.ask(str(number), name, " What is this?" + " Well?" * number, size=(10, 6))
        for number, name in enumerate(("cat", "dog", "cat", "cow"))
    ]
    seeing.engine.run(requests)
    for request in requests:
        assert reference.cold(request).agrees(seeing.engine.tokens(request.id))


def test_a_memory_that_ends_in_a_picture_is_saved_and_used_again(
    make_seeing: Callable[..., Seeing], reference: Seeing
) -> None:
    seeing = make_seeing(num_slots=1)
    request = seeing.ask("a", "cat", " What is this?", size=(10, 6))
    seeing.engine.add(request)
    sequence = seeing.engine.scheduler.waiting["a"]
    (span,) = sequence.media.spans
    while sequence.num_computed < span.end:
        seeing.engine.step()
    assert sequence.num_computed == span.end
    seeing.engine.scheduler.abort("a")
    seeing.answer(seeing.ask("b", "dog", " What is this?", size=(10, 6)))
    again = seeing.ask("c", "cat", " Who is this?", size=(10, 6))
    assert reference.cold(again).agrees(seeing.answer(again))
    assert seeing.engine.finished("c").cached_tokens == span.end
