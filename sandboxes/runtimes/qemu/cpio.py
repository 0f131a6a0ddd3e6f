"""Writes the archive that a kernel unpacks as its first file system (cpio, format `newc`)."""

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

MAGIC: Final = b"070701"
TRAILER: Final = "TRAILER!!!"


@dataclass(slots=True)
class Archive:
    """Entries by their path inside, without a leading slash; folders are added as they are needed."""

    entries: dict[str, tuple[int, int, bytes | Path]] = field(default_factory=dict)
    """Mode, time of change and content, which for a link is its target."""

    def file(self, path: str, content: bytes | Path, mode: int = 0o644) -> None:
        """A regular file, of these bytes or of a file here, whose time it keeps."""
        time_s = int(content.stat().st_mtime) if isinstance(content, Path) else 0
        self._add(path, stat.S_IFREG | mode, time_s, content)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self._add(path, stat.S_IFLNK | 0o777, 0, target.encode())

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A folder."""
        self._add(path, stat.S_IFDIR | mode, 0, b"")

    def __contains__(self, path: str) -> bool:
        return path.lstrip("/") in self.entries

    def write(self, out: BinaryIO) -> None:
        """The whole archive, in the order of paths, so that a folder precedes what it holds."""
        for number, path in enumerate(sorted(self.entries), start=1):
            mode, time_s, content = self.entries[path]
            data = content.read_bytes() if isinstance(content, Path) else content
            _put(out, path, (number, mode, time_s), data)
        _put(out, TRAILER, (0, 0, 0), b"")

    def _add(self, path: str, mode: int, time_s: int, content: bytes | Path) -> None:
        inside = path.lstrip("/")
        parent = inside.rpartition("/")[0]
        if parent and parent not in self.entries:
            self.folder(parent)
        self.entries[inside] = (mode, time_s, content)


def _put(out: BinaryIO, path: str, about: tuple[int, int, int], data: bytes) -> None:
    number, mode, time_s = about
    name = path.encode() + b"\0"
    # inode, mode, uid, gid, links, time, size, device, device of a node, name's size, checksum
    numbers = (number, mode, 0, 0, 1, time_s, len(data), 0, 0, 0, 0, len(name), 0)
    head = MAGIC + b"".join(b"%08X" % value for value in numbers) + name
    out.write(head + b"\0" * (-len(head) % 4))
    out.write(data + b"\0" * (-len(data) % 4))
