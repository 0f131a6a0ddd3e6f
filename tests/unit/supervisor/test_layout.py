"""Where folders go: under the home while sockets are short and the account can walk there."""

from pathlib import Path

import pytest

from supervisor.account import Account, can_traverse
from supervisor.layout import LONGEST_SOCKET_NAME, SOCKET_PATH_BYTES_MAX, Layout

MYSELF = Account("self", 12345, 12345, is_self=True)
STRANGER = Account("stranger", 12345, 12345, is_self=False)


def test_sockets_stay_under_a_short_home(tmp_path: Path) -> None:
    home = Path("/tmp/h")
    assert Layout(home).sockets("postgres") == home / "run" / "postgres"


def test_sockets_of_a_long_home_move_to_a_short_folder(tmp_path: Path) -> None:
    sockets = Layout(tmp_path / ("x" * 100)).sockets("postgres")
    assert len(str(sockets)) + len(LONGEST_SOCKET_NAME) <= SOCKET_PATH_BYTES_MAX
    assert sockets == Layout(tmp_path / ("x" * 100)).sockets("postgres")
    sockets.parent.rmdir()


def test_two_homes_never_share_a_fallback(tmp_path: Path) -> None:
    assert Layout(tmp_path / "a").tag != Layout(tmp_path / "b").tag


def test_a_closed_folder_on_the_way_stops_a_stranger_but_not_ourselves(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert can_traverse(closed / "data", MYSELF)
    assert not can_traverse(closed / "data", STRANGER)


def test_data_of_an_unreachable_home_moves_and_no_mode_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    reachable = Layout(home).reachable("postgres", STRANGER)
    assert home not in reachable.parents
    assert home.stat().st_mode & 0o777 == 0o700
    reachable.parent.rmdir()


def test_data_stays_under_a_reachable_home(tmp_path: Path) -> None:
    assert Layout(tmp_path).reachable("postgres", MYSELF) == tmp_path / "postgres"


def test_logs_and_objects_are_ours_alone_also_where_they_were_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "home")
    layout.objects.mkdir(parents=True, mode=0o755)
    layout.make()
    assert [folder.stat().st_mode & 0o777 for folder in (layout.logs, layout.objects)] == [
        0o700
    ] * 2
