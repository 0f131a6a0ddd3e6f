"""Hub revisions: local copies first, fetched only where an address is set, names never leave."""

import json
from pathlib import Path

import httpx
import pytest

from workers.models.folder import builtin_path
from workers.models.hub import Hub, HubFailed, local_commit
from workers.models.sources import MODEL_FILES

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TINY = builtin_path("tiny-calc")


def served(asked: list[str], status: int = 200, lacks: str = "") -> httpx.MockTransport:
    """A hub with one repository."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path == "/api/models/acme/tiny/revision/main":
            return httpx.Response(status, json={"sha": COMMIT})
        name = request.url.path.rpartition("/")[2]
        if request.url.path != f"/acme/tiny/resolve/{COMMIT}/{name}" or name == lacks:
            return httpx.Response(404)
        return httpx.Response(200, content=(TINY / name).read_bytes())

    return httpx.MockTransport(answer)


async def test_a_revision_is_fetched_once_and_then_found(tmp_path: Path) -> None:
    asked: list[str] = []
    hub = Hub(tmp_path, "http://hub", 1 << 30, served(asked))
    folder, commit = await hub.snapshot("acme/tiny", "main")
    assert commit == COMMIT
    assert all((folder / name).read_bytes() == (TINY / name).read_bytes() for name in MODEL_FILES)
    count = len(asked)
    assert await hub.snapshot("acme/tiny", "main") == (folder, commit)
    assert await hub.snapshot("acme/tiny", COMMIT) == (folder, commit)
    assert len(asked) == count == 1 + len(MODEL_FILES)


async def test_without_an_address_nothing_is_fetched(tmp_path: Path) -> None:
    asked: list[str] = []
    with pytest.raises(HubFailed) as caught:
        await Hub(tmp_path, "", 1 << 30, served(asked)).snapshot("acme/tiny", "main")
    assert (caught.value.code, asked) == ("revision_unknown", [])


@pytest.mark.parametrize(("status", "code"), [(404, "revision_unknown"), (500, "hub_unreachable")])
async def test_a_hub_that_refuses_is_a_closed_code(tmp_path: Path, status: int, code: str) -> None:
    with pytest.raises(HubFailed) as caught:
        await Hub(tmp_path, "http://hub", 1 << 30, served([], status)).snapshot("acme/tiny", "main")
    assert caught.value.code == code
    assert local_commit(tmp_path / "models--acme--tiny", "main") is None


async def test_more_than_the_limit_leaves_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(HubFailed) as caught:
        await Hub(tmp_path, "http://hub", 1_000, served([])).snapshot("acme/tiny", "main")
    assert caught.value.code == "too_large"
    assert local_commit(tmp_path / "models--acme--tiny", COMMIT) is None


async def test_a_file_that_the_repository_lacks_is_left_to_the_check(tmp_path: Path) -> None:
    hub = Hub(tmp_path, "http://hub", 1 << 30, served([], lacks="chat.json"))
    folder, _ = await hub.snapshot("acme/tiny", "main")
    assert not (folder / "chat.json").exists()


async def test_weights_in_several_files_are_fetched_by_their_index(tmp_path: Path) -> None:
    shards = {f"model-0000{n}-of-00002.safetensors": str(n).encode() for n in (1, 2)}
    places = {name: name for name in (*shards, "other.bin")}
    index = json.dumps({"weight_map": places}).encode()
    files = {"model.safetensors.index.json": index, **shards}
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        asked.append(name)
        if name == "main":
            return httpx.Response(200, json={"sha": COMMIT})
        return httpx.Response(200, content=files[name]) if name in files else httpx.Response(404)

    hub = Hub(tmp_path, "http://hub", 1 << 30, httpx.MockTransport(answer))
    folder, _ = await hub.snapshot("acme/tiny", "main")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert "other.bin" not in asked
