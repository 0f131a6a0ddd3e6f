"""The loop of the warm interpreter: runs one source after the other in the same namespace.

In a child of the reference agent, and beside the native one (`warm.py`). Guest code: standard library
only, no module of ours.
"""

from __future__ import annotations

import os
import signal
import sys

SIGNALS_RESET = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Programs expect the default of each. The interpreter ignores some of them, and what started the node may
have ignored others (`nohup`, a shell's background): those stay ignored over fork and exec."""


def interpret(source_fd: int, result_fd: int) -> None:
    """Run sources until there are no more. Never returns."""
    for number in SIGNALS_RESET:
        signal.signal(number, signal.SIG_DFL)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    mine = os.getpid()
    while header := read_exactly(source_fd, 4):
        code = run_source(read_exactly(source_fd, int.from_bytes(header, "big")), names)
        if os.getpid() != mine:
            os._exit(code)  # a fork that user code made and forgot
        os.write(result_fd, code.to_bytes(4, "big", signed=True))
    os._exit(0)


def run_source(source: bytes, names: dict[str, object]) -> int:
    """Run one source; 0, its exit status, or 1 after an exception whose traceback is printed."""
    code = 0
    try:
        exec(compile(source, "<python>", "exec"), names)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            code = stop.code & 0xFF
        elif stop.code is not None:
            code = report(stop)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        code = report(error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - user code may have closed or replaced them
        code = code or 1
    return code


def report(error: BaseException) -> int:
    """Print a traceback without this file's own frame; always 1."""
    try:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
    except BaseException:  # noqa: BLE001 - nothing left to say
        pass
    return 1


def read_exactly(fd: int, size: int) -> bytes:
    """`size` bytes, fewer at the end of the stream."""
    content = bytearray()
    while len(content) < size and (chunk := os.read(fd, min(size - len(content), 1 << 20))):
        content += chunk
    return bytes(content)
