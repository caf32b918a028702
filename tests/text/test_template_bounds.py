"""What a template can make is bounded before it is made: it may come from a stranger."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import pytest

from selfserve.text import bounds, sandbox
from selfserve.text.sandbox import CompiledTemplate, TemplateFailed

NOW = datetime(2025, 2, 3, 4, 5)
LOOP = (
    "{% set ns = namespace(x=START) %}{% for i in range(60) %}STEP{% endfor %}{{ ns.x | length }}"
)


def render(source: str, **variables: Any) -> str:
    return CompiledTemplate(source).render(variables, now=NOW)


def growing(start: str, step: str) -> str:
    return LOOP.replace("START", start).replace("STEP", step)


HUGE = [
    "{{ 9 ** (9 ** 9) }}",
    "{{ 10 ** 100000 }}",
    "{% autoescape 9 ** (9 ** 9) %}{% endautoescape %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 10 ** 10 * 'a' }}",
    "{{ [1] * 10 ** 10 }}",
    "{{ [[1] * 100000] * 100000 }}",
    "{{ '%9999999999d' | format(1) }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%.*f' % (999999999, 1.5) }}",
    "{{ '{:9999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=9999) }}",
    "{{ ('%s' * 10000) % (('a' * 10000,) * 10000) }}",
    "{{ ('%(a)s' * 10000) % {'a': 'a' * 100000} }}",
    "{{ 'a' | center(10 ** 10) }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{{ 'a'.zfill(10 ** 10) }}",
    "{{ (1).to_bytes(10 ** 10, 'big') }}",
    "{{ 'a'.encode().center(10 ** 10) }}",
    "{{ ('a\\n' * 100000) | indent(9999) }}",
    "{{ ('\\t' * 100000).expandtabs(9999) }}",
    "{{ ('a' * 1000000) | replace('a', 'b' * 1000) }}",
    "{{ ('a' * 1000000).replace('', 'b' * 1000) }}",
    "{{ 'a'.translate({97: 'b' * 1000}) }}",
    "{{ range(100000) | join('a' * 10000) }}",
    "{{ range(100000) | map('string') | join('a' * 10000) }}",
    "{{ ('a' * 1000000).join('b' * 1000000) }}",
    "{{ [1] | batch(10 ** 9, 0) | list }}",
    "{{ [1] | slice(10 ** 9) | list }}",
    "{{ {'a': 1} | tojson(indent=10 ** 9) }}",
    "{{ range(99999) | list | tojson(indent=9999) }}",
    "{{ 1.5 | round(10 ** 9, 'floor') }}",
    "{{ ('a b ' * 999999) | wordwrap(1, true, 'x' * 9999) }}",
    "{{ ([[1] * 10] * 10000) | sum(start=[]) }}",
    "{{ lipsum(n=10 ** 9) }}",
    "{{ " + "9" * 6000 + " }}",
    growing("'abcdefgh'", "{% set ns.x = ns.x ~ ns.x %}"),
    growing("'abcdefgh'", "{% set ns.x = ns.x + ns.x %}"),
    growing("'abcdefgh'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    growing("[1]", "{% set ns.x = ns.x + ns.x %}"),
    growing("[1]", "{% set ns.x = [ns.x, ns.x] %}"),
    growing("[1]", "{% set ns.x = (ns.x, ns.x) %}"),
    growing("[1]", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    growing("[1]", "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
    growing("2", "{% for j in range(9) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"),
    growing("'a' * 1000000", "{% for j in range(90) %}{% set y = ns.x | upper %}{% endfor %}"),
]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that are reached at once."""
    monkeypatch.setattr(bounds, "MAX_TEXT", 8 << 20)
    monkeypatch.setattr(bounds, "MAX_ENTRIES", 1 << 17)
    monkeypatch.setattr(sandbox, "MADE_LIMIT", 256 << 20)


@pytest.mark.parametrize("source", HUGE, ids=lambda source: source[:50])
def test_no_operation_makes_more_than_the_limits(source: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        render(source)
    assert "did not finish" not in str(caught.value)


def test_nothing_is_computed_while_a_template_is_compiled() -> None:
    template = CompiledTemplate("{{ ('a' * 1000) | upper ~ raise_exception('now') }}")
    with pytest.raises(sandbox.TemplateRefused):
        template.render({}, now=NOW)
    CompiledTemplate(
        "{{ 9 ** (9 ** 9) }}{{ '%9999999999d' | format(1) }}{{ 'a' | center(10**10) }}"
    )


ENDLESS = [
    "{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
    "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "{% for a in m %}{% for b in m %}{% for c in m if c %}{% endfor %}{% endfor %}{% endfor %}",
    "{% for a in m %}{% for b in m %}{% set x = 1 + 1 %}{% endfor %}{% endfor %}",
    "{% for a in m recursive %}{% for b in m %}{% for c in m %}{% endfor %}{% endfor %}{{ a }}"
    "{% endfor %}",
]


@pytest.mark.parametrize("source", ENDLESS)
def test_loops_that_do_nothing_end_at_the_deadline(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def clock() -> float:
        now_s[0] += 0.01
        return now_s[0]

    monkeypatch.setattr(time, "monotonic", clock)
    with pytest.raises(TemplateFailed, match="did not finish"):
        render(source, m=[1] * 100_000)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 2 ** 10 + 7 // 2 - 7 % 4 }}", "1024"),
        ("{{ 2 ** -1 }}{{ 2.0 ** 3 }}{{ 7 / 2 }}", "0.58.03.5"),
        ("{{ '=' * 20 }}", "=" * 20),
        ("{{ [1, 2] + [3] }}{{ (1,) + (2,) }}", "[1, 2, 3](1, 2)"),
        ("{{ 'a' ~ 1 ~ none ~ x }}", "a1None"),
        ("{{ '%s-%05.1f' % ('a', 1.25) }}{{ '%d%%' | format(5) }}", "a-001.25%"),
        ("{{ '{}-{a}'.format(1, a=2) }}", "1-2"),
        ("{{ 'a\\nb' | indent(2) }}{{ 'a' | center(3) }}", "a\n  b a "),
        ("{{ ['a', 1] | join('-') }}{{ '-'.join(['a', 'b']) }}", "a-1a-b"),
        ("{{ m | map(attribute='a') | join(', ') }}", "1, 2"),
        ("{{ m | selectattr('a', 'equalto', 2) | list | length }}", "1"),
        ("{{ 'abab' | replace('a', 'cc') }}{{ 'ab'.replace('b', '') }}", "ccbccba"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        (
            "{% for a in m %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}",
            "1/2False 2/2True ",
        ),
        (
            "{% for a in m %}{{ loop.previtem is defined }}{{ loop.revindex0 }}{% endfor %}",
            "False1True0",
        ),
        ("{% for a in x %}1{% else %}none{% endfor %}", "none"),
        ("{% set a, b = (1, 2) %}{{ a }}{{ b }}", "12"),
        ("{{ [1, 2, 3] | sum }}{{ m | sum(attribute='a') }}", "63"),
        ("{{ m[1:] | length }}{{ 'abc'[::-1] }}{{ x | default('d') }}", "1cbad"),
        ("{{ {'a': [1, {'b': 'é'}]} | tojson }}", '{"a": [1, {"b": "é"}]}'),
        ("{{ 3.7 | round | int }}{{ '5' | int }}{{ 1000000 + 1 }}", "451000001"),
    ],
)
def test_what_templates_do_is_as_it_always_was(source: str, text: str) -> None:
    assert render(source, m=[{"a": 1}, {"a": 2}]) == text
