"""Models: by upload, from a checkpoint and a hub revision; what a job may start from."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from domain.model_files import INDEX_FILE, WEIGHTS_FILE
from infra.names import IMPORT_MODEL
from stores import tables as t
from tests.integration.api.chores import do_chores
from tests.integration.api.world import SPEC, Tenant, World, installation
from venusrl.client import Conflict, Invalid, ModelInvalid, NotFound
from venusrl.models.models import ModelInfo
from workers.models.folder import builtin_path, load_weights, save_weights

TINY = builtin_path("tiny-calc")
FILES = ("config.json", "vocab.json", "chat.json", "model.safetensors")


def parts(name: str = "mine", changes: Mapping[str, bytes] | None = None) -> list[tuple[str, Any]]:
    """Parts of an upload."""
    files = {file: (TINY / file).read_bytes() for file in FILES} | dict(changes or {})
    return [("name", (None, name)), *((file, (file, data)) for file, data in files.items())]


def imported(world: World, model: ModelInfo, tenant: Tenant) -> ModelInfo:
    """The model after its chore."""
    assert do_chores(world, IMPORT_MODEL) == 1
    with tenant.sdk() as client:
        return client.models.get(model.id or "")


@pytest.fixture
def uploaded(world: World, tenant: Tenant) -> ModelInfo:
    """A model that was uploaded and is ready."""
    with tenant.sdk() as client:
        model = client.models.upload("mine", TINY, wait_s=None)
    assert model.state == "validating"
    return imported(world, model, tenant)


def test_an_uploaded_folder_becomes_a_model_that_a_job_may_name(
    tenant: Tenant, uploaded: ModelInfo
) -> None:
    assert (uploaded.state, uploaded.context_tokens) == ("ready", 96)
    assert uploaded.ref == f"upload:{uploaded.id}"
    assert {one.name for one in uploaded.files} == set(FILES)
    tenant.environment()
    with tenant.sdk() as client:
        assert client.models.get("mine") == client.models.get(uploaded.id or "") == uploaded
        assert client.models.get("tiny-calc").parameters == uploaded.parameters
        job = client.jobs.create({**SPEC, "model": {"base": uploaded.ref}})
        assert job.spec["model"]["base"] == uploaded.ref
        too_long = {**SPEC, "model": {"base": uploaded.ref, "context_tokens": 97}}
        assert [one.code for one in client.jobs.validate(too_long).findings] == ["context_too_long"]


def test_a_model_that_a_job_needs_is_not_deleted(
    world: World, tenant: Tenant, uploaded: ModelInfo
) -> None:
    tenant.environment()
    with tenant.sdk() as client:
        job = client.jobs.create({**SPEC, "model": {"base": uploaded.ref}})
        with pytest.raises(Conflict, match=job.id):
            client.models.delete("mine")
        client.jobs.cancel(job.id)
        client.models.delete("mine")
        with pytest.raises(NotFound):
            client.models.get("mine")
        with pytest.raises(Invalid):
            client.jobs.create({**SPEC, "model": {"base": uploaded.ref}})
    left = [
        path for path in (world.settings.home / "objects" / "models").rglob("*") if path.is_file()
    ]
    assert left == []


def test_a_folder_of_several_weights_files_becomes_a_model(
    world: World, tenant: Tenant, tmp_path: Path
) -> None:
    folder = tmp_path / "sharded"
    shutil.copytree(TINY, folder)
    state = load_weights(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    places = {}
    for n, name in enumerate(sorted(state), 1):
        places[name] = f"model-{n:05}-of-{len(state):05}.safetensors"
        save_weights({name: state[name]}, folder / places[name])
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    with tenant.sdk() as client:
        model = client.models.upload("sharded", folder, wait_s=None)
    model = imported(world, model, tenant)
    assert model.state == "ready", model.findings
    assert {one.name for one in model.files} == {path.name for path in folder.iterdir()}
    with tenant.sdk() as client:
        assert model.parameters == client.models.get("tiny-calc").parameters
        client.models.delete("sharded")
    objects = world.settings.home / "objects" / "models"
    assert [path for path in objects.rglob("*") if path.is_file()] == []


def test_near_names_are_shown_for_an_unknown_base(tenant: Tenant, uploaded: ModelInfo) -> None:
    tenant.environment()
    with tenant.sdk() as client:
        for written, near in (("tiny-cal", "tiny-calc"), (uploaded.ref[:-2], uploaded.ref)):
            findings = client.jobs.validate({**SPEC, "model": {"base": written}}).findings
            assert [one.code for one in findings] == ["unknown_model"]
            assert near in findings[0].hint


def test_another_project_neither_sees_nor_uses_a_model(
    world: World, tenant: Tenant, uploaded: ModelInfo
) -> None:
    other = world.tenant("other")
    other.environment()
    with other.sdk() as client:
        assert "mine" not in {one.name for one in client.models.list()}
        for named in ("mine", uploaded.id or ""):
            with pytest.raises(NotFound):
                client.models.get(named)
            with pytest.raises(NotFound):
                client.models.delete(named)
        assert not client.jobs.validate({**SPEC, "model": {"base": uploaded.ref}}).valid


@pytest.mark.parametrize(
    ("file", "change", "pointer", "code"),
    [
        ("config.json", b"{", "/config.json", "malformed"),
        ("config.json", b"[]", "/config.json", "malformed"),
        ("vocab.json", b"{}", "/vocab.json", "malformed"),
        ("chat.json", b'{"format": "other"}', "/chat.json", "malformed"),
        ("model.safetensors", b"\x00" * 100, "/model.safetensors", "malformed"),
        ("model.safetensors", b"", "/model.safetensors", "malformed"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_finding(
    world: World, tenant: Tenant, file: str, change: bytes, pointer: str, code: str
) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/models", files=parts(changes={file: change}))
    assert answer.status_code == 201, answer.text
    model = imported(world, ModelInfo.model_validate(answer.json()), tenant)
    assert model.state == "failed"
    assert (model.findings[0].pointer, model.findings[0].code) == (pointer, code)
    with tenant.sdk() as client, pytest.raises(ModelInvalid):
        client.models.wait(model)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "/config.json/architectures"),
        ({"num_key_value_heads": 3}, "/config.json/num_key_value_heads"),
        ({"num_key_value_heads": 2}, "/model.safetensors"),
        ({"quantization_config": {"bits": 4}}, "/config.json/quantization_config"),
        ({"hidden_size": 1e308}, "/config.json/hidden_size"),
        ({"num_hidden_layers": 4}, "/model.safetensors"),
        ({"vocab_size": 21}, "/vocab.json"),
    ],
)
def test_a_description_that_does_not_fit_is_a_finding(
    world: World, tenant: Tenant, changes: dict[str, Any], pointer: str
) -> None:
    config = json.loads((TINY / "config.json").read_text()) | changes
    with tenant.http() as http:
        answer = http.post(
            "/v1/models", files=parts(changes={"config.json": json.dumps(config).encode()})
        )
    model = imported(world, ModelInfo.model_validate(answer.json()), tenant)
    assert model.state == "failed"
    assert model.findings[0].pointer == pointer


@pytest.mark.parametrize(
    "name", ["../config.json", "/etc/passwd", "optimizer.safetensors", "a\x01"]
)
def test_a_file_of_another_name_is_refused(tenant: Tenant, name: str) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/models", files=[*parts(), (name, ("x", b"x"))])
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, "unknown_file")


def test_an_incomplete_upload_names_what_is_missing(tenant: Tenant) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/models", files=parts(name="Bad Name")[:-1])
    pointers = {one["pointer"] for one in answer.json()["errors"]}
    assert (answer.status_code, pointers) == (422, {"/name", "/model.safetensors"})


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"Content-Type": "multipart/form-data"}, b"", 415),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"--b\r\nno", 400),
        ({"Content-Type": "multipart/form-data; boundary=b"}, b"garbage", 400),
        ({"Content-Type": "text/plain"}, b"x", 415),
        ({"Content-Type": "application/json"}, b"{", 422),
        ({"Content-Type": "application/json"}, b'{"name": "a", "source": {"type": "x"}}', 422),
    ],
)
def test_a_body_that_is_no_model_is_refused(
    tenant: Tenant, headers: dict[str, str], content: bytes, status: int
) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/models", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_upload_beyond_the_limit_is_refused_and_leaves_nothing(
    database_url: str, tmp_path: Path
) -> None:
    with installation(database_url, tmp_path, VENUS_ASSET_BYTES="10000") as world:
        with world.tenant().http() as http:
            answer = http.post("/v1/models", files=parts())
            told = httpx.post(
                f"{world.address}/v1/models",
                content=(b"x" * 1000 for _ in range(20)),
                headers={**http.headers, "Content-Type": "multipart/form-data; boundary=b"},
            )
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        assert told.status_code in (400, 413)
        assert list((tmp_path / "uploads").iterdir()) == []


def test_a_repeated_upload_makes_one_model(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        headers = {"Idempotency-Key": "same"}
        first = http.post("/v1/models", files=parts(), headers=headers)
        again = http.post("/v1/models", files=parts(), headers=headers)
        other = http.post("/v1/models", files=parts(name="other"), headers=headers)
        taken = http.post("/v1/models", files=parts())
    assert first.json() == again.json()
    assert [one.status_code for one in (other, taken)] == [409, 409]
    folders = list((world.settings.home / "objects" / "models").iterdir())
    assert [one.name for one in folders if any(one.iterdir())] == [first.json()["id"]]


def test_a_built_in_name_is_taken(tenant: Tenant) -> None:
    with tenant.sdk() as client, pytest.raises(Conflict):
        client.models.upload("tiny-calc", TINY, wait_s=None)


def whole_checkpoint(tenant: Tenant) -> str:
    """A checkpoint that holds a model folder."""
    job = tenant.ended()
    checkpoint = tenant.checkpoint(job)
    files = []
    for name in FILES:
        data = (TINY / name).read_bytes()
        uri, sha = tenant.world.store(f"jobs/{job['id']}/{checkpoint}/{name}", data)
        files.append({"name": name, "uri": uri, "sha": sha, "size": len(data)})
    tenant.world.change(t.checkpoint, checkpoint, files=files)
    return checkpoint


def test_a_checkpoint_is_a_base_and_becomes_a_model_of_its_own(
    world: World, tenant: Tenant
) -> None:
    checkpoint = whole_checkpoint(tenant)
    with tenant.sdk() as client:
        assert client.jobs.validate({**SPEC, "model": {"base": checkpoint}}).valid
        model = client.models.from_checkpoint("kept", checkpoint, wait_s=None)
        with pytest.raises(Invalid):
            client.models.from_checkpoint("none", "ckpt_none", wait_s=None)
    model = imported(world, model, tenant)
    assert (model.state, model.source) == (
        "ready",
        {"type": "checkpoint", "checkpoint": checkpoint},
    )
    world.change(t.checkpoint, checkpoint, state="expired")
    with tenant.sdk() as client:
        assert client.jobs.validate({**SPEC, "model": {"base": model.ref}}).valid
        assert not client.jobs.validate({**SPEC, "model": {"base": checkpoint}}).valid


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub client's cache with one repository."""
    home = tmp_path / "hub" / "models--acme--tiny"
    snapshot = home / "snapshots" / "0123abcd"
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(TINY, snapshot)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("0123abcd")
    return tmp_path / "hub"


def test_a_hub_revision_is_loaded_from_its_local_copy(
    database_url: str, tmp_path: Path, hub: Path
) -> None:
    with installation(database_url, tmp_path / "home", VENUS_HUB_FOLDER=str(hub)) as world:
        tenant = world.tenant()
        tenant.environment()
        with tenant.sdk() as client:
            model = client.models.from_hub("tiny", "acme/tiny", wait_s=None)
            assert model.ref == "hf:acme/tiny@main"
            model = imported(world, model, tenant)
            assert model.state == "ready", model.findings
            assert model.source["commit"] == "0123abcd"
            assert client.jobs.validate({**SPEC, "model": {"base": "hf:acme/tiny@main"}}).valid
            near = client.jobs.validate({**SPEC, "model": {"base": "hf:acme/tiny@man"}}).findings[0]
            assert "hf:acme/tiny@main" in near.hint


def test_an_unknown_revision_is_a_finding(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        model = client.models.from_hub("tiny", "acme/tiny", "v9", wait_s=None)
    model = imported(world, model, tenant)
    assert (model.state, model.findings[0].code) == ("failed", "revision_unknown")


@pytest.mark.parametrize(
    "source",
    [
        {"type": "hub", "repo": "../../etc"},
        {"type": "hub", "repo": "acme/.."},
        {"type": "hub", "repo": "acme/tiny", "revision": "../main"},
        {"type": "hub", "repo": "acme/tiny", "revision": "a..b"},
        {"type": "hub", "repo": "acme"},
    ],
)
def test_a_repository_never_names_a_place_outside(tenant: Tenant, source: dict[str, str]) -> None:
    with tenant.http() as http:
        answer = http.post("/v1/models", json={"name": "tiny", "source": source})
    assert answer.status_code == 422


def test_models_are_paged_built_in_ones_first(world: World, tenant: Tenant) -> None:
    with tenant.sdk() as client:
        for name in ("a", "b", "c"):
            client.models.upload(name, TINY, wait_s=None)
    wanted = ["tiny-calc", "tiny-text", "a", "b", "c"]
    for order, names in (("asc", wanted), ("desc", wanted[::-1])):
        for limit in (1, 2, 3, 4, 5, 6):
            assert pages(tenant, order, limit) == names, (order, limit)


def pages(tenant: Tenant, order: str, limit: int) -> list[str]:
    """Names of all pages."""
    found: list[str] = []
    params: dict[str, Any] = {"order": order, "limit": limit}
    with tenant.http() as http:
        while True:
            page = http.get("/v1/models", params=params).json()
            assert len(page["data"]) <= limit
            found += [one["name"] for one in page["data"]]
            assert page["has_more"] == (page["next"] is not None)
            if not page["has_more"]:
                return found
            params["after"] = page["next"]
