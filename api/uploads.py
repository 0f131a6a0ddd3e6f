"""Uploads of several named files in one multipart request, streamed to disk with limits.

Names are checked before a byte of their content is taken; sums are made on the way, so that no file
is read twice and none sits in memory.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from api.bodies import number_in
from api.gateway import Gateway
from api.problems import Finding, Problem, invalid, too_large
from domain.errors import ObjectNotWritten

MULTIPART: Final = "multipart/form-data"

HEADER_BYTES_MAX: Final = 4_096
"""Of one part: a name and a type; what is longer is no upload."""

FIELD_BYTES_MAX: Final = 1_000
"""Of a value that is no file."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an upload may hold. `names` is what a file may be called."""

    names: re.Pattern[str]
    files_max: int
    bytes_max: int
    fields: frozenset[str] = frozenset()
    what: str = "The upload"


@dataclass(frozen=True, slots=True)
class Received:
    """One file on this machine's disk."""

    path: Path
    size: int
    sha: str


@dataclass(frozen=True, slots=True)
class Form:
    """Everything that was sent."""

    files: Mapping[str, Received]
    fields: Mapping[str, str]

    @property
    def shas(self) -> dict[str, str]:
        """Digest of each file, for idempotency."""
        return {name: one.sha for name, one in sorted(self.files.items())}


def media_type(request: Request) -> str:
    """The request's media type without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


@asynccontextmanager
async def received(request: Request, gateway: Gateway, plan: Plan) -> AsyncIterator[Form]:
    """The files of a multipart request, on disk until the block ends. Raises 413, 415, 422."""
    _, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if media_type(request) != MULTIPART or not boundary:
        raise Problem(415, "unsupported_media_type", f"Send {MULTIPART} with one part a file.")
    if number_in(request.headers, "content-length") > plan.bytes_max:
        raise too_large(plan.what, plan.bytes_max)
    parent = gateway.settings.home / "uploads"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="upload-", dir=parent) as folder:
            reader = _Reader(plan, Path(folder))
            try:
                await _feed(request, reader, boundary)
            finally:
                reader.close()
            yield Form(reader.files, reader.fields)
    except OSError as error:
        raise ObjectNotWritten(f"no room for an upload: {type(error).__name__}") from error


async def _feed(request: Request, reader: "_Reader", boundary: bytes) -> None:
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > reader.plan.bytes_max:
                raise too_large(reader.plan.what, reader.plan.bytes_max)
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, "bad_request", f"The multipart body is malformed: {error}") from error
    if not reader.is_ended:
        raise Problem(400, "bad_request", "The multipart body ends early.")


@dataclass(slots=True)
class _Reader:
    """Callbacks of the parser; one part at a time."""

    plan: Plan
    folder: Path
    files: dict[str, Received] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)
    is_ended: bool = False
    _header: bytes = b""
    _headers: dict[str, str] = field(default_factory=dict)
    _name: str = ""
    _value: bytes = b""
    _out: IO[bytes] | None = None
    _size: int = 0
    _digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def callbacks(self) -> dict[str, object]:
        """As the parser wants them."""
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._start,
            "on_part_data": self._take,
            "on_part_end": self._finish,
            "on_end": self._end,
        }

    def close(self) -> None:
        """Close what an error left open."""
        if self._out is not None:
            self._out.close()

    def _begin(self) -> None:
        self._headers, self._header, self._value = {}, b"", b""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]
        self._bound(self._header)

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]
        self._bound(self._value)

    def _header_end(self) -> None:
        self._headers[self._header.decode("latin-1").lower()] = self._value.decode("latin-1")
        self._header, self._value = b"", b""

    @staticmethod
    def _bound(text: bytes) -> None:
        if len(text) > HEADER_BYTES_MAX:
            raise Problem(400, "bad_request", "A part's header is too long.")

    def _start(self) -> None:
        name = _name_of(self._headers.get("content-disposition", ""))
        if name in self.plan.fields:
            self._name = name
            return
        if not self.plan.names.fullmatch(name):
            message = f"An upload here takes no file {name[:100]!r}."
            raise invalid([Finding("", "unknown_file", message, f"Names: {_words(self.plan)}.")])
        if name in self.files:
            raise invalid([Finding(f"/{name}", "repeated_file", "The file is sent twice.")])
        if len(self.files) >= self.plan.files_max:
            raise invalid([Finding("", "too_many_files", f"At most {self.plan.files_max} files.")])
        self._name, self._size, self._digest = name, 0, hashlib.sha256()
        self._out = (self.folder / str(len(self.files))).open("wb")

    def _take(self, data: bytes, start: int, end: int) -> None:
        part = data[start:end]
        if self._out is None:
            self._value += part
            if len(self._value) > FIELD_BYTES_MAX:
                raise invalid([Finding(f"/{self._name}", "too_long", "The value is too long.")])
            return
        self._out.write(part)
        self._digest.update(part)
        self._size += len(part)

    def _finish(self) -> None:
        if self._out is None:
            self.fields[self._name] = self._value.decode("utf-8", "replace")
            return
        path = Path(self._out.name)
        self._out.close()
        self._out = None
        self.files[self._name] = Received(path, self._size, self._digest.hexdigest())

    def _end(self) -> None:
        self.is_ended = True


def _name_of(disposition: str) -> str:
    header = Message()
    header["Content-Disposition"] = disposition.encode("latin-1", "replace").decode("latin-1")
    name = header.get_param("name", "", "content-disposition")
    return name if isinstance(name, str) else ""


def _words(plan: Plan) -> str:
    return plan.names.pattern.replace("|", ", ").replace("\\", "").strip("()^$")
