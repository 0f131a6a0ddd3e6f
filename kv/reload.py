"""What bringing pages back costs, and from where."""

from enum import StrEnum


class Source(StrEnum):
    """Where the pages of a returning context come from."""

    RELOAD = "reload"
    COMPUTE = "compute"


def cheaper(reload_s: float, queued_s: float, compute_s: float) -> Source:
    """Reload when the link, its queue included, is faster than the engine; both measured seconds."""
    return Source.RELOAD if reload_s + queued_s < compute_s else Source.COMPUTE


def migration_pays(transfer_s: float, compute_s: float, wait_s: float, margin: float) -> bool:
    """Whether a rollout gains by moving: the cheaper way of having its context at the target costs
    less than the wait that it leaves behind, by a margin that keeps it from swinging back."""
    return min(transfer_s, compute_s) * margin < wait_s
