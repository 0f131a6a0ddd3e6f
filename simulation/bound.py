"""The perfect-packing bound: no schedule of the same rollouts on the same machines is faster.

    bound = max(trainer work + updates, engine work / engines + syncs) / batches

- trainer work = sum of context / trainer rate: the trainer is one and processes each rollout once.
- engine work = useful prefill + KV reads + steps x F, with F = weights / bandwidth + overhead.
- useful prefill: each turn's new tokens once, behind their context; a group's first prompt once.
- KV reads: each sampled token reads what its own rollout holds beyond the group's prefix. The prefix
  itself is read once in a step however many siblings decode in it, so at the least as often as the
  sibling that samples most does.
- steps: a step holds private KV of at most `capacity` tokens and at most `slots` sequences, so
  n tokens take at least max(sum of private context / capacity, n / slots) steps, over all engines.

It ignores tools, tails, whole steps, steps that only prefill, and everything computed twice. Of the
`batches` syncs the last m + 1 need not come before the last sampled token (m = `max_staleness`);
that token's group is then still trained and its step updated, and the smaller of the two is counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

from simulation.physics import EnginePhysics
from simulation.workload.trajectory import Trajectory

Group = Sequence[Trajectory]
"""The rollouts of one task; they share their first prompt."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What the rollouts run on, and what a step costs beside them."""

    physics: EnginePhysics
    engines: int
    trainer_tokens_s: float
    update_s: float
    weight_sync_s: float


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds of one step, and where they come from (each a total over the engines, per step)."""

    step_s: float
    trainer_s: float
    """The trainer's side: work and update."""
    engine_s: float
    """The engines' side: work over engines, and syncs."""
    prefill_s: float
    kv_read_s: float
    floor_s: float
    steps_by_capacity: float
    steps_by_slots: float


@dataclass(slots=True)
class _Work:
    """Totals over groups."""

    prefill_s: float = 0.0
    kv_read_tokens: float = 0.0
    private_tokens: float = 0.0
    output_tokens: int = 0
    trained_tokens: int = 0


def perfect_packing(
    groups: Sequence[Group], machines: Machines, *, batches: int, max_staleness: int
) -> Bound:
    """The bound of a run that trained exactly these groups in `batches` steps."""
    physics = machines.physics
    total = _Work()
    for group in groups:
        _add(total, group, physics)
    by_capacity = total.private_tokens / physics.kv_capacity_tokens
    by_slots = total.output_tokens / physics.slots
    floor_s = physics.step_floor_s * max(by_capacity, by_slots)
    kv_read_s = physics.kv_read_s(total.kv_read_tokens)
    engine_s = (total.prefill_s + kv_read_s + floor_s) / machines.engines
    engine_s += _stalls_s(groups, machines, batches=batches, max_staleness=max_staleness)
    trainer_s = total.trained_tokens / machines.trainer_tokens_s + batches * machines.update_s
    return Bound(
        step_s=max(trainer_s, engine_s) / batches,
        trainer_s=trainer_s / batches,
        engine_s=engine_s / batches,
        prefill_s=total.prefill_s / batches,
        kv_read_s=kv_read_s / batches,
        floor_s=floor_s / batches,
        steps_by_capacity=by_capacity / batches,
        steps_by_slots=by_slots / batches,
    )


def fastest_line_s(groups: Sequence[Group], physics: EnginePhysics, unfinished_max: int) -> float:
    """Seconds until the last group ended if every rollout had an engine to itself and lost no page.

    Groups are opened in their order, at most `unfinished_max` at once, each as soon as there is a place
    (the first come, first served queue with so many servers; longer services never end it sooner). No
    schedule that opens them so is faster, however many engines there are: tools and the decode steps of
    the slowest member bound it, not packing.
    """
    ends = [0.0] * unfinished_max
    for group in groups:
        heapreplace(ends, ends[0] + max(_alone_s(one, physics) for one in group))
    return max(ends)


def _alone_s(one: Trajectory, physics: EnginePhysics) -> float:
    """Tools, decode steps and later prompts of a rollout beside nobody; a sibling computed the first."""
    seconds = 0.0
    for index, (prompt, turn) in enumerate(one.with_prompts()):
        n = turn.output_tokens
        seconds += n * physics.step_floor_s + physics.kv_read_s(n * prompt + n * (n - 1) // 2)
        if index > 0:
            seconds += physics.prefill_after_s(turn.new_tokens, prompt - turn.new_tokens)
        if index < len(one.turns) - 1:
            seconds += turn.tool_s
    return seconds


def _add(total: _Work, group: Group, physics: EnginePhysics) -> None:
    """Count one group."""
    prefix = group[0].turns[0].new_tokens
    total.prefill_s += physics.prefill_after_s(prefix, 0)
    total.kv_read_tokens += prefix * max(one.output_tokens for one in group)
    for one in group:
        assert one.turns[0].new_tokens == prefix, "siblings share their first prompt"
        private, later_prefill_s = _member(one, prefix, physics)
        total.private_tokens += private
        total.kv_read_tokens += private
        total.prefill_s += later_prefill_s
        total.output_tokens += one.output_tokens
        total.trained_tokens += one.context_tokens


def _member(one: Trajectory, prefix: int, physics: EnginePhysics) -> tuple[float, float]:
    """Private tokens read over all sampled tokens, and the prefill of the turns after the first.

    The i-th of n tokens behind a prompt of p sees p + i - 1, as in the engine.
    """
    private, prefill_s = 0, 0.0
    for index, (prompt, turn) in enumerate(one.with_prompts()):
        n = turn.output_tokens
        private += n * (prompt - prefix) + n * (n - 1) // 2
        if index > 0:
            prefill_s += physics.prefill_after_s(turn.new_tokens, prompt - turn.new_tokens)
    return private, prefill_s


def _stalls_s(
    groups: Sequence[Group], machines: Machines, *, batches: int, max_staleness: int
) -> float:
    """Syncs that every engine must have waited for, with what follows its last token."""
    before_last = max(0, batches - 1 - max_staleness) * machines.weight_sync_s
    smallest = min(sum(one.context_tokens for one in group) for group in groups)
    after_last = smallest / machines.trainer_tokens_s + machines.update_s
    return min(batches * machines.weight_sync_s, before_last + after_last)
