"""Reads the segments of an event log from files or an object store, each by itself.

A segment that cannot be read hides no other one; the same segment under a second name counts once.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from domain.errors import PayloadUnreadable
from domain.event_log import LogSegment
from infra.event_log import SegmentUnreadable, decode_segment
from infra.names import EVENT_LOG_FOLDER, event_log_folder
from stores.blobs import Blobs

Place = tuple[int, float, int]
"""Term, opening and number of a segment."""


@dataclass(slots=True)
class Segments:
    """What was read, and what was not."""

    found: list[LogSegment] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    """Path and cause."""
    copies: list[tuple[str, str]] = field(default_factory=list)
    """Path of a segment that is left out, and of the one that it repeats."""
    _places: dict[Place, list[tuple[str, LogSegment]]] = field(default_factory=dict)

    def take(self, path: str, data: bytes) -> None:
        """One more object."""
        try:
            segment = decode_segment(data)
        except SegmentUnreadable as error:
            self.unreadable.append((path, str(error)))
            return
        header = segment.header
        known = self._places.setdefault((header.term, header.opened_at, header.segment), [])
        same = next((name for name, other in known if other == segment), None)
        if same is not None:
            self.copies.append((path, same))
            return
        known.append((path, segment))
        self.found.append(segment)


def read_files(root: Path, term: int | None) -> Segments:
    """The segments of a file or a folder; those in another term's folder are not looked into.

    Raises FileNotFoundError where nothing of that name is.
    """
    if not root.exists():
        raise FileNotFoundError(f"there is no file or folder {root}")
    read = Segments()
    for path in _files(root, term):
        try:
            data = path.read_bytes()
        except OSError as error:
            read.unreadable.append((str(path), error.strerror or str(error)))
        else:
            read.take(str(path), data)
    return read


async def read_store(blobs: Blobs, term: int | None) -> Segments:
    """The segments of an object store. Raises PayloadUnreadable where it cannot be listed."""
    read = Segments()
    async for path in _objects(blobs, term):
        try:
            data = await blobs.read(path)
        except PayloadUnreadable as error:
            read.unreadable.append((path, str(error)))
        else:
            read.take(path, data)
    return read


def _files(root: Path, term: int | None) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*.segment")):
        folder = path.parent.name
        is_of_a_term = folder.isdigit() and folder == event_log_folder(int(folder))
        if term is None or not is_of_a_term or int(folder) == term:
            yield path


async def _objects(blobs: Blobs, term: int | None) -> AsyncIterator[str]:
    folder = EVENT_LOG_FOLDER if term is None else f"{EVENT_LOG_FOLDER}/{event_log_folder(term)}"
    for path in await blobs.paths(folder):
        if path.endswith(".segment"):
            yield path
