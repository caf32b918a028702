"""Every command's help, word for word. With `GOLDEN=write` in the environment the files are
written anew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.command_line import Command

from selfserve.cli.main import COMMANDS

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["self", *COMMANDS])
def test_the_help_of_a_command_is_as_it_was(command: Command, name: str) -> None:
    outcome = command(*([] if name == "self" else [name]), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(outcome.out)
    assert outcome.out == path.read_text()


def test_every_golden_file_belongs_to_a_command() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.txt")) == sorted(["self", *COMMANDS])


def test_every_command_says_in_one_whole_line_what_it_does() -> None:
    listed = (GOLDEN / "self.txt").read_text().split("Commands:\n")[1]
    assert [line for line in listed.splitlines() if line.endswith("...")] == []
