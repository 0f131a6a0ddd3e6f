"""Environment packages as archives: packing, unpacking hostile ones, and the content hash.

An archive is a gzipped tar of regular files and folders. Packing the same tree gives the same bytes
anywhere. Unpacking writes only below its target and appears there whole or not at all. The hash is
over the normalised tree (paths, executable bits, contents), not over the archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from venusrl.env.host.manifest import Finding, PackageInvalid

ARCHIVE_BYTES_MAX: Final = 64 << 20
"""Largest upload; task files beyond it belong into a dataset."""

UNPACKED_BYTES_MAX: Final = 256 << 20
"""Bounds what a small archive can become on the disk of every node that runs it."""

FILES_MAX: Final = 10_000
"""Each file costs an inode on every node."""

PATH_CHARS_MAX: Final = 240
"""Leaves room for the folder that it is unpacked into."""

PATH_DEPTH_MAX: Final = 16
"""Deeper trees are an attack on recursion, not a package."""

IGNORED_NAMES: Final = frozenset(
    {"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"}
)
"""By-products that would make two packs of one source differ."""

EXTENSION_BYTES_MAX: Final = 64 * 1024
"""Of one extended header; the longest that a name needs is a few hundred bytes."""

_EXTENSION_TYPES: Final = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)

_HEADER_TYPES: Final = frozenset({tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE})


def pack(folder: Path) -> bytes:
    """The archive of a package folder, the same bytes for the same tree."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, path in files_below(folder):
            header = header_of(name, path)
            with path.open("rb") as content:
                archive.addfile(header, content)
    if packed.tell() > ARCHIVE_BYTES_MAX:
        raise _refused("", f"the archive exceeds {ARCHIVE_BYTES_MAX} bytes")
    return packed.getvalue()


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large an archive may be, and what it may become."""

    archive_bytes: int = ARCHIVE_BYTES_MAX
    unpacked_bytes: int = UNPACKED_BYTES_MAX
    files: int = FILES_MAX

    @property
    def stream_bytes(self) -> int:
        """Decompressed bytes read at most: contents, and headers and padding of every file."""
        return self.unpacked_bytes + self.files * 2048


OF_PACKAGES: Final = Bounds()
"""Bounds of what a user uploads."""


def unpack(archive: Path | bytes, target: Path, bounds: Bounds = OF_PACKAGES) -> str:
    """Unpack a hostile archive as the folder `target`, return its content hash.

    PackageInvalid for links, special files, paths that leave the folder, and everything beyond the
    limits; then nothing is left on the disk. A `target` that already holds the same tree is fine.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    size = len(archive) if isinstance(archive, bytes) else archive.stat().st_size
    if size > bounds.archive_bytes:
        raise _refused("", f"an archive of {size} bytes exceeds {bounds.archive_bytes}")
    staging = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
    try:
        staging.chmod(0o755)
        with io.BytesIO(archive) if isinstance(archive, bytes) else archive.open("rb") as stream:
            _extract(stream, staging, bounds)
        digest = content_hash(staging, bounds)
        _move(staging, target, (digest, bounds))
        return digest
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def content_hash(folder: Path, bounds: Bounds = OF_PACKAGES) -> str:
    """`sha256:` over the normalised tree; by-products do not count."""
    digest = hashlib.sha256(b"venus-package-1\n")
    for name, path in files_below(folder, bounds.files):
        with path.open("rb") as content:
            inner = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{name}\0{int(_is_executable(path))}\0{inner}\n".encode())
    return f"sha256:{digest.hexdigest()}"


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends in an error instead of growing without bound."""

    def __init__(self, stream: gzip.GzipFile, bounds: Bounds) -> None:
        super().__init__()
        self._stream = stream
        self._bounds = bounds
        self._left = bounds.stream_bytes

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Read within what is left; a single read asks at most for that too."""
        wanted = self._left + 1 if size < 0 else min(size, self._left + 1)
        chunk = self._stream.read(wanted)
        self._left -= len(chunk)
        if self._left < 0:
            limit = self._bounds.unpacked_bytes
            raise _refused("", f"the archive unpacks to more than {limit} bytes")
        return chunk


class _Member(tarfile.TarInfo):
    """A member whose header's extensions are bounded: the reader takes each into memory whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _EXTENSION_TYPES and self.size > EXTENSION_BYTES_MAX:
            raise _refused("", f"a header extension exceeds {EXTENSION_BYTES_MAX} bytes")
        return super()._proc_member(archive)  # type: ignore[misc,no-any-return]


def _extract(stream: BinaryIO, folder: Path, bounds: Bounds) -> None:
    seen: set[str] = set()
    left = bounds.unpacked_bytes
    try:
        with (
            gzip.GzipFile(fileobj=stream, mode="rb") as zipped,
            tarfile.open(fileobj=_Bounded(zipped, bounds), mode="r|", tarinfo=_Member) as archive,
        ):
            for member in archive:
                name = _checked_name(member)
                if len(seen) >= bounds.files:
                    raise _refused("", f"more than {bounds.files} files")
                if name in seen:
                    raise _refused(name, "occurs twice")
                seen.add(name)
                left -= member.size
                if left < 0:
                    raise _refused(name, f"the tree exceeds {bounds.unpacked_bytes} bytes")
                _write(archive, member, folder / name)
        for base, _, _ in os.walk(folder):
            Path(base).chmod(0o755)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise _refused("", "a name is both a file and a folder") from error
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else error
        raise _refused("", f"not a readable .tar.gz: {cause or error}") from error


def _checked_name(member: tarfile.TarInfo) -> str:
    """The member's path below the folder; refuses what is not plainly below it."""
    name = member.name.removeprefix("./").rstrip("/") or "."
    if member.type not in _HEADER_TYPES or member.issparse():
        raise _refused(name, "is a link or a special file", "only files and folders are taken")
    parts = PurePosixPath(name).parts
    bad_characters = any(ord(one) < 32 or ord(one) == 127 or one == "\\" for one in name)
    if name.startswith("/") or ".." in parts or bad_characters:
        raise _refused(name, "is not a plain relative path")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise _refused(repr(name), "is not UTF-8") from error
    if len(name) > PATH_CHARS_MAX or len(parts) > PATH_DEPTH_MAX:
        raise _refused(name[:80], f"exceeds {PATH_CHARS_MAX} characters or {PATH_DEPTH_MAX} levels")
    return name


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    if member.type == tarfile.DIRTYPE:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None, "a regular member has content"
    with path.open("xb") as out:
        shutil.copyfileobj(content, out)
    if path.stat().st_size != member.size:
        raise _refused(member.name, "is cut short")
    path.chmod(0o755 if member.mode & 0o100 else 0o644)


def _move(staging: Path, target: Path, expected: tuple[str, Bounds]) -> None:
    digest, bounds = expected
    try:
        staging.rename(target)
    except OSError:
        if not target.is_dir() or content_hash(target, bounds) != digest:
            raise


def files_below(folder: Path, files_max: int = FILES_MAX) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder by relative path, sorted; links are refused."""
    found: dict[str, Path] = {}
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in IGNORED_NAMES]
        for name in [*names, *folders]:
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise _refused(relative, "is a link", "copy the file instead")
            if name in names and name not in IGNORED_NAMES and not name.endswith(".pyc"):
                found[relative] = path
    if len(found) > files_max:
        raise _refused("", f"more than {files_max} files")
    for relative in sorted(found):
        if not found[relative].is_file():
            raise _refused(relative, "is a special file")
        yield relative, found[relative]


def header_of(name: str, path: Path) -> tarfile.TarInfo:
    """A member's header: nothing of the machine that packs it."""
    header = tarfile.TarInfo(name)
    header.size = path.stat().st_size
    header.mode = 0o755 if _is_executable(path) else 0o644
    return header


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


def _refused(file: str, message: str, hint: str = "") -> PackageInvalid:
    return PackageInvalid((Finding(file, "", message, hint),))
