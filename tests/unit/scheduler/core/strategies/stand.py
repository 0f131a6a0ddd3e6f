"""A bench whose engines say what KV they hold and let go of rollouts between turns."""

from dataclasses import replace
from typing import Any

from domain.events import HostJoined, TurnFinished, TurnSampled
from domain.plan import JobPlan, Pool, Scheduling, StrategyName
from domain.states import HostKind
from scheduler.core.records import RolloutRecord
from tests.simulation.plans import plan, pool
from tests.unit.scheduler.core.bench import Bench, engine_id

ROOM = pool(engines=4, sandboxes=200)


def job_of(
    strategy: StrategyName, knobs: dict[str, float] | None = None, **changes: Any
) -> JobPlan:
    """A job under a strategy."""
    pairs = tuple((knobs or {}).items())
    return plan(**{"max_steps": 99, **changes}, scheduling=Scheduling(strategy, knobs=pairs))


def stand(job: JobPlan, engines: int = 1, kv_tokens: int = 0, pool_: Pool = ROOM) -> Bench:
    """A running job on engines that hold so many tokens each."""
    job = replace(job, engines_max=engines)
    bench = Bench(pool_)
    bench.node()
    bench.submit(job)
    bench.trainer(job)
    for index in range(engines):
        bench.feed(
            HostJoined(
                host_id=engine_id(index, job),
                epoch=1,
                kind=HostKind.ENGINE,
                attempt_id=job.attempt_id,
                slots=64,
                kv_tokens=kv_tokens,
                may_migrate=True,
            )
        )
        bench.synced(job, index, 0)
    return bench


def sampled(bench: Bench, rollout: RolloutRecord, tokens: int, shared: int = 0) -> None:
    """The generation of the open turn ended; its tool runs."""
    turn = rollout.turn + 1
    key = (rollout.rollout_id, rollout.try_, rollout.hop)
    bench.feed(TurnSampled(*key, turn, tokens, 1.0, shared))


def finished(
    bench: Bench, rollout: RolloutRecord, tokens: int, shared: int = 0, version: int = 0
) -> None:
    """A turn is over, the next one begins."""
    turn = rollout.turn + 1
    key = (rollout.rollout_id, rollout.try_, rollout.hop)
    bench.feed(TurnFinished(*key, turn, tokens, tokens, version, 0.0, shared))
