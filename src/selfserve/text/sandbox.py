"""Jinja as published chat templates expect it, in a sandbox with limits.

A template comes out of a model file, so it is a stranger's program: it cannot reach Python's
objects, cannot change what it is given, cannot run for ever and cannot make values without end.
What it raises never leaves this module as an exception of Jinja's.

Rules of this file
- Nothing is computed while a template is compiled: there is no deadline then.
- Loops, calls, filters, operators and attributes pass through the environment, which looks at the
  clock and at what they make (`bounds`).
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfserve.text import bounds

TIME_LIMIT_S = 5.0
"""Real templates need milliseconds; some take the square of the number of messages."""
OUTPUT_LIMIT = 64 << 20
"""Characters: twice the largest request body."""
MADE_LIMIT = 512 << 20
"""Characters and entries of all that a rendering makes on its way, thrown away or not."""
ITERATIONS_PER_LOOK = 64
"""Rounds of a loop between two looks at the clock."""

_TIMED = "self_timed"


class TemplateRefused(Exception):
    """The template called `raise_exception`; the text is the template author's."""


class TemplateFailed(Exception):
    """The template met something that it was not written for, or took too much."""


def go_on() -> None:
    """The check of a rendering that nobody cancels."""


class _Rendering(threading.local):
    """What belongs to the rendering of this thread."""

    deadline_s: float = float("inf")
    check: Callable[[], None] = staticmethod(go_on)
    num_made: int = 0


class _Generator(CodeGenerator):
    """Writes what goes around `Environment.call` and filters through the environment, too."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concatenated((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._bounded(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._bounded(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._bounded(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _bounded(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")


class _Environment(ImmutableSandboxedEnvironment):
    """Whatever a template does passes here, so that it can be timed and measured.

    One environment serves all threads; the deadline belongs to the thread that renders.
    """

    code_generator_class = _Generator
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self.made,
            extensions=["jinja2.ext.loopcontrols", _GenerationTag],
        )
        self.rendering = _Rendering()
        self.filters["tojson"] = _to_json
        for name, function in self.filters.items():
            self.filters[name] = self._measured(name, function)
        self.filters[_TIMED] = self._timed
        self.globals["raise_exception"] = _raise_exception
        del self.globals["lipsum"]

    def check_time(self) -> None:
        self.rendering.check()
        if time.monotonic() > self.rendering.deadline_s:
            raise TemplateFailed(f"it did not finish within {TIME_LIMIT_S:g} s")

    def made(self, value: Any) -> Any:
        """`value`, which the template has just made. Raises `bounds.TooMuch`."""
        bounds.check_result(value)
        if isinstance(value, str | list | tuple | dict):
            self.rendering.num_made += len(value)
            if self.rendering.num_made > MADE_LIMIT:
                raise bounds.TooMuch(f"it makes more than {MADE_LIMIT} characters on its way")
        return value

    def concatenated(self, parts: Iterable[Any]) -> str:
        """`a ~ b`."""
        texts = [str(part) for part in parts]
        if sum(map(len, texts)) > bounds.MAX_TEXT:
            raise bounds.TooMuch(f"it makes a text of more than {bounds.MAX_TEXT} characters")
        return str(self.made("".join(texts)))

    def getattr(self, obj: Any, attribute: str) -> Any:
        self.check_time()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self.check_time()
        return super().getitem(obj, argument)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        self.check_time()
        bounds.check_operator(operator, left, right)
        return self.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self.check_time()
        method = getattr(__obj, "__wrapped__", __obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | int | float | bytes):  # types' own methods, made in C
            if method.__name__ == "join":
                args = tuple(map(__self._listed, args))
            bounds.check_method(owner, method.__name__, args, kwargs)
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def _measured(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter, looked at before and after. Some take Jinja's context in front."""
        first = 1 if getattr(function, "jinja_pass_arg", None) is not None else 0

        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            self.check_time()
            if name == "join":
                args = (*args[:first], self._listed(args[first]), *args[first + 1 :])
            bounds.check_filter(name, args[first:], kwargs)
            return self.made(function(*args, **kwargs))

        return measured

    def _listed(self, values: Any) -> Any:
        """`values`, with the entries of an iterator taken out, so that they can be counted."""
        return self.made(list(self._timed(values))) if isinstance(values, Iterator) else values

    def _timed(self, values: Iterable[Any]) -> Iterator[Any]:
        for count, value in enumerate(values):
            if count % ITERATIONS_PER_LOOK == 0:
                self.check_time()
            yield value


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
    parts: list[str] = []
    size = 0
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    for part in encoder.iterencode(value):
        size += len(part)
        if size > bounds.MAX_TEXT:
            raise bounds.TooMuch(f"it writes more than {bounds.MAX_TEXT} characters of JSON")
        parts.append(part)
    return "".join(parts)


def _raise_exception(message: object) -> None:
    raise TemplateRefused(str(message))


class CompiledTemplate:
    """A parsed template. Any thread may render it."""

    def __init__(self, source: str) -> None:
        """Raises `TemplateFailed` if the source does not parse."""
        self._environment = _Environment()
        try:
            tree = self._environment.parse(source)
            self.names = frozenset(name.name for name in tree.find_all(nodes.Name))
            """Variables that the template reads or sets."""
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, _TIMED, [], [], None, None)
            self._template = self._environment.from_string(tree)
        except Exception as error:  # a stranger's program may fail in any way
            raise TemplateFailed(_reason(error)) from error

    def render(
        self, variables: Mapping[str, Any], *, now: datetime, check: Callable[[], None] = go_on
    ) -> str:
        """The rendered text. Raises `TemplateRefused` or `TemplateFailed`, nothing else.

        `check` is called again and again; it ends the rendering by an exception that is no
        `Exception`.
        """
        rendering = self._environment.rendering
        rendering.deadline_s = time.monotonic() + TIME_LIMIT_S
        rendering.check, rendering.num_made = check, 0
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
            rendering.deadline_s, rendering.check = float("inf"), go_on
        return "".join(chunks)


def _reason(error: BaseException) -> str:
    """What went wrong, for the person who asked: one short line."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text[:200]
