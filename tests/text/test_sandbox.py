"""Templates have what published ones call, and nothing that reaches out of the sandbox."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from selfserve.text import sandbox
from selfserve.text.sandbox import CompiledTemplate, TemplateFailed, TemplateRefused

NOW = datetime(2025, 2, 3, 4, 5)


def render(source: str, **variables: Any) -> str:
    return CompiledTemplate(source).render(variables, now=NOW)


def test_blocks_leave_no_lines_behind() -> None:
    assert render("{% if true %}\n  a\n  {% endif %}\nb") == "  a\nb"


def test_loops_can_be_left_and_continued() -> None:
    source = "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
    assert render(source + "{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "02"


def test_the_generation_tag_prints_its_body() -> None:
    source = "{% for m in [1, 2] %}{% generation %}<{{ m }}>{% endgeneration %}{% endfor %}"
    assert render(source) == "<1><2>"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("tojson", '{"b": "é<&", "a": [1]}'),
        ("tojson(ensure_ascii=True)", '{"b": "\\u00e9<&", "a": [1]}'),
        ("tojson(sort_keys=True)", '{"a": [1], "b": "é<&"}'),
        ("tojson(separators=(',', ':'))", '{"b":"é<&","a":[1]}'),
        ("tojson(indent=1)", '{\n "b": "é<&",\n "a": [\n  1\n ]\n}'),
    ],
)
def test_tojson_takes_the_arguments_of_published_templates(call: str, text: str) -> None:
    assert render("{{ x | " + call + " }}", x={"b": "é<&", "a": [1]}) == text


def test_strftime_now_uses_the_time_of_the_request() -> None:
    assert render("{{ strftime_now('%Y-%m-%d') }}") == "2025-02-03"


def test_raise_exception_carries_the_text_of_the_template() -> None:
    with pytest.raises(TemplateRefused, match="only users"):
        render("{{ raise_exception('only users') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ missing.field }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{{ range(10 ** 9) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
    ],
)
def test_whatever_goes_wrong_is_a_template_failure(source: str) -> None:
    with pytest.raises(TemplateFailed):
        render(source, messages=[])


@pytest.mark.parametrize("source", ["{% if %}", "{{ ", "{% endfor %}", "{{ x | nofilter }}"])
def test_a_source_that_does_not_parse_is_a_template_failure(source: str) -> None:
    with pytest.raises(TemplateFailed):
        CompiledTemplate(source)


def test_loops_over_messages_end_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "TIME_LIMIT_S", 0.05)
    loops = (
        "{% for a in m %}{% for b in m %}{% set x = m[loop.index0].role %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(TemplateFailed, match="did not finish"):
        render(loops, m=[{"role": "user"}] * 3000)


def test_output_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "OUTPUT_LIMIT", 1000)
    with pytest.raises(TemplateFailed, match="1000 characters"):
        render("{% for i in range(2000) %}x{% endfor %}")
