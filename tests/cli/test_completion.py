"""Scripts for shells, and what they ask for."""

from __future__ import annotations

import subprocess

import pytest
from tests.support.command_line import Command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_every_shell_gets_a_script_that_asks_self(command: Command, shell: str) -> None:
    outcome = command("completion", shell)
    assert outcome.code == 0
    assert f"complete_{shell}" in outcome.out


def test_bash_understands_its_script(command: Command) -> None:
    script = command("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_an_unknown_shell_is_wrong_usage(command: Command) -> None:
    assert command("completion", "cmd").code == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("self se", ["serve", "settings"]),
        ("self serve gem", ["gemma4:12b", "gemma4:12b@q4", "gemma4:12b@q8"]),
        ("self serve --con", ["--context-size", "--context-shift"]),
    ],
)
def test_commands_models_and_options_are_completed(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: str, expected: list[str]
) -> None:
    monkeypatch.setenv("_SELF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    found = command().out.split("\n")
    assert set(expected) <= set(found)
