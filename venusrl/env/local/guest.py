"""The warm interpreter of a local sandbox: runs sources in one namespace, standard library only.

Runs as a script inside the sandbox. A request on descriptor 0 is a big-endian uint32 length and the
source; the answer on descriptor 1 is a uint32 length and a JSON object {code, out, err, cut}. What
the source prints, children included, goes to two files of the work folder.
"""

import json
import os
import sys


def main(cap: int) -> None:
    """Take the protocol's descriptors away from user code, then serve until the host is gone."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.makedirs(".tmp", exist_ok=True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    files = [os.open(f".tmp/.{name}", os.O_RDWR | os.O_CREAT, 0o600) for name in ("out", "err")]
    for number, fd in enumerate(files, start=1):
        os.dup2(fd, number)
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    while header := read_exactly(incoming, 4):
        for fd in files:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
        code = run(read_exactly(incoming, int.from_bytes(header, "big")), names)
        answer = json.dumps(said(code, files, cap)).encode()
        write_all(outgoing, len(answer).to_bytes(4, "big") + answer)


def run(source: bytes, names: dict[str, object]) -> int:
    """Run one source: 0, its exit status, or 1 with the traceback printed."""
    code = 0
    try:
        exec(compile(source, "<python>", "exec"), names)
    except SystemExit as stop:
        code = stop.code & 0xFF if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 - user code may have closed or replaced them
        code = code or 1
    return code


def said(code: int, files: list[int], cap: int) -> dict[str, object]:
    """The answer: both streams up to the cap, as text of one byte a character."""
    kept = [os.pread(fd, cap, 0) for fd in files]
    cut = sum(max(0, os.fstat(fd).st_size - cap) for fd in files)
    out, err = (one.decode("latin-1") for one in kept)
    return {"code": code, "out": out, "err": err, "cut": cut}


def read_exactly(fd: int, size: int) -> bytes:
    """`size` bytes, fewer at the end of the stream."""
    content = bytearray()
    while len(content) < size and (chunk := os.read(fd, min(size - len(content), 1 << 20))):
        content += chunk
    return bytes(content)


def write_all(fd: int, content: bytes) -> None:
    """Write everything."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


if __name__ == "__main__":
    main(int(sys.argv[1]))
