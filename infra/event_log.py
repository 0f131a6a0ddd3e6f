"""Bytes of event-log segments: zlib over msgpack `[format, header, entries]`.

The registry is apart from the frames': no host may ever send the events that only a leader makes.
"""

import hashlib
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from domain.event_log import LogEntry, LogGap, LogHeader, LogRecord, LogSegment
from domain.events import Event
from domain.ids import JobId

FORMAT: Final = 1
"""Raised when a former reader would misread; new fields with defaults do not raise it."""

SEGMENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Unpacked size that is read back; what claims more is damaged or hostile."""

COMPRESSION: Final = 6
"""zlib's own default; segments shrink to about a tenth, mostly by names that repeat."""

CODE_FOLDERS: Final = ("domain", "kv", "sandboxes/core", "scheduler/core")
"""What decides: sources whose change may change the commands."""

TREE: Final = Path(__file__).resolve().parents[1]


class SegmentUnreadable(ValueError):
    """The bytes are no whole segment that this code understands."""


class _Record(msgspec.Struct, array_like=True):
    number: int
    now: float
    kind: str
    """Class of the event; empty for a gap, whose length is in `count`."""
    body: msgspec.Raw
    kinds: tuple[str, ...]
    sha: bytes
    quarantined: JobId | None
    count: int


class _Segment(msgspec.Struct, array_like=True):
    format: int
    header: msgspec.Raw
    entries: list[_Record]


_ENCODER: Final = msgspec.msgpack.Encoder()
_SEGMENT: Final = msgspec.msgpack.Decoder(_Segment)
_HEADER: Final = msgspec.msgpack.Decoder(LogHeader)
_EVENTS: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    kind.__name__: msgspec.msgpack.Decoder(kind) for kind in get_args(Event)
}


def encode_segment(header: LogHeader, entries: Sequence[LogEntry]) -> bytes:
    """Bytes of a segment."""
    records = [_packed(entry) for entry in entries]
    packed = _Segment(FORMAT, msgspec.Raw(_ENCODER.encode(header)), records)
    return zlib.compress(_ENCODER.encode(packed), COMPRESSION)


def decode_segment(data: bytes) -> LogSegment:
    """The segment of these bytes. Raises SegmentUnreadable."""
    try:
        packed = _SEGMENT.decode(_unpacked(data))
        if packed.format > FORMAT:
            raise SegmentUnreadable(f"format {packed.format}, this code reads up to {FORMAT}")
        entries = tuple(_entry(record) for record in packed.entries)
        return LogSegment(_HEADER.decode(packed.header), entries)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise SegmentUnreadable(str(error)) from error


def code_identity(tree: Path = TREE) -> str:
    """Hash of the sources that decide, the same for the same sources on any machine."""
    digest = hashlib.sha256()
    for folder in CODE_FOLDERS:
        for path in sorted((tree / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(tree).as_posix()}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _packed(entry: LogEntry) -> _Record:
    if isinstance(entry, LogGap):
        return _Record(entry.number, 0.0, "", msgspec.Raw(b"\xc0"), (), b"", None, entry.count)
    return _Record(
        entry.number,
        entry.now,
        type(entry.event).__name__,
        msgspec.Raw(_ENCODER.encode(entry.event)),
        entry.kinds,
        bytes.fromhex(entry.sha),
        entry.quarantined,
        1,
    )


def _entry(record: _Record) -> LogEntry:
    if not record.kind:
        return LogGap(record.number, record.count)
    decoder = _EVENTS.get(record.kind)
    if decoder is None:
        raise SegmentUnreadable(f"unknown event {record.kind}")
    return LogRecord(
        number=record.number,
        now=record.now,
        event=decoder.decode(record.body),
        kinds=record.kinds,
        sha=record.sha.hex(),
        quarantined=record.quarantined,
    )


def _unpacked(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, SEGMENT_BYTES_MAX)
    if stream.unconsumed_tail or not stream.eof:
        raise SegmentUnreadable("cut off, or larger than any segment")
    return unpacked
