"""Checkpoints: the manifest is the commit point, half-written folders are never chosen."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from domain.errors import PayloadUnreadable
from domain.ids import AttemptId, CheckpointId, JobId, OrganizationId
from infra import failpoints
from stores.blobs import Blobs
from stores.system.checkpoints import CheckpointRow
from stores.system.retention import best_checkpoints, surplus_checkpoints
from tests.support.failpoints import ArmedFailpoints
from tests.unit.workers.trainer import builders
from workers.models.folder import load_decoder, read_folder, weights_sha
from workers.trainer import checkpoints
from workers.trainer.checkpoints import FILE_NAMES, MANIFEST, DataPosition
from workers.trainer.retention import covered_step

PREFIX = "jobs/job_a/checkpoints/ckpt_a-e1"
MANIFEST_URI = f"{PREFIX}/{MANIFEST}"


def store(tmp_path: Path) -> Blobs:
    return Blobs((tmp_path / "objects").as_uri())


async def save(blobs: Blobs, steps: int = 1) -> str:
    """Write a checkpoint; returns its weights sha."""
    learner = builders.learner()
    builders.train(learner, steps)
    files = checkpoints.contents(learner, DataPosition(4, ()))
    await checkpoints.write(
        blobs,
        PREFIX,
        files,
        checkpoint_id=CheckpointId("ckpt_a"),
        step=learner.step,
        weights_sha=learner.weights_sha,
    )
    return learner.weights_sha


async def test_a_written_checkpoint_reads_back_whole(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    sha = await save(blobs)
    saved = await checkpoints.read_whole(blobs, MANIFEST_URI)
    assert (saved.step, saved.weights_sha) == (1, sha)
    assert {file.name for file in saved.listing} == set(FILE_NAMES)


async def test_writing_the_same_checkpoint_twice_is_harmless(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    assert await save(blobs) == await save(blobs)


async def test_a_checkpoint_loads_as_a_model_folder(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    sha = await save(blobs)
    saved = await checkpoints.read_whole(blobs, MANIFEST_URI)
    folder = read_folder(checkpoints.unpack_model(saved, tmp_path / "model"))
    assert weights_sha(load_decoder(folder).state_dict()) == sha


KILLED = """
import asyncio, json, os, sys
from pathlib import Path
from infra import failpoints
from tests.unit.workers.trainer import builders
from tests.unit.workers.trainer.test_checkpoints import save, store
builders.train(builders.learner(), 1)  # what a first step imports is imported once, not per child
ends = []
for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        os.environ[failpoints.FILE_VARIABLE] = str(folder / "failpoints" / "armed")
        failpoints.configure("trainer")
        asyncio.run(save(store(folder), steps=1))
        os._exit(0)
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""
"""One child for each folder. The parent never touches the store, whose threads no fork would have."""

COUNTS = range(1, len(FILE_NAMES))


@pytest.fixture(scope="module")
def killed_saves(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, tuple[int, Path]]:
    """Exit status and folder of a save that was killed after so many files."""
    folders = [tmp_path_factory.mktemp("killed") for _ in COUNTS]
    for count, folder in zip(COUNTS, folders, strict=True):
        armed = ArmedFailpoints(folder / "failpoints")
        armed.arm(f"{checkpoints.FILE_WRITTEN}=kill,count={count}")
    allowed = {failpoints.ALLOW_VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, folders)],
        env={"PATH": "", "OMP_NUM_THREADS": "1", "PYTHONPATH": ".", **allowed},
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    ends = json.loads(done.stdout)
    return {c: (end, at) for c, end, at in zip(COUNTS, ends, folders, strict=True)}


@pytest.mark.parametrize("count", COUNTS)
def test_a_save_killed_after_any_file_but_the_manifest_is_not_whole(
    killed_saves: Mapping[int, tuple[int, Path]], count: int
) -> None:
    end, folder = killed_saves[count]
    assert end == -9
    written = list((folder / "objects" / PREFIX).iterdir())
    assert len(written) == count
    assert MANIFEST not in {path.name for path in written}


@pytest.mark.parametrize("name", FILE_NAMES)
async def test_a_missing_file_makes_a_checkpoint_unreadable(tmp_path: Path, name: str) -> None:
    blobs = store(tmp_path)
    await save(blobs)
    await blobs.delete(f"{PREFIX}/{name}")
    with pytest.raises(PayloadUnreadable):
        await checkpoints.read_whole(blobs, MANIFEST_URI)


@pytest.mark.parametrize("name", sorted(set(FILE_NAMES) - {MANIFEST}))
async def test_a_flipped_bit_makes_a_checkpoint_unreadable(tmp_path: Path, name: str) -> None:
    blobs = store(tmp_path)
    await save(blobs)
    path = tmp_path / "objects" / PREFIX / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(PayloadUnreadable, match="sha256"):
        await checkpoints.read_whole(blobs, MANIFEST_URI)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"files": 3}', '{"files": [], "step": 1}', "\x00\xff"]
)
async def test_a_manifest_that_says_too_little_is_unreadable(tmp_path: Path, text: str) -> None:
    blobs = store(tmp_path)
    await blobs.create(MANIFEST_URI, text.encode("latin-1"))
    with pytest.raises(PayloadUnreadable):
        await checkpoints.read_whole(blobs, MANIFEST_URI)


async def test_weights_that_are_not_those_of_the_manifest_are_refused(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    await save(blobs)
    path = tmp_path / "objects" / MANIFEST_URI
    record = json.loads(path.read_text()) | {"weights_sha": "0" * 64}
    path.write_text(json.dumps(record))
    saved = await checkpoints.read_whole(blobs, MANIFEST_URI)
    with pytest.raises(PayloadUnreadable, match="other weights"):
        checkpoints.restore(builders.learner(), saved)


async def test_deleting_removes_every_file_and_may_be_repeated(tmp_path: Path) -> None:
    blobs = store(tmp_path)
    await save(blobs)
    for _ in range(2):
        await checkpoints.delete_files(blobs, MANIFEST_URI)
    assert list((tmp_path / "objects" / PREFIX).glob("*")) == []


def test_failpoints_stay_switched_off_without_leave(armed: ArmedFailpoints) -> None:
    armed.arm(f"{checkpoints.FILE_WRITTEN}=raise")
    failpoints.configure("trainer", {})
    assert not failpoints.hit(checkpoints.FILE_WRITTEN)


def row(step: int, state: str = "ready") -> CheckpointRow:
    return CheckpointRow(
        checkpoint_id=CheckpointId(f"ckpt_{step}"),
        job_id=JobId("job_a"),
        attempt_id=AttemptId("att_a"),
        organization_id=OrganizationId("org_a"),
        step=step,
        state=state,
        reason="periodic",
        manifest_uri=f"x/{MANIFEST}",
        weights_sha="",
        next_ordinal=0,
        unconsumed=(),
    )


def test_retention_keeps_the_newest_and_what_an_attempt_starts_from() -> None:
    rows = [row(step) for step in (50, 40, 30, 20)]
    gone = surplus_checkpoints(rows, {CheckpointId("ckpt_20")}, keep_last=2)
    assert [r.step for r in gone] == [30]


def test_retention_keeps_the_best_and_those_whose_evaluation_is_not_over() -> None:
    rows = [row(step) for step in (60, 50, 40, 30, 20, 10)]
    scores = {60: 0.2, 50: None, 40: 0.9, 30: 0.9, 20: 0.5}
    assert best_checkpoints(rows, scores, 1) == {"ckpt_40", "ckpt_50"}
    assert best_checkpoints(rows, scores, 3) == {"ckpt_40", "ckpt_30", "ckpt_20", "ckpt_50"}
    assert best_checkpoints(rows, {}, 3) == set()
    kept = best_checkpoints(rows, scores, 1)
    assert [r.step for r in surplus_checkpoints(rows, kept, keep_last=2)] == [30, 20, 10]


def test_retention_never_goes_below_the_two_that_recovery_needs() -> None:
    rows = [row(60, "writing"), *(row(step) for step in (50, 40, 30))]
    assert [r.step for r in surplus_checkpoints(rows, set(), keep_last=0)] == [30]


def test_weights_are_covered_by_the_second_newest_ready_checkpoint_of_another_step() -> None:
    assert covered_step([row(60, "writing"), row(50), row(50), row(40), row(30)]) == 40
    assert covered_step([row(60, "writing"), row(50)]) is None
    assert covered_step([]) is None
