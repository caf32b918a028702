"""`self settings`: values and where they came from."""

from __future__ import annotations

import json

import pytest
from tests.support.command_line import Command

from selfserve.cli.known_settings import SETTINGS
from selfserve.errors import SettingsError
from selfserve.sampling import PARAMETERS


def test_every_setting_is_shown_with_its_source(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELF_STEP_MS", "25")
    outcome = command("settings", "qwen3.5:9b", "--json", "--port", "9", "--set", "top_k=3")
    shown = json.loads(outcome.out)
    assert list(shown) == list(SETTINGS)
    assert shown["port"] == {"value": 9, "source": "--port"}
    assert shown["step_ms"] == {"value": 25, "source": "SELF_STEP_MS"}
    assert shown["top_k"] == {"value": 3, "source": "--set"}
    assert shown["context_size"] == {"value": 16384, "source": "catalogue"}
    assert shown["parallel"] == {"value": 4, "source": "default"}


def test_a_table_for_people_has_a_row_for_each(command: Command) -> None:
    lines = command("settings").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert [line.split()[0] for line in lines[1:]] == list(SETTINGS)
    assert "the CPUs that this process may use" in next(x for x in lines if x.startswith("threads"))


def test_keys_are_never_shown(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELF_API_KEY", "topsecret other")
    for arguments in (("settings",), ("settings", "--json")):
        out = command(*arguments).out
        assert "topsecret" not in out
        assert "hidden" in out
    assert json.loads(command("settings", "--json").out)["api_key"]["value"] == ["hidden"] * 2


def test_what_is_wrong_ends_with_code_1_and_one_line(command: Command) -> None:
    outcome = command("settings", "--set", "prot=1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "Error [settings]: 'prot' is no setting; did you mean port? (--set)\n"


def test_sampling_can_be_set_within_what_every_endpoint_takes() -> None:
    rows = {name: setting for name, setting in SETTINGS.items() if setting.owner == "sampling"}
    assert set(rows) == {name for name, row in PARAMETERS.items() if row.rule.is_setting}
    assert (rows["temperature"].low, rows["temperature"].high) == (0, 2)
    for name, setting in rows.items():
        low, high = PARAMETERS[name].chat_span
        for value in (low, high):
            assert setting.checked(value, "here") == value
        for value in (low - 1, high + 1):
            with pytest.raises(SettingsError, match=f"^{name} must be between"):
                setting.checked(value, "here")
