"""The compose file and the image's recipe: accepted by the client, and naming what is there."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from infra.settings import VARIABLES

TREE: Final = Path(__file__).resolve().parents[3]
COMPOSE: Final = TREE / "docker-compose.yml"
DOCKERFILE: Final = TREE / "deploy" / "Dockerfile"


def has_compose_client() -> bool:
    """Whether `docker compose` runs here; no daemon is needed to read a file."""
    try:
        asked = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30)
    except OSError:
        return False
    return asked.returncode == 0


@pytest.mark.skipif(not has_compose_client(), reason="there is no `docker compose` client here")
def test_the_compose_client_accepts_the_file() -> None:
    command = ["docker", "compose", "-f", str(COMPOSE), "config", "--quiet"]
    environ = {**os.environ, "VENUS_DB_PASSWORD": "x"}
    checked = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60)
    assert checked.returncode == 0, checked.stderr


def services() -> dict[str, Any]:
    document = yaml.safe_load(COMPOSE.read_text())
    return dict(document["services"])


def test_every_setting_is_one_that_the_platform_reads() -> None:
    given = services()["platform"]["environment"]
    assert set(given) <= set(VARIABLES)
    recipe = re.findall(r"\b(VENUS_\w+|DATABASE_URL|BROKER_URL)=", DOCKERFILE.read_text())
    assert set(recipe) <= set(VARIABLES)


def test_what_is_waited_for_has_a_health_check() -> None:
    for service in services().values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition["condition"] == "service_healthy"
            assert "healthcheck" in services()[name]


def test_no_password_stands_in_the_file_and_nothing_listens_beyond_this_machine() -> None:
    assert set(re.findall(r"PASSWORD: (\S+)", COMPOSE.read_text())) == {"${VENUS_DB_PASSWORD:?set"}
    for service in services().values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_the_image_copies_files_that_are_there_and_starts_a_module_that_is_there() -> None:
    text = DOCKERFILE.read_text()
    for line in re.findall(r"^COPY (?:--\S+ )*(.+)$", text, re.MULTILINE):
        *sources, _target = line.split()
        assert all((TREE / source).exists() for source in sources), line
    assert (TREE / "supervisor" / "up.py").exists()
    assert 'CMD ["python", "-m", "supervisor.up"]' in text
