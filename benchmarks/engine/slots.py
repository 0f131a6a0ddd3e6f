"""Decode steps that a high-ranked rollout waits while every slot is busy with lower ranks.

Counted from the request to the step in which it has a slot, and to its first token: its prompt is one
chunk, which the step that gives the slot computes too.
"""

from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.engine.figures import Spread, spread
from benchmarks.engine.models import LEAST
from benchmarks.engine.stepping import build, packed, request_of
from benchmarks.engine.workload import TOKENS, Rollout, Turn
from domain.engine import EngineRefused, GenResult, TokenChunk
from kv.ranks import RankClass, compose
from kv.rules import RANKED
from workers.rollout.embedded.packing import PackedModel
from workers.rollout.embedded.pages.nodes import pages_for

SLOTS: Final = 16
QUEUED: Final = 8
"""Low-ranked turns that wait for a slot all the time."""

PROBES: Final = 40
"""High-ranked requests of a seed."""

BETWEEN_STEPS: Final = (1, 24)
"""Steps between two of them, so that they come at every place of a page."""

PROMPT: Final = 48
LOW_OUTPUT: Final = 400
HIGH_OUTPUT: Final = 8

SEEDS: Final = (1, 2, 3)

WAIT_STEPS_MAX: Final = 64
"""A request that waits longer is counted with this: it fails what is asked by far."""

LOW: Final = compose(RankClass.NORMAL, 1, 0)
HIGH: Final = compose(RankClass.CRITICAL, 1, 0)

ROOMY: Final = (SLOTS + QUEUED) * 2 * pages_for(PROMPT + LOW_OUTPUT)
FULL: Final = SLOTS * pages_for(PROMPT + LOW_OUTPUT // 2)
"""The second: pages run out before slots do."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a probe finds: pages of the device, and how many high-ranked requests come at once."""

    name: str
    pages: int
    at_once: int


CASES: Final = (
    Case("slots busy, pages free", ROOMY, 1),
    Case("slots busy, four at once, the last", ROOMY, 4),
    Case("pages full, slots free", FULL, 1),
    Case("pages full, four at once, the last", FULL, 4),
)
"""Two steps are asked of all."""


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """All probes of one case."""

    case: str
    busy: Spread
    """Slots in use when a probe came."""
    slot_steps: Spread
    token_steps: Spread


@dataclass(frozen=True, slots=True)
class Probe:
    """High-ranked requests that came together; steps are those of the last."""

    busy: int
    slot_steps: int
    token_steps: int


class Crowd:
    """A core whose slots are always wanted by low-ranked turns."""

    def __init__(self, model: PackedModel, pages: int, seed: int) -> None:
        self.core, _ = build(model, SLOTS, pages, RANKED)
        self.chance = Random(seed)
        self.number = 0

    def step(self) -> None:
        """One decode step; turns that ended are followed by others before it."""
        while self.core.active + len(self.core.waiting) < SLOTS + QUEUED:
            self._submit("low", self.chance.randint(LOW_OUTPUT // 4, LOW_OUTPUT), LOW)
        self.core.step()

    def settle(self) -> None:
        """Until all slots were busy for a while, with turns of all ages."""
        for _ in range(LOW_OUTPUT // 2):
            self.step()

    def fill(self) -> None:
        """Until every slot is busy, where there are pages for that."""
        for _ in range(WAIT_STEPS_MAX):
            if self.core.active == SLOTS:
                return
            self.step()

    def probe(self, at_once: int) -> Probe:
        """Ask for slots now and wait for the first tokens."""
        busy = self.core.active
        asked: dict[str, list[TokenChunk]] = {}
        for _ in range(at_once):
            chunks: list[TokenChunk] = []
            asked[self._submit("high", HIGH_OUTPUT, HIGH, chunks)] = chunks
        slot_steps = 0
        for step in range(1, WAIT_STEPS_MAX + 1):
            self.step()
            if not slot_steps and not asked.keys() & self.core.waiting.keys():
                slot_steps = step
            if all(asked.values()):
                return Probe(busy, slot_steps, step)
        return Probe(busy, slot_steps or WAIT_STEPS_MAX, WAIT_STEPS_MAX)

    def _submit(
        self, name: str, output: int, rank: int, chunks: list[TokenChunk] | None = None
    ) -> str:
        self.number += 1
        prompt = tuple(self.chance.randrange(TOKENS) for _ in range(PROMPT))
        rollout = Rollout(self.number, self.number, (Turn(prompt, output),))
        request = request_of(name, rollout, prompt, 0, rank + self.number)

        def deliver(outcome: GenResult | EngineRefused) -> None:
            assert isinstance(outcome, GenResult), outcome
            self.core.release(outcome.rollout_id)

        self.core.submit(request, deliver, None if chunks is None else chunks.append)
        return request.request_id


def run(model: PackedModel, case: Case, seed: int) -> list[Probe]:
    """All probes of one seed."""
    crowd = Crowd(model, case.pages, seed)
    crowd.settle()
    probes = []
    for _ in range(PROBES):
        for _ in range(crowd.chance.randint(*BETWEEN_STEPS)):
            crowd.step()
        crowd.fill()
        probes.append(crowd.probe(case.at_once))
    crowd.core.close()
    return probes


def measure(seeds: tuple[int, ...] = SEEDS) -> list[SlotFigures]:
    """All cases and seeds."""
    model = packed(LEAST)
    return [
        figures(case, [probe for seed in seeds for probe in run(model, case, seed)])
        for case in CASES
    ]


def figures(case: Case, probes: list[Probe]) -> SlotFigures:
    """Of the probes of one case."""
    return SlotFigures(
        case.name,
        spread([one.busy for one in probes]),
        spread([one.slot_steps for one in probes]),
        spread([one.token_steps for one in probes]),
    )
