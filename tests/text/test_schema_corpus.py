"""Whatever is generated under a schema satisfies it, or the schema was refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.schema_corpus import VALIDATORS, Figures, schemas_of, try_schema
from tests.support.schema_table import all_schemas


@pytest.mark.parametrize("draft", VALIDATORS)
def test_text_generated_under_own_schemas_validates(draft: str) -> None:
    figures = Figures()
    for number, (dialect, schema) in enumerate(all_schemas()):
        if dialect == draft:
            try_schema(f"schema {number}", schema, draft, figures, seeds=3)
    assert figures.wrong == []
    assert figures.schemas >= 140
    assert figures.refused / figures.schemas < 0.12, figures.reasons
    assert figures.endless <= figures.texts / 20


SUITE = os.environ.get("JSON_SCHEMA_TEST_SUITE")
"""Folder of the public test suite, where `draft7/` lies in `tests/`; see bench/schema_corpus.py."""


@pytest.mark.skipif(SUITE is None, reason="JSON_SCHEMA_TEST_SUITE names no folder")
@pytest.mark.parametrize("draft", VALIDATORS)
def test_text_generated_under_the_public_suite_validates(draft: str) -> None:
    figures = Figures()
    for name, schema in schemas_of(Path(SUITE or "") / "tests" / draft, optional=False):
        try_schema(name, schema, draft, figures, seeds=3)
    assert figures.wrong == []
    assert figures.schemas >= 200
