"""Hub repositories at a revision, from the local layout of a hub client's cache, or fetched into it.

    FOLDER/models--ORG--NAME/refs/REV              the commit that a branch or tag names
    FOLDER/models--ORG--NAME/snapshots/COMMIT/...  the files

What is there is never fetched again. Fetching needs an address that the installation's operator set;
it asks `GET URL/api/models/ORG/NAME/revision/REV` for the commit and the names, then
`GET URL/ORG/NAME/resolve/COMMIT/FILE` for each file of the closed set; weights in several files are those
that the index names.
"""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from domain.errors import VenusError
from domain.model_files import INDEX_FILE, SHARD, SHARDS_MAX, WEIGHTS_FILE
from workers.models.folder import WeightsUnreadable, shards_of
from workers.models.sources import MODEL_FILES

COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")

TIMEOUT_S: Final = 60.0
"""Silence of the hub before a fetch counts as dead."""


class HubFailed(VenusError):
    """The revision cannot be had; `code` is closed."""

    def __init__(self, code: str, detail: str) -> None:
        """Keep the code apart from the sentence for people."""
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True)
class Hub:
    """Where repositories lie, where missing ones come from, and the most that one may weigh."""

    folder: Path
    url: str
    bytes_max: int
    transport: httpx.AsyncBaseTransport | None = None

    async def snapshot(self, repo: str, revision: str) -> tuple[Path, str]:
        """Folder and commit of a repository at a revision. Raises HubFailed."""
        home = self.folder / f"models--{repo.replace('/', '--')}"
        commit = local_commit(home, revision)
        if commit is not None:
            return home / "snapshots" / commit, commit
        if not self.url:
            detail = f"{repo}@{revision} is not among the local copies, and fetching is off"
            raise HubFailed("revision_unknown", f"{detail} (VENUS_HUB_URL)")
        try:
            return await self._fetch(home, repo, revision)
        except httpx.HTTPError as error:
            raise HubFailed("hub_unreachable", f"{repo}: {type(error).__name__}") from error

    async def _fetch(self, home: Path, repo: str, revision: str) -> tuple[Path, str]:
        async with httpx.AsyncClient(
            base_url=self.url, timeout=TIMEOUT_S, transport=self.transport, follow_redirects=True
        ) as http:
            answer = await http.get(f"/api/models/{repo}/revision/{revision}")
            if answer.status_code in (401, 403, 404):
                raise HubFailed("revision_unknown", f"the hub has no {repo}@{revision} for us")
            answer.raise_for_status()
            commit = str(answer.json().get("sha", ""))
            if not COMMIT.fullmatch(commit):
                raise HubFailed("hub_unreachable", f"{repo}: the hub names no commit")
            folder = home / "snapshots" / commit
            partial = home / f".{commit}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            await _download_model(http, f"/{repo}/resolve/{commit}", partial, self.bytes_max)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            partial.rename(folder)
        (home / "refs").mkdir(exist_ok=True)
        (home / "refs" / revision).write_text(commit)
        return folder, commit


def local_commit(home: Path, revision: str) -> str | None:
    """The commit of a revision whose files are here; a revision is a name or a commit."""
    ref = home / "refs" / revision
    commit = ref.read_text().strip() if ref.is_file() else revision
    is_here = COMMIT.fullmatch(commit) is not None and (home / "snapshots" / commit).is_dir()
    return commit if is_here else None


async def _download_model(http: httpx.AsyncClient, path: str, folder: Path, left: int) -> None:
    """The files of the closed set; what is missing or wrong is left to the check of the folder."""
    for name in MODEL_FILES:
        left -= await _download(http, f"{path}/{name}", folder / name, left)
    if (folder / WEIGHTS_FILE).is_file():
        return
    index = folder / INDEX_FILE
    left -= await _download(http, f"{path}/{INDEX_FILE}", index, left)
    try:
        shards = sorted(shards_of(index))
    except WeightsUnreadable:
        return
    if len(shards) > SHARDS_MAX:
        return
    for name in filter(SHARD.fullmatch, shards):
        left -= await _download(http, f"{path}/{name}", folder / name, left)


async def _download(http: httpx.AsyncClient, path: str, target: Path, left: int) -> int:
    """Bytes of one file; a file that the repository lacks is left to the check of the folder."""
    size = 0
    async with http.stream("GET", path) as answer:
        if answer.status_code == httpx.codes.NOT_FOUND:
            return 0
        answer.raise_for_status()
        with target.open("wb") as out:
            async for chunk in answer.aiter_bytes():
                size += len(chunk)
                if size > left:
                    raise HubFailed("too_large", f"{path} is larger than the limit of an upload")
                out.write(chunk)
    return size
