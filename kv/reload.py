"""What bringing pages back costs, and from where."""

from enum import StrEnum


class Source(StrEnum):
    """Where the pages of a returning context come from."""

    RELOAD = "reload"
    COMPUTE = "compute"


def cheaper(reload_s: float, queued_s: float, compute_s: float) -> Source:
    """Reload when the link, its queue included, is faster than the engine; both measured seconds."""
    return Source.RELOAD if reload_s + queued_s < compute_s else Source.COMPUTE
