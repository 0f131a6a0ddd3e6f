"""Archives of built requirements: larger than packages, made by the platform, unpacked alike."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Final

from environments.package import Bounds, files_below, header_of, unpack
from venusrl.env.host.dependencies import BUILD_BYTES_MAX, BUILD_FILES_MAX

OF_DEPENDENCIES: Final = Bounds(BUILD_BYTES_MAX, BUILD_BYTES_MAX, BUILD_FILES_MAX)
"""Bounds of what a build left; compressed it is smaller than the folder."""

COMPRESSION: Final = 3
"""Shared libraries: the next levels take seconds and save few percent."""


def pack_dependencies(folder: Path, archive: Path) -> None:
    """Write the archive of a built folder; it never sits in memory whole."""
    with (
        archive.open("wb") as out,
        gzip.GzipFile(
            filename="", fileobj=out, mode="wb", compresslevel=COMPRESSION, mtime=0
        ) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as packed,
    ):
        for name, path in files_below(folder, BUILD_FILES_MAX):
            with path.open("rb") as content:
                packed.addfile(header_of(name, path), content)


def unpack_dependencies(archive: Path, target: Path) -> None:
    """Unpack as the folder `target`, whole or not at all. Raises PackageInvalid."""
    unpack(archive, target, OF_DEPENDENCIES)
