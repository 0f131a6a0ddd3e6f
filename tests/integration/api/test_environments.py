"""Uploads: immutable versions by content, hostile archives, limits, and nothing half-created."""

import gzip
import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra.settings import Settings
from stores import tables as t
from tests.integration.api.world import CALC, Tenant, World, listening
from venusrl._archive import pack

MANIFEST = b'name = "calc"\nversion = "1"\nsdk = 1\nentry = "env:Calc"\n'


def archive(
    *members: tuple[str, bytes], add: Callable[[tarfile.TarFile], None] | None = None
) -> bytes:
    """A gzip-compressed tar of these files and what `add` puts in."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if add is not None:
            add(tar)
    return out.getvalue()


def special(kind: bytes, name: str, target: str = "") -> Callable[[tarfile.TarFile], None]:
    """Adds a member that is no file."""

    def add(tar: tarfile.TarFile) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        tar.addfile(info)

    return add


def upload(http: httpx.Client, data: bytes, name: str = "calc") -> httpx.Response:
    """POST a version."""
    return http.post(f"/v1/environments/{name}/versions", content=data)


def nothing_is_created(world: World) -> bool:
    """No row and no object of an upload."""
    tables = (t.environment, t.environment_version, t.operation)
    objects = world.settings.home / "objects" / "environments"
    return not any(world.rows(table) for table in tables) and not objects.exists()


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """The calc package with one more file."""
    folder = tmp_path / "changed"
    shutil.copytree(CALC, folder)
    (folder / "notes.txt").write_text("new")
    return folder


def test_an_upload_is_a_version_that_is_being_validated(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        answer = upload(http, pack(CALC))
        assert answer.status_code == 201, answer.text
        version = answer.json()
        assert (version["ref"], version["state"]) == ("calc@1", "validating")
        (operation,) = world.rows(t.operation)
        assert operation.kind == "validate_environment"
        assert operation.request == {"environment_version_id": version["id"]}
        tenant.validated(version["id"])
        ready = http.get("/v1/environments/calc/versions/1").json()
    assert (ready["state"], ready["splits"]) == ("ready", {"train": 3, "test": 2})


def test_the_same_content_is_the_same_version_and_other_content_is_the_next(
    world: World, tenant: Tenant, changed: Path
) -> None:
    with tenant.http() as http:
        first = upload(http, pack(CALC)).json()
        recompressed = gzip.compress(gzip.decompress(pack(CALC)), compresslevel=1)
        assert upload(http, recompressed).json() == first
        second = upload(http, pack(changed)).json()
        assert second["version"] == 2
        assert upload(http, pack(CALC)).json()["version"] == 1
        listed = http.get("/v1/environments/calc/versions").json()["data"]
        (environment,) = http.get("/v1/environments").json()["data"]
    assert [one["version"] for one in listed] == [1, 2]
    assert environment["latest_version"] == 2
    assert len(world.rows(t.operation)) == 2


def test_a_failed_validation_shows_its_findings_and_cannot_be_used(tenant: Tenant) -> None:
    with tenant.http() as http:
        version = upload(http, pack(CALC)).json()
        tenant.validated(version["id"], passed=False)
        failed = http.get("/v1/environments/calc/versions/1").json()
        spec = {"name": "j", "model": {"base": "tiny-calc"}, "environments": [{"ref": "calc"}]}
        job = http.post("/v1/jobs", json=spec)
    assert failed["state"] == "failed"
    assert failed["findings"][0]["pointer"] == "/env.py"
    assert job.status_code == 422
    assert job.json()["errors"][0]["code"] == "version_not_ready"


HOSTILE: dict[str, bytes] = {
    "no archive": b"not a gzip",
    "empty": b"",
    "cut short": pack(CALC)[:200],
    "parent folder": archive(("venus.toml", MANIFEST), ("../evil.py", b"x")),
    "absolute path": archive(("venus.toml", MANIFEST), ("/tmp/evil.py", b"x")),
    "inner parent": archive(("venus.toml", MANIFEST), ("a/../../evil.py", b"x")),
    "backslash": archive(("venus.toml", MANIFEST), ("..\\evil.py", b"x")),
    "control character": archive(("venus.toml", MANIFEST), ("a\nb.py", b"x")),
    "symbolic link": archive(
        ("venus.toml", MANIFEST), add=special(tarfile.SYMTYPE, "l", "/etc/passwd")
    ),
    "hard link": archive(("venus.toml", MANIFEST), add=special(tarfile.LNKTYPE, "l", "venus.toml")),
    "device": archive(("venus.toml", MANIFEST), add=special(tarfile.CHRTYPE, "null")),
    "fifo": archive(("venus.toml", MANIFEST), add=special(tarfile.FIFOTYPE, "pipe")),
    "twice": archive(("venus.toml", MANIFEST), ("venus.toml", MANIFEST)),
    "no manifest": archive(("env.py", b"x")),
    "manifest that is no TOML": archive(("venus.toml", b"= =")),
    "manifest that is no UTF-8": archive(("venus.toml", b"\xff\xfe")),
}


def test_a_hostile_archive_is_refused_and_leaves_nothing(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        for kind, data in HOSTILE.items():
            answer = upload(http, data)
            assert answer.status_code == 422, (kind, answer.text)
            assert answer.json()["code"] == "invalid"
            assert answer.json()["errors"], kind
            assert nothing_is_created(world), kind


def test_every_mistake_of_a_manifest_has_its_pointer(world: World, tenant: Tenant) -> None:
    manifest = b'name = "Calc!"\nversion = "1"\nentry = "env"\nnmae = 1\n[limits]\npids = 1\n'
    with tenant.http() as http:
        errors = upload(http, archive(("venus.toml", manifest))).json()["errors"]
    pointers = {one["pointer"] for one in errors}
    assert pointers >= {
        "/venus.toml/name",
        "/venus.toml/entry",
        "/venus.toml/sdk",
        "/venus.toml/nmae",
        "/venus.toml/limits/pids",
    }
    assert nothing_is_created(world)


def test_the_name_of_the_manifest_is_the_name_of_the_address(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        answer = upload(http, pack(CALC), "other")
    assert answer.json()["errors"][0]["code"] == "name_mismatch"
    assert nothing_is_created(world)


def test_a_name_that_is_none_is_refused(world: World, tenant: Tenant) -> None:
    with tenant.http() as http:
        for name in ("UPPER", "a b", "1calc", "%2e%2e", "a" * 64):
            assert upload(http, pack(CALC), name).status_code in (404, 405, 422), name
    assert nothing_is_created(world)


@pytest.fixture
def small(database_url: str, world: World, tmp_path: Path) -> Iterator[str]:
    """A second gateway that takes uploads up to 10,000 bytes."""
    environ: dict[str, Any] = {
        "DATABASE_URL": database_url,
        "VENUS_HOME": str(tmp_path / "home"),
        "VENUS_UPLOAD_BYTES": "10000",
    }
    with listening(Settings.from_env(environ)) as address:
        yield address


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_upload_beyond_the_limit_is_refused_and_leaves_nothing(
    world: World, tenant: Tenant, small: str, is_streamed: bool
) -> None:
    data = b"x" * 20_000
    content = iter([data[:9_000], data[9_000:]]) if is_streamed else data
    answer = httpx.post(
        f"{small}/v1/environments/calc/versions",
        content=content,
        headers={"Authorization": f"Bearer {tenant.key}"},
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert "10000 bytes" in answer.json()["detail"]
    assert nothing_is_created(world)


def test_a_package_may_be_larger_than_an_ordinary_request(
    world: World, tenant: Tenant, database_url: str, tmp_path: Path
) -> None:
    environ = {
        "DATABASE_URL": database_url,
        "VENUS_HOME": str(tmp_path / "home"),
        "VENUS_REQUEST_BYTES": "1000",
    }
    with listening(Settings.from_env(environ)) as address:
        answer = httpx.post(
            f"{address}/v1/environments/calc/versions",
            content=pack(CALC),
            headers={"Authorization": f"Bearer {tenant.key}"},
            timeout=30.0,
        )
    assert answer.status_code == 201


def test_an_object_store_that_takes_nothing_leaves_no_row(world: World, tenant: Tenant) -> None:
    objects = world.settings.home / "objects"
    (objects / "environments").write_text("a file where the folder belongs")
    with tenant.http() as http:
        refused = upload(http, pack(CALC))
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert not world.rows(t.environment)
        (objects / "environments").unlink()
        assert upload(http, pack(CALC)).status_code == 201


def test_a_name_is_reserved_once_and_then_filled(tenant: Tenant) -> None:
    with tenant.http() as http:
        made = http.post("/v1/environments", json={"name": "calc"})
        again = http.post("/v1/environments", json={"name": "calc"})
        bad = http.post("/v1/environments", json={"name": "Calc"})
        version = upload(http, pack(CALC)).json()
    assert (made.status_code, made.json()["latest_version"]) == (201, 0)
    assert (again.status_code, again.json()["code"]) == (409, "name_taken")
    assert bad.json()["errors"][0]["pointer"] == "/name"
    assert version["ref"] == "calc@1"


def test_an_unknown_environment_is_answered_with_near_names(tenant: Tenant) -> None:
    tenant.environment("calculator")
    with tenant.http() as http:
        answer = http.get("/v1/environments/calculater")
    assert answer.status_code == 404
    assert "calculator" in answer.json()["detail"]
