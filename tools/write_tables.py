"""Writes the tables of the docs that are made from the program: limits and sampling parameters.

`python tools/write_tables.py` rewrites them; a test compares them with what they are made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from selfserve.config import ServerSettings
from selfserve.images.limits import ImageLimits
from selfserve.limits import INT32_MAX, MIB, REAL_MAX, TABLE, Limit
from selfserve.sampling import PARAMETERS, Parameter, Span

DOCS = Path(__file__).resolve().parents[1] / "docs"
MARKS = (
    "<!-- parameters of sampling: written by tools/write_tables.py -->\n",
    "<!-- end of parameters -->\n",
)
INTRO = """\
# Limits

What a client can make large is bounded, so that no request harms another. What goes beyond is
refused before any costly work, with a message that names field, limit and value. This page is
written by `tools/write_tables.py` from the values that the program uses.
"""

PICTURES = (
    ("source_bytes", "bytes", "a picture's file", "413"),
    ("pixels", "pixels", "a picture, by its header", "413"),
    ("side", "pixels", "the longer side", "413"),
    ("redirects", "", "redirections of an address", "502"),
    ("fetch_s", "seconds", "a fetch, from look-up to last byte", "502"),
)
FORMS = (
    ("grammar", "gbnf", "MAX_TEXT", "characters", "a grammar"),
    ("grammar", "gbnf", "MAX_RULES", "", "rules"),
    ("grammar", "gbnf", "MAX_NODES", "", "parts of all rules"),
    ("grammar", "gbnf", "MAX_NESTING", "levels", "groups inside each other"),
    ("grammar", "gbnf", "MAX_LOWER_BOUND", "", "lower bound of a repetition"),
    ("grammar", "gbnf_facts", "MAX_CHAIN", "", "rules that refer to each other in a row"),
    ("grammar", "gbnf_facts", "MAX_REPEATED", "", "product of repetitions inside each other"),
    ("grammar", "gbnf_facts", "MAX_SHORTEST", "characters", "shortest text of a rule"),
    ("grammar", "grammar", "MAX_OPTIONS", "", "options of one choice"),
    ("schema", "schema_rules", "MAX_SCHEMAS", "", "sub-schemas, references followed"),
    ("schema", "schema_rules", "MAX_PROPERTIES", "", "named properties of one object"),
    ("schema", "schema_rules", "MAX_ENUM_CHARACTERS", "characters", "all values of enums"),
    ("schema", "schema_rules", "MAX_MULTIPLE", "", "least common multiple of multipleOf"),
    ("schema", "schema_size", "MAX_NESTING", "levels", "sub-schemas inside each other"),
    ("schema", "schema_size", "MAX_LOWER_BOUND", "", "minLength, minItems, minProperties"),
    ("schema", "schema_size", "MAX_SMALLEST", "values", "the smallest value of a schema"),
    ("schema", "schema_size", "MAX_ALTERNATIVES", "", "branches that meet in one place"),
    ("schema", "schema_overlap", "MAX_BRANCHES", "", "branches of a oneOf"),
    ("schema", "schema_rules", "MAX_CONSTANT", "characters", "one constant"),
    ("grammar, schema", "fuel", "MAX_STEPS", "steps", "counted work of compiling"),
    ("pattern", "pattern", "MAX_PATTERN_LENGTH", "characters", "a pattern"),
    ("pattern", "pattern", "MAX_EXPANDED_SIZE", "characters", "it with repetitions written out"),
    ("pattern", "pattern", "MAX_GROUPS_DEEP", "levels", "groups inside each other"),
)
"""Kind, module of `text/`, constant, unit, what it bounds."""
SETTINGS = (
    ("queue_size", "requests that may wait", "429"),
    ("max_images", "pictures of a request", "422"),
    ("request_timeout_s", "seconds that a request may take", "504"),
    ("preprocess_concurrency", "pictures fetched or decoded at once", "they wait"),
)


def limits_page() -> str:
    """The text of docs/limits.md."""
    pictures, settings = ImageLimits(), ServerSettings()
    return "\n".join(
        (
            INTRO,
            "## Requests\n",
            _table("limit", (_limit_row(limit) for limit in TABLE)),
            "## Pictures\n",
            _table(
                "limit",
                (
                    (name, _amount(getattr(pictures, name), unit), bounds, beyond)
                    for name, unit, bounds, beyond in PICTURES
                ),
            ),
            "## Grammars and schemas\n",
            "What goes beyond is refused with 400 and the place in the grammar or schema.\n",
            _table("form", (_form_row(*form) for form in FORMS)),
            "## Settings\n",
            "These are the operator's; the context size, which bounds a prompt with its answer"
            "\n(400), is the model's or that of `--context-size`.\n",
            _table(
                "setting",
                (
                    (f"`{name}`", _amount(getattr(settings, name), ""), bounds, beyond)
                    for name, bounds, beyond in SETTINGS
                ),
            ),
        )
    )


def _limit_row(limit: Limit) -> tuple[str, ...]:
    return limit.name, _amount(limit.value, limit.unit), limit.bounds, limit.beyond


def _form_row(kind: str, module: str, name: str, unit: str, bounds: str) -> tuple[str, ...]:
    value = getattr(import_module(f"selfserve.text.{module}"), name)
    return kind, _amount(value, unit), bounds, "400"


def _amount(value: float, unit: str) -> str:
    if unit == "bytes" and value % MIB == 0:
        return f"{int(value) // MIB} MiB"
    number = f"{int(value):,}" if value == int(value) else str(value)
    return f"{number} {unit}".rstrip()


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {head} | at most | what it bounds | beyond |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def parameter_table() -> str:
    """The table of sampling parameters in docs/api.md."""
    lines = ["| field | default | values | |", "|---|---|---|---|"]
    for parameter in PARAMETERS.values():
        if parameter.rule.is_said:
            help = parameter.rule.help.replace("|", "\\|")
            cells = (f"`{parameter.name}`", _default(parameter), _values(parameter), help)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _default(parameter: Parameter) -> str:
    if parameter.name == "seed":  # the record holds the seed that was drawn
        return "-1"
    if parameter.name == "samplers":
        return f"`{' '.join(parameter.default)}`"
    return f"`{json.dumps(parameter.default)}`" if parameter.type is tuple else _number(parameter)


def _number(parameter: Parameter) -> str:
    return json.dumps(parameter.default).removesuffix(".0")


def _values(parameter: Parameter) -> str:
    if parameter.rule.span is None:
        return "true, false" if parameter.type is bool else ""
    text = _span(parameter.rule.span)
    chat = parameter.rule.chat_span
    return f"{text}; chats {_span(chat)}" if chat else text


def _span(span: Span) -> str:
    low, high = span
    if low == -REAL_MAX and high == REAL_MAX:
        return "any"
    if high in (INT32_MAX, REAL_MAX):
        return f"from {low:g}"
    if high == 2**63 - 1:
        return "64 bits"
    return f"{low:g} … {high:,}" if isinstance(high, int) else f"{low:g} … {high:g}"


def with_parameters(page: str) -> str:
    """docs/api.md with its table of sampling parameters made anew."""
    begin, end = MARKS
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{parameter_table()}\n{end}", page)


def main() -> None:
    (DOCS / "limits.md").write_text(limits_page(), encoding="utf-8")
    page = DOCS / "api.md"
    page.write_text(with_parameters(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
