"""Frames of the guest agent's protocol, as the host writes and reads them; the guest is hostile input."""

from typing import Final

from venusrl.env.sandbox import FILE_BYTES_MAX, SandboxError, SandboxFailure

PROTOCOL: Final = 2
"""Version that the guest agent must name in its hello."""

GUEST_FRAME_BYTES_MAX: Final = FILE_BYTES_MAX + (1 << 16)
"""Largest frame that a guest may send: one file."""

FIELDS_MAX: Final = 8
"""No answer has more fields; more are an attack on the parser's memory."""

WORDS_MAX: Final = 4000
"""Words and variables of one program; the native agent has room for as many fields."""

UNLIMITED: Final = 1 << 60
"""A cap, a credit or a time in milliseconds that is none."""

DETAIL_CHARS: Final = 200

_REASONS: Final[dict[bytes, SandboxFailure]] = {
    b"not_found": "not_found",
    b"denied": "denied",
    b"too_large": "too_large",
}


class GuestProtocolError(ValueError):
    """The guest said something that no guest agent says."""


def pack(fields: list[bytes]) -> bytes:
    """One frame."""
    body = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """The fields of a frame's body; GuestProtocolError when they do not fill it exactly."""
    fields: list[bytes] = []
    at = 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4], "big")
        if at + 4 > len(body) or end > len(body) or len(fields) == FIELDS_MAX:
            raise GuestProtocolError("fields do not fill their frame")
        fields.append(body[at + 4 : end])
        at = end
    if not fields:
        raise GuestProtocolError("an empty frame")
    return fields


def number_in(text: bytes, least: int = 0, most: int = UNLIMITED) -> int:
    """A decimal number within these bounds. Raises GuestProtocolError."""
    if len(text) > 20:
        raise GuestProtocolError("a number that is too long")
    try:
        number = int(text)
    except ValueError as error:
        raise GuestProtocolError("not a number") from error
    if not least <= number <= most:
        raise GuestProtocolError(f"a number out of its bounds: {number}")
    return number


def refusal(reason: bytes, detail: bytes) -> SandboxError:
    """What an `error` means to the caller. Raises GuestProtocolError for a reason that is none."""
    if reason not in _REASONS:
        raise GuestProtocolError("not a reason")
    return SandboxError(_REASONS[reason], detail[:DETAIL_CHARS].decode(errors="replace"))


def encoded(text: str) -> bytes:
    """A path or a word as bytes; undecodable ones came as lone surrogates."""
    return text.encode(errors="surrogateescape")
