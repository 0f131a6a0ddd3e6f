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
    path = tmp_path / "a.segment"
    path.write_bytes(b"nothing of ours")
    assert command.main([str(tmp_path)]) == 2
    assert f"cannot read {path}: " in capsys.readouterr().err


def test_a_damaged_segment_is_named_and_hides_no_other(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = files_of(store)[1]
    damaged.write_bytes(damaged.read_bytes()[:-5])
    assert command.main([str(store)]) == 2
    said = capsys.readouterr()
    assert f"cannot read {damaged}: " in said.err
    assert "identical up to record 40, then incomplete: " in said.out
    assert "\nidentical: " in said.out, "the other term"


def test_a_damaged_segment_of_another_term_is_not_looked_at(store: Path) -> None:
    files_of(store)[1].write_bytes(b"")
    assert command.main([str(store), "--term", "2"]) == 0
    assert command.main([str(store), "--term", "1"]) == 2


def test_a_home_is_read_by_term(store: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("home")
    (home / "objects").symlink_to(store, target_is_directory=True)
    files_of(store)[1].write_bytes(b"")
    assert command.main(["--home", str(home), "--term", "2"]) == 0
    assert command.main(["--home", str(home)]) == 2


def test_a_damaged_object_of_a_store_is_named(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = files_of(store)[1]
    damaged.write_bytes(b"")
    assert command.main(["--store", store.as_uri()]) == 2
    said = capsys.readouterr()
    assert f"cannot read event-log/0000000001/{damaged.name}: " in said.err
    assert said.out.count("identical") == 2


def test_a_damaged_last_segment_proves_nothing_of_the_end(store: Path) -> None:
    files_of(store)[-1].write_bytes(b"")
    assert command.main([str(store), "--term", "2"]) == 2


def test_a_log_whose_end_is_not_there_is_not_said_to_be_whole(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(store)]) == 0
    assert "may be missing" not in capsys.readouterr().out
    files_of(store)[-1].unlink()
    assert command.main([str(store), "--term", "2"]) == 0
    assert "segments may be missing after the last one" in capsys.readouterr().out


def test_a_copy_of_a_segment_is_named_and_counts_once(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = files_of(store)[0]
    copy = first.with_name("b.segment")
    copy.write_bytes(first.read_bytes())
    assert command.main([str(store)]) == 0
    assert f"left out {copy}: a copy of {first}" in capsys.readouterr().err


def test_two_segments_of_one_number_that_differ_end_the_proof(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, segment = files_of(store)[0], segments_of(store)[0]
    rewrite(first.with_name("b.segment"), replace(segment, entries=segment.entries[:20]))
    assert command.main([str(store), "--term", "1"]) == 2
    assert "record 0 comes again" in capsys.readouterr().out


@pytest.mark.parametrize("named", [[], ["log", "--home", "home"], ["log", "--store", "memory:///"]])
def test_one_place_is_named_and_no_second_one_is_ignored(
    named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(named)
    assert ended.value.code == 2
    assert "name one of LOG, --home and --store" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--home"]])
def test_a_path_where_nothing_is_is_said(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*option, str(tmp_path / "none")]) == 2
    assert f"there is no file or folder {tmp_path / 'none'}" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["/no/scheme", "ftp://host/folder", "s3://"])
def test_a_url_that_names_no_store_is_said_and_proves_nothing(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--store", url]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "names no object store" in said
