"""Runs the JSON-Schema-Test-Suite against constrained decoding.

For each schema of the suite: either it is refused with an InvalidRequest, or everything that a
random model writes under its grammar satisfies a real validator.

    python -m bench.schema_corpus FOLDER        # FOLDER holds draft7/ and draft2020-12/

The suite comes with the source archive of the PyPI package `jsonschema` (json/tests):
`pip download jsonschema --no-deps --no-binary jsonschema`, then unpack it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator, Draft202012Validator, ValidationError, validators
from tests.support.random_decoding import byte_factory, random_text

from selfserve.errors import InvalidRequest, RequestError
from selfserve.text.schema import json_schema_constraint


def _multiple_of(validator: Any, divisor: Any, value: Any, _: Any) -> Iterator[Any]:
    """Exact, where the library's own check divides binary fractions. Numbers that a binary
    fraction does not hold exactly are let through: the text was a multiple, its value is not."""
    if not validator.is_type(value, "number") or abs(value) > 2**50:
        return
    if Fraction(repr(value)) % Fraction(repr(divisor)):
        yield ValidationError(f"{value!r} is not a multiple of {divisor}")


VALIDATORS = {
    "draft7": validators.extend(Draft7Validator, {"multipleOf": _multiple_of}),  # type: ignore[no-untyped-call]
    "draft2020-12": validators.extend(Draft202012Validator, {"multipleOf": _multiple_of}),  # type: ignore[no-untyped-call]
}


@dataclass
class Figures:
    """Counts of schemas, and what went wrong."""

    schemas: int = 0
    refused: int = 0
    texts: int = 0
    endless: int = 0
    unjudged: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def schemas_of(folder: Path, *, optional: bool) -> Iterator[tuple[str, Any]]:
    """Each schema of one draft's folder with the file it comes from."""
    for path in sorted(folder.rglob("*.json") if optional else folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield f"{path.stem}: {group['description']}", group["schema"]


def try_schema(name: str, schema: Any, draft: str, figures: Figures, *, seeds: int) -> None:
    """Generates `seeds` texts under `schema` and validates each."""
    figures.schemas += 1
    try:
        constraint = json_schema_constraint(schema)
        factory = byte_factory()
        factory.compile(constraint)
    except InvalidRequest as error:
        figures.refused += 1
        figures.reasons[error.message] += 1
        return
    validator = VALIDATORS[draft](schema, format_checker=VALIDATORS[draft].FORMAT_CHECKER)
    for seed in range(seeds):
        try:
            text = random_text(factory.compile(constraint), seed)
        except RequestError as error:
            figures.wrong.append(f"{name} {json.dumps(schema)[:300]}: seed {seed}: {error.message}")
            return
        if text is None:
            figures.endless += 1
            continue
        try:
            errors = list(validator.iter_errors(json.loads(text)))
        except re.error:  # a pattern of ECMA-262 that the library's validator cannot read
            figures.unjudged += 1
            return
        figures.texts += 1
        if errors:
            figures.wrong.append(
                f"{name} {json.dumps(schema)[:300]}: seed {seed}: {text!r}: {errors[0].message}"
            )
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--optional", action="store_true", help="also the optional tests")
    parser.add_argument("--reasons", action="store_true", help="list why schemas were refused")
    arguments = parser.parse_args()
    for draft in VALIDATORS:
        figures = Figures()
        for name, schema in schemas_of(arguments.folder / draft, optional=arguments.optional):
            try_schema(name, schema, draft, figures, seeds=arguments.seeds)
        print(
            f"{draft}: {figures.schemas} schemas, {figures.refused} refused "
            f"({figures.refused / figures.schemas:.0%}), {figures.texts} texts valid, "
            f"{figures.endless} without end, {figures.unjudged} schemas not judged, "
            f"{len(figures.wrong)} schemas wrong"
        )
        print(*figures.wrong, sep="\n")
        if arguments.reasons:
            for reason, count in figures.reasons.most_common():
                print(f"  {count:4} {reason}")


if __name__ == "__main__":
    main()
