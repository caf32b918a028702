"""`self settings MODEL`: every value that would take effect, and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfserve.cli import options, output
from selfserve.cli.known_settings import SETTINGS
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Chosen, Given, choose

HIDDEN = "hidden"


@takes_settings(options.SERVING)
def settings(
    given: Given, model: options.Model = DEFAULT_MODEL, as_json: options.AsJson = False
) -> None:
    """Show all settings and where they come from."""
    choices = choose(given, model)
    if as_json:
        output.result_json(
            {
                name: {"value": _plain(name, chosen), "source": chosen.source}
                for name, chosen in choices.items()
            }
        )
        return
    rows = [(name, _text(name, chosen), chosen.source) for name, chosen in choices.items()]
    output.table(("SETTING", "VALUE", "FROM"), rows)


def _plain(name: str, chosen: Chosen) -> Any:
    """The value for JSON; secrets only by their number."""
    if SETTINGS[name].is_secret:
        return [HIDDEN] * len(chosen.value)
    if isinstance(chosen.value, Path):
        return str(chosen.value)
    return chosen.value


def _text(name: str, chosen: Chosen) -> str:
    value = _plain(name, chosen)
    if value is None or value in ((), []):
        return SETTINGS[name].default_text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {item or 'no limit'}" for key, item in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
