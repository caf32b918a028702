"""Where a setting's value comes from, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfserve.cli.known_settings import SETTINGS
from selfserve.cli.setting_sources import CATALOGUE, DEFAULT, Choices, Given, choose, default_file
from selfserve.errors import ModelNotFound, SettingsError

MODEL = "qwen3.5:9b@q8"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.yml"


def chosen(file: Path, text: str, reference: str | None = MODEL, **flags: object) -> Choices:
    file.write_text(text)
    return choose(Given(file=file, flags=flags), reference)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        chosen(file, text)
    return caught.value.message


def test_each_source_yields_to_the_next_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "context_size"
    given = {"file": file}
    assert choose(Given())[name].source == DEFAULT
    assert choose(Given(), MODEL)[name].source == CATALOGUE
    file.write_text(f"{name}: 1001")
    assert choose(Given(**given), MODEL)[name].value == 1001
    file.write_text(f"{name}: 1001\nmodels:\n  qwen3.5:9b: {{{name}: 1002}}")
    assert choose(Given(**given), MODEL)[name].value == 1002
    both = f"{name}: 1001\nmodels:\n  {MODEL}: {{{name}: 1003}}\n  qwen3.5:9b: {{{name}: 1002}}"
    file.write_text(both)
    found = choose(Given(**given), MODEL)[name]
    assert (found.value, found.source) == (1003, f"{file}: {MODEL}")
    monkeypatch.setenv("SELF_CONTEXT_SIZE", "1004")
    assert choose(Given(**given), MODEL)[name].value == 1004
    assert choose(Given(**given, assignments=[f"{name}=1005"]), MODEL)[name].value == 1005
    last = choose(Given(**given, assignments=[f"{name}=1005"], flags={name: 1006}), MODEL)[name]
    assert (last.value, last.source) == (1006, "--context-size")


def test_every_default_passes_its_own_check() -> None:
    for setting in SETTINGS.values():
        if setting.default is not None:
            assert setting.checked(setting.default, DEFAULT) == setting.default


def test_a_section_of_another_model_does_not_count(file: Path) -> None:
    text = "models:\n  gemma4:4b: {port: 1}\n  qwen3.5:9b@q4: {port: 2}\n  hf:a/b: {port: 3}"
    assert chosen(file, text)["port"].value == 8080


def test_an_alias_names_the_same_model(file: Path) -> None:
    assert chosen(file, "models: {gemma4:e4b: {port: 7}}", "gemma4:4b")["port"].value == 7


@pytest.mark.parametrize(
    ("reference", "port"), [("hf:Owner/repo:q4_0", 2), ("hf:owner/repo", 1), ("hf:owner/x", 8080)]
)
def test_sections_of_repositories_go_by_repository_and_quantization(
    file: Path, reference: str, port: int
) -> None:
    text = "models: {hf:owner/repo: {port: 1}, hf:owner/repo:Q4_0: {port: 2}}"
    assert chosen(file, text, reference)["port"].value == port


def test_a_section_may_be_that_of_a_file(file: Path) -> None:
    assert chosen(file, "models: {/m/a.gguf: {port: 5}}", "/m/a.gguf")["port"].value == 5


def test_the_file_lies_in_the_config_folder_unless_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path
) -> None:
    path = default_file()
    assert path == home / "config" / "self" / "settings.yml"
    path.parent.mkdir(parents=True)
    path.write_text("port: 4000")
    assert choose(Given())["port"].value == 4000
    other = tmp_path / "other.yml"
    other.write_text("port: 4001")
    monkeypatch.setenv("SELF_SETTINGS_FILE", str(other))
    assert choose(Given())["port"].value == 4001


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"settings file .*none\.yml cannot be read"):
        choose(Given(file=tmp_path / "none.yml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "'prot' is no setting; did you mean port?"),
        ("port: http", "port must be a whole number, got 'http'"),
        ("port: 70000", "port must be between 0 and 65535, got 70000"),
        ("port: true", "port must be a whole number, got True"),
        ("mmap: 3", "mmap must be true or false, got 3"),
        ("kv_type: f8", "kv_type must be one of f32, f16, bf16, q8_0, q4_0, got 'f8'"),
        ("device: gpu", "device must be auto, cpu, cuda[:N], metal or vulkan[:N], got 'gpu'"),
        ("api_key: 12345", "api_key must be text or a list of texts"),
        ("temperature: .nan", "temperature must be a number, got nan"),
        ("reasoning_budgets: {tiny: 1}", "reasoning_budgets must be a mapping of minimal, low"),
        ("models: {qwen: {port: 1}}", "no model is called 'qwen'; did you mean"),
        ("models: {qwen3.5:9b: {prot: 1}}", "qwen3.5:9b)"),
        ("models: {gemma4:4b: {port: x}}", "port must be a whole number, got 'x'"),
        ("models: [1]", "models must be a mapping"),
        ("port: 1\nport: 2", "port stands there twice"),
        ("- port", "must be a mapping of settings"),
        ("port: [", "is no YAML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(file: Path, text: str, message: str) -> None:
    said = refusal(file, text)
    assert message in said
    assert str(file) in said


def test_a_secret_is_not_repeated(file: Path) -> None:
    assert "schlüssel" not in refusal(file, "api_key: schlüssel")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SELF_PORTT", "1", "SELF_PORTT is no setting; did you mean SELF_PORT"),
        ("SELF_PORT", "tcp://10.0.0.1", "port must be a whole number"),
        ("SELF_STEP_MS", "fast", "step_ms must be a number, got 'fast' (SELF_STEP_MS)"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        choose(Given())
    assert message in caught.value.message


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELF_PORT", "")
    assert choose(Given())["port"].source == DEFAULT


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("port", "--set must be of the form key=value, got 'port'"),
        ("prot=1", "'prot' is no setting; did you mean port? (--set)"),
        ("port=x", "port must be a whole number, got 'x' (--set port)"),
    ],
)
def test_what_is_wrong_in_an_assignment_is_named(assignment: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        choose(Given(assignments=[assignment]))
    assert caught.value.message == message


def test_values_are_read_by_what_they_are() -> None:
    assignments = [
        "parallel=2",
        "step-ms=20.5",
        "mmap=off",
        "flash_attention=off",
        "api_key=one two",
        "reasoning_budgets={low: 100, xhigh: null}",
        "mmproj=none",
        "device=CUDA:1",
    ]
    choices = choose(Given(assignments=assignments))
    assert [choices[name].value for name in ("parallel", "step_ms", "mmap")] == [2, 20.5, False]
    assert choices["flash_attention"].value == "off"
    assert choices["api_key"].value == ("one", "two")
    assert choices["reasoning_budgets"].value["low"] == 100
    assert choices["reasoning_budgets"].value["medium"] == 2048
    assert choices["mmproj"].value == "none"
    assert choices["device"].value == "cuda:1"


def test_a_bare_off_in_yaml_is_a_word_where_words_are_wanted(file: Path) -> None:
    assert chosen(file, "flash_attention: off")["flash_attention"].value == "off"


def test_the_catalogue_advises_sampling_and_thinking() -> None:
    choices = choose(Given(), "qwen3.5:9b")
    assert (choices["presence_penalty"].value, choices["thinking"].value) == (1.5, True)
    assert not choices["temperature"].is_decided
    assert choose(Given(), "gemma4:4b")["thinking"].value is False


def test_a_reference_that_cannot_be_understood_is_refused() -> None:
    with pytest.raises(ModelNotFound):
        choose(Given(), "no-such-model")
