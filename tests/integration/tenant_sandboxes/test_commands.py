"""`venus sandboxes` against a running platform: from a start to an end, as a person would type it."""

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from tests.support.requirements import requires
from tests.support.stack import Stack, running_stack
from venusrl.cli.app import app

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    requires("postgres", "valkey", "bwrap"),
]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A platform."""
    with running_stack() as stack:
        yield stack


@pytest.fixture(scope="module")
def environ(stack: Stack) -> dict[str, str]:
    """Of a developer's shell."""
    organization = next(iter(stack.admin.organizations.list()))
    project = next(iter(stack.admin.projects.list(organization.id)))
    secret = stack.admin.keys.create("cli", project.id).secret
    return {"VENUS_API_URL": stack.client.base_url, "VENUS_API_KEY": secret}


def test_a_sandbox_from_its_start_to_its_end(environ: dict[str, str]) -> None:
    def venus(*words: str, stdin: bytes = b"") -> Result:
        return CliRunner().invoke(app, ["sandboxes", *words], input=stdin, env=environ)

    made = venus("create", "-e", "A=1")
    assert made.exit_code == 0, made.stderr
    box = made.stdout.strip()
    assert venus("exec", "--shell", box, "echo $A; exit 4").exit_code == 4
    echoed = venus("exec", "-i", box, "cat", stdin=b"\x00\xff bytes")
    assert (echoed.exit_code, echoed.stdout_bytes) == (0, b"\x00\xff bytes")
    assert venus("exec", "--timeout", "0.2", box, "sleep", "9").exit_code == 124
    assert venus("write", box, "a/b", stdin=b"\x01\x02").exit_code == 0
    assert venus("read", box, "a/b").stdout_bytes == b"\x01\x02"
    assert "paused" in venus("pause", box).stdout
    refused = venus("exec", "--json", box, "true")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["error"]["code"] == "sandbox_paused"
    assert "running" in venus("resume", box).stdout
    assert venus("timeout", box, "600").exit_code == 0
    assert "MiB" in venus("metrics", box).stdout
    assert "process" in venus("templates").stdout
    listed = json.loads(venus("list", "--state", "running", "--json").stdout)
    assert [one["id"] for one in listed] == [box]
    assert venus("kill", box).stdout.split() == [box, "killed"]
    shown = json.loads(venus("show", box, "--json").stdout)
    assert (shown["state"], shown["cause"], shown["env_names"]) == ("ended", "killed", ["A"])
