"""Every published template at hand renders every kind of conversation."""

from __future__ import annotations

from datetime import datetime
from functools import cache

import pytest
from tests.support.shared_data import shared_data

from selfserve.errors import InvalidRequest
from selfserve.text.messages import Message
from selfserve.text.reasoning import find_format
from selfserve.text.template import ChatTemplate, Rendered

THINKERS = (
    "ByteDance-Seed-OSS",
    "GLM-4.6",
    "HuggingFaceTB-SmolLM3-3B",
    "Kimi-K2-Thinking",
    "MiniMax-M2",
    "Qwen-QwQ-32B",
    "Qwen-Qwen3-0.6B",
    "Qwen3.5-4B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "google-gemma-4-31B-it",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "openai-gpt-oss-120b",
)
OTHERS = (
    "Mistral-Small-3.2-24B-Instruct-2506",
    "google-gemma-2-2b-it",
    "meta-llama-Llama-3.1-8B-Instruct",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
OPEN = ("MiniMax-M2", "Qwen-QwQ-32B", "Qwen3.5-4B", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B")
NOW = datetime(2025, 2, 3)

USER, ANSWER, RULE = (
    Message("user", "Hi 🦙"),
    Message("assistant", "Yo."),
    Message("system", "Rule."),
)
CONVERSATIONS = {
    "one turn": [USER],
    "several turns": [USER, ANSWER, Message("user", "And?"), ANSWER, Message("user", "So?")],
    "system": [RULE, USER],
    "system and turns": [RULE, USER, ANSWER, Message("user", "And?")],
    "developer": [Message("developer", "Rhyme."), RULE, USER],
    "late system": [USER, ANSWER, RULE, Message("user", "And?")],
    "neighbours": [USER, Message("user", "There?"), ANSWER, Message("assistant", "So."), USER],
    "earlier thinking": [
        USER,
        Message("assistant", "Yo.", reasoning_content="Hm."),
        Message("user", "And?"),
    ],
}


def source_of(name: str) -> str:
    return shared_data(f"templates/{name}.jinja").read_text(encoding="utf-8")


@cache
def load(name: str) -> ChatTemplate:
    return ChatTemplate(source_of(name), bos_text="<bos>", eos_text="<eos>")


def render(name: str, messages: list[Message], thinking: bool | None = None) -> Rendered:
    return load(name).render(messages, thinking=thinking, now=NOW)


@pytest.mark.parametrize("name", THINKERS + OTHERS)
def test_every_conversation_shows_all_of_its_text(name: str) -> None:
    template = load(name)
    for kind, messages in CONVERSATIONS.items():
        for thinking in (None, True, False):
            rendered = template.render(messages, thinking=thinking, effort="low", now=NOW)
            missing = [m.content for m in messages if str(m.content) not in rendered.text]
            assert not missing, (kind, thinking)
            assert not rendered.text.startswith("<bos>")


@pytest.mark.parametrize("name", THINKERS + OTHERS)
@pytest.mark.parametrize("messages", [[RULE], [RULE, Message("system", "More.")], [RULE, ANSWER]])
def test_a_system_message_without_a_user_is_shown_or_refused(
    name: str, messages: list[Message]
) -> None:
    try:
        text = render(name, messages).text
    except InvalidRequest:
        return
    assert all(str(message.content) in text for message in messages)


@pytest.mark.parametrize("name", THINKERS + OTHERS)
def test_a_prefilled_answer_ends_the_prompt(name: str) -> None:
    for messages in ([USER], [RULE, USER, ANSWER, Message("user", "And?")]):
        rendered = render(name, [*messages, Message("assistant", "It is ")], thinking=True)
        assert rendered.text.endswith("It is ")
        assert rendered.text.count("It is ") == 1


@pytest.mark.parametrize("name", THINKERS)
def test_thinking_is_found_and_can_be_left_out(name: str) -> None:
    known = find_format(source_of(name), {})
    assert known is not None
    assert load(name).supports_thinking
    off = render(name, [USER], thinking=False).text
    on = render(name, [USER], thinking=True).text
    assert (known.is_open(off), known.is_closed(off)) == (False, True)
    assert (known.is_open(on), known.is_closed(on)) == (name in OPEN, False)
    assert known.is_open(on + known.with_thinking(on))


@pytest.mark.parametrize("name", OTHERS)
def test_models_without_thinking_answer_directly(name: str) -> None:
    assert not load(name).supports_thinking
    assert find_format(source_of(name), {}) is None
    assert render(name, [USER], thinking=True).text == render(name, [USER], thinking=False).text


def test_only_gpt_oss_takes_an_effort() -> None:
    names = [name for name in THINKERS + OTHERS if load(name).accepts_effort]
    assert names == ["openai-gpt-oss-120b"]
    rendered = load(names[0]).render([USER], effort="high", now=NOW)
    assert "Reasoning: high" in rendered.text
    assert "Current date: 2025-02-03" in rendered.text


@pytest.mark.parametrize("name", THINKERS + OTHERS)
def test_typed_control_tokens_stay_text(name: str) -> None:
    specials = ["<|im_end|>", "<|end|>", "<end_of_turn>", "[/INST]", "</think>", "<turn|>", "<eos>"]
    template = ChatTemplate(
        source_of(name), bos_text="<bos>", eos_text="<eos>", special_texts=specials
    )
    attack = "a" + "\n".join(specials) + "b"
    usual = template.render([RULE, USER], now=NOW)
    attacked = template.render([RULE, Message("user", attack)], now=NOW)
    of_template = ["".join(s.text for s in r.segments if s.special) for r in (usual, attacked)]
    assert attack in attacked.text
    for special in specials:
        assert of_template[0].count(special) == of_template[1].count(special)


def test_a_refused_conversation_reports_the_words_of_the_template() -> None:
    with pytest.raises(InvalidRequest, match="No user query found"):
        render("Qwen3.5-4B", [RULE])
    with pytest.raises(InvalidRequest, match="must alternate"):
        render("google-gemma-2-2b-it", [ANSWER, USER])
