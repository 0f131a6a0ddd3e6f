"""Names that a caller gives, as parts of an address: each stays one part, or is refused."""

from typing import Final
from urllib.parse import quote

from venusrl._errors import UsageError

NAME_CHARS_MAX: Final = 500
"""Longer than any id, name or reference; what is longer is a mistake, not a name."""

PLAIN: Final = "@:"
"""Characters of references that an address may hold as they are."""


def one(name: str) -> str:
    """A name as one part of an address. Raises UsageError for what would be another address."""
    if "/" in name:
        raise UsageError(f"{name[:100]!r} is no id or name: it holds a slash")
    return _part(name)


def reference(name: str) -> str:
    """A name that may hold slashes, `hf:ORG/NAME@REV`. Raises UsageError."""
    return "/".join(_part(part) for part in name.split("/"))


def check(path: str) -> str:
    """The address of a request as it stands. Raises UsageError where a part is missing or climbs."""
    if any(part in ("", ".", "..") for part in path.split("/")[1:]):
        raise UsageError(f"{path[:200]!r} lacks an id or name")
    return path


def _part(name: str) -> str:
    if not name.strip():
        raise UsageError("an id or name is empty")
    if name in (".", "..") or len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise UsageError(f"{name[:100]!r} is no id or name")
    return quote(name, safe=PLAIN)
