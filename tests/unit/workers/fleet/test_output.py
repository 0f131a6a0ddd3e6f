"""Who an output is filed under, and how much of it an attempt may store."""

import json
from pathlib import Path

import pytest

from domain.ids import AttemptId, group_id, rollout_id
from infra.clock import ManualClock
from stores.blobs import Blobs
from stores.system.outputs import Output
from workers.fleet import output
from workers.fleet.output import OutputBook

ATTEMPT = AttemptId("att_mine")
MINE = rollout_id(group_id(ATTEMPT, 0), 0)
OTHERS = rollout_id(group_id(AttemptId("att_other"), 0), 0)


class Kept:
    """A book and what it has handed over."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.blobs = Blobs(folder.as_uri())
        self.rows: list[Output] = []
        self.book = OutputBook(self.blobs, clock, self.rows.append)

    async def texts(self, row: Output) -> list[str]:
        data = await self.blobs.read(row.uri, row.sha)
        return [json.loads(line)[1] for line in data.splitlines()]


@pytest.fixture
def kept(tmp_path: Path, clock: ManualClock) -> Kept:
    return Kept(tmp_path / "objects", clock)


async def test_a_process_speaks_only_for_rollouts_of_its_attempt(kept: Kept) -> None:
    for instance in (f"{MINE}/1", f"{OTHERS}/1", "../x", "", MINE):
        kept.book.add(ATTEMPT, instance, instance or "nobody")
    await kept.book.close()
    found = {(one.rollout_id, one.try_, one.component): one for one in kept.rows}
    assert set(found) == {
        (None, None, "environment"), (MINE, None, "grader"), (MINE, 1, "environment"),
    }  # fmt: skip
    process = found[(None, None, "environment")]
    assert await kept.texts(process) == [f"{OTHERS}/1", "../x", "nobody"]


async def test_room_is_left_for_the_words_of_failed_tries(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "ATTEMPT_BYTES", 100)
    for try_ in range(1, 5):
        kept.book.add(ATTEMPT, f"{MINE}/{try_}", "x" * 60)
    for try_, failed in ((1, False), (2, False), (3, True), (4, True)):
        kept.book.ended(ATTEMPT, MINE, try_, failed=failed)
    await kept.book.close()
    assert sorted(one.try_ or 0 for one in kept.rows) == [1, 3]
    assert kept.book.lost == 2


async def test_one_line_longer_than_a_tail_is_kept(kept: Kept) -> None:
    kept.book.add(ATTEMPT, f"{MINE}/1", "x" * (output.TAIL_BYTES + 1))
    kept.book.add(ATTEMPT, f"{MINE}/1", "last")
    kept.book.ended(ATTEMPT, MINE, 1, failed=True)
    await kept.book.close()
    (row,) = kept.rows
    assert (await kept.texts(row), row.lost) == (["last"], 1)


async def test_an_attempt_that_was_released_is_forgotten(kept: Kept) -> None:
    kept.book.add(ATTEMPT, f"{MINE}/1", "late")
    kept.book.released(ATTEMPT)
    kept.book.released(ATTEMPT)
    kept.book.ended(ATTEMPT, MINE, 1, failed=True)
    await kept.book.close()
    assert [one.try_ for one in kept.rows] == [1]
