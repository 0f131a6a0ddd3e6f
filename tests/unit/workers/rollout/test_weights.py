"""Weight sync of the host: whole or not at all, one at a time, never over an evaluation (F16)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from domain.engine import GenRequest, Probe, ProbeSequence, RequestId, Sampling
from domain.events import EngineSynced, EngineSyncFailed
from domain.ids import HostId
from domain.policy import PolicyRef
from infra import failpoints
from infra.clock import ManualClock
from infra.codec import to_json
from stores.blobs import Blobs
from tests.support import eventually
from tests.support.failpoints import ArmedFailpoints
from tests.unit.workers.rollout.builders import ATTEMPT, GROUP, ROLLOUT, ids, scripted
from workers.rollout.outcomes import EngineFault
from workers.rollout.scripted.engine import ScriptedEngine
from workers.rollout.scripted.script import ScriptedAnswer
from workers.rollout.seams import SYNC_CHUNK
from workers.rollout.weights import CHUNK_BYTES, SyncRefused, VersionGate, WeightSync

HOST = HostId("host_test_engine0")


@dataclass
class Bench:
    """A sync with a scripted engine, a real object store and a list for what the leader hears."""

    engine: ScriptedEngine
    folder: Path
    clock: ManualClock
    deadline_s: float = 5.0
    has_other_pins: Callable[[int], bool] = lambda version: False
    sent: list[object] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    synced: list[tuple[int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build the parts that belong together."""
        self.blobs = Blobs((self.folder / "objects").as_uri())
        self.gate = VersionGate(self.engine)
        self.sync = WeightSync(
            self.engine,
            self.gate,
            self.blobs,
            host_id=HOST,
            epoch=1,
            folder=self.folder / "scratch",
            clock=self.clock,
            deadline_s=self.deadline_s,
            emit=self.sent.append,
            has_other_pins=lambda version: self.has_other_pins(version),
            set_mode=self.modes.append,
            synced=lambda version, seconds: self.synced.append((version, seconds)),
        )

    async def publish(self, version: int, *, epoch: int = 1, size: int = 600_000) -> PolicyRef:
        """What a trainer stores for a version."""
        sha = f"sha{version}"
        name = f"w/{version}-e{epoch}"
        weights = await self.blobs.create(name, bytes([version]) * size)
        probe = Probe(version, sha, (ProbeSequence((1, 2), (-1.0,)),))
        stored = await self.blobs.create(f"{name}.probe", to_json(probe))
        return PolicyRef(ATTEMPT, version, sha, weights.uri, stored.uri, epoch)


@pytest.fixture
def bench(tmp_path: Path, clock: ManualClock) -> Bench:
    return Bench(scripted("a2;", clock=clock), tmp_path, clock)


async def test_a_sync_serves_the_new_version_and_leaves_one_file(bench: Bench) -> None:
    await bench.sync.bring(await bench.publish(4))
    await bench.sync.bring(await bench.publish(5))
    assert bench.gate.version == 5
    assert not bench.engine.stats().paused
    assert [path.name for path in (bench.folder / "scratch").iterdir()] == [
        "00000005-e1.safetensors"
    ]


async def test_a_version_that_is_served_already_costs_nothing(bench: Bench) -> None:
    policy = await bench.publish(4)
    await bench.sync.bring(policy)
    await bench.sync.bring(policy)
    assert bench.engine.stats().weight_updates == 1


async def test_a_failure_at_the_second_of_three_chunks_leaves_the_old_version_and_the_next_works(
    bench: Bench, armed: ArmedFailpoints
) -> None:
    policy = await bench.publish(4, size=3 * CHUNK_BYTES)
    failpoints.configure("engine", armed.environ)
    armed.arm(f"{SYNC_CHUNK}=raise:connection,count=2")
    with pytest.raises(SyncRefused, match="unreadable"):
        await bench.sync.bring(policy)
    assert len(armed.fired(SYNC_CHUNK)) == 1
    assert bench.gate.version == 3
    assert not bench.engine.stats().paused
    await bench.sync.bring(policy)
    assert bench.gate.version == 4


async def test_a_failure_inside_the_engine_leaves_it_serving_the_old_version(
    bench: Bench, armed: ArmedFailpoints
) -> None:
    failpoints.configure("engine", armed.environ)
    armed.arm("engine.sync.after_read=raise:os")
    with pytest.raises(SyncRefused):
        await bench.sync.bring(await bench.publish(4))
    assert bench.gate.version == 3
    assert not bench.engine.stats().paused


async def test_a_probe_mismatch_restores_the_old_weights(
    tmp_path: Path, clock: ManualClock
) -> None:
    bench = Bench(scripted("a2;", clock=clock, mismatched=frozenset({4})), tmp_path, clock)
    with pytest.raises(SyncRefused, match="probe_mismatch"):
        await bench.sync.bring(await bench.publish(4))
    assert (bench.engine.info().version, bench.engine.info().weights_sha) == (3, "sha3")
    assert not bench.engine.stats().paused


async def test_weights_of_an_older_trainer_are_refused(bench: Bench) -> None:
    await bench.sync.bring(await bench.publish(4, epoch=2))
    with pytest.raises(SyncRefused, match="old_epoch"):
        await bench.sync.bring(await bench.publish(5, epoch=1))
    assert bench.gate.version == 4


@pytest.mark.parametrize("missing", ["uri", "probe_uri"])
async def test_missing_weights_or_probe_refuse_the_sync_before_the_engine_pauses(
    missing: str, bench: Bench
) -> None:
    policy = await bench.publish(4)
    await bench.blobs.delete(getattr(policy, missing))
    with pytest.raises(SyncRefused, match="unreadable"):
        await bench.sync.bring(policy)
    assert not bench.engine.stats().paused


async def test_an_engine_that_never_takes_the_weights_is_a_fault(
    tmp_path: Path, clock: ManualClock
) -> None:
    class Stuck(ScriptedEngine):
        async def update_weights(self, ref: object) -> None:
            await asyncio.Event().wait()

    engine = scripted("a2;", clock=clock)
    engine.__class__ = Stuck
    bench = Bench(engine, tmp_path, clock, deadline_s=0.05)
    with pytest.raises(EngineFault):
        await bench.sync.bring(await bench.publish(4))


async def test_orders_are_answered_and_the_mode_tells_the_keeper(bench: Bench) -> None:
    serving = asyncio.create_task(bench.sync.run())
    bench.sync.order(await bench.publish(4))
    await eventually(lambda: bench.sent)
    assert bench.sent == [EngineSynced(HOST, 1, 4)]
    assert bench.modes == ["sync", "decode"]
    assert [version for version, _ in bench.synced] == [4]
    serving.cancel()


async def test_a_failed_order_says_why(bench: Bench) -> None:
    serving = asyncio.create_task(bench.sync.run())
    policy = await bench.publish(4)
    await bench.blobs.delete(policy.uri)
    bench.sync.order(policy)
    await eventually(lambda: bench.sent)
    (failed,) = bench.sent
    assert isinstance(failed, EngineSyncFailed)
    assert failed.version == 4
    assert "unreadable" in failed.cause
    assert bench.synced == []
    serving.cancel()


async def test_a_newer_order_replaces_one_that_has_not_begun(bench: Bench) -> None:
    older, newer = await bench.publish(4), await bench.publish(5)
    bench.sync.order(older)
    bench.sync.order(newer)
    serving = asyncio.create_task(bench.sync.run())
    await eventually(lambda: bench.sent)
    assert bench.sent == [EngineSynced(HOST, 1, 5)]
    serving.cancel()


async def test_a_sync_waits_for_open_evaluation_rollouts(bench: Bench) -> None:
    pins = {3}
    bench.has_other_pins = lambda version: bool(pins - {version})
    syncing = asyncio.create_task(bench.sync.bring(await bench.publish(4)))
    await eventually(lambda: bench.clock._sleepers)
    assert bench.gate.version == 3
    pins.clear()
    bench.clock.advance(1.0)
    await syncing
    assert bench.gate.version == 4


async def test_a_sync_is_refused_while_evaluation_rollouts_stay_open(
    tmp_path: Path, clock: ManualClock
) -> None:
    bench = Bench(scripted("a2;", clock=clock), tmp_path, clock, deadline_s=0.05)
    bench.has_other_pins = lambda version: True
    with pytest.raises(SyncRefused, match="evaluation_open"):
        await bench.sync.bring(await bench.publish(4))
    assert bench.gate.version == 3


async def test_a_turn_that_runs_during_a_sync_goes_on(tmp_path: Path, clock: ManualClock) -> None:
    slow = ScriptedAnswer(ids("a2;"), delay_s=5.0)
    bench = Bench(scripted(slow, clock=clock), tmp_path, clock)
    request = GenRequest(RequestId("r"), ROLLOUT, GROUP, "org", ids("1"), Sampling(4))
    running = asyncio.create_task(bench.engine.generate(request))
    await eventually(lambda: bench.engine.stats().active == 1)
    await bench.sync.bring(await bench.publish(4))
    clock.advance(5.0)
    assert (await running).token_ids == ids("a2;")
