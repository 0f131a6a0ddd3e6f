"""The vocabulary of sandboxes that a tenant asks for by itself, apart from any job."""

from enum import StrEnum
from typing import Final

from domain.sandbox import SandboxLimits

EXEC_S_MAX: Final = 300.0
"""Longest command; what takes longer runs in the background and is looked after by later ones."""

TENANT_LIMITS: Final = SandboxLimits(exec_timeout_s=EXEC_S_MAX)
"""Hard ceilings of one sandbox."""

TEMPLATE: Final = "default"
"""The one template of today: what the node's runtime starts from."""

WAIT_S: Final = 60.0
"""A sandbox that no node has taken within it ends, with what it waited for."""

PAUSED_S_MAX: Final = 86_400.0
"""A paused sandbox holds memory of its node for so long at most."""

LIFETIME_S: Final = 300.0
"""Of a sandbox whose request names none."""

LIFETIME_S_MAX: Final = 86_400.0
"""From its start, and at each extension from then on."""

MEMBERS_MAX: Final = 64
"""Of one fork."""

OPEN_MAX: Final = 64
"""Sandboxes of one project that have not ended."""


class SandboxState(StrEnum):
    """Where a sandbox stands. It ends once, whatever it was."""

    REQUESTED = "requested"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


class SandboxEnd(StrEnum):
    """Why a sandbox ended."""

    KILLED = "killed"
    """Its owner deleted it."""
    TIMED_OUT = "timed_out"
    """Its lifetime, or the longest pause, was over."""
    EXITED = "exited"
    """Its last process ended, or somebody inside ended it."""
    OUT_OF_MEMORY = "out_of_memory"
    """It held more than its ceiling."""
    MEMORY_PRESSURE = "memory_pressure"
    """Its node took it away: no cheaper relief was left."""
    LOST = "lost"
    """Its node can no longer talk to it."""
    NODE_AGENT_LOST = "node_agent_lost"
    """The node's agent ended, and everything that it held."""
    NO_ROOM = "no_room"
    """No node had room for its group while it waited."""
    NEVER_FITS = "never_fits"
    """No node would take its group, were it empty."""
    START_FAILED = "start_failed"
    """A node had room and could not start it."""
