"""Environment packages on the user's side: the same archive and content hash as the server makes.

The server never trusts either; they agree so that an upload can be checked and that pushing the same
tree twice is the same version. A contract test holds this module against the server's.
"""

import gzip
import hashlib
import io
import os
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from venusrl._errors import PackageError

MANIFEST_NAME: Final = "venus.toml"
"""The file that makes a folder an environment package."""

ARCHIVE_BYTES_MAX: Final = 64 << 20
"""Largest upload that a server takes; known here so that a wrong folder fails before it is sent."""

FILES_MAX: Final = 10_000
"""Files that a server takes."""

MANIFEST_BYTES_MAX: Final = 256 << 10
"""A manifest is written by hand; a larger one is not one."""

IGNORED_NAMES: Final = frozenset(
    {"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"}
)
"""By-products that would make two packs of one source differ."""


def pack(folder: Path) -> bytes:
    """The archive of a package folder, the same bytes for the same tree. Links are refused."""
    if not folder.is_dir():
        raise PackageError(f"{folder} is not a folder")
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, path in _files(folder):
            header = tarfile.TarInfo(name)
            header.size = path.stat().st_size
            header.mode = 0o755 if _is_executable(path) else 0o644
            with path.open("rb") as content:
                _add(archive, header, content)
    if packed.tell() > ARCHIVE_BYTES_MAX:
        raise PackageError(f"the archive of {folder} exceeds {ARCHIVE_BYTES_MAX} bytes")
    return packed.getvalue()


def content_hash(folder: Path) -> str:
    """`sha256:` over paths, executable bits and contents; by-products do not count."""
    digest = hashlib.sha256(b"venus-package-1\n")
    for name, path in _files(folder):
        with path.open("rb") as content:
            inner = hashlib.file_digest(content, "sha256").hexdigest()
        digest.update(f"{name}\0{int(_is_executable(path))}\0{inner}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def name_in_folder(folder: Path) -> str:
    """The environment's name as the folder's manifest has it."""
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise PackageError(f"{folder} has no {MANIFEST_NAME}")
    with path.open("rb") as stream:
        return _name(stream, str(path))


def name_in_archive(archive: bytes) -> str:
    """The environment's name as the manifest inside the archive has it."""
    if len(archive) > ARCHIVE_BYTES_MAX:
        raise PackageError(f"an archive of {len(archive)} bytes exceeds {ARCHIVE_BYTES_MAX}")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            for member in opened:
                if member.name.removeprefix("./") == MANIFEST_NAME and member.isfile():
                    stream = opened.extractfile(member)
                    assert stream is not None, "a regular member has content"
                    return _name(stream, MANIFEST_NAME)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise PackageError(f"not a readable .tar.gz: {error}") from error
    raise PackageError(f"the archive has no {MANIFEST_NAME}")


def _name(stream: IO[bytes], where: str) -> str:
    try:
        manifest = tomllib.loads(stream.read(MANIFEST_BYTES_MAX).decode())
    except (ValueError, RecursionError) as error:  # TOML or text that is none
        raise PackageError(f"{where}: {error}") from error
    name = manifest.get("name")
    if not isinstance(name, str) or not name:
        raise PackageError(f"{where}: name is missing")
    return name


def _add(archive: tarfile.TarFile, header: tarfile.TarInfo, content: IO[bytes]) -> None:
    try:
        archive.addfile(header, content)
    except ValueError as error:
        raise PackageError(f"{header.name}: {error}") from error


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Regular files below a folder by relative path, sorted; links are refused."""
    found: dict[str, Path] = {}
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in IGNORED_NAMES]
        for name in [*names, *folders]:
            path = Path(base, name)
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise PackageError(f"{relative} is a link; copy the file instead")
            if name in names and name not in IGNORED_NAMES and not name.endswith(".pyc"):
                found[relative] = path
    if len(found) > FILES_MAX:
        raise PackageError(f"more than {FILES_MAX} files")
    for relative in sorted(found):
        if not found[relative].is_file():
            raise PackageError(f"{relative} is a special file")
        yield relative, found[relative]


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)
