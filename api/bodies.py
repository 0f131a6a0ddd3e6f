"""Request bodies with limits, read as they come."""

import re
from collections.abc import Mapping
from typing import Final

from fastapi import Request

from api.problems import Problem, too_large

ARCHIVES: Final = (
    "application/gzip",
    "application/x-gzip",
    "application/x-tar",
    "application/octet-stream",
)
"""Types under which a gzip-compressed tar is sent."""

_DIGITS: Final = re.compile(r"[0-9]{1,18}")


def number_in(headers: Mapping[str, str], name: str) -> int:
    """A header's whole number; 0 when it is missing or none."""
    text = headers.get(name, "")
    return int(text) if _DIGITS.fullmatch(text) else 0


def check_archive_type(request: Request) -> None:
    """Raise 415 for a body that says it is no archive; one without a type is taken as it is."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given and given not in ARCHIVES:
        detail = f"The body is {given[:100]!r}; send one of {', '.join(ARCHIVES)}."
        raise Problem(415, "unsupported_media_type", detail)


async def read_limited(request: Request, limit: int, what: str) -> bytes:
    """The body; 413 as soon as it is known to be larger than the limit, before it is buffered."""
    if number_in(request.headers, "content-length") > limit:
        raise too_large(what, limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(what, limit)
        parts.append(part)
    return b"".join(parts)
