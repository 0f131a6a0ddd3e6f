"""Inputs of a plan without history: a table of known engines, and a declared profile of the work.

Everything here is an assumption, and the answer of a plan says so. The table holds the physics of
`EnginePhysics` reduced to its three coefficients: weights / bandwidth + overhead, KV bytes a token /
bandwidth, 2 x parameters / FLOP/s. A model of another size scales the first and the last with its
parameters (bytes read and operations are proportional to them).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from simulation.plan import Draw, Inputs, PlannedGroup
from simulation.rates import EngineRates, Rates, TrainerRates, Waits, log_normal
from simulation.workload.trajectory import Tool, Trajectory, Turn
from simulation.workload.workload import chance_of

ENGINE_SPREAD: Final = 0.2
"""Standard deviation of the logarithm of a tabled engine's speed: real ones differ by what they run."""

PROFILE_SPREAD: Final = 0.25
"""The same for each quantity of a profile: people state medians to a quarter, not better."""

GROUP_SHARE: Final = 0.5
"""Share of the variance of turns that lies between tasks, not between rollouts of one task: siblings'
lengths correlate about 0.7 on public coding traces (`scheduling.md` section 7)."""

Z90: Final = 1.2815515655446004
"""Standard normal quantile of 90 %."""

TURNS_MAX: Final = 1_000
"""Of one declared rollout; a job spec allows no more."""


@dataclass(frozen=True, slots=True)
class Delays:
    """Waits of a platform of which nothing was measured, in seconds."""

    sandbox_s: float
    turn_s: float
    grade_s: float
    sync_s: float


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """One row of the table."""

    name: str
    parameters: float
    rates: EngineRates
    trainer: TrainerRates
    delays: Delays
    source: str


KNOWN_ENGINES: Final[Mapping[str, KnownEngine]] = {
    one.name: one
    for one in (
        KnownEngine(
            "cpu-embedded", 1e5,
            EngineRates(0.008, 2e-7, 1e-5, slots=64, kv_tokens=65_536),
            TrainerRates(1.5e-4, 0.10), Delays(0.05, 0.01, 0.15, 0.10),
            "the embedded engine with a built-in model on two cores",
        ),
        KnownEngine(
            "8b-h100", 8.2e9,
            EngineRates(0.00999, 6.29e-8, 3.32e-5, slots=256, kv_tokens=366_000),
            TrainerRates(1 / 60_000, 10.0), Delays(1.0, 0.02, 1.0, 5.0),
            "8B in bf16 on one H100: 16.4 GB of weights at 70 % of 3.35 TB/s, 3 ms a step besides",
        ),
        KnownEngine(
            "8b-h200", 8.2e9,
            EngineRates(0.00788, 4.39e-8, 3.32e-5, slots=256, kv_tokens=730_000),
            TrainerRates(1 / 60_000, 10.0), Delays(1.0, 0.02, 1.0, 5.0),
            "8B in bf16 on one H200: 16.4 GB of weights at 70 % of 4.8 TB/s, 3 ms a step besides",
        ),
        KnownEngine(
            "32b-4xh100", 32.8e9,
            EngineRates(0.01415, 3.26e-8, 3.69e-5, slots=256, kv_tokens=825_000),
            TrainerRates(1 / 30_000, 10.0), Delays(1.0, 0.02, 1.0, 5.0),
            "32B in bf16 on four H100: 65.5 GB of weights at 60 % of 13.4 TB/s, 6 ms a step besides",
        ),
    )
}  # fmt: skip
"""Engines by name."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A quantity by three of its quantiles; between and beyond them it is taken as log-normal."""

    p10: float
    p50: float
    p90: float

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""
        low, high = max(self.p10, 1e-6), max(self.p90, 1e-6)
        return max(math.log(high / low) / (2 * Z90), 0.0)

    def at(self, deviate: float) -> float:
        """The value so many standard deviations from the median."""
        return max(self.p50, 1e-6) * math.exp(self.spread * deviate)


@dataclass(frozen=True, slots=True)
class Profile:
    """What rollouts of an environment do, as its author or the plan's user declares it."""

    turns: Declared
    prompt_tokens: Declared
    output_tokens: Declared
    """Sampled in one turn."""
    observation_tokens: Declared
    """Added by one reply."""
    tool_s: Declared
    """Seconds of one reply."""
    flat_share: float = 0.0
    """Share of groups whose rewards are all equal: they are dropped and refilled."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of the job that cut a rollout."""

    turns_max: int
    output_tokens_max: int
    context_tokens: int


def engine_for(parameters: float, name: str | None = None) -> KnownEngine:
    """The named engine, or that of the nearest model size, scaled to the parameters."""
    if name is not None:
        base = KNOWN_ENGINES[name]
    else:
        base = min(
            KNOWN_ENGINES.values(),
            key=lambda one: (abs(math.log(one.parameters / parameters)), one.name),
        )
    factor = parameters / base.parameters
    if base.name == "cpu-embedded":
        # A tiny model's step is overhead of the interpreter, whatever its size.
        factor = 1.0
    rates = EngineRates(
        base.rates.step_s * factor,
        base.rates.kv_token_s,
        base.rates.prefill_token_s * factor,
        base.rates.slots,
        base.rates.kv_tokens,
    )
    trainer = TrainerRates(base.trainer.token_s * factor, base.trainer.update_s)
    return KnownEngine(base.name, parameters, rates, trainer, base.delays, base.source)


@dataclass(frozen=True, slots=True)
class DeclaredGroups:
    """Groups of one replica, drawn from a profile."""

    profile: Profile
    bounds: Bounds
    delays: Delays
    size: int
    seed: int

    def group(self, ordinal: int) -> PlannedGroup:
        """Siblings share their prompt and part of how long they take."""
        chance = chance_of(self.seed, ordinal, "declared group")
        prompt = max(1, round(self.profile.prompt_tokens.at(chance.gauss(0.0, 1.0))))
        prompt = min(prompt, self.bounds.context_tokens - 1)
        shared = chance.gauss(0.0, math.sqrt(GROUP_SHARE))
        members = tuple(self._member(prompt, shared, chance) for _ in range(self.size))
        waits = Waits(self.delays.sandbox_s, self.delays.turn_s, self.delays.turn_s)
        is_flat = chance.random() < self.profile.flat_share
        return PlannedGroup(members, (waits,) * self.size, self.delays.grade_s, is_flat)

    def _member(self, prompt: int, shared: float, chance: Random) -> Trajectory:
        own = chance.gauss(0.0, math.sqrt(1.0 - GROUP_SHARE))
        wanted = round(self.profile.turns.at(shared + own))
        count = min(max(wanted, 1), self.bounds.turns_max, TURNS_MAX)
        turns: list[Turn] = []
        room, new_tokens = self.bounds.context_tokens, prompt
        for index in range(count):
            if room <= new_tokens:
                break
            room -= new_tokens
            drawn = max(1, round(self.profile.output_tokens.at(chance.gauss(0.0, 1.0))))
            output = min(drawn, self.bounds.output_tokens_max, room)
            room -= output
            is_last = index == count - 1 or room <= 0
            tool_s = 0.0 if is_last else self.profile.tool_s.at(chance.gauss(0.0, 1.0))
            turns.append(Turn(new_tokens, output, None if is_last else Tool.OTHER, tool_s))
            new_tokens = max(1, round(self.profile.observation_tokens.at(chance.gauss(0.0, 1.0))))
            if is_last:
                break
        last = turns[-1]
        turns[-1] = Turn(last.new_tokens, last.output_tokens, None, 0.0)
        return Trajectory(tuple(turns))


@dataclass(frozen=True, slots=True)
class DeclaredInputs:
    """`Inputs` from a known engine and a profile; each draw shifts both a little."""

    engine: KnownEngine
    profile: Profile
    bounds: Bounds

    def draw(self, chance: Random, group_size: int) -> Draw:
        """One possible truth around the stated one."""
        known, profile = self.engine, self.profile
        rates = Rates(
            known.rates.scaled(log_normal(chance, ENGINE_SPREAD)),
            TrainerRates(
                known.trainer.token_s * log_normal(chance, ENGINE_SPREAD), known.trainer.update_s
            ),
            known.delays.sync_s,
        )
        shifted = Profile(
            _shifted(profile.turns, chance),
            profile.prompt_tokens,
            _shifted(profile.output_tokens, chance),
            _shifted(profile.observation_tokens, chance),
            _shifted(profile.tool_s, chance),
            profile.flat_share,
        )
        seed = chance.getrandbits(32)
        groups = DeclaredGroups(shifted, self.bounds, known.delays, group_size, seed)
        return Draw(rates, groups)


@dataclass(frozen=True, slots=True)
class RecordedGroupsInputs:
    """`Inputs` with recorded work on an engine of the table."""

    engine: KnownEngine
    recorded: Inputs

    def draw(self, chance: Random, group_size: int) -> Draw:
        """Groups of a bootstrap sample; waits as recorded, costs around the table's."""
        drawn = self.recorded.draw(chance, group_size)
        factor = log_normal(chance, ENGINE_SPREAD)
        token_s = self.engine.trainer.token_s * log_normal(chance, ENGINE_SPREAD)
        rates = Rates(
            self.engine.rates.scaled(factor),
            TrainerRates(token_s, self.engine.trainer.update_s),
            self.engine.delays.sync_s,
            drawn.rates.crowds,
        )
        return Draw(rates, drawn.groups)


def profile_of_limits(bounds: Bounds) -> Profile:
    """What is assumed of an environment of which only the limits are known: a wide spread below them."""
    turns, tokens = bounds.turns_max, min(bounds.output_tokens_max, bounds.context_tokens)
    context = bounds.context_tokens
    return Profile(
        turns=Declared(max(turns / 8, 1.0), max(turns / 2, 1.0), float(turns)),
        prompt_tokens=Declared(context / 64, context / 16, context / 4),
        output_tokens=Declared(tokens / 32, tokens / 8, tokens / 2),
        observation_tokens=Declared(context / 256, context / 64, context / 16),
        tool_s=Declared(0.02, 0.5, 10.0),
    )


def _shifted(one: Declared, chance: Random) -> Declared:
    factor = log_normal(chance, PROFILE_SPREAD)
    return Declared(one.p10 * factor, one.p50 * factor, one.p90 * factor)
