"""ThunderAgent's accounting of programs: who is paused, who goes on, and where.

Source: `ThunderAgent/scheduler/router.py`, `backend/state.py`, `config.py` (MIT; arXiv 2602.13692; snapshot
of 2026-03-06). A program is a rollout: REASONING while its turn is on an engine or waits for one, ACTING
while its tool runs. An engine is charged

    sum of tokens of REASONING + acting_weight x tokens of ACTING - shared + buffer_tokens x programs

against its KV capacity. Where that overflows, the smallest ACTING programs are paused at once, then the
smallest REASONING ones are marked, to be paused when their turn ends. Two defects of the snapshot are
switches: marks do not reduce the overflow, so that one token too many marks every program that reasons
(`counts_marks`), and the prefix that the members of a group share is charged to each (`shares_prefix`).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from domain.ids import GroupId, HostId, RolloutId


class Phase(StrEnum):
    """What a program does."""

    REASONING = "reasoning"
    ACTING = "acting"


@dataclass(frozen=True, slots=True)
class ProgramRules:
    """The numbers and switches of a variant."""

    buffer_tokens: float = 100.0
    acting_weight: float = 1.0
    decay: bool = False
    counts_marks: bool = False
    shares_prefix: bool = False


@dataclass(slots=True)
class Program:
    """One rollout in the eyes of the router. `engine` is None exactly while it is paused."""

    rollout_id: RolloutId
    group_id: GroupId
    tokens: int = 0
    shared_tokens: int = 0
    """Of `tokens`, what all members of its group have."""
    phase: Phase = Phase.REASONING
    steps: int = 1
    """Turns begun; a program in its first is new."""
    engine: HostId | None = None
    is_marked: bool = False
    acting_since: float = 0.0
    waiting_since: float = 0.0
    """When it was paused, or when its next request then came to wait."""
    former_engine: HostId | None = None

    @property
    def is_paused(self) -> bool:
        """It waits in the global queue."""
        return self.engine is None


def used_tokens(
    programs: Iterable[Program], rules: ProgramRules, now: float | None = None
) -> float:
    """What an engine is charged for its programs; with a time, tools decay as in a resume."""
    used, prefixes = 0.0, dict[GroupId, int]()
    for program in programs:
        own = program.tokens
        if rules.shares_prefix:
            own -= program.shared_tokens
            known = prefixes.get(program.group_id, 0)
            prefixes[program.group_id] = max(known, program.shared_tokens)
        used += own * _weight(program, rules, now) + rules.buffer_tokens
    return used + sum(prefixes.values())


def choose_pauses(
    programs: Iterable[Program], capacity: float, rules: ProgramRules
) -> tuple[list[Program], list[Program]]:
    """Programs of one engine to pause now, and those to mark, until the rest fits by the rules."""
    active = list(programs)
    paused: list[Program] = []
    marked: list[Program] = []
    acting = sorted((p for p in active if p.phase is Phase.ACTING), key=_size)
    reasoning = sorted((p for p in active if _may_be_marked(p)), key=_size)
    while _left(active, marked, capacity, rules) < 0:
        if acting:
            paused.append(acting.pop(0))
            active.remove(paused[-1])
        elif reasoning:
            marked.append(reasoning.pop(0))
        else:
            break
    return paused, marked


def choose_resumes(
    paused: Iterable[Program], room: Mapping[HostId, float], rules: ProgramRules
) -> list[tuple[Program, HostId]]:
    """Programs that go on, each with its engine: chosen by priority and size, packed largest first.

    Those with a turn waiting come first, then new ones, then those whose tool runs; inside each the
    smallest. What fits into the sum of all room is placed largest first on the engine with most room.
    """
    left = {engine: tokens for engine, tokens in room.items() if tokens > rules.buffer_tokens}
    total, chosen = sum(left.values()), list[Program]()
    for program in sorted(paused, key=lambda p: (_priority(p), *_size(p))):
        needed = program.tokens + rules.buffer_tokens
        if needed <= total:
            chosen.append(program)
            total -= needed
    resumed = []
    for program in sorted(chosen, key=lambda p: (-p.tokens, p.rollout_id)):
        needed = program.tokens + rules.buffer_tokens
        engine = min(left, key=lambda engine: (-left[engine], engine), default=None)
        if engine is None or needed > left[engine]:
            continue
        resumed.append((program, engine))
        left[engine] -= needed
        if left[engine] <= rules.buffer_tokens:
            del left[engine]
    return resumed


def _left(
    active: list[Program], marked: list[Program], capacity: float, rules: ProgramRules
) -> float:
    if not rules.counts_marks:
        return capacity - used_tokens(active, rules)
    leaving = {program.rollout_id for program in marked}
    staying = [p for p in active if not p.is_marked and p.rollout_id not in leaving]
    return capacity - used_tokens(staying, rules)


def _may_be_marked(program: Program) -> bool:
    return program.phase is Phase.REASONING and not program.is_marked


def _size(program: Program) -> tuple[int, RolloutId]:
    return program.tokens, program.rollout_id


def _priority(program: Program) -> int:
    if program.steps <= 1:
        return 1
    return 0 if program.phase is Phase.REASONING else 2


def _weight(program: Program, rules: ProgramRules, now: float | None) -> float:
    if program.phase is Phase.REASONING:
        return 1.0
    if not rules.decay or now is None:
        return rules.acting_weight
    return rules.acting_weight * math.exp2(-max(now - program.acting_since, 0.0))
