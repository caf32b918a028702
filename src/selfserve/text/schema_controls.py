"""Control characters in texts, which JSON writes as `\\u00..`.

llguidance writes such escapes in all texts of a grammar or in none. They are switched on only
where a constant or a pattern needs them, since a model that is used to `\\u00e9` would else be led
into control characters. Where they are on, a name that stands for "any other property" can spell
a named one anew (`{"a": 1, "\\u0061": "x"}`); so other names are then those without escapes.
"""

from __future__ import annotations

import re
from typing import Any

_WITHOUT_SHORT_ESCAPE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
_ESCAPED = re.compile("[\x00-\x1f\x7f]")
_OTHER_NAMES = r"^[^\x{0}-\x{1f}\x{7f}]*$"


def has_controls(text: str) -> bool:
    """True if `text` holds a character that JSON has no escape of its own for."""
    return _WITHOUT_SHORT_ESCAPE.search(text) is not None


def narrow_names(schema: dict[str, Any]) -> str | None:
    """Makes the names of other properties safe in a rewritten schema whose texts have escapes, or
    tells the keyword that stands in the way."""
    others = schema.get("additionalProperties", True)
    names = (*schema.get("properties", ()), *schema.get("required", ()))
    if "patternProperties" in schema:
        if others is not False or any(_ESCAPED.search(name) for name in names):
            return "patternProperties"
    elif names and others is not False:
        if others is not True and others != {}:
            return "additionalProperties"  # as a pattern it would hold for the named ones too
        schema["patternProperties"] = {_OTHER_NAMES: True}
        schema["additionalProperties"] = False
    return None
