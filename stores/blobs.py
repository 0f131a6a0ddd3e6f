"""Object store: create-only, content checked by sha256 where a row recorded it.

A local folder or S3 through obstore. Nothing is ever overwritten: a second create of a path is the
same content from a repeated action, or a defect that the caller sees as `exists`.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, ObjectStore, from_url

from domain.errors import ObjectNotWritten, PayloadUnreadable
from infra.logging import get_logger

if TYPE_CHECKING:
    from obstore import GetOptions


@dataclass(frozen=True, slots=True)
class Blob:
    """Reference of a stored object."""

    uri: str
    sha: str
    size: int


def sha256(data: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(data).hexdigest()


def _store_of(url: str) -> ObjectStore:
    try:
        return from_url(url)
    except (BaseError, ValueError):
        hint = "give file:///FOLDER, s3://BUCKET/PREFIX, gs://, az:// or https://"
        raise ValueError(f"{url} names no object store: {hint}") from None


class Blobs:
    """The object store of one process. Paths are relative and never hold user-chosen text."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for a URL that names no object store."""
        if url.startswith("file://"):
            root = Path(url.removeprefix("file://"))
            root.mkdir(parents=True, exist_ok=True)
            self._store: ObjectStore = LocalStore(str(root))
        else:
            self._store = _store_of(url)

    async def create(self, path: str, data: bytes) -> Blob:
        """Create the object. If it exists with other content, raise FileExistsError.

        Raises ObjectNotWritten when the store does not take it.
        """
        blob = Blob(path, sha256(data), len(data))
        try:
            await obstore.put_async(self._store, path, data, mode="create")
        except AlreadyExistsError:
            if sha256(await self.read(path)) != blob.sha:
                raise FileExistsError(path) from None
        except (BaseError, OSError) as error:
            raise ObjectNotWritten(_said(path, error)) from error
        return blob

    async def create_from(self, path: str, source: Path, sha: str) -> Blob:
        """Create an object from a file of this machine, in parts: it never sits in memory whole.

        The caller owns the path: it holds a new row's id, or the content's own sha. Raises
        ObjectNotWritten when the store does not take it.
        """
        try:
            await obstore.put_async(self._store, path, source)
            size = await asyncio.to_thread(lambda: source.stat().st_size)
        except (BaseError, OSError) as error:
            raise ObjectNotWritten(_said(path, error)) from error
        return Blob(path, sha, size)

    async def fetch(self, path: str, target: Path, sha: str) -> None:
        """The object as a file of this machine, in parts. Raises PayloadUnreadable."""
        digest = hashlib.sha256()
        with target.open("wb") as out:
            async for chunk in self.stream(path):
                digest.update(chunk)
                await asyncio.to_thread(out.write, chunk)
        if digest.hexdigest() != sha:
            raise PayloadUnreadable(f"{path}: content does not match its recorded sha256")

    async def read(self, path: str, sha: str | None = None) -> bytes:
        """The object's bytes. Raises PayloadUnreadable when missing or not of the recorded sha."""
        try:
            result = await obstore.get_async(self._store, path)
            data = bytes(await result.bytes_async())
        except (BaseError, FileNotFoundError, OSError) as error:
            raise PayloadUnreadable(_said(path, error)) from error
        if sha is not None and sha256(data) != sha:
            raise PayloadUnreadable(f"{path}: content does not match its recorded sha256")
        return data

    async def exists(self, path: str) -> bool:
        """Whether the object is there. Raises PayloadUnreadable when the store does not say."""
        try:
            await obstore.head_async(self._store, path)
        except FileNotFoundError:
            return False
        except (BaseError, OSError) as error:
            raise PayloadUnreadable(_said(path, error)) from error
        return True

    async def stream(self, path: str, part: tuple[int, int] | None = None) -> AsyncIterator[bytes]:
        """The object's bytes in chunks, for downloads; `part` is (first byte, byte after the last).

        Raises PayloadUnreadable.
        """
        options: GetOptions = {} if part is None else {"range": part}
        try:
            result = await obstore.get_async(self._store, path, options=options)
            async for chunk in result.stream():
                yield bytes(chunk)
        except (BaseError, FileNotFoundError, OSError) as error:
            raise PayloadUnreadable(_said(path, error)) from error

    async def paths(self, folder: str) -> list[str]:
        """Paths of all objects of a folder, in order. Raises PayloadUnreadable."""
        found: list[str] = []
        try:
            async for batch in obstore.list(self._store, prefix=folder):
                found += [str(one["path"]) for one in batch]
        except FileNotFoundError:
            return []
        except (BaseError, OSError) as error:
            raise PayloadUnreadable(_said(folder, error)) from error
        return sorted(found)

    async def delete(self, path: str) -> None:
        """Delete the object; a missing one is fine."""
        try:
            await obstore.delete_async(self._store, path)
        except FileNotFoundError:
            return


def _said(path: str, error: Exception) -> str:
    """A cause that tenants may read; where the store lies stands only in the log."""
    if isinstance(error, FileNotFoundError):
        return f"{path}: not found"
    get_logger().warning("object.failed", path=path, cause=str(error))
    return f"{path}: the object store failed ({type(error).__name__})"
