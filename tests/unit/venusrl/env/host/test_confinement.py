"""The command line of an environment process: what it shows and what it leaves out."""

from pathlib import Path

import pytest

from venusrl.env.host import confinement
from venusrl.env.host.confinement import PACKAGE_PATH, Confinement, runner_command
from venusrl.env.host.ports import EnvironmentCrashed


def command(tmp_path: Path, *, root: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(confinement, "_is_full_root", lambda: root)
    return runner_command(Path("/bin/bwrap"), Confinement(tmp_path, 1 << 28, 16))


@pytest.mark.parametrize("root", [True, False])
def test_no_network_no_writes_and_death_with_the_parent(
    tmp_path: Path, root: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(tmp_path, root=root, monkeypatch=monkeypatch)
    assert {"--unshare-net", "--unshare-pid", "--unshare-ipc", "--clearenv"} <= set(words)
    assert {"--die-with-parent", "--new-session"} <= set(words)
    assert "--bind" not in words
    assert words[words.index(PACKAGE_PATH) - 2 : words.index(PACKAGE_PATH)] == [
        "--ro-bind",
        str(tmp_path),
    ]


def test_root_becomes_an_own_user_because_root_has_no_pids_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(tmp_path, root=True, monkeypatch=monkeypatch)
    other = command(tmp_path, root=True, monkeypatch=monkeypatch)
    assert int(words[-1]) >= confinement.UID_BASE
    assert words[-1] != other[-1]
    assert "--unshare-user" not in words


def test_others_get_a_user_namespace_and_keep_their_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(tmp_path, root=False, monkeypatch=monkeypatch)
    assert words[-1] == "0"
    assert "--unshare-user" in words


def test_a_missing_library_is_a_cause(tmp_path: Path) -> None:
    confinement = Confinement(tmp_path, 1 << 28, 16, libraries=("no_such_package",))
    with pytest.raises(EnvironmentCrashed, match="no_such_package is not installed"):
        runner_command(Path("/bin/bwrap"), confinement)


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(confinement.BWRAP_VARIABLE, raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EnvironmentCrashed) as caught:
        confinement.find_bubblewrap()
    assert caught.value.cause == "not_isolated"
