"""The command line by exact output and exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.command_line import Command

from selfserve.cli import main
from selfserve.errors import ModelLoadError

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_help_lists_the_commands(command: Command, flag: str) -> None:
    outcome = command(flag)
    assert (outcome.code, outcome.out, outcome.err) == (0, (GOLDEN / "self.txt").read_text(), "")


def test_without_arguments_the_help_is_shown_as_wrong_usage(command: Command) -> None:
    assert command().code == 2


def test_the_version_goes_to_stdout(command: Command) -> None:
    outcome = command("--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("self ")


def test_an_unknown_command_is_wrong_usage_with_a_suggestion(command: Command) -> None:
    outcome = command("serv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "No such command 'serv'. Did you mean 'serve'?" in outcome.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "70000"),
        ("--port", "-1"),
        ("--port", "http"),
        ("--parallel", "0"),
        ("--threads", "0"),
        ("--context-size", "1"),
        ("--queue-size", "-1"),
        ("--request-timeout", "-1"),
        ("--step-ms", "0"),
    ],
)
def test_a_value_out_of_range_is_wrong_usage_that_names_the_option(
    command: Command, option: str, value: str
) -> None:
    outcome = command("serve", option, value)
    assert outcome.code == 2
    assert f"Invalid value for '{option}'" in outcome.err


def test_an_unknown_option_is_wrong_usage(command: Command) -> None:
    outcome = command("serve", "--prot", "1")
    assert outcome.code == 2
    assert "--prot" in outcome.err


def test_an_unknown_model_ends_with_code_1_and_one_line(command: Command) -> None:
    outcome = command("serve", "no-such-model", "--port", "0")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("Error [model_not_found]: ")
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("key", ["", " ", "schlüssel", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused(command: Command, key: str) -> None:
    outcome = command("serve", "--port", "0", "--api-key", key)
    assert outcome.code == 1
    assert outcome.err == (
        "Error [settings]: api_key must be printable ASCII and not blank (--api-key)\n"
    )


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def command_line() -> object:
        def call(prog_name: str) -> None:
            raise error

        return call

    monkeypatch.setattr(main, "command_line", command_line)


def test_an_error_of_the_tree_becomes_its_message_and_code(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    raising(monkeypatch, ModelLoadError("the file is damaged"))
    outcome = command("serve")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "Error [model_load]: the file is damaged\n"


def test_ctrl_c_ends_with_code_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    assert command("serve").code == 130
