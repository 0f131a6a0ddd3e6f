"""What of a JSON document no database column can hold: the reader of JSON lets it pass."""

import math
from typing import Any, Final

from api.problems import Finding, escaped

DEPTH_MAX: Final = 32
"""Levels of a spec; an environment's config has the rest below its own four."""

INTEGER_MAX: Final = 2**63 - 1
"""Largest whole number that every reader of a stored spec can hold."""


def unstorable(value: Any, pointer: str = "", depth: int = 0) -> list[Finding]:
    """Findings at what cannot be stored."""
    if depth > DEPTH_MAX:
        return [Finding(pointer, "too_deep", f"This is nested more than {DEPTH_MAX} levels deep.")]
    match value:
        case str() if "\x00" in value or not _is_unicode(value):
            return [Finding(pointer, "bad_text", "The text holds a NUL or half a character.")]
        case float() if not math.isfinite(value):
            return [Finding(pointer, "not_finite", f"{value} is no JSON number.")]
        case int() if abs(value) > INTEGER_MAX:
            return [Finding(pointer, "too_large", f"Whole numbers end at {INTEGER_MAX}.")]
        case dict():
            found = [one for key in value for one in unstorable(key, pointer, depth + 1)]
            for key, inner in value.items():
                found += unstorable(inner, f"{pointer}/{escaped(key)}", depth + 1)
            return found
        case list():
            return [
                one
                for number, inner in enumerate(value)
                for one in unstorable(inner, f"{pointer}/{number}", depth + 1)
            ]
        case _:
            return []


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
