"""What can be asked about files of a sandbox, beside reading and writing them.

All of it is about entries of the work folder. Links are shown, moved and removed as links and never
followed out of it; the last part of a path is never followed at all.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from venusrl.env.sandbox import ReadRequest, WriteRequest

ENTRIES_MAX: Final = 1000
"""Entries of one listing; more are said to be there."""

REMOVED_ENTRIES_MAX: Final = 10_000
"""A folder with more is not removed in one call, nor in part: it would hold up others."""


class EntryKind(StrEnum):
    """What an entry is."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of a folder. `name` is the last part of its path, undecodable bytes escaped."""

    name: str
    kind: EntryKind
    size_bytes: int
    mode: int
    """Permissions, as of `chmod`."""
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries of a folder by name; `is_whole` unless it has more than were asked for."""

    entries: tuple[Entry, ...]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class StatRequest:
    """What is there? Answered by an Entry."""

    path: str


@dataclass(frozen=True, slots=True)
class ListRequest:
    """What does this folder hold? Answered by a Listing."""

    path: str
    entries_max: int = ENTRIES_MAX


@dataclass(frozen=True, slots=True)
class MakeFolderRequest:
    """Make a folder and those above it. Answered by whether it was not there before."""

    path: str


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Give an entry another name, in the place of a file that has it; folders are made."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class RemoveRequest:
    """Remove an entry, a folder with all that it holds."""

    path: str


FileRequest: TypeAlias = (
    ReadRequest
    | WriteRequest
    | StatRequest
    | ListRequest
    | MakeFolderRequest
    | MoveRequest
    | RemoveRequest
)
"""Everything about files that the native API can ask."""

FileResult: TypeAlias = bytes | Entry | Listing | bool | None
"""A file's bytes, an entry, a listing, whether a folder was made, or nothing."""
