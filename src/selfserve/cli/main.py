"""The `self` command: its subcommands, and how an error becomes a message and an exit code.

Exit codes: 0 done, 1 a failure with `Error [type]: message`, 2 wrong usage, 130 Ctrl-C.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from selfserve.cli import output
from selfserve.cli.bench import bench
from selfserve.cli.chat import chat
from selfserve.cli.check import check
from selfserve.cli.completion import VARIABLE, completion
from selfserve.cli.doctor import doctor
from selfserve.cli.models import ls, ls_remote, pull, rm
from selfserve.cli.run import run as ask
from selfserve.cli.serve import serve
from selfserve.cli.settings import settings
from selfserve.cli.show import show
from selfserve.errors import SelfError

INTERRUPTED = 130
COMMANDS: dict[str, Callable[..., None]] = {
    "serve": serve,
    "chat": chat,
    "run": ask,
    "pull": pull,
    "ls": ls,
    "ls-remote": ls_remote,
    "rm": rm,
    "show": show,
    "settings": settings,
    "check": check,
    "bench": bench,
    "doctor": doctor,
    "completion": completion,
}
"""In the order in which the help lists them."""


def run() -> None:
    """Entry point of the `self` command. Never returns."""
    try:
        command_line()(prog_name="self")
    except SelfError as error:
        output.error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def command_line() -> typer.Typer:
    """All commands. Plain help without markup: it is fast, and the same in a pipe."""
    app = typer.Typer(
        name="self",
        help="Serve an open language model from your own machine.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_common)
    for name, command in COMMANDS.items():
        app.command(name)(command)
    if VARIABLE in os.environ:
        from typer import completion as typer_completion

        typer_completion.completion_init()  # type: ignore[attr-defined]
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        output.result(f"self {importlib.metadata.version('selfserve')}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
