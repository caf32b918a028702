"""A plain client of a running server: chats sent whole and streamed, told by what came back."""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


def chat_of(content: str, **fields: Any) -> dict[str, Any]:
    """The body of a chat with one question; greedy and short unless said otherwise."""
    messages = [{"role": "user", "content": content}]
    return {"messages": messages, "temperature": 0, "max_tokens": 16, **fields}


def ask(http: httpx.Client, content: str, **fields: Any) -> Any:
    """The whole answer to a question."""
    answer = http.post(CHAT, json=chat_of(content, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def events_of(text: str) -> list[Any]:
    """The data of each event of a stream, `[DONE]` as it is; pings left out."""
    blocks = text.split("\n\n")
    assert blocks.pop() == "", "an event is cut off"
    found = [block.removeprefix("data: ") for block in blocks if block[0] != ":"]
    return [data if data == "[DONE]" else json.loads(data) for data in found]


def stream(http: httpx.Client, content: str, **fields: Any) -> list[Any]:
    """The events of a streamed answer."""
    answer = http.post(CHAT, json=chat_of(content, stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


def joined(events: list[Any]) -> str:
    """The content of a stream."""
    choices = [choice for event in events if event != "[DONE]" for choice in event["choices"]]
    return "".join(choice["delta"].get("content", "") for choice in choices)
