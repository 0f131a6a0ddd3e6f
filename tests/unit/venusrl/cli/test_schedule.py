"""`venus jobs schedule` and `profile`: a screen for people, the answer itself with --json."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.venusrl.cli.test_commands import run

ROLLOUT: dict[str, Any] = {
    "id": "ro_1_0_000", "stage": "placed", "wait_reason": "waits_for_slot",
    "numbers": {"slots": 8.0, "waiting": 3.0}, "since": "2026-11-29T12:00:00Z",
    "current_try": 1, "hop": 2, "turn": 3, "tokens": 40, "host": "host_1",
}  # fmt: skip

GROUP: dict[str, Any] = {
    "id": "grp_1_0", "lane": "critical", "ordinal": 0, "eta_s": 12.5, "staleness": 1,
    "last_valid_step": 4, "opened_at": "2026-11-29T12:00:00Z",
    "rollouts": [ROLLOUT, {**ROLLOUT, "id": "ro_1_0_001"}],
}  # fmt: skip

SCHEDULE: dict[str, Any] = {
    "job_id": "job_1", "state": "running", "written_at": "2026-11-29T12:00:00Z",
    "filling_step": 3, "need": 2,
    "next_group": {"reason": "active_batch", "numbers": {"open": 3.0, "max": 3.0}},
    "lanes": {"promoted": 0, "critical": 1, "normal": 7}, "groups": [GROUP], "groups_left_out": 7,
}  # fmt: skip

PROFILE: dict[str, Any] = {
    "job_id": "job_1", "state": "running", "kv_usage": 0.5, "hit_rate": None,
    "active_batch": {
        "open_groups": 3, "open_groups_max": 12, "groups_per_batch": 8, "async_ratio": 1.5,
        "running_rollouts": 20, "waiting_rollouts": 4, "engine_slots": 64,
    },
    "engines": [{"host": "host_1", "epoch": 1, "policy_version": 2, "rollouts": 20}],
    "sandboxes": {"held": 24, "free": 7, "total": 31, "declared_bytes": 24 * 2**29,
                  "used_bytes": None, "used_bytes_reason": "nobody measures it"},
    "tokens_per_s": 120.5, "failed_share": 0.0, "staleness": {"0": 5, "1": 3},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")


def test_the_schedule_is_a_line_per_group(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"GET /v1/jobs/job_1/schedule": [SCHEDULE]}
    result, _ = run(monkeypatch, routes, "jobs", "schedule", "job_1")
    assert result.exit_code == 0
    for words in (
        "step        3 is being filled, 2 groups to come",
        "1 critical, 7 normal",
        "active_batch open=3 max=3",
        "critical  grp_1_0  12.5   1          4          2 waits_for_slot",
        "and 7 more groups",
    ):
        assert words in result.stdout, words


def test_each_rollout_has_its_reason_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"GET /v1/jobs/job_1/schedule": [SCHEDULE]}
    result, _ = run(monkeypatch, routes, "jobs", "schedule", "job_1", "--rollouts")
    lines = [line for line in result.stdout.splitlines() if "ro_1_0_00" in line]
    assert len(lines) == 2
    assert "waits_for_slot" in lines[0]
    assert lines[0].endswith("slots=8 waiting=3")


def test_one_rollout_is_shown_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    backoff = {"until": 1.0, "failed": 1.0, "tries": 3.0}
    one = {**ROLLOUT, "wait_reason": "retry_backoff", "numbers": backoff, "lane": "normal",
           "job_id": "job_1", "job_state": "running", "group_id": "grp_1_0"}  # fmt: skip
    routes = {"GET /v1/jobs/job_1/schedule/rollouts/ro_1_0_000": [one]}
    arguments = ("jobs", "schedule", "job_1", "--rollout", "ro_1_0_000")
    result, _ = run(monkeypatch, routes, *arguments)
    assert "waits for  retry_backoff" in result.stdout
    assert "failed=1 tries=3" in result.stdout
    assert "group      grp_1_0 (normal)" in result.stdout


def test_an_ended_job_has_no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"job_id": "job_1", "state": "succeeded", "lanes": {}, "groups": []}
    routes = {"GET /v1/jobs/job_1/schedule": [ended]}
    result, _ = run(monkeypatch, routes, "jobs", "schedule", "job_1")
    assert result.stdout == "job  job_1 is succeeded\n"


def test_the_profile_sets_used_against_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    routes = {"GET /v1/jobs/job_1/profile": [PROFILE]}
    result, _ = run(monkeypatch, routes, "jobs", "profile", "job_1")
    assert result.exit_code == 0
    for words in (
        "3 of 12 (1.5 x 8)",
        "20 on 64 slots, 4 wait",
        "50.0%",
        "12288 MiB declared, nobody measures it",
        "5 0, 3 1",
        "host_1",
    ):
        assert words in result.stdout, words


def test_the_profile_of_an_ended_job_holds_nothing_and_says_when_it_was_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = (datetime.now(UTC) - timedelta(seconds=146)).isoformat()
    ended = {**PROFILE, "state": "succeeded", "written_at": taken}
    result, _ = run(
        monkeypatch, {"GET /v1/jobs/job_1/profile": [ended]}, "jobs", "profile", "job_1"
    )
    assert "nothing, it has ended" in result.stdout
    assert "146 s ago" in result.stdout
    assert "24 held" not in result.stdout
    assert "host_1" not in result.stdout


@pytest.mark.parametrize(("noun", "answer"), [("schedule", SCHEDULE), ("profile", PROFILE)])
def test_json_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, noun: str, answer: dict[str, Any]
) -> None:
    routes = {f"GET /v1/jobs/job_1/{noun}": [answer]}
    result, _ = run(monkeypatch, routes, "jobs", noun, "job_1", "--json")
    said = json.loads(result.stdout)
    assert {name: said[name] for name in ("job_id", "state")} == {
        "job_id": "job_1", "state": "running",
    }  # fmt: skip
