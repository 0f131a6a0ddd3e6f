"""Requests that have one answer: files, and what the host itself asks. The guest is hostile input."""

import asyncio
from typing import Final, TypeAlias

from sandboxes.files import (
    ENTRIES_MAX,
    Entry,
    EntryKind,
    FileRequest,
    FileResult,
    Listing,
    ListRequest,
    MakeFolderRequest,
    MoveRequest,
    RemoveRequest,
    StatRequest,
)
from sandboxes.runtimes.guest_control import AskStats, ControlRequest, Place, control_fields
from sandboxes.runtimes.guest_wire import GuestProtocolError, encoded, number_in, refusal
from venusrl.env.sandbox import FILE_BYTES_MAX, ReadRequest, SandboxError, WriteRequest

FILE_TIMEOUT_S: Final = 30.0
"""Reading and writing 8 MiB of memory takes milliseconds; only a stuck guest needs longer."""

NAME_BYTES_MAX: Final = 255
MODE_MAX: Final = 0o7777

AskRequest: TypeAlias = FileRequest | ControlRequest
"""What is answered at once, whatever else runs."""

_KINDS: Final = {kind.value.encode(): kind for kind in EntryKind}


def answer_fields(request: AskRequest) -> list[bytes]:
    """A request as the guest agent reads it, without its channel."""
    match request:
        case ReadRequest(path):
            return [b"read", b"%d" % FILE_BYTES_MAX, encoded(path)]
        case WriteRequest(path, content):
            return [b"write", encoded(path), content]
        case StatRequest(path):
            return [b"stat", encoded(path)]
        case ListRequest(path, entries_max):
            return [b"list", b"%d" % max(0, min(entries_max, ENTRIES_MAX)), encoded(path)]
        case MakeFolderRequest(path):
            return [b"mkdir", encoded(path)]
        case MoveRequest(source, target):
            return [b"move", encoded(source), encoded(target)]
        case RemoveRequest(path):
            return [b"remove", encoded(path)]
        case _:
            return control_fields(request)


class AnswerChannel:
    """Waits for the answer to one request."""

    def __init__(self, request: AskRequest, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[FileResult] = loop.create_future()
        self.limit_s: float | None = FILE_TIMEOUT_S
        self.is_stalled = False
        self._request = request
        self._entries: list[Entry] = []
        self._entries_max = 0
        if isinstance(request, StatRequest):
            self._entries_max = 1
        elif isinstance(request, ListRequest):
            self._entries_max = min(request.entries_max, ENTRIES_MAX)

    def take(self, fields: list[bytes]) -> bool:
        """One frame; whether it was the last. Raises GuestProtocolError."""
        try:
            match self._request, fields:
                case ((StatRequest() | ListRequest()), [b"entry", name, kind, *numbers]):
                    self._add(name, kind, numbers)
                    return False
                case _:
                    result = self._result(fields)
        except SandboxError as error:
            if not self.answer.done():
                self.answer.set_exception(error)
        else:
            if not self.answer.done():
                self.answer.set_result(result)
        return True

    def lose(self, cause: str) -> None:
        """Its sandbox is gone."""
        if not self.answer.done():
            self.answer.set_exception(SandboxError("lost", cause))
            self.answer.exception()  # nobody may be waiting any more

    def _result(self, fields: list[bytes]) -> FileResult:
        match self._request, fields:
            case ((ReadRequest() | AskStats()), [b"bytes", content]):
                return content
            case StatRequest(), [b"ok", b"1"] if len(self._entries) == 1:
                return self._entries[0]
            case ListRequest(), [b"ok", is_whole]:
                return Listing(tuple(self._entries), bool(number_in(is_whole, 0, 1)))
            case MakeFolderRequest(), [b"ok", is_made]:
                return bool(number_in(is_made, 0, 1))
            case ((StatRequest() | ListRequest() | MakeFolderRequest()), [b"ok", *_]):
                raise GuestProtocolError("not an answer to this request")
            case ReadRequest() | AskStats(), [b"ok"]:
                raise GuestProtocolError("not an answer to this request")
            case _, [b"ok"]:
                return None
            case (
                (
                    ReadRequest()
                    | WriteRequest()
                    | Place()
                    | StatRequest()
                    | ListRequest()
                    | MakeFolderRequest()
                    | MoveRequest()
                    | RemoveRequest()
                ),
                [b"error", reason, detail],
            ):
                raise refusal(reason, detail)
        raise GuestProtocolError("not an answer to this request")

    def _add(self, name: bytes, kind: bytes, numbers: list[bytes]) -> None:
        is_name = 0 < len(name) <= NAME_BYTES_MAX and not set(name) & {0, ord("/")}
        if not is_name or kind not in _KINDS or len(numbers) != 3:
            raise GuestProtocolError("not an entry")
        if len(self._entries) == self._entries_max:
            raise GuestProtocolError("more entries than were asked for")
        size, modified = number_in(numbers[0]), number_in(numbers[2], -(1 << 63), 1 << 63)
        text = name.decode(errors="surrogateescape")
        mode = number_in(numbers[1], 0, MODE_MAX)
        self._entries.append(Entry(text, _KINDS[kind], size, mode, modified))
