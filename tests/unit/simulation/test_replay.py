"""Recorded leaders are replayed step by step; what was changed or lost is found."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domain.event_log import LogEntry, LogGap, LogRecord, LogSegment
from domain.events import RolloutClosed, StateRestored
from domain.ids import host_id
from domain.plan import EvaluationPlan
from domain.states import JobState
from scheduler import event_log
from simulation.replay import __main__ as command
from simulation.replay.compare import Difference, Missing, logs_of, replay
from stores.blobs import Blobs
from tests.simulation.plans import POOL, plan
from tests.support.event_logs import RecordedWorld, files_of, rewrite, segments_of

JOB = plan(max_steps=4, evaluation=EvaluationPlan(4, 2, None))

TREE = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two terms of one job, its engine and then its leader killed, in segments of forty records."""
    monkeypatch.setattr(event_log, "SEGMENT_RECORDS_MAX", 40)
    world = RecordedWorld(POOL, blobs=Blobs(tmp_path.as_uri()))
    job = world.submit(JOB)
    world.run_for(5.0)
    world.kill(host_id(JOB.attempt_id, "engine0"))
    world.run(lambda: len(job.steps) == 2)
    world.restart_leader()
    world.run(lambda: job.state is JobState.SUCCEEDED, 2000.0)
    world.write()
    return tmp_path


def test_every_term_of_a_job_is_replayed_identically(store: Path) -> None:
    first, second = logs_of(segments_of(store))
    assert len(first.segments) > 2
    opening = next(second.entries())
    assert isinstance(opening, LogRecord)
    assert isinstance(opening.event, StateRestored)
    for log in (first, second):
        outcome = replay(log)
        assert outcome.ended is None
        assert outcome.events == sum(len(one.entries) for one in log.segments)
        assert outcome.commands > 40
    assert replay(first).sha != replay(second).sha


def test_a_changed_event_is_found_where_its_commands_change(store: Path) -> None:
    path, segment, place = closing(store)
    number = change(path, segment, place, event=StateRestored())
    ended = replay(logs_of(segments_of(store))[0]).ended
    assert isinstance(ended, Difference)
    assert ended.record.number >= number


def test_a_changed_hash_is_found_at_its_record(store: Path) -> None:
    path, segment, place = closing(store)
    number = change(path, segment, place, sha="0" * 32)
    ended = replay(logs_of(segments_of(store))[0]).ended
    assert isinstance(ended, Difference)
    assert (ended.record.number, ended.why) == (number, "other contents")
    assert len(ended.got) == len(ended.record.kinds)


def closing(store: Path) -> tuple[Path, LogSegment, int]:
    """File, segment and place of a close that has commands."""
    for path, segment in zip(files_of(store), segments_of(store), strict=True):
        for place, entry in enumerate(segment.entries):
            if not isinstance(entry, LogRecord) or not entry.kinds:
                continue
            if isinstance(entry.event, RolloutClosed):
                return path, segment, place
    raise AssertionError("no close gave commands")


def change(path: Path, segment: LogSegment, place: int, **changes: Any) -> int:
    """Rewrite one record of a stored segment; its number."""
    entries: list[LogEntry] = list(segment.entries)
    record = entries[place]
    assert isinstance(record, LogRecord)
    entries[place] = replace(record, **changes)
    rewrite(path, replace(segment, entries=tuple(entries)))
    return record.number


def test_a_lost_segment_ends_the_proof(store: Path) -> None:
    files_of(store)[1].unlink()
    outcome = replay(logs_of(segments_of(store))[0])
    assert outcome.ended == Missing(40, "the next record there is 80: a segment is missing")
    assert outcome.events == 40


def test_a_gap_ends_the_proof(store: Path) -> None:
    path = files_of(store)[0]
    segment = segments_of(store)[0]
    entries = (*segment.entries[:10], LogGap(10, 30))
    rewrite(path, replace(segment, entries=entries))
    outcome = replay(logs_of(segments_of(store))[0])
    assert isinstance(outcome.ended, Missing)
    assert (outcome.ended.number, outcome.events) == (10, 10)


def test_three_hash_seeds_replay_the_same_commands(store: Path) -> None:
    said = {
        subprocess.run(
            (sys.executable, "-m", "simulation.replay", str(store)),
            cwd=TREE,
            env={**os.environ, "PYTHONPATH": str(TREE), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    (lines,) = said
    assert [line.partition(":")[0] for line in lines.splitlines()] == ["identical", "identical"]


def test_the_command_says_what_differs_and_ends_with_1(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, segment, place = closing(store)
    number = change(path, segment, place, sha="0" * 32)
    assert command.main([str(store), "--term", "1"]) == 1
    said = capsys.readouterr().out
    for words in (f"different at record {number}", "RolloutClosed(", "got "):
        assert words in said


def test_a_store_is_read_by_url_and_term(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--store", store.as_uri(), "--term", "2"]) == 0
    assert capsys.readouterr().out.startswith("identical: ")
    assert command.main(["--store", store.as_uri(), "--term", "9"]) == 2


def test_what_is_no_segment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.segment").write_bytes(b"nothing of ours")
    assert command.main([str(tmp_path)]) == 2
    assert "cannot read the log" in capsys.readouterr().err
