"""What an operation of a template may produce: judged before it is done, and once it is done.

A template comes out of a model file. A few characters of it (`'a' * 10**10`, `'%9999999999d' % 1`,
`x = [x, x]` in a loop) ask Python for more memory or time than there is, inside one call that
nothing interrupts; so each operation whose result can be much larger than what it is given has
its estimate here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jinja2.runtime import Undefined

MAX_TEXT = 64 << 20
"""Characters of one text, and entries of all lists in one value: twice the largest request."""
MAX_ENTRIES = 1 << 20
"""Entries of a list with all that is in it, counted as often as they would be printed."""
MAX_NUMBER_BITS = 4096
"""Bits of a whole number."""
MAX_WIDTH = 10_000
"""What a number that says how wide, how often or how precisely may say."""

_WIDE_FORMAT = re.compile(r"\d{5}|%[-#0 +]*\*|%[^a-zA-Z%]*\.\*|\{[^{}]*\{")
"""Widths of five digits and more, and those that come from an argument."""


class TooMuch(Exception):
    """The operation would take more than a template may have."""


def check_result(value: object) -> None:
    """Raises TooMuch for a value that a template may not have."""
    if isinstance(value, str | bytes):
        if len(value) > MAX_TEXT:
            raise TooMuch(f"it makes a text of more than {MAX_TEXT} characters")
    elif isinstance(value, int):
        if value.bit_length() > MAX_NUMBER_BITS:
            raise TooMuch(f"it makes a number of more than {MAX_NUMBER_BITS} bits")
    elif isinstance(value, list | tuple | dict | set | frozenset):
        _check_entries(value)


def _check_entries(value: Any) -> None:
    """Walks the whole value as printing it would: one list may be in it a million times."""
    num_entries = num_characters = 0
    levels = [value]
    while levels:
        level = levels.pop()
        num_entries += len(level)
        if num_entries > MAX_ENTRIES:
            raise TooMuch(f"it makes a list of more than {MAX_ENTRIES} entries")
        for entry in (*level.keys(), *level.values()) if isinstance(level, dict) else level:
            if isinstance(entry, str):
                num_characters += len(entry)
            elif isinstance(entry, list | tuple | dict | set | frozenset):
                levels.append(entry)
        if num_characters > MAX_TEXT:
            raise TooMuch(f"it makes a list of more than {MAX_TEXT} characters")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """Raises TooMuch if `left operator right` would be too large."""
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * max(right, 0), MAX_NUMBER_BITS, "a number", "bits")
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and isinstance(value, Sequence):
                most, unit = (MAX_TEXT, "characters") if isinstance(value, str) else ENTRIES
                _check_size(len(value) * max(times, 0), most, "a text or list", unit)
    elif operator == "%" and isinstance(left, str):
        check_format(left, right if isinstance(right, tuple) else (right,), {})


ENTRIES = (MAX_ENTRIES, "entries")


def check_format(form: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TooMuch if the text that `form` makes of the arguments would be too large."""
    if _WIDE_FORMAT.search(form):
        raise TooMuch(f"it formats with a width over {MAX_WIDTH}, or one that is computed")
    values: list[Any] = [*args, *kwargs.values()]
    for value in list(values):
        if isinstance(value, Mapping):
            values += value.values()
    longest = max((_text_size(value) for value in values), default=0)
    num_fields = form.count("%") + form.count("{")
    _check_text(len(form) + num_fields * (longest + MAX_WIDTH))


def _text_size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple | dict | set | frozenset):
        return MAX_TEXT // 64  # its entries were counted when it was made
    return 100


def check_method(owner: object, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TooMuch if the method `name` of `owner` would make a text that is too large."""
    check_widths(args, kwargs)
    estimate = TEXT_METHODS.get(name)
    if estimate is not None:
        estimate(owner, *args, **kwargs)


def check_widths(args: Iterable[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TooMuch for a number among the arguments that stands for a large result."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, int | float) and not -MAX_WIDTH <= value <= MAX_WIDTH:
            raise TooMuch(f"it asks for a width or count over {MAX_WIDTH}")


def _check_size(size: int, most: int, what: str, unit: str) -> None:
    if size > most:
        raise TooMuch(f"it makes {what} of more than {most} {unit}")


def _check_text(size: int) -> None:
    _check_size(size, MAX_TEXT, "a text", "characters")


def _replaced(text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    if len(new) > len(old):
        _check_text(len(text) + (text.count(old) if old else len(text) + 1) * len(new))


def _joined(separator: Any, entries: Any = (), *_: Any, **__: Any) -> None:
    if isinstance(entries, str | list | tuple | dict | range):
        _check_text(sum(map(_text_size, entries)) + len(str(separator)) * len(entries))


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    wide = len(width) if isinstance(width, str) else int(width)
    _check_text(len(str(text)) + wide * (str(text).count("\n") + 1))


def _untabbed(text: Any, tabsize: Any = 8, **_: Any) -> None:
    _check_text(len(text) + int(tabsize) * text.count("\t"))


def _formatted(form: Any, *args: Any, **kwargs: Any) -> None:
    check_format(str(form), args, kwargs)


def _refused(*_: Any, **__: Any) -> None:
    raise TooMuch("it uses a function that no chat template needs")


TEXT_METHODS: dict[str, Callable[..., None]] = {
    "expandtabs": _untabbed,
    "format": _formatted,
    "format_map": _formatted,
    "join": _joined,
    "replace": _replaced,
    "translate": _refused,
}
"""Methods of texts whose result is not bounded by the lengths of what they are given."""


def _summed(_: Any, *args: Any, start: Any = 0, **__: Any) -> None:
    first = args[1] if len(args) > 1 else start
    if not isinstance(first, int | float):  # adding up lists copies each of them again and again
        _refused()


def _joined_by_filter(entries: Any, d: Any = "", *_: Any, **__: Any) -> None:
    _joined(d, entries)


def _wrapped(text: Any, *args: Any, wrapstring: Any = None, **_: Any) -> None:
    separator = args[2] if len(args) > 2 else wrapstring
    _check_text((len(str(text)) + 1) * (1 + len(str(separator or ""))))


FILTERS: dict[str, Callable[..., None]] = {
    "format": _formatted,
    "indent": _indented,
    "join": _joined_by_filter,
    "replace": _replaced,
    "sum": _summed,
    "wordwrap": _wrapped,
    "urlize": _refused,
    "xmlattr": _refused,
}
"""The same of filters."""


def check_filter(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises TooMuch if the filter `name` would make a text that is too large."""
    value, *rest = args
    check_widths(rest, kwargs)
    estimate = FILTERS.get(name)
    if estimate is not None and not isinstance(value, Undefined):
        estimate(value, *rest, **kwargs)
