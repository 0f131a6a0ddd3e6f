"""The host: placements by hop, forgetting, failures, snapshots, syncs beside evaluations."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from domain.engine import Finish, PauseMode
from domain.events import HeldRollout, RolloutClosed, TryFailed
from domain.ids import HostId, OrganizationId, RolloutId, rollout_id
from domain.policy import PolicyRef
from domain.states import End, HostKind
from domain.wire import Forget, Place, Ranks, Suspend, Sync, TurnReports, Wake
from infra import failpoints
from infra.clock import ManualClock
from kv.ranks import RankClass, compose
from stores.blobs import Blobs
from tests.support import eventually
from tests.support.failpoints import ArmedFailpoints
from tests.unit.workers.rollout.builders import (
    ATTEMPT,
    CHAT,
    GROUP,
    ROLLOUT,
    AgentTwin,
    ids,
    place,
    scripted,
)
from workers.rollout.agent_client import NodeAgent
from workers.rollout.episode import Ending, Episode
from workers.rollout.host import HostIdentity, HostPorts, RolloutHost, SyncPlan
from workers.rollout.job_spec import EnvironmentSpec, JobSpec, ModelSpec
from workers.rollout.measures import Synced, Used
from workers.rollout.outcomes import EngineFault, Superseded
from workers.rollout.scripted.engine import ScriptedEngine
from workers.rollout.scripted.script import ScriptedAnswer
from workers.rollout.seams import CLOSED

HOST = HostId("host_test_engine0")
SPEC = JobSpec(ModelSpec("tiny-calc"), (EnvironmentSpec(6, 60.0),))
SLOW = ScriptedAnswer(ids("a2;"), delay_s=10.0)


@dataclass
class CloserTwin:
    """Closes in memory; `gate` unset holds closes back as an absent database does."""

    closed: list[RolloutClosed] = field(default_factory=list)
    error: Exception | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def close(
        self, place: Place, episode: Episode, ending: Ending, agent: NodeAgent
    ) -> RolloutClosed:
        """What the real one returns, or the error that a test set."""
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        closed = RolloutClosed(
            rollout_id=place.rollout_id,
            try_=place.try_,
            hop=place.hop,
            end=ending.end,
            oldest_version=3,
            newest_version=3,
            tokens=episode.tokens,
            sampled_tokens=episode.sampled_tokens,
            turns=episode.turns,
        )
        self.closed.append(closed)
        return closed


@dataclass
class Agents:
    """An agent twin for each rollout's address."""

    twins: dict[str, AgentTwin] = field(default_factory=dict)

    def client(self, address: str, key: str) -> AgentTwin:
        """The twin of an address, made when first asked for."""
        return self.twins.setdefault(address, AgentTwin())


@dataclass
class Desk:
    """A host and everything that it touches."""

    host: RolloutHost
    engine: ScriptedEngine
    clock: ManualClock
    closer: CloserTwin
    agents: Agents
    sent: list[object]
    measured: list[Used] = field(default_factory=list)

    @property
    def ends(self) -> list[object]:
        """What was sent, turn reports apart."""
        return [one for one in self.sent if not isinstance(one, TurnReports)]


async def desk_of(folder: Path, clock: ManualClock, *answers: ScriptedAnswer | str) -> Desk:
    engine = scripted(*answers, clock=clock)
    closer, agents, sent = CloserTwin(), Agents(), list[object]()
    measured: list[Used] = []

    def note(one: Used | Synced) -> None:
        if isinstance(one, Used):
            measured.append(one)

    closer.gate.set()
    ports = HostPorts(
        engine=engine,
        chat=CHAT,
        agents=agents,
        closer=closer,
        blobs=Blobs((folder / "objects").as_uri()),
        clock=clock,
        emit=sent.append,
        set_mode=lambda mode: None,
        measured=note,
    )
    identity = HostIdentity(HOST, 2, ATTEMPT, OrganizationId("org_1"))
    host = RolloutHost(identity, SPEC, ports, SyncPlan(folder / "scratch", 5.0))
    return Desk(host, engine, clock, closer, agents, sent, measured)


@pytest.fixture
async def desk(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Desk]:
    """A host whose rollouts take 10 manual seconds."""
    one = await desk_of(tmp_path, clock, SLOW)
    yield one
    await one.host.close()


async def started(desk: Desk, *places: Place) -> None:
    """Place, and wait until the engine runs that many turns."""
    for one in places:
        desk.host.on_frame(one)
    await eventually(lambda: desk.engine.stats().active == len(places))


async def test_a_placed_rollout_runs_closes_and_is_told_to_the_leader(
    tmp_path: Path, clock: ManualClock
) -> None:
    desk = await desk_of(tmp_path, clock, "c1+1;", "a2;")
    desk.host.on_frame(place())
    await eventually(lambda: desk.ends)
    assert desk.ends == desk.closer.closed
    assert desk.ends[0].end is End.DONE  # type: ignore[attr-defined]
    assert desk.host.snapshot().held == ()
    await desk.host.close()


async def test_the_same_placement_again_changes_nothing(desk: Desk) -> None:
    await started(desk, place(hop=2))
    desk.host.on_frame(place(hop=2))
    desk.clock.advance(10.0)
    await eventually(lambda: desk.closer.closed)
    desk.host.on_frame(place(hop=2))
    assert desk.host.counts["repeated"] == 2
    assert len(desk.engine.requests) == 1


async def test_a_lower_hop_is_refused(desk: Desk) -> None:
    await started(desk, place(hop=3))
    desk.host.on_frame(place(hop=2, try_=9))
    assert desk.host.counts["refused"] == 1
    (held,) = desk.host.snapshot().held
    assert (held.try_, held.hop) == (1, 3)


async def test_a_higher_hop_replaces_the_placement(desk: Desk) -> None:
    await started(desk, place(hop=1))
    desk.host.on_frame(place(hop=2))
    await eventually(lambda: len(desk.engine.requests) == 2)
    assert desk.engine.stats().active == 1
    desk.clock.advance(10.0)
    await eventually(lambda: desk.closer.closed)
    assert [closed.hop for closed in desk.closer.closed] == [2]


async def test_forgetting_aborts_at_once_and_refuses_late_placements(desk: Desk) -> None:
    await started(desk, place(hop=2))
    desk.host.on_frame(Forget(ROLLOUT, 2))
    await eventually(lambda: desk.engine.stats().active == 0)
    desk.host.on_frame(place(hop=1))
    desk.host.on_frame(place(hop=2))
    assert desk.host.snapshot().held == ()
    assert desk.ends == []


async def test_a_suspended_rollout_is_let_go_and_a_late_placement_of_its_hop_refused(
    desk: Desk,
) -> None:
    await started(desk, place(hop=2))
    desk.host.on_frame(Suspend(ROLLOUT, 1, keep_kv=False))
    assert len(desk.host.snapshot().held) == 1
    desk.host.on_frame(Suspend(ROLLOUT, 2, keep_kv=False))
    await eventually(lambda: desk.engine.stats().active == 0)
    desk.host.on_frame(place(hop=2))
    assert desk.host.snapshot().held == ()
    desk.host.on_frame(place(hop=3))
    assert [held.hop for held in desk.host.snapshot().held] == [3]


async def test_the_snapshot_says_what_the_engine_holds_and_that_it_keeps_its_pages(
    desk: Desk,
) -> None:
    snapshot = desk.host.snapshot()
    assert (snapshot.kv_tokens, snapshot.may_migrate) == (0, False)


async def test_members_of_a_group_tell_what_of_their_contexts_they_share(
    tmp_path: Path, clock: ManualClock
) -> None:
    desk = await desk_of(tmp_path, clock, "c1+1;", "c1+1;", SLOW)
    for index in range(2):
        one = place(rollout_id=rollout_id(GROUP, index), node_address=f"127.0.0.1:{index}")
        desk.host.on_frame(one)
    await eventually(lambda: desk.engine.stats().active == 2)
    clock.advance(1.0)
    await eventually(lambda: _shared(desk) == {5})
    await desk.host.close()


def _shared(desk: Desk) -> set[int]:
    frames = [frame for frame in desk.sent if isinstance(frame, TurnReports)]
    return {event.shared_tokens for event in frames[-1].finished} if frames else set()


async def test_forgetting_an_older_hop_leaves_the_newer_placement(desk: Desk) -> None:
    await started(desk, place(hop=3))
    desk.host.on_frame(Forget(ROLLOUT, 2))
    assert len(desk.host.snapshot().held) == 1


async def test_forgetting_a_rollout_that_never_came_refuses_its_late_placement(
    desk: Desk,
) -> None:
    desk.host.on_frame(Forget(ROLLOUT, 4))
    desk.host.on_frame(place(hop=4))
    assert desk.host.snapshot().held == ()


async def test_a_failed_try_is_reported_with_its_end_and_leaves_the_snapshot(
    desk: Desk,
) -> None:
    desk.agents.client("127.0.0.1:1", "key").lost = True
    desk.host.on_frame(place())
    await eventually(lambda: desk.ends)
    assert desk.ends == [TryFailed(ROLLOUT, 1, 1, End.SANDBOX_LOST, "node_agent_lost")]
    assert desk.host.snapshot().held == ()


async def test_a_superseded_rollout_is_forgotten_without_a_word(desk: Desk) -> None:
    desk.closer.error = Superseded("closed by the coordinator")
    await started(desk, place())
    desk.clock.advance(10.0)
    await eventually(lambda: desk.host.counts["superseded"] == 1)
    assert desk.ends == []
    assert desk.host.snapshot().held == ()


async def test_a_rollout_that_waits_for_its_close_stays_in_the_snapshot(desk: Desk) -> None:
    desk.closer.gate.clear()
    await started(desk, place(hop=2))
    desk.clock.advance(10.0)
    await eventually(lambda: desk.engine.stats().finished == 1)
    snapshot = desk.host.snapshot()
    assert snapshot.held == (HeldRollout(ROLLOUT, 1, 2, 1, 3, 8),)
    assert (snapshot.kind, snapshot.epoch, snapshot.policy_version) == (HostKind.ENGINE, 2, 3)
    desk.closer.gate.set()
    await eventually(lambda: desk.ends)
    assert desk.host.snapshot().held == ()


async def test_the_host_shares_its_time_among_the_rollouts_that_it_runs(desk: Desk) -> None:
    other = rollout_id(GROUP, 1)
    await started(desk, place(), place(rollout_id=other))
    desk.clock.advance(4.0)
    desk.host.on_frame(Forget(other, 1))
    await eventually(lambda: len(desk.measured) == 1)
    desk.clock.advance(6.0)
    await eventually(lambda: len(desk.measured) == 2)
    used = {one.rollout_id: one.use.engine_s for one in desk.measured}
    assert used == {other: 2.0, ROLLOUT: 8.0}
    assert {one.hop for one in desk.measured} == {1}


async def test_a_lost_notification_leaves_the_close_standing(
    desk: Desk, armed: ArmedFailpoints
) -> None:
    failpoints.configure("engine", armed.environ)
    armed.arm(f"{CLOSED}=drop")
    await started(desk, place())
    desk.clock.advance(10.0)
    await eventually(lambda: desk.host.counts["closed"] == 1)
    assert desk.ends == []
    assert len(desk.closer.closed) == 1


async def test_a_fault_of_the_engine_ends_the_host_and_fails_no_try(
    tmp_path: Path, clock: ManualClock
) -> None:
    desk = await desk_of(tmp_path, clock, ScriptedAnswer(finish=Finish.ERROR, error="boom"))
    desk.host.on_frame(place())
    with pytest.raises(EngineFault, match="boom"):
        await desk.host.fault
    assert desk.ends == []
    await desk.host.close()


async def test_a_defect_of_the_host_ends_it_with_itself_as_the_cause(desk: Desk) -> None:
    desk.closer.error = AssertionError("a defect")
    await started(desk, place())
    desk.clock.advance(10.0)
    with pytest.raises(AssertionError, match="a defect"):
        await desk.host.fault


async def test_new_ranks_reach_open_turns_and_the_turns_after_them(desk: Desk) -> None:
    """Ranks of neighbours differ by one, also in a class beyond what a float tells apart."""
    before, after = compose(RankClass.NORMAL, 7, 4), compose(RankClass.NORMAL, 7, 3)
    await started(desk, place(rank=before))
    assert [call.rank for call in desk.engine._open.values()] == [before]
    desk.host.on_frame(Ranks(((ROLLOUT, after), (RolloutId("ro_other"), 2))))
    assert [call.rank for call in desk.engine._open.values()] == [after]
    (held,) = desk.host._held.values()
    assert held.loop.rank == after


async def test_sixty_four_rollouts_run_side_by_side(tmp_path: Path, clock: ManualClock) -> None:
    desk = await desk_of(tmp_path, clock, "c1+1;", "a2;")
    members = [rollout_id(GROUP, index) for index in range(64)]
    for index, member in enumerate(members):
        desk.host.on_frame(place(rollout_id=member, node_address=f"127.0.0.1:{index}"))
    await eventually(lambda: len(desk.ends) == 64)
    assert {closed.rollout_id for closed in desk.closer.closed} == set(members)
    assert desk.host.counts["drift"] == 0
    await desk.host.close()


async def test_a_sync_is_deferred_while_an_evaluation_of_another_version_is_open(
    desk: Desk,
) -> None:
    await started(desk, place(evaluation=True, pinned_version=3))
    assert desk.host._has_other_pins(4)
    assert not desk.host._has_other_pins(3)
    desk.host.on_frame(Sync(PolicyRef(ATTEMPT, 4, "sha4", "w", "p", 1)))
    desk.clock.advance(10.0)
    await eventually(lambda: desk.closer.closed)
    assert not desk.host._has_other_pins(4)


async def test_closing_the_host_leaves_no_task_behind(tmp_path: Path, clock: ManualClock) -> None:
    desk = await desk_of(tmp_path, clock, SLOW)
    await started(desk, place())
    await desk.host.close()
    assert len(asyncio.all_tasks()) == 1
    assert desk.engine.stats().active == 0


async def test_a_frame_for_another_kind_of_host_is_counted(desk: Desk) -> None:
    desk.host.on_frame(Wake(1))
    assert desk.host.counts["unknown_frames"] == 1


async def test_figures_name_slots_versions_and_tokens_per_second(desk: Desk) -> None:
    await started(desk, place())
    desk.clock.advance(10.0)
    await eventually(lambda: desk.closer.closed)
    figures = desk.host.figures()
    assert figures["tokens_per_s"] == pytest.approx(0.3)
    assert figures["policy_version"] == 3.0
    assert figures["held"] == 0.0
    assert all(isinstance(value, float) for value in figures.values())


async def test_phases_say_what_each_rollout_does(tmp_path: Path, clock: ManualClock) -> None:
    desk = await desk_of(tmp_path, clock, "c1+1;", SLOW)
    desk.closer.gate.clear()
    await desk.engine.pause(PauseMode.KEEP)
    desk.host.on_frame(place())
    assert desk.host.phases() == {ROLLOUT: "attaching"}
    await eventually(lambda: desk.engine.stats().waiting == 1)
    assert desk.host.phases() == {ROLLOUT: "waits_for_weights"}
    await desk.engine.resume()
    desk.host.on_frame(place(rollout_id=rollout_id(GROUP, 1)))
    await eventually(lambda: desk.engine.stats().active == 2)
    assert set(desk.host.phases().values()) == {"running"}
    clock.advance(10.0)
    await eventually(lambda: set(desk.host.phases().values()) == {"saving"})
    desk.closer.gate.set()
    await eventually(lambda: desk.host.phases() == {})
    await desk.host.close()


@pytest.mark.parametrize(
    ("active", "paused", "held", "reason"),
    [
        (8, False, 0, "waits_for_slot"),
        (3, False, 1152, "waits_for_kv"),
        (3, False, 2, "waits_for_step"),
        (3, True, 2, "waits_for_weights"),
    ],
)
async def test_a_turn_without_a_slot_says_what_the_engine_lacks(
    desk: Desk, active: int, paused: bool, held: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(desk, place())
    stats = replace(
        desk.engine.stats(),
        slots=8,
        active=active,
        paused=paused,
        kv_pages=1152,
        kv_pages_held=held,
    )
    monkeypatch.setattr(desk.engine, "stats", lambda: stats)
    monkeypatch.setattr(desk.engine, "waiting", lambda: (ROLLOUT,))
    assert desk.host.phases() == {ROLLOUT: reason}
