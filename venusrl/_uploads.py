"""Multipart bodies of files that are read as they are sent."""

import stat
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from venusrl._errors import UploadUnreadable
from venusrl._transport import Upload

END: Final = b"\r\n"


def multipart(fields: Mapping[str, str], files: Mapping[str, Path]) -> Upload:
    """Fields, then files, each a part under its name. Raises UploadUnreadable."""
    boundary = uuid.uuid4().hex
    pieces: list[bytes | Path] = []
    size = 0
    for name, value in fields.items():
        pieces.append(_head(boundary, name) + value.encode() + END)
    for name, path in files.items():
        try:
            size += _size_of(path)
        except OSError as error:
            raise UploadUnreadable(f"cannot read {path}: {error.strerror}") from error
        pieces += [_head(boundary, name, is_file=True), path, END]
    pieces.append(f"--{boundary}--\r\n".encode())
    size += sum(len(piece) for piece in pieces if isinstance(piece, bytes))
    return Upload(tuple(pieces), size, f"multipart/form-data; boundary={boundary}")


def _size_of(path: Path) -> int:
    """Bytes of a file that can be sent: what has no known size, or cannot be opened, cannot."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UploadUnreadable(f"{path} is no regular file")
    with path.open("rb"):
        return found.st_size


def _head(boundary: str, name: str, is_file: bool = False) -> bytes:
    more = f'; filename="{name}"\r\nContent-Type: application/octet-stream' if is_file else ""
    text = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return text.encode()
