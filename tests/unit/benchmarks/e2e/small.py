"""Small recorded jobs and runs for the tests beside this file."""

from dataclasses import replace

from benchmarks.e2e.records import Run
from simulation.recorded import (
    RecordedGroup,
    RecordedJob,
    RecordedRollout,
    RecordedStep,
    RecordedTurn,
)

RUN = Run(
    cell="pressure", entry="venus normal", strategy="venus", off=[], seed=1, steps=2, async_ratio=1.5,
    max_staleness=2, is_within=True, engines=1, slots=32, kv_pages=560, step_s=10.0, later_step_s=8.0,
    commits_s=[12.0, 20.0], pressure=2.5, demand=1.5, hit_rate=0.9, evictions=5.0, preemptions=1.0,
    sampled_tokens=1000.0, prefilled_tokens=2000.0, engine_busy_share=0.8, generating_share=0.2,
    engaged_s=16.0, prefill_s=4.0, engine_steps=500.0, attended_tokens=1e5, kv_read_tokens=1e5,
    unplaced_share=0.02, decision_share=0.005, decisions=48, live_max=24,
    staleness={"0": 4}, dropped_groups=0, failed_tries=0, work="aa", load=0.5,
    key="venus", code="c", commit="d", machine="m",
)  # fmt: skip


def run(entry: str = "venus normal", step_s: float = 10.0, **changes: object) -> Run:
    """A run of an entry; its strategy and key follow from the name."""
    strategy = entry.split()[0]
    made = replace(RUN, entry=entry, strategy=strategy, step_s=step_s, later_step_s=step_s)
    made = replace(made, **changes)  # type: ignore[arg-type]
    return replace(made, key=f"{made.cell} {entry} {made.seed}")


def turn(prompt: int, new: int, output: int, generate_s: float, tool_s: float) -> RecordedTurn:
    """One turn."""
    return RecordedTurn(prompt, new, output, generate_s, tool_s)


def rollout(placed_s: float) -> RecordedRollout:
    """Two turns: contexts of 48 and 96 tokens at their ends, the first 32 of them the prompt."""
    turns = (turn(32, 32, 16, 1.0, 0.5), turn(80, 32, 16, 1.0, 0.0))
    return RecordedRollout("host", placed_s, placed_s + 4.0, turns, 1.0)


def job() -> RecordedJob:
    """Two groups of two, each a step of its own."""
    groups = tuple(
        RecordedGroup(n, n * 10.0, n * 10.0 + 6.0, n * 10.0 + 7.0, (rollout(n * 10.0 + 1.0),) * 2)
        for n in range(2)
    )
    steps = tuple(
        RecordedStep(n + 1, n * 10.0 + 9.0, 1.0, 0.5, 192, (0,), (n * 10.0 + 7.5,))
        for n in range(2)
    )
    return RecordedJob(groups, steps, (0.2, 0.4), engines=1, slots=4, kv_tokens=160)
