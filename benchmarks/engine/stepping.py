"""A core that is stepped by hand over a workload, on a clock made of its own work.

What the engine measures in seconds (tool gaps, the time of computing a page) is here what was worked:
each decode step and each prefilled token advances the clock by a fixed amount, and tools take a number of
steps. So a run is a function of its seed: no neighbour of a busy machine changes whose pages go.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from benchmarks.engine.models import VOCABULARY
from benchmarks.engine.workload import Rollout
from domain.engine import EngineRefused, GenRequest, GenResult, RequestId, Sampling
from domain.ids import GroupId, RolloutId
from kv.ranks import RankClass, compose
from kv.rules import KvRules
from workers.models.config import ModelConfig
from workers.models.decoder import Decoder
from workers.rollout.embedded.core import Core
from workers.rollout.embedded.keys import KeySizes
from workers.rollout.embedded.packing import PackedModel, pack

STEP_S: Final = 10e-3
"""What a decode step counts: that of 16 rows of the small model on one core of a usual x86 machine."""

PREFILL_TOKEN_S: Final = 0.14e-3
"""What a prefilled token counts, measured with it. Only the proportion of the two matters: at a third of
it the hit rates are nearly the same, at a tenth computing anew is so cheap that more pages are given up."""

TENANT: Final = "bench"


def packed(config: ModelConfig, seed: int = 1) -> PackedModel:
    """A random model, ready for a core."""
    torch.manual_seed(seed)
    return pack(config, Decoder(config).state_dict(), torch.device("cpu"))


@dataclass(slots=True)
class WorkClock:
    """Seconds that the core's work counts, and those of steps in which it had nothing to do."""

    idle_steps: int = 0
    core: Core | None = None

    def __call__(self) -> float:
        """Now."""
        if self.core is None:
            return 0.0
        counters = self.core.counters
        steps = counters.steps + self.idle_steps
        return STEP_S * steps + PREFILL_TOKEN_S * counters.prefilled_tokens


def build(model: PackedModel, slots: int, pages: int, rules: KvRules) -> tuple[Core, WorkClock]:
    """A core without outer tiers on a clock of its own work."""
    clock = WorkClock()
    core = Core(
        model, VOCABULARY, slots, KeySizes(pages, rules=rules),
        version=0, weights_sha="random", clock=clock,
    )  # fmt: skip
    clock.core = core
    return core, clock


def request_of(
    name: str, rollout: Rollout, tokens: Sequence[int], turn: int, rank: int | None = None
) -> GenRequest:
    """One turn of a rollout; by default ranked as the oldest group first ranks it."""
    member = rollout.ordinal % 4096
    by_age = compose(RankClass.NORMAL, rollout.group, member)
    return GenRequest(
        request_id=RequestId(f"{name}.{rollout.ordinal}.{turn}"),
        rollout_id=RolloutId(f"{name}.{rollout.ordinal}"),
        group_id=GroupId(f"{name}.{rollout.group}"),
        tenant=TENANT,
        token_ids=tuple(tokens),
        sampling=Sampling(rollout.turns[turn].output, seed=rollout.ordinal * 1000 + turn),
        rank=by_age if rank is None else rank,
    )


@dataclass(slots=True)
class Player:
    """Plays rollouts on a core: so many groups live at once, the next begins when one has ended."""

    core: Core
    clock: WorkClock
    rollouts: Sequence[Rollout]
    gap_steps: Callable[[Rollout, int], int]
    """How many steps a rollout's tool takes after a turn."""
    now: int = 0
    played: int = 0
    _due: list[tuple[int, int, int]] = field(default_factory=list)
    _tokens: dict[int, list[int]] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)
    """Members of each live group that go on."""
    _next: int = 0

    def play(self, groups_live: int) -> None:
        """All of them to their ends."""
        for _ in range(groups_live):
            self._open_group()
        while self._left:
            self._step()

    def _step(self) -> None:
        self.now += 1
        while self._due and self._due[0][0] <= self.now:
            _, ordinal, turn = heapq.heappop(self._due)
            self._submit(self.rollouts[ordinal], turn)
        before = self.core.counters.steps
        self.core.step()
        self.clock.idle_steps += self.core.counters.steps == before

    def _open_group(self) -> None:
        if self._next == len(self.rollouts):
            return
        group = self.rollouts[self._next].group
        members = [one for one in self.rollouts[self._next :] if one.group == group]
        self._next += len(members)
        self._left[group] = len(members)
        for one in members:
            self._tokens[one.ordinal] = []
            self._submit(one, 0)

    def _submit(self, rollout: Rollout, turn: int) -> None:
        tokens = self._tokens[rollout.ordinal]
        tokens.extend(rollout.turns[turn].added)

        def deliver(outcome: GenResult | EngineRefused) -> None:
            assert isinstance(outcome, GenResult), outcome
            self._answered(rollout, turn, outcome)

        self.core.submit(request_of("r", rollout, tokens, turn), deliver)

    def _answered(self, rollout: Rollout, turn: int, result: GenResult) -> None:
        assert len(result.token_ids) == rollout.turns[turn].output, result
        self._tokens[rollout.ordinal].extend(result.token_ids)
        if turn + 1 < len(rollout.turns):
            due = self.now + self.gap_steps(rollout, turn)
            heapq.heappush(self._due, (due, rollout.ordinal, turn + 1))
            return
        del self._tokens[rollout.ordinal]
        self.core.release(result.rollout_id)
        self.played += 1
        self._left[rollout.group] -= 1
        if not self._left[rollout.group]:
            del self._left[rollout.group]
            self._open_group()
