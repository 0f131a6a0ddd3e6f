"""Frames at a node's door, where the gateway acts on sandboxes of tenants.

    node: DoorChallenge -> gateway: DoorHello -> node: DoorOpen -> calls, each with its number

A call is answered once with a frame of its number. A call whose answers come in parts, output of a
command as it is printed, would answer with several frames of that number before the last one.
"""

from dataclasses import dataclass
from enum import StrEnum


class DoorReason(StrEnum):
    """Why a call has no answer."""

    UNKNOWN = "unknown"
    """The node does not hold such a sandbox (any more); its row says what became of it."""
    PAUSED = "paused"
    NOT_PAUSED = "not_paused"
    """It could not be paused."""
    NOT_FOUND = "not_found"
    DENIED = "denied"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    """Too many calls wait in it."""
    OTHER_CALL = "other_call"
    """The key of this call was used for another one."""
    FORGOTTEN = "forgotten"
    """The call of this key ran, and its answer is no longer kept."""


@dataclass(frozen=True, slots=True)
class DoorChallenge:
    """First frame of the node, on each connection."""

    nonce: bytes


@dataclass(frozen=True, slots=True)
class DoorHello:
    """Proof of the door's key over both nonces, for this host and epoch alone."""

    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class DoorOpen:
    """The node's own proof; from here on calls are served."""

    proof: bytes


@dataclass(frozen=True, slots=True)
class DoorLook:
    """Look at what is wanted now, and answer when it is so for this sandbox; empty: for none."""

    request: int
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class DoorExec:
    """Run a command. The same key never runs it twice."""

    request: int
    sandbox_id: str
    key: str
    argv: tuple[str, ...]
    stdin: bytes
    env: dict[str, str]
    timeout_s: float
    output_bytes: int


@dataclass(frozen=True, slots=True)
class DoorExecuted:
    """How a command ended."""

    request: int
    exit_code: int
    stdout: bytes
    stderr: bytes
    truncated_bytes: int
    timed_out: bool
    wall_s: float


@dataclass(frozen=True, slots=True)
class DoorRead:
    """Read a file."""

    request: int
    sandbox_id: str
    path: str


@dataclass(frozen=True, slots=True)
class DoorContent:
    """The bytes of a file."""

    request: int
    content: bytes


@dataclass(frozen=True, slots=True)
class DoorWrite:
    """Replace a file."""

    request: int
    sandbox_id: str
    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class DoorMeasure:
    """Measure a sandbox."""

    request: int
    sandbox_id: str


@dataclass(frozen=True, slots=True)
class DoorMeasured:
    """What a sandbox costs now."""

    request: int
    private_bytes: int
    swapped_bytes: int
    shared_bytes: int
    overhead_bytes: int
    processes: int
    cpu_s: float | None
    """CPU of its processes, ended ones too; None where the runtime does not measure it."""


@dataclass(frozen=True, slots=True)
class DoorDone:
    """It is so."""

    request: int


@dataclass(frozen=True, slots=True)
class DoorRefused:
    """The call has no answer."""

    request: int
    reason: DoorReason
    detail: str


DoorCall = DoorLook | DoorExec | DoorRead | DoorWrite | DoorMeasure
"""What may be asked at a door."""

DoorAnswer = DoorDone | DoorExecuted | DoorContent | DoorMeasured
"""What a call may be answered with."""
