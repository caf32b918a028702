"""Repairs of a conversation lose no text and keep its order."""

from __future__ import annotations

from selfserve.text.messages import (
    ImagePart,
    Message,
    TextPart,
    as_system,
    fold_system,
    merge_neighbours,
    merge_system,
)

USER = Message("user", "hi")
ANSWER = Message("assistant", "yo")


def test_neighbouring_text_parts_are_joined_without_a_separator() -> None:
    content = (TextPart("a"), TextPart("b"), ImagePart(0), TextPart("c"))
    message = Message("user", content)
    assert message.parts == (TextPart("ab"), ImagePart(0), TextPart("c"))
    assert message.num_images == 1


def test_developer_is_system() -> None:
    assert as_system([Message("developer", "x"), USER]) == [Message("system", "x"), USER]


def test_system_messages_are_merged_in_order_and_put_first() -> None:
    messages = [Message("system", "1"), USER, Message("system", "2")]
    assert merge_system(messages) == [Message("system", "1\n\n2"), USER]


def test_a_conversation_without_system_message_stays() -> None:
    assert merge_system([USER]) == [USER]
    assert fold_system([USER, ANSWER]) == [USER, ANSWER]


def test_system_text_is_folded_into_the_first_user_turn() -> None:
    named = Message("user", "hi", name="Ann")
    assert fold_system([ANSWER, Message("system", "s"), named]) == [
        ANSWER,
        Message("user", "s\n\nhi", name="Ann"),
    ]


def test_system_text_without_a_user_turn_becomes_one() -> None:
    assert fold_system([Message("system", "s")]) == [Message("user", "s")]


def test_folding_keeps_the_place_of_pictures() -> None:
    picture = Message("user", (ImagePart(0), TextPart("what?")))
    assert fold_system([Message("system", "s"), picture])[0].content == (
        TextPart("s\n\n"),
        ImagePart(0),
        TextPart("what?"),
    )


def test_neighbours_of_one_role_are_merged() -> None:
    first = Message("assistant", "a", reasoning_content="r1")
    second = Message("assistant", "b", reasoning_content="r2")
    assert merge_neighbours([USER, first, second, USER]) == [
        USER,
        Message("assistant", "a\n\nb", reasoning_content="r1\n\nr2"),
        USER,
    ]


def test_empty_messages_add_no_separator() -> None:
    assert merge_neighbours([Message("user", ""), USER, Message("user", "")]) == [USER]
