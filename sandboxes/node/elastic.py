"""What a runtime may be able to do to a live sandbox: take memory back, stop it, let it go on.

`as_elastic` finds it by capability: a runtime without any of it has `None`, and the ladder then knows
only the rungs that need nothing of the runtime.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from domain.sandbox import MemberKey
from sandboxes.ports import Runtime


@runtime_checkable
class Elastic(Protocol):
    """Of `Runtime`, the part that some lack. Each call raises what its runtime raises of a lost sandbox."""

    async def pause(self, key: MemberKey) -> None:
        """Nothing in the sandbox runs until `resume`; a paused one stays so."""
        ...

    async def resume(self, key: MemberKey) -> None:
        """It goes on where it was; one that runs goes on."""
        ...

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Take back up to so many bytes of RAM; returns how many were."""
        ...


@dataclass(frozen=True, slots=True)
class Elasticity:
    """What may be asked of which runtime."""

    elastic: Elastic
    can_balloon: bool
    can_page_out: bool


def as_elastic(runtime: Runtime) -> Elasticity | None:
    """The elastic part of a runtime; None where it has no rung of the ladder."""
    can = runtime.capabilities()
    if not isinstance(runtime, Elastic) or not (can.balloon or can.page_out):
        return None
    return Elasticity(runtime, can.balloon, can.page_out)
