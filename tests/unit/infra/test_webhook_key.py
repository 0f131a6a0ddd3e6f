"""The installation's key: one for all processes of a home, or what the variable says."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra.settings import Settings
from infra.webhook_key import KEY_FILE, installation_key


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    settings = Settings.from_env({"VENUS_HOME": str(tmp_path / "home")})
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: installation_key(settings), range(32)))
    assert len(found) == 1
    assert len(next(iter(found))) >= 32
    assert [path.name for path in settings.home.iterdir()] == [KEY_FILE]
    assert (settings.home / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_the_variable_wins_and_makes_no_file(tmp_path: Path) -> None:
    given = {"VENUS_HOME": str(tmp_path), "VENUS_WEBHOOK_KEY": "shared"}
    settings = Settings.from_env(given)
    assert installation_key(settings) == b"shared"
    assert list(tmp_path.iterdir()) == []
    assert "shared" not in repr(settings)
