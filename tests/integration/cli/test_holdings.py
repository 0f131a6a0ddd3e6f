"""What a user reads and lets go of with `venus`, against a gateway on a real database."""

import json
from pathlib import Path

import pytest

from infra.names import EXPORT_CHECKPOINT
from stores import tables as t
from tests.integration.api.chores import do_chores
from tests.integration.api.filled import Filled
from tests.integration.api.test_keeping import finished, whole
from tests.integration.api.test_logs import printed
from tests.integration.api.world import Tenant, World
from tests.integration.cli.test_commands import tenant as tenant
from tests.integration.cli.test_commands import venus
from tests.integration.cli.test_commands import world as world
from tests.support.requirements import requires

pytestmark = [pytest.mark.integration, requires("postgres")]


def test_lines_are_printed_with_who_said_them(tenant: Tenant) -> None:
    filled = Filled(tenant)
    rollout = filled.rollouts[0]
    printed(filled, ["hello", "red \x1b[31m"], rollout, lost=3)
    printed(filled, ["graded"], rollout, component="grader", **{"try": None})
    job = venus("jobs", "logs", filled.job["id"])
    one = venus("rollouts", "logs", rollout, "--component", "environment")
    records = venus("jobs", "logs", filled.job["id"], "--rollout", rollout, "--json").stdout
    assert job.stdout.splitlines() == [
        f"00:00:00 environment {rollout}/1 [3 lines lost]",
        f"00:00:00 environment {rollout}/1 hello",
        f"00:00:00 environment {rollout}/1 red \N{REPLACEMENT CHARACTER}[31m",
        f"00:00:00 grader {rollout} graded",
    ]
    assert "graded" not in one.stdout
    assert "hello" in one.stdout
    texts = [json.loads(line)["text"] for line in records.splitlines()]
    assert texts == ["hello", "red \x1b[31m", "graded"]
    assert venus("jobs", "logs", filled.job["id"], "--component", "x").exit_code == 1


def test_spans_are_a_table_with_what_is_not_measured(tenant: Tenant) -> None:
    filled = Filled(tenant)
    shown = venus("rollouts", "spans", filled.rollouts[0])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0].split()[:2] == ["SPAN", "TRY"]
    assert "note: " in shown.stdout
    as_json = json.loads(venus("rollouts", "spans", filled.rollouts[0], "--json").stdout)
    assert as_json["rollout_id"] == filled.rollouts[0]


def test_a_bill_is_a_table_with_shares(world: World, tenant: Tenant) -> None:
    job = finished(tenant)
    shared = {"job_id": job["id"], "attempt_id": job["attempt_id"]}
    for bucket, seconds in (("trained", 30.0), ("starting", 10.0)):
        world.add(
            t.bill_line, resource="engine", bucket=bucket, seconds=seconds, rollouts=2, **shared
        )
    world.change(t.attempt, job["attempt_id"], billed_at=job["created_at"])
    lines = [line.split() for line in venus("jobs", "bill", job["id"]).stdout.splitlines()]
    assert lines[0] == ["RESOURCE", "BUCKET", "SECONDS", "SHARE", "ROLLOUTS"]
    assert ["engine", "trained", "30.0", "75.0%", "2"] in lines
    assert ["engine", "all", "40.0", "100.0%"] in lines
    assert json.loads(venus("jobs", "bill", job["id"], "--json").stdout)["is_final"] is True


def test_checkpoints_are_kept_exported_and_deleted(
    world: World, tenant: Tenant, tmp_path: Path
) -> None:
    checkpoint = whole(tenant, finished(tenant))

    def kept() -> list[str]:
        found = json.loads(venus("checkpoints", "list", "--kept", "--json").stdout)
        return [str(one["id"]) for one in found]

    assert "stays: kept" in venus("checkpoints", "keep", checkpoint).stdout
    assert kept() == [checkpoint]
    text = venus("checkpoints", "keep", checkpoint, "--off", "--ttl-days", "5").stdout
    assert "until " in text
    assert kept() == []
    with tenant.http() as http:
        http.post(f"/v1/checkpoints/{checkpoint}/export", params={"wait": 0}).raise_for_status()
    do_chores(world, EXPORT_CHECKPOINT)
    with tenant.sdk() as client:
        file = client.checkpoints.fetch_export(checkpoint, tmp_path)
    assert file.name == f"{checkpoint}.safetensors.tar"
    assert "exported: " in venus("checkpoints", "show", checkpoint).stdout
    refused = venus("checkpoints", "export", checkpoint, "--format", "peft", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["errors"][0]["code"] == "no_adapter"
    assert venus("checkpoints", "delete", checkpoint).stdout == f"{checkpoint} deleted\n"
    assert venus("checkpoints", "keep", checkpoint).exit_code == 1


def test_a_job_is_deleted_when_it_has_ended(tenant: Tenant) -> None:
    running, ended = tenant.job(), finished(tenant)
    refused = venus("jobs", "delete", running["id"], "--json")
    assert json.loads(refused.stderr)["error"]["code"] == "job_active"
    assert venus("jobs", "delete", ended["id"], "--json").exit_code == 0
    assert venus("jobs", "get", ended["id"]).exit_code == 1


@pytest.mark.parametrize("id", ["", "..", "../jobs", "a/b"])
def test_a_strange_id_is_a_usage_error(tenant: Tenant, id: str) -> None:
    for command in (("jobs", "get"), ("rollouts", "spans"), ("checkpoints", "delete")):
        result = venus(*command, id, "--json")
        assert result.exit_code == 2, result
        assert json.loads(result.stderr)["error"]["detail"]


def test_a_strange_key_is_a_usage_error(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_ä")
    result = venus("jobs", "list")
    assert result.exit_code == 2
    assert "key" in result.stderr
