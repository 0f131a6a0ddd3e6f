"""Checkpoints: reading, ranged downloads, and the look at what they generate."""

import hashlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stores import tables as t
from stores.system import operations
from tests.integration.api.world import Tenant, World
from tests.support.waiting import wait_until
from venusrl.client import CorruptDownload, OperationFailed

CONTENT = b"0123456789"

RESULT: Mapping[str, object] = {
    "text": "a2;",
    "content": "2",
    "tool_calls": [],
    "finish": "stop",
    "prompt_tokens": 5,
    "sampled_tokens": 3,
    "weights_sha": "w",
}


def test_a_checkpoint_names_its_files_and_not_where_they_lie(tenant: Tenant) -> None:
    job = tenant.ended()
    checkpoint = tenant.checkpoint(job)
    with tenant.http() as http:
        shown = http.get(f"/v1/checkpoints/{checkpoint}")
        listed = http.get(f"/v1/jobs/{job['id']}/checkpoints").json()["data"]
    assert listed == [shown.json()]
    sha = hashlib.sha256(CONTENT).hexdigest()
    assert shown.json()["files"] == [{"name": "model.bin", "size": 10, "sha256": sha}]
    assert "uri" not in shown.text


PARTS: tuple[tuple[str | None, int, bytes], ...] = (
    (None, 200, CONTENT),
    ("bytes=0-3", 206, b"0123"),
    ("bytes=4-", 206, b"456789"),
    ("bytes=-3", 206, b"789"),
    ("bytes=8-100", 206, b"89"),
    (f"bytes=8-{'9' * 30}", 206, b"89"),
    (f"bytes={'0' * 30}4-", 206, b"456789"),
    (f"bytes=-{'9' * 30}", 206, CONTENT),
    ("bytes=0-1,4-5", 200, CONTENT),
    ("lines=0-1", 200, CONTENT),
    ("bytes=-", 200, CONTENT),
)


def test_a_download_gives_the_asked_part(tenant: Tenant) -> None:
    path = f"/v1/checkpoints/{tenant.checkpoint(tenant.ended())}/files/model.bin"
    with tenant.http() as http:
        for asked, status, content in PARTS:
            answer = http.get(path, headers={} if asked is None else {"Range": asked})
            assert (answer.status_code, answer.content) == (status, content), asked
            assert answer.headers["Accept-Ranges"] == "bytes"
            assert answer.headers["ETag"] == f'"{hashlib.sha256(CONTENT).hexdigest()}"'
            start = CONTENT.index(content)
            part = f"bytes {start}-{start + len(content) - 1}/10"
            assert answer.headers.get("Content-Range") == (part if status == 206 else None)


def test_a_part_beyond_the_file_is_refused(tenant: Tenant) -> None:
    path = f"/v1/checkpoints/{tenant.checkpoint(tenant.ended())}/files/model.bin"
    with tenant.http() as http:
        beyond = f"bytes={'9' * 30}-"
        for asked in ("bytes=10-", "bytes=5-4", "bytes=-0", beyond, f"{beyond}{'9' * 40}"):
            answer = http.get(path, headers={"Range": asked})
            assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")


def test_a_changed_file_is_sent_whole(tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    with tenant.http(**{"Range": "bytes=4-", "If-Range": '"another"'}) as http:
        answer = http.get(f"/v1/checkpoints/{checkpoint}/files/model.bin")
    assert (answer.status_code, answer.content) == (200, CONTENT)


def test_only_files_of_the_checkpoint_are_served(tenant: Tenant) -> None:
    path = f"/v1/checkpoints/{tenant.checkpoint(tenant.ended())}/files"
    names = ("other.bin", "%2e%2e%2fmodel.bin", "..%2f..%2fetc%2fpasswd", "model.bin%20", "%2fetc")
    with tenant.http() as http:
        for name in names:
            assert http.get(f"{path}/{name}").status_code == 404, name


def test_a_file_that_is_gone_is_a_problem_and_no_short_file(world: World, tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    (stored,) = (world.settings.home / "objects").rglob("model.bin")
    stored.unlink()
    with tenant.http() as http:
        answer = http.get(f"/v1/checkpoints/{checkpoint}/files/model.bin")
    assert (answer.status_code, answer.json()["code"]) == (500, "payload_unreadable")


def test_a_checkpoint_in_the_making_is_not_served(tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended(), state="writing")
    with tenant.http() as http:
        file = http.get(f"/v1/checkpoints/{checkpoint}/files/model.bin")
        look = http.post(f"/v1/checkpoints/{checkpoint}/generate", json={"prompt": "1"})
    assert {one.json()["code"] for one in (file, look)} == {"checkpoint_not_ready"}


def test_the_client_downloads_and_checks_every_file(tenant: Tenant, tmp_path: Path) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    with tenant.sdk() as client:
        folder = client.checkpoints.download(checkpoint, tmp_path / "down")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"model.bin": CONTENT}


def test_the_client_refuses_a_file_of_another_content(
    world: World, tenant: Tenant, tmp_path: Path
) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    (stored,) = (world.settings.home / "objects").rglob("model.bin")
    stored.write_bytes(b"01234x6789")
    with tenant.sdk() as client, pytest.raises(CorruptDownload):
        client.checkpoints.download(checkpoint, tmp_path / "down")
    assert list((tmp_path / "down").iterdir()) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "empty prompt": ({"prompt": ""}, "/prompt"),
    "whitespace": ({"prompt": " \n\t "}, "/prompt"),
    "nul": ({"prompt": "1\x00+1"}, "/prompt"),
    "neither prompt nor messages": ({}, ""),
    "token ids": ({"prompt": [1, 2]}, "/prompt"),
    "long prompt": ({"prompt": "1" * 4001}, "/prompt"),
    "max_tokens 0": ({"prompt": "1", "max_tokens": 0}, "/max_tokens"),
    "max_tokens beyond": ({"prompt": "1", "max_tokens": 513}, "/max_tokens"),
    "negative temperature": ({"prompt": "1", "temperature": -0.1}, "/temperature"),
    "negative seed": ({"prompt": "1", "seed": -1}, "/seed"),
    "unknown field": ({"prompt": "1", "top_k": 1}, "/top_k"),
}


def test_a_prompt_that_no_engine_takes_is_refused_at_the_gateway(
    world: World, tenant: Tenant
) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    with tenant.http() as http:
        for kind, (body, pointer) in REFUSED.items():
            answer = http.post(f"/v1/checkpoints/{checkpoint}/generate?wait=0", json=body)
            assert answer.status_code == 422, kind
            assert [one["pointer"] for one in answer.json()["errors"]] == [pointer], kind
    assert [row.kind for row in world.rows(t.operation)] == ["prepare_job"]


def answered(world: World, result: Mapping[str, object] | None) -> None:
    """Take up the next look as the chore would, and end it."""

    def waiting() -> list[str]:
        found = world.rows(t.operation)
        return [one.id for one in found if (one.kind, one.state) == ("generate", "pending")]

    (operation,) = wait_until(waiting, 20.0)
    taken = world.run(lambda connection: operations.take(connection, operation))
    assert taken is not None
    assert taken.request["prompt"] == "1+1"
    if result is None:
        world.run(lambda c: operations.fail(c, operation, "context_overflow", "too long"))
    else:
        world.run(lambda c: operations.finish(c, operation, result))


def test_a_look_waits_for_its_answer(world: World, tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    chore = threading.Thread(target=answered, args=(world, RESULT))
    chore.start()
    with tenant.sdk() as client:
        look = client.checkpoints.generate(checkpoint, "1+1")
    chore.join()
    assert (look.content, look.finish, look.sampled_tokens) == ("2", "stop", 3)


def test_a_look_that_fails_raises_its_code(world: World, tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    chore = threading.Thread(target=answered, args=(world, None))
    chore.start()
    with tenant.sdk() as client, pytest.raises(OperationFailed) as caught:
        client.checkpoints.generate(checkpoint, "1+1")
    chore.join()
    assert caught.value.code == "context_overflow"


def test_a_look_that_takes_long_is_an_operation_to_wait_for(world: World, tenant: Tenant) -> None:
    checkpoint = tenant.checkpoint(tenant.ended())
    with tenant.http(**{"Idempotency-Key": "look"}) as http:
        path = f"/v1/checkpoints/{checkpoint}/generate"
        first = http.post(path, params={"wait": 0}, json={"prompt": "1+1"})
        again = http.post(path, params={"wait": 0.2}, json={"prompt": "1+1"})
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json() == again.json()
        answered(world, RESULT)
        ended = http.get(f"/v1/operations/{first.json()['id']}", params={"wait": 30})
        repeated = http.post(path, json={"prompt": "1+1"})
    assert (ended.json()["state"], ended.json()["result"]) == ("done", RESULT)
    assert (repeated.status_code, repeated.json()) == (200, ended.json())
