"""Datasets: streamed uploads, immutable versions, findings, previews, tasks of a job."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from infra.names import VALIDATE_DATASET
from stores import tables as t
from tests.integration.api.chores import do_chores
from tests.integration.api.world import SPEC, Tenant, World, installation
from venusrl.client import Conflict, DatasetInvalid, NotFound
from venusrl.models.datasets import DatasetVersion


def rows(prompts: Iterable[str]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps({"prompt": one, "answer": "1"}) + "\n" for one in prompts)


def write(folder: Path, **splits: str) -> Path:
    """A folder with a file a split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, text in splits.items():
        (folder / f"{split}.jsonl").write_text(text)
    return folder


def pushed(tenant: Tenant, folder: Path, name: str = "sums") -> DatasetVersion:
    """A version after its chore."""
    with tenant.sdk() as client:
        version = client.datasets.push(name, folder, wait_s=None)
        do_chores(tenant.world, VALIDATE_DATASET)
        return client.datasets.version(name, version.version)


GOOD = {"train": rows(["1+1", "2+2", "3+3"]), "test": rows(["4+4"])}


def test_a_pushed_folder_becomes_a_version_with_its_splits(tenant: Tenant, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", **GOOD)
    with tenant.sdk() as client:
        first = client.datasets.push("sums", folder, wait_s=None)
        assert first.state == "validating"
        assert do_chores(tenant.world, VALIDATE_DATASET) == 1
        version = client.datasets.wait(first)
        assert (version.ref, version.state, version.findings) == ("sums@1", "ready", [])
        assert {split: one.rows for split, one in version.splits.items()} == {"train": 3, "test": 1}
        assert client.datasets.get("sums").latest_version == 1
        assert [one.ref for one in client.datasets.versions("sums")] == ["sums@1"]


def test_the_same_content_is_the_same_version_and_other_content_the_next(
    tenant: Tenant, tmp_path: Path
) -> None:
    folder = write(tmp_path / "d", **GOOD)
    with tenant.sdk() as client:
        first = client.datasets.push("sums", folder, wait_s=None)
        again = client.datasets.push("sums", folder, wait_s=None)
        other = client.datasets.push("sums", {"train": folder / "test.jsonl"}, wait_s=None)
    assert (first.id, first.version, other.version) == (again.id, 1, 2)
    objects = tenant.world.settings.home / "objects" / "datasets"
    assert {one.name for one in objects.iterdir() if any(one.iterdir())} == {first.id, other.id}


def test_malformed_lines_fail_a_version_with_their_numbers(tenant: Tenant, tmp_path: Path) -> None:
    good = json.dumps({"prompt": "1+1"})
    lines = [
        good,
        "{",
        '"text"',
        json.dumps({"prompt": 3}),
        "",
        json.dumps({"prompt": "x", "y": 1}),
    ]
    (folder := write(tmp_path / "d", train="\n".join(lines) + "\n")).joinpath(
        "test.jsonl"
    ).write_bytes(b'{"prompt": "\xff"}\n')
    version = pushed(tenant, folder)
    assert version.state == "failed"
    pointers = [one.pointer for one in version.findings if one.code == "malformed_line"]
    assert pointers == ["/train/2", "/train/3", "/train/4", "/train/6", "/test/1"]
    with tenant.sdk() as client, pytest.raises(DatasetInvalid, match="/train/2"):
        client.datasets.wait(version)


def test_duplicates_and_leaks_are_found_exact_and_normalised(
    tenant: Tenant, tmp_path: Path
) -> None:
    train = rows(["What is 1+1?", "What is 2+2?", "what is 1+1", "What is 3-3?"])
    test = rows(["What is 2+2?", "WHAT  is 3-3", "What is 3+3?"])
    version = pushed(tenant, write(tmp_path / "d", train=train, test=test))
    assert version.state == "ready"
    found = [(one.pointer, one.code, one.severity) for one in version.findings]
    assert found == [
        ("/train/3", "duplicate_row", "warning"),
        ("/test/1", "leaked_row", "warning"),
        ("/test/2", "leaked_text", "warning"),
    ]
    assert "line 2 of train" in version.findings[1].message


def test_findings_beyond_the_first_hundred_are_counted(tenant: Tenant, tmp_path: Path) -> None:
    version = pushed(tenant, write(tmp_path / "d", train=rows(["1+1"] * 251)))
    assert len(version.findings) == 100
    assert version.unlisted == {"duplicate_row": 150}


def test_a_preview_shows_rows_and_lines_that_are_none(tenant: Tenant, tmp_path: Path) -> None:
    text = rows(["1+1"]) + "no json\n\n" + rows(["2+2", "3+3"])
    pushed(tenant, write(tmp_path / "d", train=text))
    with tenant.sdk() as client:
        preview = client.datasets.preview("sums", 1, limit=3)
        assert [(one.line, one.text) for one in preview.rows] == [
            (1, None),
            (2, "no json"),
            (4, None),
        ]
        assert preview.rows[0].row == {"prompt": "1+1", "answer": "1"}
        assert preview.is_cut
        assert not client.datasets.preview("sums", 1, limit=100).is_cut
        with pytest.raises(NotFound):
            client.datasets.preview("sums", 1, split="test")


@pytest.mark.parametrize("part", ["../train", "Train", "train.jsonl", "a" * 40])
def test_a_split_of_another_form_is_refused(tenant: Tenant, part: str) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/datasets/sums/versions", files=[(part, ("f", b"{}"))])
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "unknown_file")


def test_an_upload_without_splits_or_beyond_the_limit_is_refused(
    database_url: str, tmp_path: Path
) -> None:
    small = installation(database_url, tmp_path / "home", VENUS_ASSET_BYTES="2000")
    with small as world, world.tenant().http() as http:
        path = "/v1/datasets/sums/versions"
        head = {"Content-Type": "multipart/form-data; boundary=b"}
        none = http.post(path, content=b"--b--\r\n", headers=head)
        large = http.post(path, files={"train": ("f", b"x" * 3000)})
    assert (none.status_code, large.status_code) == (422, 413)


def test_a_dataset_is_its_projects_own(world: World, tenant: Tenant, tmp_path: Path) -> None:
    pushed(tenant, write(tmp_path / "d", **GOOD))
    other = world.tenant("other")
    with other.sdk() as client:
        assert list(client.datasets.list()) == []
        for look in (
            lambda: client.datasets.get("sums"),
            lambda: client.datasets.version("sums", 1),
            lambda: client.datasets.preview("sums", 1),
            lambda: client.datasets.delete("sums"),
        ):
            with pytest.raises(NotFound):
                look()


def test_a_name_is_reserved_once_and_free_after_deletion(tenant: Tenant, tmp_path: Path) -> None:
    with tenant.sdk() as client:
        client.datasets.create("sums")
        with pytest.raises(Conflict):
            client.datasets.create("sums")
        pushed(tenant, write(tmp_path / "d", **GOOD))
        client.datasets.delete("sums")
        with pytest.raises(NotFound):
            client.datasets.get("sums")
        assert client.datasets.create("sums").latest_version == 0
    objects = tenant.world.settings.home / "objects" / "datasets"
    assert [one for one in objects.rglob("*") if one.is_file()] == []


def spec(*datasets: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A spec whose environment takes its tasks from datasets."""
    use = {"ref": "calc", "datasets": list(datasets), **changes}
    return {**SPEC, "environments": [use]}


def test_a_spec_pins_datasets_and_near_names_are_shown(tenant: Tenant, tmp_path: Path) -> None:
    tenant.environment()
    pushed(tenant, write(tmp_path / "d", **GOOD))
    with tenant.sdk() as client:
        good = client.jobs.validate(spec({"ref": "sums", "weight": 2.0}))
        assert good.valid
        assert good.spec is not None
        pinned = good.spec["environments"][0]["datasets"]
        assert pinned == [{"ref": "sums@1", "weight": 2.0}]
        bad = client.jobs.validate(spec({"ref": "sum"}, {"ref": "sums@2"}))
    by_pointer = {one.pointer: one for one in bad.findings}
    assert "sums" in by_pointer["/environments/0/datasets/0/ref"].hint
    assert by_pointer["/environments/0/datasets/1/ref"].code == "version_not_ready"


def test_a_split_that_only_a_dataset_has_can_be_trained_on(tenant: Tenant, tmp_path: Path) -> None:
    tenant.environment()
    pushed(tenant, write(tmp_path / "d", hard=rows(["1+1"])))
    with tenant.sdk() as client:
        assert client.jobs.validate(spec({"ref": "sums"}, split="hard")).valid
        assert not client.jobs.validate(spec(split="hard")).valid


def test_a_dataset_whose_tasks_a_job_loads_is_not_deleted(tenant: Tenant, tmp_path: Path) -> None:
    tenant.environment()
    pushed(tenant, write(tmp_path / "d", **GOOD))
    with tenant.sdk() as client:
        job = client.jobs.create(spec({"ref": "sums"}))
        with pytest.raises(Conflict, match=job.id):
            client.datasets.delete("sums")
        tenant.world.change(t.job, job.id, state="queued")
        client.datasets.delete("sums")


def test_a_dataset_whose_tasks_only_evaluations_use_is_kept_too(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.environment()
    pushed(tenant, write(tmp_path / "d", **GOOD))
    with tenant.sdk() as client:
        use = {"ref": "calc", "datasets": [{"ref": "sums"}]}
        job = client.jobs.create({**SPEC, "evaluation": {"environments": [use]}})
        with pytest.raises(Conflict, match=job.id):
            client.datasets.delete("sums")


def test_task_lists_of_a_job_come_from_its_datasets(tenant: Tenant, tmp_path: Path) -> None:
    from stores.blobs import Blobs
    from stores.system import preparation
    from stores.unit_of_work import Database
    from workers.chores.dataset_tasks import dataset_tasks
    from workers.chores.handling import ChoreTools

    tenant.environment()
    pushed(tenant, write(tmp_path / "a", **GOOD), "sums")
    pushed(tenant, write(tmp_path / "b", train=rows(["5+5", "6+6"])), "more")
    with tenant.sdk() as client:
        two = spec({"ref": "sums"}, {"ref": "more", "weight": 3.0}, limit=2)
        job = client.jobs.create(two)
    settings = tenant.world.settings

    async def load() -> Any:
        tools = ChoreTools(
            settings, Database(settings.database_url, 1), Blobs(settings.object_store_url)
        )
        async with tools.database.begin() as connection:
            found = await preparation.unprepared(connection, job.id)
        assert found is not None
        lists = await dataset_tasks(tools, found.project_id, found.parts[0])
        await tools.database.close()
        return lists

    lists = asyncio.run(load())
    assert [one.id for one in lists["train"].tasks] == [
        "sums@1/train-1", "sums@1/train-2", "more@1/train-1", "more@1/train-2",
    ]  # fmt: skip
    shares = [(one.name, one.count, one.weight) for one in lists["train"].sources]
    assert shares == [("sums@1", 2, 1.0), ("more@1", 2, 3.0)]
    assert [one.id for one in lists["test"].tasks] == ["sums@1/test-1"]
