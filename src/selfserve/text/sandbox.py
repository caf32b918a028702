"""Jinja as published chat templates expect it, in a sandbox with limits.

A template comes out of a model file, so it is a stranger's program: it cannot reach Python's
objects, cannot change what it is given, and cannot run for ever on a conversation that drives its
loops. What it raises never leaves this module as an exception of Jinja's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TIME_LIMIT_S = 5.0
"""Real templates need milliseconds; some take the square of the number of messages."""
OUTPUT_LIMIT = 64 << 20
"""Characters: twice the largest request body."""


class TemplateRefused(Exception):
    """The template called `raise_exception`; the text is the template author's."""


class TemplateFailed(Exception):
    """The template met something that it was not written for, or took too much."""


class _Deadline(threading.local):
    at: float = float("inf")


class _Environment(ImmutableSandboxedEnvironment):
    """Every attribute, subscript and call of a template passes here, so loops can be timed.

    One environment serves all threads; the deadline belongs to the thread that renders.
    """

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.deadline = _Deadline()
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception

    def check_time(self) -> None:
        if time.monotonic() > self.deadline.at:
            raise TemplateFailed(f"it did not finish within {TIME_LIMIT_S:g} s")

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.check_time()
        return super().call(__context, __obj, *args, **kwargs)


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what is trained on; here it only prints."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise TemplateRefused(str(message))


class CompiledTemplate:
    """A parsed template. Any thread may render it."""

    def __init__(self, source: str) -> None:
        """Raises `TemplateFailed` if the source does not parse."""
        self._environment = _Environment()
        try:
            tree = self._environment.parse(source)
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise TemplateFailed(_reason(error)) from error
        self.names = frozenset(name.name for name in tree.find_all(nodes.Name))
        """Variables that the template reads or sets."""

    def render(self, variables: Mapping[str, Any], *, now: datetime) -> str:
        """The rendered text. Raises `TemplateRefused` or `TemplateFailed`, nothing else."""
        deadline = self._environment.deadline
        deadline.at = time.monotonic() + TIME_LIMIT_S
        chunks: list[str] = []
        size = 0
        try:
            for chunk in self._template.generate(strftime_now=now.strftime, **variables):
                self._environment.check_time()
                size += len(chunk)
                if size > OUTPUT_LIMIT:
                    raise TemplateFailed(f"it wrote more than {OUTPUT_LIMIT} characters")
                chunks.append(chunk)
        except (TemplateRefused, TemplateFailed):
            raise
        except Exception as error:  # a stranger's program may fail in any way
            raise TemplateFailed(_reason(error)) from error
        finally:
            deadline.at = float("inf")
        return "".join(chunks)


def _reason(error: BaseException) -> str:
    """What went wrong, for the person who asked: one short line."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text[:200]
