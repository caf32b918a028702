"""Prints what LiteLLM makes of a server's answers, as one JSON object.

A program of its own, because the library leaves sockets and an event loop open behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

HELLO = [{"role": "user", "content": "Say hello."}]
SCHEMA = {
    "type": "object",
    "properties": {"is_on": {"type": "boolean"}},
    "required": ["is_on"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "flag", "schema": SCHEMA}}
OVERLONG = [{"role": "user", "content": "word " * 2000}]


def observations(url: str) -> dict[str, Any]:
    import litellm

    common: dict[str, Any] = {
        "model": "openai/any",
        "api_base": url,
        "api_key": "none",
        "num_retries": 0,
        "temperature": 0,
        "max_tokens": 8,
    }

    def chat(**fields: Any) -> Any:
        return litellm.completion(**{**common, "messages": HELLO, **fields})

    def refusal(**fields: Any) -> str:
        try:
            chat(**fields)
        except Exception as error:
            return type(error).__name__
        return ""

    whole = chat()
    chunks = chat(stream=True)
    form = chat(response_format=FORM, temperature=1, max_tokens=40)
    return {
        "whole": whole.choices[0].message.content,
        "tokens": whole.usage.completion_tokens,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "flag": json.loads(form.choices[0].message.content),
        "range": refusal(temperature=3),
        "context": refusal(messages=OVERLONG),
        "unsupported": refusal(n=2),
        "completion": litellm.text_completion(**common, prompt="One two").choices[0].text,
    }


def main() -> None:
    # Without this, the import fetches a table of prices from the network.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    with contextlib.redirect_stdout(sys.stderr):
        found = observations(sys.argv[1])
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
