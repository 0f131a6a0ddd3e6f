"""One modelled engine under a test's hands: streams are put on it, a listener plays the world."""

from dataclasses import dataclass, field, replace
from typing import Final

from domain.ids import AttemptId, group_id, ordinal_of, rollout_id
from kv.ranks import RankClass, compose
from kv.rules import KvRules
from simulation.clock import VirtualClock
from simulation.engine import EngineModel, ModelledEngine
from simulation.physics import EnginePhysics
from simulation.stream import Prefix, Stream
from simulation.workload.trajectory import Trajectory
from tests.unit.simulation.machines import physics, rollout

PAGE_TOKENS: Final = 16
ATTEMPT: Final = AttemptId("att_a")

ROUND: Final = physics(slots=8)
"""A step costs 2 s and 0.01 s a token held; prefill 1 + 0.04 c s a token; reload 0.02 s a token."""


def build(name: str, rules: KvRules, yard: "Yard", of: EnginePhysics) -> ModelledEngine:
    """The one place of these tests that knows an engine's constructor."""
    model = EngineModel(name, of, rules, PAGE_TOKENS, of.host_tier_tokens > 0, yard.stall_s)
    return ModelledEngine(model, yard.clock, yard)


@dataclass(slots=True)
class Yard:
    """A clock, and what its engines said; a turn that ended begins its tool or ends the rollout."""

    clock: VirtualClock = field(default_factory=VirtualClock)
    stall_s: float = 5.0
    sampled_at: list[tuple[str, float]] = field(default_factory=list)
    """(rollout, time) of each end of a generation."""
    synced_at: list[tuple[int, float]] = field(default_factory=list)
    keys: int = 0

    def engine(
        self,
        rules: KvRules,
        *,
        pages: int = 400,
        host_tokens: int = 0,
        of: EnginePhysics = ROUND,
        name: str = "engine0",
    ) -> ModelledEngine:
        """An engine with so many pages."""
        capacity = pages * PAGE_TOKENS
        of = replace(of, kv_capacity_tokens=capacity, host_tier_tokens=host_tokens)
        return build(name, rules, self, of)

    def stream(
        self,
        prefix: Prefix,
        *turns: tuple[int, int],
        rank: RankClass = RankClass.NORMAL,
        tool_s: float = 1.0,
    ) -> Stream:
        """A rollout with turns of (new tokens, output tokens)."""
        self.keys += 1
        name = rollout_id(prefix.group_id, self.keys)
        trajectory = rollout(*turns)
        with_tools = [replace(turn, tool_s=tool_s) for turn in trajectory.turns[:-1]]
        trajectory = Trajectory((*with_tools, trajectory.turns[-1]))
        ordinal = ordinal_of(prefix.group_id)
        return Stream(
            name, 1, 1, self.keys, ordinal, trajectory, prefix, compose(rank, ordinal, self.keys)
        )

    def begin(self, engine: ModelledEngine, stream: Stream) -> None:
        """Put a rollout on an engine; its first turn waits."""
        engine.join(stream)
        turn = stream.trajectory.turns[stream.turn]
        engine.wait(stream, turn.new_tokens, turn.output_tokens)

    def turn_sampled(self, engine: ModelledEngine, stream: Stream) -> None:
        """The tool of the trajectory runs, then the next turn waits; after the last one it leaves."""
        self.sampled_at.append((stream.rollout_id, self.clock.now))
        turns = stream.trajectory.turns
        if stream.turn == len(turns):
            engine.leave(stream, keep_unused=True)
            return
        seconds, following = turns[stream.turn - 1].tool_s, turns[stream.turn]
        engine.begin_gap(stream, self.clock.now + seconds)
        self.clock.after(
            seconds, lambda: engine.wait(stream, following.new_tokens, following.output_tokens)
        )

    def synced(self, engine: ModelledEngine, version: int) -> None:
        """Remember when."""
        self.synced_at.append((version, self.clock.now))

    def run(self) -> None:
        """Until nothing happens any more."""
        while self.clock.run_next():
            pass


def prefix_of(ordinal: int, tokens: int) -> Prefix:
    """A group's first prompt."""
    return Prefix(group_id(ATTEMPT, ordinal), tokens, -(-tokens // PAGE_TOKENS))
