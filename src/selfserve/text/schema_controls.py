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


def narrow_names(schema: dict[str, Any]) -> bool:
    """Makes the names of other properties safe in a rewritten schema whose texts have escapes.
    False if it cannot."""
    others = schema.get("additionalProperties", True)
    names = (*schema.get("properties", ()), *schema.get("required", ()))
    if "patternProperties" in schema:
        return others is False and not any(_ESCAPED.search(name) for name in names)
    if names and others is not False:
        schema["patternProperties"] = {_OTHER_NAMES: others}
        schema["additionalProperties"] = False
    return True
