"""The pages name every command and setting, and what they show is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tools.write_tables import limits_page, with_parameters

from selfserve import limits
from selfserve.catalogue.known import catalogue
from selfserve.cli.known_settings import SETTINGS
from selfserve.cli.main import COMMANDS
from selfserve.cli.setting_sources import Given, choose

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_every_command_is_described() -> None:
    text = (DOCS / "cli.md").read_text("utf-8")
    assert [name for name in COMMANDS if not re.search(rf"\b{name}\b", text)] == []


def test_every_setting_is_in_the_table() -> None:
    named = set(re.findall(r"`(\w+)`", (DOCS / "settings.md").read_text("utf-8")))
    assert SETTINGS.keys() <= named


def test_the_settings_file_of_the_page_is_accepted(tmp_path: Path) -> None:
    [example] = blocks("settings.md", "yaml")
    file = tmp_path / "settings.yml"
    file.write_text(example)
    choices = choose(Given(file=file), "qwen3.5:9b@q8")
    assert choices["parallel"].value == 2
    assert choices["context_size"].value == 32768
    assert choices["reasoning_budgets"].value["high"] is None


def test_the_settings_of_the_service_are_accepted(tmp_path: Path) -> None:
    [example] = blocks("service.md", "yaml")
    file = tmp_path / "settings.yml"
    file.write_text(example)
    assert choose(Given(file=file))["drain"].value == 20


def test_the_catalogue_of_the_page_has_the_fields_of_the_real_one() -> None:
    [example] = blocks("models.md", "yaml")
    [entry] = yaml.safe_load(example)["models"]
    assert entry.keys() == type(catalogue().models[0]).model_fields.keys()


def test_every_model_of_the_catalogue_is_in_the_first_page() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert [entry.id for entry in catalogue().models if f"`{entry.id}`" not in text] == []


def test_the_page_of_limits_tells_those_of_the_program() -> None:
    page = (DOCS / "limits.md").read_text("utf-8")
    assert page == limits_page(), "python tools/write_tables.py writes it anew"


def test_the_table_of_parameters_tells_those_of_the_program() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    assert "| `temperature` | 0.8 | from 0; chats 0 … 2 |" in page
    assert page == with_parameters(page), "python tools/write_tables.py writes it anew"


def test_every_limit_is_in_the_table() -> None:
    source = Path(limits.__file__).read_text("utf-8")
    table = source[source.index("\nTABLE = (") : source.index("\ndef ")]
    names = [name for name in vars(limits) if name.startswith("MAX_")]
    assert [name for name in names if not re.search(rf"\b{name}\b", table)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text("utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_that_a_page_names_exist(page: Path) -> None:
    golden = "\n".join(path.read_text() for path in (Path(__file__).parent / "golden").iterdir())
    known = set(re.findall(r"--[a-z][a-z-]+", golden))
    foreign = set(re.findall(r"(?:pip|podman|useradd|systemctl)\b.*", page.read_text("utf-8")))
    named = set(re.findall(r"`?self [^`\n]*?(--[a-z][a-z-]+)", page.read_text("utf-8")))
    assert named - known - set(re.findall(r"--[a-z-]+", " ".join(foreign))) == set()
