"""A sandbox port for tests of environments alone: it keeps what it was asked, and can fail."""

import contextlib
import io
from collections.abc import AsyncIterator, Sequence

from venusrl.env.host.ports import InstanceKey, SandboxPort
from venusrl.env.messages import Rollout
from venusrl.env.sandbox import (
    CallKey,
    ExecResult,
    PythonRequest,
    ReadRequest,
    SandboxError,
    SandboxRequest,
    SandboxResult,
    WriteRequest,
)


class RecordingPort:
    """Files in memory; Python source runs in this process, with `open` writing to those files.

    Only for source that stands in this tree.
    """

    def __init__(self) -> None:
        self.keys: list[CallKey] = []
        self.requests: list[SandboxRequest] = []
        self.files: dict[str, bytes] = {}
        self.failure: SandboxError | None = None
        self._names: dict[str, object] = {"open": self._open}

    async def call(self, key: CallKey, request: SandboxRequest) -> SandboxResult:
        """Run one call at once."""
        self.keys.append(key)
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        match request:
            case PythonRequest(source):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(source, self._names)
                return ExecResult(0, out.getvalue().encode())
            case WriteRequest(path, content):
                self.files[path] = content
                return None
            case ReadRequest(path):
                if path not in self.files:
                    raise SandboxError("not_found", path)
                return self.files[path]
            case _:
                return ExecResult(0, b"ran")

    def _open(self, path: str, mode: str = "r", encoding: str = "ascii") -> io.StringIO:
        port = self

        class File(io.StringIO):
            def __exit__(self, *error: object) -> None:
                port.files[path] = port.files.get(path, b"") + self.getvalue().encode(encoding)

        assert mode == "a"
        return File()


class RecordingSandboxes:
    """Sandboxes of recording ports, for `environments.checks`."""

    @contextlib.asynccontextmanager
    async def agent(self, key: InstanceKey) -> AsyncIterator[SandboxPort]:
        """A port of its own for each rollout."""
        yield RecordingPort()

    @contextlib.asynccontextmanager
    async def grader(self, rollouts: Sequence[Rollout]) -> AsyncIterator[SandboxPort]:
        """One port for the group."""
        yield RecordingPort()
