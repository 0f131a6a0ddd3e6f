"""Whether memory of sandboxes has a place to go to."""

from pathlib import Path


def has_swap() -> bool:
    """Whether this machine has swap now; asked anew each time, swap comes and goes."""
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    except OSError:
        return False
