"""Segments of the event log go when they are past their age; nothing else does."""

import asyncio
from pathlib import Path

import pytest

from infra.names import event_log_path
from stores.blobs import Blobs
from workers.chores import tidy

DAY_MS = 24 * 3600 * 1000


def path_at(day: int, segment: int = 0) -> str:
    return event_log_path(3, 0, segment, day * DAY_MS)


def test_segments_past_their_age_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path.as_uri())
    paths = [path_at(1), path_at(2, 1), path_at(20, 2), "event-log/notes.txt", "jobs/a"]

    async def run() -> tuple[int, list[str]]:
        for path in paths:
            await blobs.create(path, b"x")
        gone = await tidy.tidy(blobs, now=21 * 24 * 3600.0)
        return gone, [*await blobs.paths("event-log"), *await blobs.paths("jobs")]

    gone, left = asyncio.run(run())
    assert gone == 2
    assert sorted(left) == sorted(paths[2:])


def test_the_oldest_go_first_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "SEGMENTS_MAX", 2)
    paths = [path_at(day, day) for day in (3, 1, 2, 4)]
    assert tidy.surplus(paths, now=4 * 24 * 3600.0) == [path_at(1, 1), path_at(2, 2)]
