"""Downloads go on where they broke, and only whole files get their names."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.venusrl.client.playing import Script, problem
from venusrl.client import ConnectionFailed, CorruptDownload, NotFound

CONTENT = b"0123456789"


class Cut(httpx.SyncByteStream):
    """A body that breaks off."""

    def __init__(self, content: bytes) -> None:
        """Keep what arrives."""
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        yield self._content
        raise httpx.ReadError("connection lost")


def checkpoint(name: str = "model.bin") -> httpx.Response:
    """A checkpoint with one file."""
    sha = hashlib.sha256(CONTENT).hexdigest()
    record: dict[str, Any] = {"id": "ckpt_1", "job_id": "j", "attempt_id": "a", "step": 1}
    record |= {"state": "ready", "reason": "end", "weights_sha": "w"}
    record |= {"files": [{"name": name, "size": 10, "sha256": sha}]}
    return httpx.Response(200, json=record | {"created_at": "2026-01-01T00:00:00Z"})


def test_a_broken_download_asks_only_for_the_rest(tmp_path: Path) -> None:
    rest = httpx.Response(206, content=CONTENT[4:])
    script = Script([checkpoint(), httpx.Response(200, stream=Cut(CONTENT[:4])), rest])
    script.client().checkpoints.download("ckpt_1", tmp_path)
    assert (tmp_path / "model.bin").read_bytes() == CONTENT
    ranges = [request.headers.get("Range") for request in script.requests]
    assert ranges == [None, None, "bytes=4-"]


def test_a_server_that_sends_the_whole_again_is_fine(tmp_path: Path) -> None:
    cut = httpx.Response(200, stream=Cut(CONTENT[:4]))
    script = Script([checkpoint(), cut, httpx.Response(200, content=CONTENT)])
    script.client().checkpoints.download("ckpt_1", tmp_path)
    assert (tmp_path / "model.bin").read_bytes() == CONTENT


def test_other_content_leaves_no_file(tmp_path: Path) -> None:
    script = Script([checkpoint(), httpx.Response(200, content=b"9876543210")])
    with pytest.raises(CorruptDownload):
        script.client().checkpoints.download("ckpt_1", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_download_gives_up_after_its_tries(tmp_path: Path) -> None:
    script = Script([checkpoint(), httpx.ConnectError("refused")])
    with pytest.raises(ConnectionFailed):
        script.client(tries=3).checkpoints.download("ckpt_1", tmp_path)
    assert not (tmp_path / "model.bin").exists()
    assert len(script.requests) == 4


def test_a_refused_download_is_not_repeated(tmp_path: Path) -> None:
    script = Script([checkpoint(), problem(404, "not_found")])
    with pytest.raises(NotFound):
        script.client().checkpoints.download("ckpt_1", tmp_path)
    assert len(script.requests) == 2


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "", ".", "..", "a/b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    script = Script([checkpoint(name), httpx.Response(200, content=CONTENT)])
    with pytest.raises(CorruptDownload):
        script.client().checkpoints.download("ckpt_1", tmp_path / "in")
    assert len(script.requests) == 1
