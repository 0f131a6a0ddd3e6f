"""Strikes known secret values out of text, also where they were encoded on the way.

What user code prints or raises is kept for people: logs, causes, details of unscorable rewards. Both
ends use this: the environment process before it cuts a long line, the host because it trusts nothing
of that process. It finds what was leaked by mistake; whoever wants to hide a value from it can.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

from venusrl.env.messages import Json

STRUCK: Final = "[redacted]"
"""What stands where a secret stood."""

VALUE_CHARS_MIN: Final = 8
"""Shorter values occur in ordinary text: striking them would destroy it without hiding them."""


class Redactor:
    """Strikes a fixed set of values; without any it gives text back as it is."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = {one for value in values for one in _spellings(value)}
        ordered = sorted(
            (one for one in spellings if len(one) >= VALUE_CHARS_MIN),
            key=lambda one: (-len(one), one),
        )
        encoded = [one.encode("utf-8", "surrogatepass") for one in ordered]
        self._text = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._raw = re.compile(b"|".join(map(re.escape, encoded))) if encoded else None
        self.longest = max(map(len, encoded), default=0)
        """Bytes of the longest spelling: text is cut no nearer than this to its end."""

    def text(self, text: str) -> str:
        """`text` without the values."""
        return text if self._text is None else self._text.sub(STRUCK, text)

    def raw(self, data: bytes) -> bytes:
        """The same for text that nobody has decoded yet."""
        return data if self._raw is None else self._raw.sub(STRUCK.encode(), data)

    def json(self, value: Json) -> Json:
        """The same for every text of a document, keys included."""
        if self._text is None:
            return value
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {self.text(key): self.json(item) for key, item in value.items()}
            case list() | tuple():
                return [self.json(item) for item in value]
            case _:
                return value


def _spellings(value: str) -> Iterator[str]:
    """The value as it is, line by line, and in the encodings that programs print."""
    yield value
    yield value.strip()
    # A log is read by lines: of a key with several lines each one is struck.
    yield from (line.strip() for line in value.splitlines())
    for plain in {value, value.strip()}:
        data = plain.encode("utf-8", "surrogatepass")
        yield json.dumps(plain)[1:-1]
        yield json.dumps(plain, ensure_ascii=False)[1:-1]
        yield repr(plain)[1:-1]
        yield repr(data)[2:-1]
        yield quote(data, safe="")
        yield quote_plus(data)
        yield data.hex()
        yield data.hex().upper()
        yield from _base64(data)


def _base64(data: bytes) -> Iterator[str]:
    """Base64 of the value at any offset inside something longer, such as `user:password`."""
    for offset in range(3):
        text = base64.b64encode(bytes(offset) + data).decode()
        # Characters that the neighbours' bits are part of are not the value's own.
        own = text[-(-8 * offset // 6) : 8 * (offset + len(data)) // 6]
        yield own
        yield own.replace("+", "-").replace("/", "_")
