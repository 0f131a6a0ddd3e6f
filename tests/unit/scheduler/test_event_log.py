"""The event log of a leader never holds it up; what it cannot keep it says."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from domain.errors import ObjectNotWritten
from domain.event_log import LogGap, LogRecord
from domain.events import Tick
from domain.ids import JobId
from infra.event_log import SegmentUnreadable, decode_segment, encode_segment
from scheduler import event_log
from scheduler.core.refusals import RefusalReason
from scheduler.event_log import EventLog
from stores.blobs import Blob, Blobs
from tests.simulation.plans import POOL
from tests.support.event_logs import files_of, segments_of
from tests.support.waiting import wait_until


class Away(Blobs):
    """A store that takes nothing while it is away, or takes it and loses the answer."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_away = False
        self.loses_answers = 0

    async def create(self, path: str, data: bytes) -> Blob:
        if self.is_away:
            raise ObjectNotWritten(path)
        blob = await super().create(path, data)
        if self.loses_answers:
            self.loses_answers -= 1
            raise ObjectNotWritten(path)
        return blob


@pytest.fixture
def blobs(tmp_path: Path) -> Away:
    return Away(tmp_path.as_uri())


def opened(blobs: Blobs) -> EventLog:
    return EventLog(blobs, 7, POOL, False, refused=Counter({RefusalReason.HOP: 3}))


def note(log: EventLog, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        log.note(float(number), Tick(), ())


def test_a_segment_says_its_term_pool_settings_and_refusals(blobs: Away, tmp_path: Path) -> None:
    log = opened(blobs)
    log.note(1.5, Tick(), (), quarantined=JobId("job_1"))
    asyncio.run(log.close())
    (segment,) = segments_of(tmp_path)
    header = segment.header
    assert (header.term, header.pool, header.checking, header.first) == (7, POOL, False, 0)
    assert header.refused == (("hop", 3),)
    (record,) = segment.entries
    assert isinstance(record, LogRecord)
    assert (record.now, record.event, record.quarantined) == (1.5, Tick(), "job_1")
    (path,) = files_of(tmp_path)
    assert path.parent.name == "0000000007"


def test_the_last_segment_of_a_leader_that_steps_down_says_that_it_is(
    blobs: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS_MAX", 3)
    log = opened(blobs)
    note(log, 5)
    asyncio.run(log.close())
    assert [one.header.is_last for one in segments_of(tmp_path)] == [False, True]


def test_a_log_that_is_stored_already_ends_with_an_empty_segment(
    blobs: Away, tmp_path: Path
) -> None:
    log = opened(blobs)
    note(log, 5)
    asyncio.run(log._write())
    asyncio.run(log.close())
    assert [(len(one.entries), one.header.is_last) for one in segments_of(tmp_path)] == [
        (5, False),
        (0, True),
    ]
    assert segments_of(tmp_path)[1].header.first == 5


def test_a_log_without_a_record_stores_nothing(blobs: Away, tmp_path: Path) -> None:
    asyncio.run(opened(blobs).close())
    assert files_of(tmp_path) == []


def test_a_store_that_is_away_holds_nothing_up_and_gets_everything_later(
    blobs: Away, tmp_path: Path
) -> None:
    log = opened(blobs)
    blobs.is_away = True
    note(log, 5)
    asyncio.run(log.close())
    note(log, 5, first=5)
    assert files_of(tmp_path) == []
    blobs.is_away = False
    asyncio.run(log.close())
    numbers = [entry.number for one in segments_of(tmp_path) for entry in one.entries]
    assert numbers == list(range(10))
    assert log.dropped == 0


def test_a_stored_segment_whose_answer_was_lost_is_not_stored_twice(
    blobs: Away, tmp_path: Path
) -> None:
    log = opened(blobs)
    blobs.loses_answers = 1
    note(log, 3)
    asyncio.run(log.close())
    note(log, 3, first=3)
    asyncio.run(log.close())
    numbers = [entry.number for one in segments_of(tmp_path) for entry in one.entries]
    assert numbers == list(range(6))


def test_what_a_full_queue_drops_is_a_gap_and_a_count(
    blobs: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "WAITING_MAX", 4)
    log = opened(blobs)
    blobs.is_away = True
    note(log, 10)
    blobs.is_away = False
    asyncio.run(log.close())
    note(log, 1, first=10)
    asyncio.run(log.close())
    entries = [entry for one in segments_of(tmp_path) for entry in one.entries]
    assert [entry.number for entry in entries] == [0, 1, 2, 3, 4, 10]
    assert entries[4] == LogGap(4, 6)
    assert log.dropped == segments_of(tmp_path)[-1].header.dropped == 6


def test_the_loop_writes_a_full_segment_and_what_is_left_after_a_while(
    blobs: Away, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "LOOK_S", 0.001)
    monkeypatch.setattr(event_log, "SEGMENT_S", 0.01)
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS_MAX", 3)

    async def run() -> None:
        log = opened(blobs)
        note(log, 8)
        running = asyncio.create_task(log.run())
        await asyncio.to_thread(wait_until, lambda: len(files_of(tmp_path)) == 3, 10.0)
        running.cancel()

    asyncio.run(run())
    assert [len(one.entries) for one in segments_of(tmp_path)] == [3, 3, 2]


def test_cut_off_and_foreign_bytes_are_refused(blobs: Away, tmp_path: Path) -> None:
    log = opened(blobs)
    note(log, 100)
    asyncio.run(log.close())
    data = files_of(tmp_path)[0].read_bytes()
    segment = decode_segment(data)
    assert encode_segment(segment.header, segment.entries) == data
    for bad in (data[:-5], b"", b"no segment", data[5:]):
        with pytest.raises(SegmentUnreadable):
            decode_segment(bad)
