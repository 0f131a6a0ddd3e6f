"""What a `process` sandbox is said to hold, from the kernel's figures of its processes."""

from sandboxes.ports import SandboxStats
from sandboxes.runtimes.process.inside import Inside
from sandboxes.runtimes.process.usage import UsageReader

KIB = 1024


class Told(Inside):
    """Processes by name: anonymous, swapped, shared-memory and shared dirty KiB."""

    def __init__(self, **processes: tuple[int, int, int, int]) -> None:
        self.processes = processes

    def names(self) -> list[str]:
        return list(self.processes)

    def read(self, name: str, file: str) -> bytes:
        anonymous, swapped, mapped, dirty = self.processes[name]
        if file == "smaps_rollup":
            return b"Shared_Dirty: %d kB\n" % dirty
        assert file == "status"
        return b"RssAnon:\t%d kB\nRssShmem:\t%d kB\nVmSwap:\t%d kB\n" % (anonymous, mapped, swapped)


def test_what_is_shared_with_the_zygote_is_told_apart_and_once() -> None:
    inside = Told(agent=(9000, 0, 0, 8000), tool=(11000, 0, 300, 8000), other=(500, 0, 200, 0))
    told = UsageReader(inside, warm_bytes=8000 * KIB).read()
    assert told == SandboxStats((1000 + 3000 + 500 + 300) * KIB, 3, shared_bytes=8000 * KIB)


def test_no_more_is_shared_with_the_zygote_than_it_holds() -> None:
    told = UsageReader(Told(agent=(9000, 0, 0, 9000)), warm_bytes=8000 * KIB).read()
    assert (told.private_bytes, told.shared_bytes) == (1000 * KIB, 8000 * KIB)


def test_swapped_pages_are_private_ones() -> None:
    inside = Told(agent=(1000, 4000, 0, 900), tool=(0, 700, 0, 0))
    told = UsageReader(inside, warm_bytes=8000 * KIB).read()
    assert told == SandboxStats(4800 * KIB, 2, 4700 * KIB, 900 * KIB)


def test_without_a_zygote_nothing_is_shared() -> None:
    told = UsageReader(Told(agent=(1000, 50, 20, 900))).read()
    assert told == SandboxStats(1070 * KIB, 1, swapped_bytes=50 * KIB)


def test_a_limit_takes_the_zygote_off_once() -> None:
    inside = Told(agent=(9000, 0, 0, 8000), tool=(11000, 0, 0, 8000))
    assert UsageReader(inside, warm_bytes=8000 * KIB).held().private_bytes == 12000 * KIB
