"""Flags made from the table of settings, for the commands that take them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from selfserve.cli import known_settings
from selfserve.cli.known_settings import SETTINGS, Setting
from selfserve.cli.setting_sources import Given

KINDS: dict[Any, Any] = {
    known_settings.read_int: int,
    known_settings.read_float: float,
    known_settings.read_bool: bool,
}
"""What typer shall read by itself; the rest is text."""
METAVARS = {int: "N", float: "X", str: "TEXT"}
SHORT = {"verbose": "-v"}


def takes_settings(names: Iterable[str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds to a command the flags of the settings `names`, `--set` and `--settings-file`.

    The command gets what was given as its keyword argument `given`.
    """
    wanted = [SETTINGS[name] for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def call(
            context: typer.Context, assignments: Any, settings_file: Any, **values: Any
        ) -> None:
            flags = {setting.name: values.pop(setting.name) for setting in wanted}
            given = Given(
                flags={name: value for name, value in flags.items() if _is_given(context, name)},
                assignments=tuple(assignments or ()),
                file=settings_file,
            )
            command(**values, given=given)

        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.name != "given"]
        parameters = [*own, *map(_parameter, wanted), *_common()]
        keyword = inspect.Parameter.KEYWORD_ONLY
        call.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[item.replace(kind=keyword) for item in parameters]
        )
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        del call.__wrapped__
        return call

    return decorate


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _parameter(setting: Setting) -> inspect.Parameter:
    kind = KINDS.get(setting.read, str)
    more: dict[str, Any] = {"help": setting.help}
    names = [setting.flag]
    if kind is bool:
        names = [setting.flag if not setting.default else f"{setting.flag}/--no-{setting.flag[2:]}"]
        names += [SHORT[setting.name]] if setting.name in SHORT else []
    if kind in (int, float):
        more |= {"min": setting.low, "max": setting.high}
    if setting.default_text:
        more["show_default"] = setting.default_text
    if kind is not bool:
        more["metavar"] = setting.metavar or METAVARS[kind]
    default = setting.default
    if setting.is_list or default is None:
        kind, default = (list[kind] if setting.is_list else kind) | None, None  # type: ignore[valid-type]
    annotation = Annotated[kind, typer.Option(*names, **more)]  # type: ignore[valid-type]
    return inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _common() -> list[inspect.Parameter]:
    assign = typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting; `self settings` lists all."
    )
    file = typer.Option(
        "--settings-file",
        metavar="FILE",
        help="Settings in YAML.",
        show_default="~/.config/self/settings.yml",
    )
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            "assignments", keyword, default=None, annotation=Annotated[list[str] | None, assign]
        ),
        inspect.Parameter(
            "settings_file", keyword, default=None, annotation=Annotated[Path | None, file]
        ),
        inspect.Parameter("context", keyword, annotation=typer.Context),
    ]
