"""What a host itself asks of the agent of a virtual machine, beside the calls of environments."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ENTROPY_BYTES: Final = 32
"""What a clone's kernel is reseeded with; its generator has a state of 256 bits."""


@dataclass(frozen=True, slots=True)
class PrepareSnapshot:
    """Be quiet, with a warm interpreter: the machine is frozen after the answer."""


@dataclass(frozen=True, slots=True)
class SetClock:
    """Take the host's time; a paused machine's own stood still."""


@dataclass(frozen=True, slots=True)
class Trim:
    """Give what only caches hold back to the guest's free memory."""


@dataclass(frozen=True, slots=True)
class AskStats:
    """Tell the guest's own figures; the answer is read by `GuestStats.of`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Put a file where the guest's user can only read it."""

    path: str
    content: bytes


ControlRequest = PrepareSnapshot | SetClock | Trim | AskStats | Place


@dataclass(frozen=True, slots=True)
class Resume:
    """Makes a machine of its own of a clone; answered by a hello."""

    entropy: bytes
    hostname: str
    seed: int
    limits: tuple[int, int, int, int]
    """Bytes of memory, processes, bytes of disk, open files of a process."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> list[bytes]:
        """As the agent reads it; the time is that of this call."""
        words = [b"resume", self.entropy, b"%d" % time.time_ns(), self.hostname.encode()]
        words += [b"%d" % number for number in (self.seed, *self.limits)]
        for name, value in self.variables.items():
            words += [name.encode(), value.encode()]
        return words


@dataclass(frozen=True, slots=True)
class GuestStats:
    """What a guest says of itself, and nobody checks."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    pids: int

    @classmethod
    def of(cls, text: bytes) -> "GuestStats":
        """Of an answer to AskStats. Raises ValueError."""
        total, free, available, pids = (max(0, int(word)) for word in text[:100].split())
        return cls(total, free, available, pids)


def control_fields(request: ControlRequest) -> list[bytes]:
    """A request as the agent reads it."""
    match request:
        case PrepareSnapshot():
            return [b"prepare_snapshot"]
        case SetClock():
            return [b"clock", b"%d" % time.time_ns()]
        case Trim():
            return [b"trim"]
        case AskStats():
            return [b"stats"]
        case Place(path, content):
            return [b"place", path.encode(), content]
