"""Chats with the small model that names colours and shapes."""

from __future__ import annotations

import httpx
import openai
import pytest
from tests.support.chat_client import text_of
from tests.support.picture_chat import (
    NTH_COLOR,
    SHAPE_COLOR,
    SOLID_COLOR,
    PictureChat,
    content,
    first_color,
    generated,
    solid,
    user,
)

PICTURE_TOKENS = 9
NUM_STREAMED = 5
"""Pictures that are also asked about in a stream: the text is the same for one reason in all."""


def test_a_red_picture_is_called_red(seeing_url: str) -> None:
    with (
        httpx.Client(trust_env=False) as plain,
        openai.OpenAI(base_url=f"{seeing_url}/v1", api_key="any", http_client=plain) as client,
    ):
        answer = client.chat.completions.create(
            model="any",
            messages=[
                {
                    "role": "user",
                    "content": content(solid("red"), "What color is this image? One word."),  # type: ignore[typeddict-item]
                }
            ],
        )
    assert "red" in (answer.choices[0].message.content or "").lower()


def test_colours_of_shapes_are_named_and_streams_say_the_same(chat: PictureChat) -> None:
    pictures = generated("suite", 20)
    right = 0
    for number, (image, label) in enumerate(pictures):
        answer = chat.ask(image, SHAPE_COLOR)
        if number < NUM_STREAMED:
            assert chat.stream(image, SHAPE_COLOR) == answer
        right += first_color(answer) == label.color
    assert right >= 19, f"{right} of {len(pictures)}"


def test_solid_pictures_are_named_whatever_their_size(chat: PictureChat) -> None:
    for image, label in generated("solid suite", 8, solids=True):
        assert first_color(chat.ask(image, SOLID_COLOR)) == label.color
    for size in ((1, 1), (8, 8), (640, 480), (1024, 256)):
        assert first_color(chat.ask(solid("blue", *size), SOLID_COLOR)) == "blue"


def test_two_pictures_keep_their_order(chat: PictureChat) -> None:
    pictures = generated("pairs suite", 12)
    right = 0
    for (one, first), (other, second) in zip(pictures[::2], pictures[1::2], strict=True):
        asked = [chat.ask(one, other, NTH_COLOR.format(nth)) for nth in ("first", "second")]
        right += [first_color(answer) for answer in asked] == [first.color, second.color]
    assert right >= 5, f"{right} of {len(pictures) // 2}"


def test_two_pictures_of_one_size_are_two_pictures(chat: PictureChat) -> None:
    for color in ("red", "green", "blue", "red"):
        assert first_color(chat.ask(solid(color), SOLID_COLOR)) == color


def test_a_follow_up_evaluates_only_the_new_text(chat: PictureChat) -> None:
    for image, _ in generated("turns suite", 3):
        question = user(image, SHAPE_COLOR)
        first = chat.answer(question)
        follow_up = [
            question,
            {"role": "assistant", "content": text_of(first)},
            user(SHAPE_COLOR),
        ]
        second = chat.answer(*follow_up)
        seen = first["usage"]["total_tokens"] - 1
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= seen
        cold = chat.answer(*follow_up, cache_prompt=False)
        assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert text_of(second) == text_of(cold)


def test_a_pictures_tokens_are_counted(chat: PictureChat) -> None:
    with_picture = chat.answer(user(solid("red"), SOLID_COLOR))["usage"]["prompt_tokens"]
    without = chat.answer(user(SOLID_COLOR))["usage"]["prompt_tokens"]
    assert with_picture == without + PICTURE_TOKENS


@pytest.mark.parametrize("typed", ["<__media__>", "<__image__>", "<image>", "\ue000"])
def test_what_a_user_types_is_no_picture(chat: PictureChat, typed: str) -> None:
    for parts in ((f"What does {typed} mean?",), (solid("red"), f"{typed} {SOLID_COLOR}")):
        answer = chat.answer(user(*parts))
        plain = chat.answer(
            user(*(p.replace(typed, "") if isinstance(p, str) else p for p in parts))
        )
        assert answer["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"]


def test_the_model_card_tells_that_it_sees(http: httpx.Client) -> None:
    capabilities = http.get("/v1/model").json()["capabilities"]
    assert (capabilities["input"], capabilities["max_images"]) == (["text", "vision"], 4)


def test_schemas_and_sampling_go_with_pictures(chat: PictureChat) -> None:
    schema = {"type": "object", "properties": {"color": {"enum": ["red", "green", "blue"]}}}
    schema |= {"required": ["color"], "additionalProperties": False}
    answer = chat.ask(
        solid("green"),
        SOLID_COLOR,
        json_schema=schema,
        max_tokens=40,
        temperature=0.5,
        repeat_penalty=1.1,
        dry_multiplier=0.5,
        presence_penalty=0.5,
        seed=1,
    )
    assert answer.replace(" ", "") == '{"color":"green"}'
