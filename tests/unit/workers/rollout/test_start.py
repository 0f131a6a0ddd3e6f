"""The start of an engine host: what an operator can change is the cause that its keeper records."""

import json
import time
from pathlib import Path

import pytest

from domain.ids import AttemptId, HostId
from domain.model_files import INDEX_FILE, WEIGHTS_FILE
from infra.host_process import Birth, FaultExit, HostContext
from infra.settings import Settings
from tests.support.engines import model_folder
from tests.unit.workers.rollout.test_job_spec import spec
from workers.rollout.job_spec import read_spec
from workers.rollout.kv_transfer.transfer import KvTransfer
from workers.rollout.main import _start_engine

ATTEMPT = AttemptId("att_01test")


async def cause(folder: Path, **environ: str) -> str:
    """Why a host with this model and these settings ends."""
    birth = Birth(HostId("host_1"), 1, "engine", b"", ATTEMPT, None, 0.0)
    context = HostContext(birth, Settings.from_env(environ))
    read = read_spec(spec(), [{}], 96)
    with pytest.raises(FaultExit) as ended:
        await _start_engine(context, read, folder, ATTEMPT, KvTransfer(time.time))
    return str(ended.value)


async def test_a_tier_without_room_ends_the_host_with_the_settings_name(tmp_path: Path) -> None:
    model_folder(tmp_path)
    assert "VENUS_KV_DISK_PAGES" in await cause(tmp_path, VENUS_KV_DISK_PAGES=str(1 << 50))


async def test_an_index_of_nothing_ends_the_host_with_the_files_name(tmp_path: Path) -> None:
    model_folder(tmp_path)
    (tmp_path / WEIGHTS_FILE).unlink()
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": {}}))
    assert INDEX_FILE in await cause(tmp_path)
