"""What a user installs: the wheel holds `venusrl` only, and works with the base dependencies alone.

No registry is asked: the base dependencies are copied, file by file, from this environment into an
empty folder, which then is the only thing beside the standard library on a fresh interpreter's path.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.architecture.test_imports import HEAVY
from tests.architecture.tree import PACKAGES, ROOT

pytestmark = pytest.mark.slow

ISOLATED = """
import sys
sys.path.append({site!r})
"""
"""Behind `python -I -S`: no site-packages, and no tree that an editable install put on the path."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("venusrl-*.whl"))


@pytest.fixture(scope="module")
def base_install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and what `constraints/base.txt` names, nothing else."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in base_distributions():
        copy_distribution(name, site)
    return site


def base_distributions() -> list[str]:
    text = (ROOT / "constraints" / "base.txt").read_text()
    pins = re.findall(r"^([\w.-]+)==[^;\\\n]+(?:;([^\\\n]*))?", text, re.MULTILINE)
    return [name for name, marker in pins if "win32" not in marker]


def copy_distribution(name: str, site: Path) -> None:
    for file in metadata.distribution(name).files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.locate(), target)


def run(site: Path, code: str) -> str:
    """Output of `code` on an interpreter that sees the standard library and `site`."""
    whole = ISOLATED.format(site=str(site)) + code
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", whole],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_ships_only_venusrl(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"venusrl"}


def test_a_base_install_can_import_the_client_and_nothing_of_the_server(base_install: Path) -> None:
    code = f"""
import venusrl, venusrl.client, venusrl.cli, venusrl.env
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(loaded & set({(*HEAVY, *sorted(set(PACKAGES) - {"venusrl"}))!r})))
"""
    assert run(base_install, code).strip() == "[]"


def test_the_command_line_of_a_base_install_answers(base_install: Path) -> None:
    code = """
from venusrl.cli import main
sys.argv = ["venus", "--help"]
main()
"""
    assert "jobs" in run(base_install, code)


def test_server_commands_outside_a_source_tree_say_where_to_get_one(base_install: Path) -> None:
    code = """
from venusrl.cli import main
sys.argv = ["venus", "up"]
try:
    main()
except SystemExit as ended:
    print("status", ended.code)
"""
    whole = ISOLATED.format(site=str(base_install)) + code
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", whole],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    assert "source tree" in output
    assert "Traceback" not in output


def test_a_base_install_writes_and_tests_a_package(base_install: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code = f"""
from typer.testing import CliRunner
from venusrl.cli.app import app
begun = CliRunner().invoke(app, ["env", "init", "sums", "--in", {str(tmp_path)!r}])
tested = CliRunner().invoke(app, ["env", "test", {str(tmp_path / "sums")!r}])
print(begun.exit_code, tested.exit_code, tested.output)
"""
    assert run(base_install, code).startswith("0 0 ")
