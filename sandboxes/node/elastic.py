"""What a runtime can do to a live sandbox: take memory back, stop it, let it go on.

`as_elastic` finds it by capability: a runtime without any of it has `None`, and the ladder then knows
only the rungs that need nothing of the runtime.
"""

from dataclasses import dataclass

from sandboxes.ports import Runtime


@dataclass(frozen=True, slots=True)
class Elasticity:
    """What may be asked of which runtime."""

    runtime: Runtime
    can_balloon: bool
    can_page_out: bool
    """Paused before, as the ladder does."""


def as_elastic(runtime: Runtime) -> Elasticity | None:
    """The elastic part of a runtime; None where it has no rung of the ladder."""
    can = runtime.capabilities()
    can_page_out = can.page_out and can.pause
    if not (can.balloon or can_page_out):
        return None
    return Elasticity(runtime, can.balloon, can_page_out)
