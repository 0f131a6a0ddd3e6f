"""Bytes of pages outside the device: in memory, and in a memory-mapped file of a fixed size.

A page is written with its checksum and comes back only if length and checksum agree. The file has no name:
it goes with the process, however that ends, and its room on the disk is taken at the start, since a disk
that fills up under a mapping kills whoever writes to it.
"""

import mmap
import os
import tempfile
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from domain.errors import VenusError
from infra.failpoints import hit
from workers.rollout.embedded.pages.nodes import Place

Bytes = npt.NDArray[np.uint8]


class FetchFailure(StrEnum):
    """Why a page did not come back; its tokens are computed anew."""

    FAILED = "failed"
    SHORT = "short"
    CHECKSUM = "checksum"
    LATE = "late"
    OFF = "off"
    """The tiers were switched off (`transfers.py`)."""


class TierUnavailable(VenusError):
    """An engine cannot have the tiers that its settings ask for."""

    code = "kv_tier_unavailable"


class FetchError(Exception):
    """A page that cannot be used."""

    def __init__(self, failure: FetchFailure) -> None:
        super().__init__(failure.value)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Budgets in pages; 0 leaves a tier out."""

    host_pages: int = 0
    disk_pages: int = 0
    folder: Path | None = None
    """On which disk the file is; None: where temporary files are."""


NO_TIERS: Final = TierSizes()
"""What leaves the device is computed anew."""


class Stores:
    """Memory and file. Raises `TierUnavailable` where there is no room for them.

    `write` is called by one thread; whoever calls `read` knows that nobody writes to that slot.
    """

    def __init__(self, sizes: TierSizes, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._file = -1
        self._disk: mmap.mmap | None = None
        try:
            self._host = np.zeros((sizes.host_pages, page_bytes), dtype=np.uint8)
        except (MemoryError, ValueError) as error:
            detail = f"no memory for {sizes.host_pages} KV pages of {page_bytes} bytes: {error}"
            raise TierUnavailable(f"{detail}; lower VENUS_KV_HOST_PAGES, 0 for none") from error
        if sizes.disk_pages:
            self._file, self._disk = _mapped(sizes, sizes.disk_pages * page_bytes)

    def write(self, place: Place, slot: int, content: Bytes) -> int:
        """Store one page; returns its checksum. Raises `OSError`."""
        checksum = zlib.crc32(content.data)
        if hit("engine.kv.store"):
            content = content[: len(content) // 2]
        if place is Place.HOST:
            self._host[slot, : len(content)] = content
        else:
            assert self._disk is not None
            start = slot * self.page_bytes
            self._disk[start : start + len(content)] = content.tobytes()
        return checksum

    def read(self, place: Place, slot: int, checksum: int) -> Bytes:
        """One page as it was stored. Raises `FetchError`."""
        try:
            is_short = hit("engine.kv.fetch")
            content = self._read(place, slot)
        except OSError as error:
            raise FetchError(FetchFailure.FAILED) from error
        if is_short:
            content = content[: len(content) // 2]
        if len(content) != self.page_bytes:
            raise FetchError(FetchFailure.SHORT)
        if zlib.crc32(content.data) != checksum:
            raise FetchError(FetchFailure.CHECKSUM)
        return content

    def close(self) -> None:
        """Give memory and file back."""
        self._host = np.empty((0, self.page_bytes), dtype=np.uint8)
        if self._disk is not None:
            self._disk.close()
            self._disk = None
            os.close(self._file)

    def _read(self, place: Place, slot: int) -> Bytes:
        if place is Place.HOST:
            row: Bytes = self._host[slot]
            return row
        assert self._disk is not None
        end = (slot + 1) * self.page_bytes
        if os.fstat(self._file).st_size < end:
            # Reading a mapping behind the end of its file would kill the process.
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(self._disk[end - self.page_bytes : end], dtype=np.uint8)


def _mapped(sizes: TierSizes, size: int) -> tuple[int, mmap.mmap]:
    file = -1
    try:
        file = _nameless(sizes.folder, size)
        return file, mmap.mmap(file, size)
    except (OSError, ValueError, OverflowError) as error:
        if file >= 0:
            os.close(file)
        place = sizes.folder or "the folder of temporary files (TMPDIR)"
        detail = f"no file of {size} bytes for {sizes.disk_pages} KV pages in {place}: {error}"
        raise TierUnavailable(f"{detail}; lower VENUS_KV_DISK_PAGES, 0 for none") from error


def _nameless(folder: Path | None, size: int) -> int:
    """Descriptor of a file with this much room that is found under no name."""
    file, name = tempfile.mkstemp(prefix="kv-", dir=folder)
    os.unlink(name)
    try:
        os.posix_fallocate(file, 0, size)
    except (OSError, OverflowError):
        os.close(file)
        raise
    return file
