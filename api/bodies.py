"""Request bodies with limits, read as they come."""

from fastapi import Request

from api.problems import too_large


async def read_limited(request: Request, limit: int, what: str) -> bytes:
    """The body; 413 as soon as it is known to be larger than the limit, before it is buffered."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(what, limit)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(what, limit)
        parts.append(part)
    return b"".join(parts)
