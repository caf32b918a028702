"""`self completion SHELL`: the script that lets a shell complete commands, options and models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from selfserve.cli import output

VARIABLE = "_SELF_COMPLETE"
"""Set by the shell when it asks for completions."""


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"
    POWERSHELL = "powershell"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh, fish or powershell.")],
) -> None:
    """Print a completion script for a shell."""
    from typer import completion as typer_completion

    script = typer_completion.get_completion_script  # type: ignore[attr-defined]

    output.result(script(prog_name="self", complete_var=VARIABLE, shell=shell.value))
