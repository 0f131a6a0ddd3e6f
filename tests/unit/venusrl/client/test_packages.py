"""The client packs as the server does, so that one tree is one version everywhere."""

from pathlib import Path

import httpx
import pytest

from environments import package
from tests.unit.venusrl.client.playing import Script
from venusrl import _archive
from venusrl.client import PackageError

CALC = Path(__file__).resolve().parents[4] / "environments" / "builtin" / "calc"


def test_client_and_server_pack_the_same_bytes_and_hash() -> None:
    assert _archive.pack(CALC) == package.pack(CALC)
    assert _archive.content_hash(CALC) == package.content_hash(CALC)
    assert _archive.IGNORED_NAMES == package.IGNORED_NAMES
    assert _archive.ARCHIVE_BYTES_MAX == package.ARCHIVE_BYTES_MAX


def test_by_products_change_neither(tmp_path: Path) -> None:
    (tmp_path / "venus.toml").write_text('name = "e"\n')
    before = _archive.pack(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "env.pyc").write_bytes(b"x")
    (tmp_path / "env.pyc").write_bytes(b"x")
    assert _archive.pack(tmp_path) == before


def test_links_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "venus.toml").write_text('name = "e"\n')
    (tmp_path / "secret").symlink_to("/etc/passwd")
    script = Script([])
    with pytest.raises(PackageError, match="link"):
        script.client().environments.push(tmp_path)
    assert script.requests == []


@pytest.mark.parametrize("manifest", [None, "= =", "version = 1", "name = 3"])
def test_a_folder_without_a_readable_name_is_no_package(
    tmp_path: Path, manifest: str | None
) -> None:
    if manifest is not None:
        (tmp_path / "venus.toml").write_text(manifest)
    with pytest.raises(PackageError):
        _archive.name_in_folder(tmp_path)


def test_a_push_sends_the_archive_to_the_manifests_name() -> None:
    ready = {
        "id": "ev_1", "environment": "calc", "version": 1, "ref": "calc@1", "content_sha": "s",
        "state": "ready", "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    script = Script([httpx.Response(201, json=ready)])
    with script.client() as client:
        client.environments.push(CALC)
        client.environments.push(_archive.pack(CALC))
    for request in script.requests:
        assert request.url.path == "/v1/environments/calc/versions"
        assert request.content == _archive.pack(CALC)
