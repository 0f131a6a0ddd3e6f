"""What a plan's machines cost in time: engine, trainer, and the waits between them.

Linear on purpose: three coefficients of an engine and two of a trainer can be fitted to the few dozen
rollouts that a short job leaves, and map exactly onto `EnginePhysics`, which the modelled engine uses.
"""

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from simulation.physics import EnginePhysics

GIGABYTE: Final = 1e9

LINK_BYTES_S: Final = 50 * GIGABYTE
"""Host link of a modelled engine whose own is unknown; only used when pages leave the device."""


@dataclass(frozen=True, slots=True)
class EngineRates:
    """Seconds of one engine: each decode step, each KV token read in it, each token prefilled."""

    step_s: float
    kv_token_s: float
    prefill_token_s: float
    slots: int
    kv_tokens: int
    """Tokens that its device tier holds."""
    attended_token_s: float = 0.0
    """Of a token prefilled, for each token that it attends to: behind a long context it is dearer."""
    reads_prefix_once: bool = True
    """What a step reads of the prefix that its sequences share (`EnginePhysics`)."""

    def physics(self) -> EnginePhysics:
        """The same costs as the modelled engine wants them: bytes a second are tokens a second.

        A prefilled token is 2 x parameters + 4 x layers x width x context operations there.
        """
        attends = self.attended_token_s > 0.0
        flops = 4.0 / self.attended_token_s if attends else 1.0
        return EnginePhysics(
            weights_bytes=0.0,
            kv_bytes_per_token=self.kv_token_s,
            bandwidth=1.0,
            step_overhead_s=self.step_s,
            kv_capacity_tokens=self.kv_tokens,
            parameters=self.prefill_token_s * flops / 2,
            layers=int(attends),
            width=int(attends),
            prefill_flops=flops,
            slots=self.slots,
            host_link_bytes_s=LINK_BYTES_S,
            network_bytes_s=LINK_BYTES_S,
            disk_bytes_s=LINK_BYTES_S,
            host_tier_tokens=0,
            reads_prefix_once=self.reads_prefix_once,
        )

    def scaled(self, factor: float) -> "EngineRates":
        """A slower (above 1) or faster engine of the same shape."""
        return replace(
            self,
            step_s=self.step_s * factor,
            kv_token_s=self.kv_token_s * factor,
            prefill_token_s=self.prefill_token_s * factor,
            attended_token_s=self.attended_token_s * factor,
        )


@dataclass(frozen=True, slots=True)
class TrainerRates:
    """Seconds of the trainer: each token of a group's backward, and the update of a step."""

    token_s: float
    update_s: float


CROWD_FACTOR_MAX: Final = 4.0
"""How far a wait is scaled to another load at the most; beyond it nothing was seen."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """How a wait grows with the rollouts in flight: `base` + `slope` x rollouts, in seconds.

    Where engines, nodes and trainer share cores, every wait is longer the more is going on.
    """

    base: float = 1.0
    slope: float = 0.0

    def factor(self, seen: float, now: float) -> float:
        """What a wait that was seen beside `seen` rollouts is multiplied by beside `now`."""
        before, after = self.base + self.slope * seen, self.base + self.slope * now
        if before <= 0.0 or after <= 0.0:
            return 1.0
        return min(max(after / before, 1.0 / CROWD_FACTOR_MAX), CROWD_FACTOR_MAX)


@dataclass(frozen=True, slots=True)
class Crowds:
    """The waits of a rollout and its tools, each with its own dependence."""

    place: Crowd = Crowd()
    turn: Crowd = Crowd()
    grade: Crowd = Crowd()
    tool: Crowd = Crowd()
    """Tools of sandboxes that share cores with all others."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds of one rollout that are nobody's work, and the rollouts that were in flight then."""

    place_s: float
    """From the opening of its group to its first generation."""
    turn_s: float
    """Of each turn, beside generation and tool: calls between hosts."""
    close_s: float
    """From its last token to its end: the last reply, the upload."""
    crowd: float = 0.0
    """While it lived."""
    place_crowd: float = 0.0
    """While it waited for its first generation."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Everything that a plan assumes of its machines."""

    engine: EngineRates
    trainer: TrainerRates
    sync_s: float
    """An engine takes new weights."""
    crowds: Crowds = Crowds()


def log_normal(chance: Random, spread: float) -> float:
    """A factor around 1 whose logarithm has this standard deviation."""
    return math.exp(chance.gauss(0.0, spread)) if spread > 0 else 1.0
