"""Exports of trajectories: the same records as JSON lines and as Parquet, whole or not at all."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from api.rollouts import export
from stores import tables as t
from tests.integration.api.filled import Filled, stored
from tests.integration.api.world import Tenant, World
from venusrl.client import Client as SdkClient
from venusrl.client import ConnectionFailed, Invalid, NotFound, Patience

ROOT = Path(__file__).parents[3]


@pytest.fixture
def filled(tenant: Tenant) -> Filled:
    """Rollouts of which the first and the last have a trajectory."""
    made = Filled(tenant)
    for index in (0, 3):
        stored(tenant.world, made.rollouts[index])
    return made


def exported(tenant: Tenant, job: str, **params: Any) -> list[dict[str, Any]]:
    with tenant.http() as http:
        answer = http.get(f"/v1/jobs/{job}/rollouts/export", params=params)
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_record_has_the_row_and_its_tokens_as_a_chain_of_nodes(
    tenant: Tenant, filled: Filled
) -> None:
    first, second, *_ = exported(tenant, filled.job["id"])
    assert (first["schema"], first["id"]) == ("venusrl.trajectory/1", filled.rollouts[0])
    assert (first["reward"], first["disposition"], first["error"]) == (1.0, "trained(1)", None)
    context, sampled = first["nodes"]
    assert (context["kind"], context["token_ids"], context["parent"]) == ("context", [1], None)
    assert (sampled["kind"], sampled["parent"]) == ("sampled", context["id"])
    assert (sampled["token_ids"], sampled["mask"]) == ([2, 3], [1, 1])
    assert (sampled["logprobs"], sampled["versions"]) == ([-0.5, -0.25], [0, 1])
    assert first["messages"] == [{"role": "user", "content": "1+1"}]
    assert (second["error"], second["nodes"]) == ("no_trajectory", [])
    with tenant.sdk() as client:
        row = client.rollouts.get(filled.rollouts[0])
    assert (first["tokens"], first["sampled_tokens"]) == (row.tokens, row.sampled_tokens)
    assert datetime.fromisoformat(first["created_at"]) == row.created_at
    assert (first["created_at"][-1], first["closed_at"]) == ("Z", None)


def test_the_reference_names_every_field_and_no_other(tenant: Tenant, filled: Filled) -> None:
    record = exported(tenant, filled.job["id"])[0]
    text = (ROOT / "docs/reference/ledgers.md").read_text()
    section = text.partition("## Trajectories in a file")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(record)


def test_a_record_names_its_environment(world: World, tenant: Tenant, filled: Filled) -> None:
    world.change(t.rollout_group, filled.test, environment=2)
    found = exported(tenant, filled.job["id"])
    assert [one["environment"] for one in found] == [0, 0, 0, 2]


def test_filters_and_pages_give_each_rollout_once(
    tenant: Tenant, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE", 1)
    job = filled.job["id"]
    assert [one["id"] for one in exported(tenant, job)] == filled.rollouts
    scored = exported(tenant, job, disposition="trained", reward_max=0.5)
    assert [one["id"] for one in scored] == [filled.rollouts[1]]
    rest = exported(tenant, job, after=filled.rollouts[1])
    assert [one["id"] for one in rest] == filled.rollouts[2:]


def test_one_rotten_object_is_a_record_that_says_so(
    world: World, tenant: Tenant, filled: Filled
) -> None:
    world.change(t.rollout, filled.rollouts[0], trajectory_sha="0" * 64)
    found = exported(tenant, filled.job["id"])
    assert [one["error"] for one in found] == [
        "payload_unreadable",
        "no_trajectory",
        "no_trajectory",
        None,
    ]


def test_parquet_holds_the_same_records(
    tenant: Tenant, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE", 2)
    file = tmp_path / "rollouts.parquet"
    with tenant.sdk() as client:
        size = client.rollouts.export(filled.job["id"], file, "parquet")
    assert size == file.stat().st_size
    assert pq.ParquetFile(file).num_row_groups == 2
    wanted = exported(tenant, filled.job["id"])
    found = pq.read_table(file).to_pylist()
    for record in wanted:
        for name in ("components", "messages", "metrics"):
            record[name] = json.dumps(record[name])
        for name in ("created_at", "closed_at"):
            record[name] = record[name] and datetime.fromisoformat(record[name])
    assert found == wanted


def test_a_file_of_nothing_is_whole(tenant: Tenant, filled: Filled, tmp_path: Path) -> None:
    with tenant.sdk() as client:
        for kind in ("jsonl", "parquet"):
            client.rollouts.export(filled.job["id"], tmp_path / kind, kind, step=99)
    assert (tmp_path / "jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "parquet").num_rows == 0


def test_what_is_refused_leaves_no_file(tenant: Tenant, filled: Filled, tmp_path: Path) -> None:
    file = tmp_path / "out"
    with tenant.sdk() as client:
        with pytest.raises(NotFound):
            client.rollouts.export("job_01none", file)
        with pytest.raises(Invalid):
            client.rollouts.export(filled.job["id"], file, "csv")
        with pytest.raises(Invalid):
            client.rollouts.export(filled.job["id"], file, bucket="nonsense")
    assert list(tmp_path.glob("out*")) == []


class _Broken(httpx.SyncByteStream):
    """Breaks after the first bytes, `times` times; whole afterwards."""

    def __init__(self, is_broken: bool) -> None:
        self._is_broken = is_broken

    def __iter__(self) -> Iterator[bytes]:
        yield b'{"id":1}\n'
        if self._is_broken:
            raise httpx.ReadError("broken")
        yield b'{"id":2}\n'


def _client(breaks: int, tries: int) -> SdkClient:
    left = iter([True] * breaks)

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=_Broken(next(left, False)))

    patience = Patience(tries=tries, jitter=lambda _low, _high: 0.0)
    return SdkClient(
        "http://x", "vrl_key", transport=httpx.MockTransport(answer), patience=patience
    )


def test_a_broken_export_begins_anew_and_appears_only_whole(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    with _client(breaks=2, tries=3) as client:
        client.rollouts.export("job_1", file)
    assert file.read_bytes() == b'{"id":1}\n{"id":2}\n'
    other = tmp_path / "other.jsonl"
    with _client(breaks=2, tries=2) as client, pytest.raises(ConnectionFailed):
        client.rollouts.export("job_1", other)
    assert not other.exists()
