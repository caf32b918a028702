"""`self chat`: a conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from selfserve.cli import options, output
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Given
from selfserve.cli.target import connected
from selfserve.errors import SelfError

if TYPE_CHECKING:
    from selfserve.cli.conversation import Conversation

PROMPT = "> "
MORE = "… "
HISTORY_LINES = 1000
HELP = """\
/image FILE   add a picture to the next question
/system TEXT  say what the model is to be; without text: nothing
/reset        forget the conversation
/save FILE    write the conversation as JSON
/help         show this
/quit         end, as Ctrl-D does
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer."""


@takes_settings(options.LOADING)
def chat(
    given: Given,
    target: options.Target = DEFAULT_MODEL,
    system: options.System = "",
    force: options.Force = False,
    key: options.ApiKey = "",
) -> None:
    """Talk to a model in the terminal."""
    with connected(target, given, force=force, key=key) as client:
        from selfserve.cli.conversation import Conversation

        conversation = Conversation(client, system=system)
        output.status(f"{client.model()['id']}; /help shows the commands, Ctrl-D ends")
        with _history():
            _talk(conversation)


def _talk(conversation: Conversation) -> None:
    while (line := _read()) is not None:
        try:
            if line.startswith("/"):
                if not _command(conversation, line):
                    return
            elif line.strip():
                _answer(conversation, line)
        except SelfError as error:
            output.error(error)


def _read() -> str | None:
    """A question, perhaps of several lines; None at the end of the input."""
    is_terminal = sys.stdin.isatty()
    lines: list[str] = []
    while True:
        try:
            prompt = (MORE if lines else PROMPT) if is_terminal else ""
            line = input(prompt)
        except EOFError:
            if is_terminal:
                output.status("")
            return "\n".join(lines) if lines else None
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            return "\n".join(lines)


def _answer(conversation: Conversation, text: str) -> None:
    from selfserve.cli.answers import print_answer

    pieces = conversation.ask(text)
    try:
        print_answer(pieces)
    except KeyboardInterrupt:
        output.status("\n[stopped]")
    finally:
        pieces.close()  # type: ignore[attr-defined]


def _command(conversation: Conversation, line: str) -> bool:
    """Does what a line that begins with a slash says; False ends the chat."""
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    match name:
        case "/quit" | "/exit":
            return False
        case "/reset":
            conversation.reset()
            output.status("Forgotten")
        case "/system":
            conversation.system = rest
            output.status("System message set" if rest else "No system message")
        case "/image" if rest:
            conversation.attach(Path(rest))
            output.status(f"{rest} goes with the next question")
        case "/save" if rest:
            conversation.save(Path(rest))
            output.status(f"Saved to {rest}")
        case "/help":
            output.status(HELP)
        case "/image" | "/save":
            output.status(f"{name} needs a file name")
        case _:
            output.status(f"{name} is no command; /help shows them")
    return True


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing with the questions of earlier chats, on a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python without it
        yield
        return
    import platformdirs

    path = platformdirs.user_data_path("self", appauthor=False) / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
