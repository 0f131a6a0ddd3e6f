"""`venus doctor` on the key of secrets: a lost one cannot be made again, so that it is looked at."""

import base64
from pathlib import Path

from infra.settings import Settings
from infra.vault import make_key_file
from supervisor.doctor import probe_secrets


def settings_of(home: Path, **environ: str) -> Settings:
    """Settings of a home."""
    return Settings.from_env({"VENUS_HOME": str(home), **environ})


def test_a_home_without_a_key_is_told_and_not_broken(tmp_path: Path) -> None:
    found = probe_secrets(settings_of(tmp_path))
    assert (found.is_ok, found.is_needed) == (False, False)
    assert "VENUS_SECRET_KEY" in found.remedy


def test_the_homes_own_key_is_found(tmp_path: Path) -> None:
    make_key_file(tmp_path)
    assert probe_secrets(settings_of(tmp_path)).is_ok


def test_keys_of_the_setting_are_counted(tmp_path: Path) -> None:
    keys = [base64.urlsafe_b64encode(bytes([n]) * 32).decode() for n in (1, 2)]
    found = probe_secrets(settings_of(tmp_path, VENUS_SECRET_KEY=",".join(keys)))
    assert found.is_ok
    assert found.detail.startswith("2 key(s)")
    assert keys[0] not in found.detail


def test_a_damaged_key_is_broken_with_a_remedy(tmp_path: Path) -> None:
    make_key_file(tmp_path).write_text("rubbish")
    found = probe_secrets(settings_of(tmp_path))
    assert (found.is_ok, found.is_needed) == (False, True)
    assert "restore" in found.remedy


def test_a_key_that_others_may_read_is_broken(tmp_path: Path) -> None:
    path = make_key_file(tmp_path)
    path.chmod(0o644)
    found = probe_secrets(settings_of(tmp_path))
    assert (found.is_ok, found.is_needed) == (False, True)
    assert found.remedy == f"chmod 600 {path}"
