"""Which memory the kernel is asked to move out, tried on a child of this process."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sandboxes.runtimes.process import page_out
from tests.support.requirements import requires

MIB = 1 << 20
HOLDER = (
    "import hashlib, sys\n"
    f"held = bytearray(bytes(range(256)) * ({32 * MIB} // 256))\n"
    "print(hashlib.sha256(held).hexdigest(), flush=True)\n"
    "sys.stdin.readline()\n"
    "print(hashlib.sha256(held).hexdigest(), flush=True)\n"
)


class Holder:
    """A process that holds 32 MiB and says their hash."""

    def __init__(self, child: "subprocess.Popen[str]") -> None:
        self._child = child
        self.pid = child.pid
        self.digest = self._line()

    def _line(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline()

    def digest_now(self) -> str:
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return self._line()

    def resident(self) -> int:
        """Anonymous bytes in memory."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as text:
            return next(int(line.split()[1]) * 1024 for line in text if line.startswith("RssAnon"))


@pytest.fixture
def holder() -> Iterator[Holder]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield Holder(child)
        child.kill()


def test_the_fullest_memory_comes_first_and_in_pieces(holder: Holder) -> None:
    pieces = page_out._private_pieces(holder.pid)
    assert sum(piece.resident for piece in pieces) >= 32 * MIB
    assert [piece.resident for piece in pieces] == sorted(
        (piece.resident for piece in pieces), reverse=True
    )
    assert all(0 < piece.resident <= piece.length <= page_out.CHUNK_BYTES for piece in pieces)
    assert len({piece.base for piece in pieces}) == len(pieces)


def test_no_more_is_asked_for_than_is_wanted_give_or_take_a_piece(holder: Holder) -> None:
    asked = page_out._page_out_one(holder.pid, 8 * MIB)
    assert 8 * MIB <= asked < 8 * MIB + page_out.CHUNK_BYTES
    assert holder.digest_now() == holder.digest


def test_a_process_that_is_gone_frees_nothing() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    page_out.page_out(child.pid, MIB)
    assert os.path.exists("/proc/self")


@requires("swap")
def test_pages_go_to_swap_and_come_back_whole(holder: Holder) -> None:
    before = holder.resident()
    page_out._page_out_one(holder.pid, 32 * MIB)
    assert holder.resident() < before - 16 * MIB
    assert holder.digest_now() == holder.digest
