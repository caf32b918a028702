"""`self run MODEL "prompt"`: one answer on stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from selfserve.cli import options
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Given
from selfserve.cli.target import connected
from selfserve.errors import SettingsError

Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        help="The question. What comes through a pipe follows it.",
        show_default=False,
    ),
]
Images = Annotated[
    list[Path] | None,
    typer.Option(
        "--image", metavar="FILE", help="Picture to ask about. May be given several times."
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Longest answer, in tokens.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="The same seed gives the same answer.")
]
Temperature = Annotated[
    float | None, typer.Option("--temperature", metavar="X", min=0, max=2, help="0: the likeliest.")
]
SchemaFile = Annotated[
    Path | None,
    typer.Option("--schema", metavar="FILE", help="JSON Schema that the answer must follow."),
]
Thinking = Annotated[
    bool | None,
    typer.Option(
        "--thinking/--no-thinking", help="Whether it thinks first.", show_default="the model's own"
    ),
]


@takes_settings(options.LOADING)
def run(
    given: Given,
    target: options.Target,
    prompt: Prompt = None,
    system: options.System = "",
    image: Images = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    schema: SchemaFile = None,
    thinking: Thinking = None,
    force: options.Force = False,
    key: options.ApiKey = "",
) -> None:
    """Ask a model one question and print its answer."""
    text = _question(prompt)
    fields: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    fields = {name: value for name, value in fields.items() if value is not None}
    if schema is not None:
        fields["response_format"] = _response_format(schema)
    if thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": thinking}
    with connected(target, given, force=force, key=key) as client:
        from selfserve.cli.answers import print_answer
        from selfserve.cli.conversation import Conversation

        conversation = Conversation(client, fields, system)
        for path in image or ():
            conversation.attach(path)
        print_answer(conversation.ask(text))


def _question(prompt: str | None) -> str:
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    text = "\n\n".join(part for part in (prompt or "", piped.strip("\n")) if part.strip())
    if not text:
        raise typer.BadParameter("there is neither a prompt nor anything on stdin")
    return text


def _response_format(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"schema: {path} cannot be read: {error}", param="schema") from error
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
