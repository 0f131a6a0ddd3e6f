"""Recovery: a trainer that dies anywhere leaves the same chain of weights as one that never does."""

import asyncio
import itertools
from collections.abc import Mapping

import pytest
from sqlalchemy import text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from domain.errors import ObjectNotWritten, StoreUnavailable
from domain.ids import AttemptId
from domain.wire import Checkpoint, Wake
from infra import failpoints
from stores import tables as t
from stores.system import training
from stores.system.training import Fates, StepRow
from tests.integration.workers.trainer.world import World, trainer
from tests.support.failpoints import ArmedFailpoints
from tests.support.waiting import eventually
from tests.unit.workers.trainer import builders
from workers.trainer import accumulate, checkpoints, filling, publish
from workers.trainer.step import Learner

pytestmark = pytest.mark.integration

NEVER_ASKED: Mapping[str, object] = {**builders.SPEC, "checkpoints": {"every_steps": None}}


def straight(steps: int) -> list[str]:
    """Weights shas of an uninterrupted run over `World.fill`'s batches, step 0 included."""
    learner = builders.learner()
    shas = [learner.weights_sha]
    for step in range(1, steps + 1):
        for position in range(2):
            versions = (step - 1, max(step - 2, 0))
            members = 4 + 4 * position
            learner.add(builders.group(step * 10 + position, members=members, versions=versions))
        shas.append(learner.close().weights_sha)
    return shas


async def run_steps(world: World, first: int, last: int) -> None:
    async with trainer(world) as running:
        await running.is_ready()
        for step in range(first, last + 1):
            await world.fill(step)
            await running.reaches(step)


@pytest.fixture(autouse=True)
def unasked(world: World) -> None:
    """Checkpoints only where a test asks for one, so that no update waits for a request."""
    world.spec = NEVER_ASKED


async def test_recorded_steps_are_reapplied_bit_for_bit_without_any_checkpoint(
    world: World,
) -> None:
    await world.create()
    await run_steps(world, 1, 3)
    async with trainer(world) as running:
        await running.is_ready()
        assert running.ready() == [3]
        for step in (4, 5):
            await world.fill(step)
            await running.reaches(step)
    assert await world.shas() == straight(5)


async def test_a_checkpoint_and_the_steps_after_it_give_the_same_chain(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2, 3):
            await world.fill(step)
            await running.reaches(step)
            if step == 2:
                await running.checkpoint(2)
    async with trainer(world) as running:
        await running.is_ready()
        assert running.host._restored is not None
        assert running.host._restored.replayed == 1
        for step in (4, 5):
            await world.fill(step)
            await running.reaches(step)
    assert await world.shas() == straight(5)


async def test_members_of_the_open_step_are_found_by_query_after_a_restart(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.assign(1, 0, await world.grade(10))
        running.host.on_frame(Wake(1))
        filler = running.host._filler
        assert filler is not None
        await eventually(lambda: len(filler._open.trained) == 1)
    await world.assign(1, 1, await world.grade(11))
    async with trainer(world) as running:
        await eventually(lambda: running.committed() == [1])


PLACES = [
    (f"{accumulate.BACKWARD_MIDDLE}=raise,count=2", "in mid backward"),
    (f"{publish.WEIGHTS_WRITTEN}=raise,count=2", "weights written, row not"),
    (f"{publish.STEP_COMMITTED}=raise", "row committed, leader not told"),
]


@pytest.mark.parametrize("place", [p for p, _ in PLACES], ids=[name for _, name in PLACES])
async def test_a_death_in_a_step_loses_no_update_and_trains_no_group_twice(
    world: World, armed: ArmedFailpoints, place: str
) -> None:
    await world.create()
    armed.arm(place)
    failpoints.configure("trainer", armed.environ)
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        running.host.on_frame(Wake(1))
        await eventually(running.task.done)
    assert len(armed.fired()) == 1
    async with trainer(world) as running:
        await running.is_ready()
        await eventually(lambda: 1 in (*running.ready(), *running.committed()))
        await world.fill(2)
        await running.reaches(2)
    assert await world.shas() == straight(2)
    used = itertools.chain.from_iterable(row.group_ids for row in await world.rows(t.train_step))
    assert len(set(used)) == 4


async def test_a_death_before_step_zero_commits_is_repeated_by_the_next_epoch(
    world: World, armed: ArmedFailpoints
) -> None:
    await world.create()
    armed.arm(f"{publish.WEIGHTS_WRITTEN}=raise")
    failpoints.configure("trainer", armed.environ)
    async with trainer(world) as running:
        await eventually(running.task.done)
    assert await world.shas() == []
    async with trainer(world) as running:
        await running.is_ready()
    (row,) = await world.rows(t.train_step)
    assert (row.step, row.epoch) == (0, 2)


@pytest.mark.parametrize("count", range(1, len(checkpoints.FILE_NAMES)))
async def test_a_half_written_checkpoint_is_passed_over_and_said_so(
    world: World, armed: ArmedFailpoints, count: int
) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        whole = await running.checkpoint(1)
        await world.fill(2)
        await running.reaches(2)
        armed.arm(f"{checkpoints.FILE_WRITTEN}=raise,count={count}")
        failpoints.configure("trainer", armed.environ)
        running.host.on_frame(Checkpoint(2, "periodic", 0, ()))
        await eventually(running.task.done)
    async with trainer(world) as running:
        await running.is_ready()
        assert running.ready() == [2]
        assert running.host._restored is not None
        assert running.host._restored.replayed == 1
    states = {row.id: row.state for row in await world.rows(t.checkpoint)}
    assert states.pop(whole.checkpoint_id) == "ready"
    assert list(states.values()) == ["expired"]
    skipped = [e.body for e in await world.rows(t.job_event) if e.type == "checkpoint.skipped"]
    assert [body["step"] for body in skipped] == [2]
    assert await world.shas() == straight(2)


async def test_a_checkpoint_whose_manifest_was_written_is_adopted(
    world: World, armed: ArmedFailpoints
) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        armed.arm(f"{checkpoints.MANIFEST_WRITTEN}=raise")
        failpoints.configure("trainer", armed.environ)
        running.host.on_frame(Checkpoint(1, "periodic", 0, ()))
        await eventually(running.task.done)
    async with trainer(world) as running:
        await running.is_ready()
        assert running.host._restored is not None
        assert running.host._restored.replayed == 0
        (row,) = await world.rows(t.checkpoint)
        assert row.state == "ready"
        assert (await running.checkpoint(1)).checkpoint_id == row.id


async def test_a_rotten_newest_checkpoint_falls_back_to_the_one_before(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2):
            await world.fill(step)
            await running.reaches(step)
            newest = await running.checkpoint(step)
    path = next((world.folder / "objects").rglob(f"{newest.checkpoint_id}*/model.safetensors"))
    path.write_bytes(path.read_bytes()[:-4])
    async with trainer(world) as running:
        await running.is_ready()
        assert running.host._restored is not None
        assert running.host._restored.replayed == 1
        await world.fill(3)
        await running.reaches(3)
    assert await world.shas() == straight(3)


async def test_a_repeated_request_is_answered_with_the_same_checkpoint(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        first = await running.checkpoint(1, next_ordinal=40)
        assert await running.checkpoint(1) == first
    (row,) = await world.rows(t.checkpoint)
    assert (row.step, row.next_ordinal, row.reason) == (1, 40, "periodic")
    assert {f["name"] for f in row.files} == set(checkpoints.FILE_NAMES)


async def test_a_request_for_a_step_that_has_passed_is_not_answered(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2):
            await world.fill(step)
            await running.reaches(step)
        running.host.on_frame(Checkpoint(1, "periodic", 0, ()))
        assert (await running.checkpoint(2)).step == 2
        assert [c.step for c in running.checkpoints()] == [2]


async def test_an_update_waits_for_the_request_of_a_due_checkpoint(world: World) -> None:
    world.spec = {**builders.SPEC, "checkpoints": {"every_steps": 1}}
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        await world.fill(2)
        running.host.on_frame(Wake(2))
        filler = running.host._filler
        assert filler is not None
        await eventually(lambda: len(filler._open.trained) == 2)
        assert running.committed() == [1]
        assert (await running.checkpoint(1)).step == 1
        await running.reaches(2)


async def test_only_the_newest_checkpoints_and_uncovered_weights_stay(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2, 3):
            await world.fill(step)
            await running.reaches(step)
            await running.checkpoint(step)
    states = [(row.step, row.state) for row in await world.rows(t.checkpoint)]
    assert sorted(states) == [(1, "expired"), (2, "ready"), (3, "ready")]
    objects = world.folder / "objects"
    assert len(list(objects.rglob("manifest.json"))) == 2
    kept = {path.name[:8] for path in objects.rglob("weights/*.safetensors")}
    assert kept == {"00000002", "00000003"}
    assert len(list(objects.rglob("groups/*/*"))) == 6


async def test_a_recorded_sha_that_does_not_come_out_stops_the_attempt(world: World) -> None:
    await world.create()
    await run_steps(world, 1, 2)
    async with world.database.begin() as connection:
        forged = update(t.train_step).where(t.train_step.c.step == 2).values(weights_sha="0")
        await connection.execute(forged)
    async with trainer(world) as running:
        failure = (await eventually(running.failures))[0]
    assert failure.code == "replay_mismatch"
    assert "step 2" in failure.cause


async def test_a_lost_payload_of_a_recorded_step_stops_the_attempt(world: World) -> None:
    await world.create()
    await run_steps(world, 1, 1)
    for path in (world.folder / "objects").rglob("groups/*/*"):
        path.unlink()
    async with trainer(world) as running:
        failure = (await eventually(running.failures))[0]
    assert failure.code == "replay_payload_lost"


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"model": {"base": "no-such"}}, "bad_model"), ({"optimizer": {"lr": "much"}}, "bad_spec")],
)
async def test_what_can_never_work_is_told_once_and_again(
    world: World, changes: dict[str, object], code: str
) -> None:
    world.spec = {**builders.SPEC, **changes}
    await world.create()
    async with trainer(world) as running:
        await eventually(lambda: len(running.failures()) > 1)
        assert {failure.code for failure in running.failures()} == {code}


async def test_a_restart_from_a_checkpoint_continues_as_if_nothing_had_been(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2):
            await world.fill(step)
            await running.reaches(step)
        saved = await running.checkpoint(2)
    await world.restart(AttemptId("att_second"), saved.checkpoint_id, 2)
    async with trainer(world) as running:
        await running.is_ready()
        assert running.ready() == [2]
        for step in (3, 4):
            await world.fill(step)
            await running.reaches(step)
    assert await world.shas() == straight(4)[2:]


async def test_a_checkpoint_serves_as_the_base_model_of_a_new_attempt(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        saved = await running.checkpoint(1)
    async with world.database.begin() as connection:
        based = {**NEVER_ASKED, "model": {"base": saved.checkpoint_id}}
        await connection.execute(update(t.job).values(spec=based))
        await connection.execute(
            t.attempt.insert().values(id="att_based", job_id="job_t", number=2)
        )
    world.attempt = AttemptId("att_based")
    async with trainer(world) as running:
        await running.is_ready()
        assert running.ready() == [0]
    assert await world.shas() == straight(1)[1:]


async def test_ended_database_sessions_cost_no_step(world: World) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        for step in (1, 2, 3):
            await world.fill(step)
            async with world.database.begin() as connection:
                await connection.execute(
                    text(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where datname = current_database() and pid <> pg_backend_pid()"
                    )
                )
            await running.reaches(step)
    assert await world.shas() == straight(3)


async def test_a_commit_whose_answer_was_lost_is_repeated_without_harm(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([True])

    async def committed_unheard(
        connection: AsyncConnection, row: StepRow, metrics: Mapping[str, float], fates: Fates
    ) -> None:
        await training.commit_step(connection, row, metrics, fates)
        if next(lost, False):
            await connection.commit()
            raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(filling, "training", _Facade(committed_unheard))
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        await running.reaches(1)
        assert running.committed() == [1]
    assert await world.shas() == straight(1)


class _Facade:
    """The store's module with another `commit_step`."""

    members = staticmethod(training.members)

    def __init__(self, commit_step: object) -> None:
        self.commit_step = commit_step


async def test_the_event_loop_stays_alive_while_torch_works(world: World) -> None:
    await world.create()
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0)
            beats += 1

    async with trainer(world) as running:
        await running.is_ready()
        task = asyncio.create_task(beat())
        await world.fill(1)
        await running.reaches(1)
        task.cancel()
    assert beats > 10


async def test_an_inexact_replay_takes_the_published_weights(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.create()
    await run_steps(world, 1, 2)
    # What an accelerator does by summing in another order, done here by another rate.
    async with world.database.begin() as connection:
        other = update(t.train_step).where(t.train_step.c.step == 2).values(learning_rate=9e-4)
        await connection.execute(other)
    monkeypatch.setattr(Learner, "is_exact", property(lambda _: False))
    async with trainer(world) as running:
        await running.is_ready()
        assert running.ready() == [2]
        assert running.host._restored is not None
        assert running.host._restored.learner.weights_sha == (await world.shas())[2]


async def test_an_object_store_that_takes_nothing_ends_the_process_and_costs_no_step(
    world: World,
) -> None:
    await world.create()
    async with trainer(world) as running:
        await running.is_ready()
        await world.fill(1)
        (weights,) = (world.folder / "objects").rglob("weights")
        weights.rename(weights.with_name("aside"))
        weights.write_text("in the way")
        running.host.on_frame(Wake(1))
        await eventually(running.task.done)
        assert isinstance(running.task.exception(), ObjectNotWritten)
    weights.unlink()
    weights.with_name("aside").rename(weights)
    async with trainer(world) as running:
        await eventually(lambda: running.committed() == [1])
    assert await world.shas() == straight(1)
