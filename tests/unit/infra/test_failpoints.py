"""Failpoints: the grammar, counting over processes, what firing does, and being off by default."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra import failpoints
from infra.failpoints import Action, BadFailpointError, FailpointError, parse
from tests.support.failpoints import ArmedFailpoints

ROOT = Path(__file__).parents[3]


def run_hits(armed: ArmedFailpoints, hits: int = 1, kind: str = "leader") -> int:
    """Exit status of a process of `kind` that passes the failpoint `a.b` this many times."""
    code = f"""
from infra import failpoints
failpoints.configure({kind!r})
for _ in range({hits}):
    failpoints.hit("a.b")
"""
    environ = {"PYTHONPATH": str(ROOT), **armed.environ}
    return subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode


def test_every_part_of_an_entry_is_read() -> None:
    (entry,) = parse("turn.before-ack@node=sleep:0.5,count=3,times=*,id=x1")
    assert (entry.name, entry.kind, entry.action) == ("turn.before-ack", "node", Action.SLEEP)
    assert (entry.argument, entry.count, entry.times, entry.ticket) == ("0.5", 3, -1, "x1")


@pytest.mark.parametrize(
    "text", ["a.b", "a.b=explode", "a.b=kill,often=2", "a.b=raise:odd", "=kill", "a b=kill"]
)
def test_a_misspelt_entry_is_refused(text: str) -> None:
    with pytest.raises(BadFailpointError):
        parse(text)


def test_comments_and_empty_lines_are_skipped() -> None:
    assert [entry.name for entry in parse("# why\n\na=kill; b=drop\n")] == ["a", "b"]


def test_nothing_happens_when_not_allowed() -> None:
    failpoints.configure("test", {})
    assert failpoints.hit("a.b") is False


def test_arming_without_permission_is_refused() -> None:
    with pytest.raises(BadFailpointError):
        failpoints.configure("test", {"VENUS_FAILPOINTS": "a.b=kill"})


def test_a_process_armed_to_die_dies_once_over_all_restarts(armed: ArmedFailpoints) -> None:
    armed.arm("a.b=kill")
    assert run_hits(armed) == -9
    assert run_hits(armed) == 0
    assert [record["action"] for record in armed.fired("a.b")] == ["kill"]


def test_only_the_named_kind_of_process_fires(armed: ArmedFailpoints) -> None:
    armed.arm("a.b@trainer=exit:7")
    assert run_hits(armed, kind="leader") == 0
    assert run_hits(armed, kind="trainer") == 7


def test_count_fires_at_that_hit(armed: ArmedFailpoints) -> None:
    armed.arm("a.b=exit:7,count=3")
    assert run_hits(armed, hits=2) == 0
    assert run_hits(armed, hits=3) == 7
    assert armed.fired()[0]["hits"] == 3


def test_times_bounds_the_firings_of_all_processes(armed: ArmedFailpoints) -> None:
    armed.arm("a.b=exit:7,times=2")
    assert [run_hits(armed) for _ in range(3)] == [7, 7, 0]


def test_raise_brings_about_the_named_error(armed: ArmedFailpoints) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm("a.b=raise", "c.d=raise:timeout")
    with pytest.raises(FailpointError):
        failpoints.hit("a.b")
    with pytest.raises(TimeoutError):
        failpoints.hit("c.d")
    assert failpoints.hit("a.b") is False


def test_drop_tells_the_caller_and_can_last_for_ever(armed: ArmedFailpoints) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm("a.b=drop,times=*")
    assert [failpoints.hit("a.b") for _ in range(3)] == [True, True, True]


def test_disarming_takes_effect_at_the_next_hit(armed: ArmedFailpoints) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm("a.b=drop,times=*")
    assert failpoints.hit("a.b")
    armed.disarm()
    assert not failpoints.hit("a.b")


def test_entries_of_the_environment_work_without_a_file(tmp_path: Path) -> None:
    environ = {
        "VENUS_ALLOW_FAILPOINTS": "1",
        "VENUS_FAILPOINTS": "a.b=drop",
        "VENUS_HOME": str(tmp_path),
    }
    failpoints.configure("test", environ)
    assert failpoints.hit("a.b") is True
    failpoints.configure("test", {})
