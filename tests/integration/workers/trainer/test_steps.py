"""Steps against the real database: what a commit writes, and what may not be committed."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import delete, text

from domain.commands import ReplaceMember
from domain.engine import Probe
from domain.errors import Conflict, FencedOut
from domain.ids import RolloutId
from domain.trajectory import GroupPayload
from domain.wire import Finish, Wake
from infra.codec import from_json
from stores import tables as t
from stores.system import training
from stores.system.coordination import replace_member
from stores.system.training import Fates, MembersChanged
from stores.unit_of_work import HostFence
from tests.integration.workers.trainer.world import ATTEMPT, TRAINER, World, trainer
from tests.support.waiting import eventually
from tests.unit.workers.trainer import builders

pytestmark = pytest.mark.integration


async def test_first_start_publishes_step_zero_with_weights_and_probe(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
    (row,) = await world.rows(t.train_step)
    assert (row.step, row.epoch, row.group_ids, row.diverged) == (0, 1, [], False)
    assert row.weights_sha == builders.learner().weights_sha
    probe = from_json(await world.blobs.read(row.probe_uri), Probe)
    assert (probe.version, probe.sha) == (0, row.weights_sha)
    await world.blobs.read(row.weights_uri)


async def test_a_full_batch_is_committed_with_order_metrics_and_fates(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        groups = await world.fill(1)
        await running.reaches(1)
    row = (await world.rows(t.train_step))[1]
    assert row.group_ids == groups
    assert [p["group_id"] for p in row.payloads] == groups
    assert row.learning_rate == pytest.approx(1e-3 / 4)
    metrics = {m.name: m.value for m in await world.rows(t.metric)}
    assert metrics["rollouts"] == 12
    assert metrics["diverged"] == 0
    assert 0.0 < metrics["update_s"] <= metrics["trainer_busy_s"]
    assert {m.step for m in await world.rows(t.metric)} == {1}
    fates = {r.id: r.disposition for r in await world.rows(t.rollout, group_id=groups[0])}
    assert sorted(fates.values()) == (
        ["dropped(shrunk)"] + ["dropped(unscorable)"] * 3 + ["trained(1)"] * 4
    )
    dispositions = [g.disposition for g in await world.rows(t.rollout_group)]
    assert dispositions == ["trained(1)"] * 2
    types = [e.type for e in await world.rows(t.job_event)]
    assert types == ["step.committed"]


async def test_each_step_has_one_point_per_metric(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2, 3):
            await world.fill(step)
            await running.reaches(step)
    points = [m for m in await world.rows(t.metric) if m.name == "reward_mean"]
    assert [point.step for point in points] == [1, 2, 3]


async def test_a_step_waits_for_its_last_position(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.assign(1, 0, await world.grade(10))
        running.host.on_frame(Wake(1))
        running.host.on_frame(Finish(1))
        await world.assign(1, 1, await world.grade(11))
        await running.reaches(1)
    assert len(await world.rows(t.train_step)) == 2


@pytest.mark.parametrize(
    "scheduling", [{"off": ["streaming"]}, {"strategy": "slime-sync"}, {"strategy": "longest"}]
)
async def test_a_job_that_does_not_stream_has_its_backward_once_all_positions_are_filled(
    world: World, scheduling: dict[str, object]
) -> None:
    world.spec = {**builders.SPEC, "scheduling": scheduling}
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.assign(1, 0, await world.grade(10))
        filler = running.host._filler
        assert filler is not None
        running.host.on_frame(Wake(1))
        await world.assign(2, 0, await world.grade(20))
        for _ in range(3):
            assert not await filler.advance(may_close=True)
        assert filler._open.trained == []
        await world.assign(1, 1, await world.grade(11))
        await running.reaches(1)
    straight = builders.learner()
    for ordinal in (10, 11):
        straight.add(builders.group(ordinal, members=8))
    assert (await world.shas())[1] == straight.close().weights_sha


async def test_a_lost_wake_up_is_made_good_by_looking(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await eventually(lambda: running.committed() == [1], 10)


async def test_repeated_and_stale_frames_change_nothing(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        for frame in (Wake(1), Finish(1), Finish(1), Wake(7), Finish(0)):
            running.host.on_frame(frame)
        await running.reaches(1)
        await world.fill(2)
        await running.reaches(2)
        assert running.committed() == [1, 2]


async def test_a_replaced_position_is_trained_instead_of_the_one_that_left(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        first, second, third = [await world.grade(n) for n in (10, 11, 12)]
        await world.assign(1, 0, first)
        await world.assign(1, 1, second)
        async with world.database.begin() as connection:
            await connection.execute(delete(t.batch_member).where(t.batch_member.c.position == 0))
        running.host.on_frame(Wake(1))
        await world.assign(1, 0, third)
        await running.reaches(1)
    row = (await world.rows(t.train_step))[1]
    assert set(row.group_ids) == {second, third}
    straight = builders.learner()
    for name in row.group_ids:
        straight.add(builders.group(int(name[-2:]), members=8))
    assert straight.close().weights_sha == row.weights_sha


async def test_a_position_replaced_after_its_backward_leaves_no_trace_in_the_weights(
    world: World,
) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.assign(1, 0, await world.grade(10))
        filler = running.host._filler
        assert filler is not None
        running.host.on_frame(Wake(1))
        await eventually(lambda: len(filler._open.trained) == 1)
        async with world.database.begin() as connection:
            await connection.execute(delete(t.batch_member))
        for position, ordinal in enumerate((11, 12)):
            await world.assign(1, position, await world.grade(ordinal))
        await running.reaches(1)
    straight = builders.learner()
    for ordinal in (11, 12):
        straight.add(builders.group(ordinal, members=8))
    assert (await world.shas())[1] == straight.close().weights_sha


async def test_a_lost_payload_is_told_until_its_position_is_replaced(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        missing = await world.grade(10, is_stored=False)
        await world.assign(1, 0, missing)
        await world.assign(1, 1, await world.grade(11))
        running.host.on_frame(Wake(1))
        await eventually(running.lost)
        assert {(e.step, e.group_id) for e in running.lost()} == {(1, missing)}
        assert running.committed() == []
        async with world.database.begin() as connection:
            await connection.execute(delete(t.batch_member).where(t.batch_member.c.position == 0))
        await world.assign(1, 0, await world.grade(12))
        await running.reaches(1)
        told = len(running.lost())
        await world.fill(2)
        await running.reaches(2)
        assert len(running.lost()) == told


async def test_a_payload_with_a_flipped_byte_counts_as_lost(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        name = await world.grade(10)
        path = next((world.folder / "objects").rglob(f"{name}/*"))
        path.write_bytes(path.read_bytes()[:-1] + b"\x00")
        await world.assign(1, 0, name)
        running.host.on_frame(Wake(1))
        await eventually(running.lost)


def poisoned(ordinal: int) -> tuple[GroupPayload, RolloutId]:
    payload = builders.group(ordinal)
    guilty = replace(payload.members[2], advantage=float("nan"))
    members = (*payload.members[:2], guilty, *payload.members[3:])
    return replace(payload, members=members), guilty.rollout_id


async def test_divergence_stops_the_job_and_names_the_rollout(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        payload, guilty = poisoned(10)
        await world.assign(1, 0, await world.grade(10, payload))
        running.host.on_frame(Wake(1))
        failure = (await eventually(running.failures))[0]
        assert failure.code == "diverged"
        assert guilty in failure.cause
        running.host.on_frame(Wake(1))
        await eventually(lambda: len(running.failures()) > 1)
    assert len(await world.rows(t.train_step)) == 1


async def test_divergence_with_skip_commits_unchanged_weights_and_drops_the_groups(
    world: World,
) -> None:
    world.spec = {**builders.SPEC, "on_divergence": "skip"}
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        payload, guilty = poisoned(10)
        await world.assign(1, 0, await world.grade(10, payload))
        await world.assign(1, 1, await world.grade(11))
        await running.reaches(1)
        await world.fill(2)
        await running.reaches(2)
    start, skipped, after = await world.rows(t.train_step)
    assert skipped.diverged
    assert skipped.weights_sha == start.weights_sha
    assert skipped.weights_uri == start.weights_uri
    assert after.weights_sha != start.weights_sha
    probe = from_json(await world.blobs.read(skipped.probe_uri), Probe)
    assert (probe.version, probe.sha) == (1, start.weights_sha)
    groups = await world.rows(t.rollout_group)
    assert [g.disposition for g in groups][:2] == ["dropped(diverged)"] * 2
    noted = [e.body for e in await world.rows(t.job_event) if e.type == "step.diverged"]
    assert len(noted) == 1
    assert guilty in noted[0]["cause"]
    assert not any(r.disposition == "pending" for r in await world.rows(t.rollout))


async def test_divergence_with_warn_leaves_the_guilty_group_out_of_the_update(
    world: World,
) -> None:
    world.spec = {**builders.SPEC, "on_divergence": "warn"}
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.assign(1, 0, await world.grade(11))
        payload, _ = poisoned(10)
        await world.assign(1, 1, await world.grade(10, payload))
        await running.reaches(1)
    straight = builders.learner()
    straight.add(builders.group(11))
    row = (await world.rows(t.train_step))[1]
    assert row.weights_sha == straight.close().weights_sha
    assert not row.diverged
    dispositions = {g.ordinal: g.disposition for g in await world.rows(t.rollout_group)}
    assert dispositions == {10: "dropped(diverged)", 11: "trained(1)"}


async def test_a_fenced_out_trainer_ends_without_writing(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.raise_epoch()
        await world.fill(1)
        running.host.on_frame(Wake(1))
        await eventually(running.task.done)
        assert isinstance(running.task.exception(), FencedOut)
    assert len(await world.rows(t.train_step)) == 1


async def test_a_commit_of_other_groups_than_the_rows_hold_is_refused(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
    fence = HostFence(TRAINER, world.epoch)
    groups = await world.fill(1)
    async with world.database.begin(fence) as connection:
        (start,) = await training.steps_after(connection, ATTEMPT, -1)
        members = await training.members(connection, ATTEMPT, 1)
    row = replace(start, step=1, payloads=(members[0].payload,))
    with pytest.raises(MembersChanged, match=groups[1]):
        async with world.database.begin(fence) as connection:
            await training.commit_step(connection, row, {}, Fates())
    assert len(await world.rows(t.train_step)) == 1


async def test_a_step_commits_once_and_a_different_outcome_is_refused(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
    fence = HostFence(TRAINER, world.epoch)
    async with world.database.begin(fence) as connection:
        row = (await training.steps_after(connection, ATTEMPT, 0))[0]
        await training.commit_step(connection, row, {"reward_mean": 9.0}, Fates())
    assert not any(m.value == 9.0 for m in await world.rows(t.metric))
    with pytest.raises(Conflict):
        async with world.database.begin(fence) as connection:
            await training.commit_step(connection, replace(row, weights_sha="x"), {}, Fates())


async def test_a_replacement_that_waited_for_a_commit_finds_the_step_committed(
    world: World,
) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
    fence = HostFence(TRAINER, world.epoch)
    groups = await world.fill(1)

    async def replace_first() -> bool:
        async with world.database.begin() as connection:
            return await replace_member(connection, ReplaceMember(ATTEMPT, 1, 0, groups[0]))

    async def is_waiting() -> bool:
        async with world.database.begin() as connection:
            query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
            return bool((await connection.execute(text(query))).scalar_one())

    async with world.database.begin(fence) as connection:
        (start,) = await training.steps_after(connection, ATTEMPT, -1)
        members = await training.members(connection, ATTEMPT, 1)
        row = replace(start, step=1, payloads=tuple(m.payload for m in members))
        await training.commit_step(connection, row, {}, Fates())
        replacing = asyncio.create_task(replace_first())
        await eventually(is_waiting)
    assert not await replacing
    assert len(await world.rows(t.batch_member)) == 2
