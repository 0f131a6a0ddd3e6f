"""Frames over fd 0, as the reference agent reads and writes them.

A frame is a big-endian uint32 length and that many bytes: fields, each a uint32 length and its bytes;
the first names the kind. Numbers are decimal. Guest code: standard library only, Python 3.9 on.
"""

from __future__ import annotations

import os


def read_exactly(fd: int, size: int) -> bytes:
    """`size` bytes, fewer at the end of the stream."""
    content = bytearray()
    while len(content) < size and (chunk := os.read(fd, min(size - len(content), 1 << 20))):
        content += chunk
    return bytes(content)


def receive() -> list[bytes]:
    """The next request; empty when the host is gone."""
    body = memoryview(read_exactly(0, int.from_bytes(read_exactly(0, 4), "big")))
    fields = []
    while body:
        size = int.from_bytes(body[:4], "big")
        fields.append(bytes(body[4 : 4 + size]))
        body = body[4 + size :]
    return fields


def pack(fields: list[bytes]) -> bytes:
    """One frame."""
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body


def send(fields: list[bytes]) -> None:
    """Write one frame."""
    send_packed(pack(fields))


def send_packed(frames: bytes) -> None:
    """Write frames that are packed already."""
    view = memoryview(frames)
    while view:
        view = view[os.write(0, view) :]
