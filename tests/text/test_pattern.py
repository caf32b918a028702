"""Patterns of JSON Schema keep their meaning, or are refused."""

from __future__ import annotations

import pytest
from tests.support.acceptance import accepts

from selfserve.text.pattern import PatternError, rewrite
from selfserve.text.schema import json_schema_constraint


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("^[a&&b]$", ["a", "&"], ["aa"]),
        ("^[[a]$", ["[", "a"], ["]"]),
        ("^[+--]$", ["+", ",", "-"], ["."]),
        ("^[a-]$", ["a", "-"], ["b"]),
        ("^[\\w-.]$", ["x", "-", "."], ["é"]),
        ("^\\d$", ["7"], ["٣"]),
        ("^.$", ["x", "é"], ["\\n", "\u2028"]),
        ("^[^]$", ["x", "\\n"], ["xx"]),
        ("^\\/\\-\\!$", ["/-!"], ["/"]),
        ("^\\u00e9\\x41\\u{1F600}\\ud83d\\ude00$", ["éA😀😀"], ["é"]),
        ("^a{$", ["a{"], ["a"]),
        ("^a{,3}$", ["a{,3}"], ["aaa"]),
        ("^a*?b+?c??$", ["b", "aabc"], ["a"]),
        ("^(?<year>\\d{4})$", ["1999"], ["199"]),
        ("^a|b$", ["ax", "xb"], ["x", "xbx"]),
        ("b", ["b", "abc"], ["a"]),
        ("^\\s$", [" ", "\u00a0"], ["x"]),
        ("^]}$", ["]}"], ["]"]),
        ("^\\p{Lu}$", ["A", "É"], ["a"]),
        ("^a{2,}$", ["aa", "aaaa"], ["a"]),
        ("^a{0}b$", ["b"], ["ab"]),
    ],
)  # fmt: skip
def test_a_pattern_means_what_it_means_in_ecma_262(
    pattern: str, inside: list[str], outside: list[str]
) -> None:
    constraint = json_schema_constraint({"type": "string", "pattern": pattern})
    for text in inside:
        assert accepts(constraint, f'"{text}"'), text
    for text in outside:
        assert not accepts(constraint, f'"{text}"'), text


@pytest.mark.parametrize(
    "pattern",
    [
        "*a", "a|*", "(+)", "a**", "a{2}{3}", "^+a$", "(a", "a)", "[a", "[]", "[b-a]x[", "\\",
        "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?i)a", "\\bfoo", "a\\B", "(a)\\1", "\\k<n>", "\\Z",
        "a{3,2}", "a{99999}", "(a{200}){200}", "\ud800", "\\ud800", "[a-\\d]",
        "(" * 41 + ")" * 41, "a" * 10_001,
    ],
)  # fmt: skip
def test_what_is_no_pattern_or_cannot_be_enforced_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        rewrite(pattern)


def test_nesting_and_size_are_allowed_up_to_their_limits() -> None:
    assert rewrite("(" * 40 + "a" + ")" * 40)
    assert rewrite("a{10000}")
    with pytest.raises(PatternError):
        rewrite("a{10001}")
