"""One run of the benchmark: a case to a record. `python -m benchmarks.schedule.run mid venus`.

A run that beats one of its two bounds, or trains other groups than 0 .. batches x B - 1 once each, is an
`AssertionError`: then the simulator or the bound is wrong and no figure may be reported.
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from benchmarks.fixed import Regime, fixed
from benchmarks.schedule.arguments import case_of
from benchmarks.schedule.cases import Case, bounds_of
from benchmarks.schedule.predictor import predictor_of
from benchmarks.schedule.records import Context, Record, Waits
from benchmarks.workloads import source_of, workload_of
from domain.ids import AttemptId, JobId, OrganizationId, ProjectId
from domain.plan import AfterTries, JobPlan, OnNoSignal
from simulation.bound import Bound, Machines, fastest_line_s, perfect_packing
from simulation.engine import EngineCounts
from simulation.runs import Outcome, Setup
from simulation.summary import quantile
from simulation.workload.workload import Workload
from simulation.world import World

EXPECTED_TURNS = 46
"""The plan's prior: the median of turns of the recorded base `swe_glm`, what its user would write."""

STANDSTILL_FACTOR = 50.0
"""A run that takes so many times its bound stands still: the slowest baseline takes some twelve times."""


def run_case(case: Case, folder: Path | None, regime: Regime | None = None) -> Record:
    """Run it and measure. `regime` replaces the one of that name, for tests of small worlds."""
    regime = regime or fixed().regimes[case.cell.regime]
    workload = _workload(regime, case.seed, folder)
    a, m = bounds_of(case.entry, regime, case.batches)
    bound = _bound(regime, case.seed, folder, case.batches, regime.max_staleness)
    own_bound = _bound(regime, case.seed, folder, case.batches, m)
    began = time.process_time()
    world = World(_setup(case, regime, workload, bound.step_s * case.batches * STANDSTILL_FACTOR))
    outcome = world.run()
    cpu_s = time.process_time() - began
    groups = case.batches * regime.groups_per_batch
    step_s = outcome.makespan_s / case.batches
    assert sorted(outcome.trained) == list(range(groups)), "other groups than the workload's"
    assert step_s >= own_bound.step_s, f"{step_s} s a step beats the bound of {own_bound.step_s} s"
    line_s = _line_s(regime, case.seed, folder, case.batches, a) / case.batches
    # A task that was dropped comes back behind others: the line is not in its order any more.
    assert outcome.dropped or step_s >= line_s, f"{step_s} s a step beats the line of {line_s} s"
    record = _record(case, outcome, bound, workload)
    return dataclasses.replace(
        record,
        async_ratio=a,
        max_staleness=m,
        line_s=line_s,
        cpu_s=cpu_s,
        source=source_of(regime.base, folder).name,
    )


def plan_of(case: Case, regime: Regime) -> JobPlan:
    """The job of a case."""
    a, m = bounds_of(case.entry, regime, case.batches)
    return JobPlan(
        job_id=JobId("job_benchmark"),
        attempt_id=AttemptId("att_benchmark"),
        organization_id=OrganizationId("org_benchmark"),
        project_id=ProjectId("prj_benchmark"),
        group_size=fixed().rollouts_per_group,
        groups_per_batch=regime.groups_per_batch,
        max_staleness=m,
        async_ratio=a,
        order=case.entry.order,
        max_steps=case.batches,
        tries=3,
        after_tries=AfterTries.SHRINK,
        min_group_size=1,
        pause_if_failed_share=1.0,
        on_no_signal=OnNoSignal.SKIP,
        checkpoint_every=0,
        evaluation=None,
        engines_min=1,
        engines_max=regime.engines,
        expected_turns=EXPECTED_TURNS,
        drain_s=1.0,
        retry_backoff_s=1.0,
        watchdog_s=1e9,
        scheduling=case.entry.scheduling,
    )


def _setup(case: Case, regime: Regime, workload: Workload, seconds_max: float) -> Setup:
    quality = case.entry.quality
    return Setup(
        plan=plan_of(case, regime),
        physics=fixed().physics_of(regime),
        engines=regime.engines,
        workload=workload,
        trainer_tokens_s=regime.trainer_tokens_s,
        update_s=fixed().update_s,
        weight_sync_s=fixed().weight_sync_s,
        has_host_tier=case.cell.has_host_tier,
        estimator=None if quality is None else predictor_of(workload, quality),
        seconds_max=seconds_max,
    )


@lru_cache(maxsize=4)
def _workload(regime: Regime, seed: int, folder: Path | None) -> Workload:
    """Drawn once for all strategies of a cell that a process runs."""
    return workload_of(regime, seed, folder)


@lru_cache(maxsize=64)
def _bound(
    regime: Regime, seed: int, folder: Path | None, batches: int, max_staleness: int
) -> Bound:
    workload = _workload(regime, seed, folder)
    groups = [workload.group(one) for one in range(batches * regime.groups_per_batch)]
    machines = Machines(
        fixed().physics_of(regime),
        regime.engines,
        regime.trainer_tokens_s,
        fixed().update_s,
        fixed().weight_sync_s,
    )
    return perfect_packing(groups, machines, batches=batches, max_staleness=max_staleness)


@lru_cache(maxsize=64)
def _line_s(regime: Regime, seed: int, folder: Path | None, batches: int, a: float) -> float:
    workload = _workload(regime, seed, folder)
    groups = [workload.group(one) for one in range(batches * regime.groups_per_batch)]
    return fastest_line_s(
        groups, fixed().physics_of(regime), math.ceil(a * regime.groups_per_batch)
    )


def _record(case: Case, outcome: Outcome, bound: Bound, workload: Workload) -> Record:
    counts = _total([engine.counts for engine in outcome.engines])
    tiers = [engine.device.counts for engine in outcome.engines]
    engine_s = len(outcome.engines) * outcome.makespan_s
    step_s = outcome.makespan_s / case.batches
    return Record(
        regime=case.cell.regime,
        has_host_tier=case.cell.has_host_tier,
        name=case.entry.name,
        strategy=case.entry.strategy.value,
        variant=case.entry.variant,
        knobs=dict(case.entry.knobs),
        off=[one.value for one in case.entry.off],
        quality=case.entry.quality,
        seed=case.seed,
        batches=case.batches,
        step_s=step_s,
        bound_s=bound.step_s,
        ratio=step_s / bound.step_s,
        hit_rate=counts.cached_tokens / max(1, counts.prompt_tokens),
        staleness={str(lag): number for lag, number in sorted(outcome.staleness.items())},
        dropped=dict(sorted(outcome.dropped.items())),
        wasted_tokens=counts.wasted_tokens,
        recomputed_tokens=counts.recomputed_tokens,
        sampled_tokens=counts.sampled_tokens,
        wait_s=waits_of(outcome, workload),
        active_batch=counts.decoding_s / engine_s,
        busy_share=counts.busy_s / engine_s,
        trainer_wait_s=outcome.trainer.waited_s / case.batches,
        moves=outcome.moves,
        retractions=sum(one.retractions for one in tiers),
        offloads=sum(one.offloads for one in tiers),
        reloads=sum(one.reloads for one in tiers),
        events=outcome.events,
    )


def _total(counts: Sequence[EngineCounts]) -> EngineCounts:
    total = EngineCounts()
    for one in counts:
        for field in dataclasses.fields(EngineCounts):
            setattr(total, field.name, getattr(total, field.name) + getattr(one, field.name))
    return total


def waits_of(outcome: Outcome, workload: Workload) -> Waits:
    """Mean seconds from opening to completion, by quarters of the groups' longest members.

    Of a task that was done again, the try that was trained counts.
    """
    trained = [group for group in outcome.groups if group.trained_step > 0]
    lengths = {
        group.ordinal: float(max(one.output_tokens for one in workload.group(group.ordinal)))
        for group in trained
    }
    edges = [quantile(sorted(lengths.values()), level) for level in (0.25, 0.5, 0.75)]
    parts: list[list[float]] = [[], [], [], []]
    for group in trained:
        part = sum(lengths[group.ordinal] > edge for edge in edges)
        parts[part].append(group.completed_at - group.opened_at)
    means = [sum(part) / len(part) if part else 0.0 for part in parts]
    longest = max(max(part, default=0.0) for part in parts)
    return Waits(means[0], means[1], means[2], means[3], longest)


def main(words: Sequence[str] | None = None) -> None:
    """Print one record, with the digests of what it ran on."""
    case = case_of(argparse.ArgumentParser(description=__doc__), words)
    context = Context()
    record = context.stamp(run_case(case, context.folder), case.key(context.parts))
    print(json.dumps(dataclasses.asdict(record), indent=1))


if __name__ == "__main__":
    main()
