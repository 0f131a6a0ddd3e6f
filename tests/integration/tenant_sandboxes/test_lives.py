"""The lives of tenants' sandboxes on a running platform, each to its end and its cause."""

import signal
from collections.abc import Iterator

import pytest

from tests.support.processes import zygote_members
from tests.support.requirements import requires
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until
from venusrl._surface import run_now
from venusrl._transport import Request
from venusrl.client import ApiError, Client, Conflict, NotFound
from venusrl.models.sandboxes import Sandbox

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    requires("postgres", "valkey", "bwrap"),
]

WITHIN_S = 60.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One platform for all lives."""
    with running_stack() as stack:
        yield stack


@pytest.fixture
def box(stack: Stack) -> Iterator[Sandbox]:
    """A sandbox of its own for a test."""
    box = stack.client.sandboxes.create(env={"GREETING": "hello"})
    yield box
    stack.client.sandboxes.kill(box.id)


def stranger_of(stack: Stack) -> Client:
    """A developer of another organization."""
    organization = stack.admin.organizations.create("others")
    project = stack.admin.projects.create("others", organization.id)
    secret = stack.admin.keys.create("others", project.id).secret
    return Client(stack.client.base_url, secret)


def test_two_of_one_fork_run_commands_apart(stack: Stack) -> None:
    client = stack.client.sandboxes
    group = client.create_group(2, env={"WHO": "us"})
    first, second = group.sandboxes
    assert {box.state for box in group.sandboxes} == {"running"}
    assert client.exec(first.id, "echo $WHO $MORE", env={"MORE": "too"}).stdout == "us too\n"
    client.exec(first.id, "echo mine > note")
    assert client.exec(second.id, "cat note").exit_code != 0
    assert client.exec(second.id, ["cat"], stdin="given").stdout == "given"
    client.kill(first.id)
    client.kill(second.id)
    ended = client.get(second.id)
    assert (ended.state, ended.cause) == ("ended", "killed")


def test_nothing_of_an_ended_one_is_left(stack: Stack) -> None:
    before = len(zygote_members(stack.processes()))
    group = stack.client.sandboxes.create_group(2, lifetime_s=1.0)
    inside = "setsid sleep 300 >/dev/null 2>&1 & setsid sleep 300 >/dev/null 2>&1 &"
    for box in group.sandboxes:
        stack.client.sandboxes.exec(box.id, inside)
    wait_until(lambda: len(list(stack.client.sandboxes.list(state="running"))) == 0, WITHIN_S)
    wait_until(lambda: len(zygote_members(stack.processes())) <= before, WITHIN_S)


def test_a_command_whose_answer_was_lost_is_answered_again(stack: Stack, box: Sandbox) -> None:
    core = stack.client._core._transport
    body = {"command": "echo once >> count; cat count"}
    headers = {"Idempotency-Key": "the-same"}
    path = f"/v1/sandboxes/{box.id}/exec"
    answers = [
        run_now(core.send(Request("POST", path, body=body, headers=headers))).json()
        for _ in range(3)
    ]
    assert [one["stdout"] for one in answers] == ["once\n"] * 3
    with pytest.raises(Conflict) as other:
        run_now(core.send(Request("POST", path, body={"command": "true"}, headers=headers)))
    assert other.value.code == "idempotency_conflict"


def test_a_request_that_is_repeated_names_the_same_fork(stack: Stack) -> None:
    core = stack.client._core._transport
    once = Request("POST", "/v1/sandboxes", body={"n": 2}, headers={"Idempotency-Key": "fork"})
    groups = [run_now(core.send(once)).json() for _ in range(2)]
    assert groups[0]["id"] == groups[1]["id"]
    assert len(list(stack.client.sandboxes.list(group=groups[0]["id"]))) == 2
    for box in groups[0]["sandboxes"]:
        stack.client.sandboxes.kill(box["id"])


def test_a_command_ends_by_its_exit_its_time_or_its_output(stack: Stack, box: Sandbox) -> None:
    client = stack.client.sandboxes
    failed = client.exec(box.id, "echo out; echo err >&2; exit 3")
    assert (failed.end, failed.exit_code, failed.stdout, failed.stderr) == (
        ("exited", 3, "out\n", "err\n")
    )
    late = client.exec(box.id, "sleep 30", timeout_s=0.2)
    assert late.end == "timed_out"
    long = client.exec(box.id, "head -c 5000 /dev/zero | tr '\\0' x", output_bytes=100)
    assert (long.stdout, long.is_truncated, long.truncated_bytes) == ("x" * 100, True, 4900)


def test_files_come_back_as_they_went(stack: Stack, box: Sandbox) -> None:
    client = stack.client.sandboxes
    content = bytes(range(256)) * 4000
    client.write(box.id, "folder/data", content)
    assert client.read(box.id, "folder/data") == content
    client.exec(box.id, "ln -s /etc/passwd link")
    with pytest.raises(ApiError) as link:
        client.read(box.id, "link")
    assert link.value.code == "forbidden"
    with pytest.raises(NotFound):
        client.read(box.id, "nothing")


def test_a_pause_keeps_every_byte_and_every_process(stack: Stack, box: Sandbox) -> None:
    client = stack.client.sandboxes
    client.write(box.id, "kept", b"\x00\xffkept")
    client.exec(box.id, "(while true; do sleep 0.05; date +%s%N > alive; done) >/dev/null 2>&1 &")
    for _ in range(3):
        paused = client.pause(box.id)
        assert paused.state == "paused"
        assert paused.left_s is not None
        with pytest.raises(Conflict) as refused:
            client.exec(box.id, "true")
        assert refused.value.code == "sandbox_paused"
        assert client.resume(box.id).state == "running"
        assert client.read(box.id, "kept") == b"\x00\xffkept"
    before = client.read(box.id, "alive")
    wait_until(lambda: client.read(box.id, "alive") not in (before, b""), WITHIN_S)


def test_a_lifetime_ends_one_with_its_cause(stack: Stack, box: Sandbox) -> None:
    client = stack.client.sandboxes
    assert client.set_timeout(box.id, 600).state == "running"
    client.set_timeout(box.id, 0.5)
    wait_until(lambda: client.get(box.id).state == "ended", WITHIN_S)
    assert client.get(box.id).cause == "timed_out"
    with pytest.raises(Conflict) as ended:
        client.exec(box.id, "true")
    assert ended.value.code == "sandbox_ended"
    assert "timed_out" in ended.value.detail


def test_one_that_takes_too_much_memory_says_so(stack: Stack, box: Sandbox) -> None:
    hungry = (
        "import os, time\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        held = bytearray(200 << 20)\n"
        "        break\n"
        "time.sleep(20)"
    )
    with pytest.raises(Conflict) as ended:
        stack.client.sandboxes.exec(box.id, ["python3", "-c", hungry])
    assert ended.value.code == "sandbox_ended"
    assert stack.client.sandboxes.get(box.id).cause == "out_of_memory"


def test_what_it_costs_is_measured(stack: Stack, box: Sandbox) -> None:
    client = stack.client.sandboxes
    client.exec(box.id, "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
    found = client.metrics(box.id)
    assert 0 < found.private_bytes < found.declared_bytes
    assert found.processes >= 1
    assert found.cpu_s is not None
    assert found.cpu_s > 0


def test_another_tenant_finds_none_of_it(stack: Stack, box: Sandbox) -> None:
    with stranger_of(stack) as stranger:
        theirs = stranger.sandboxes
        assert list(theirs.list()) == []
        for ask in (
            lambda: theirs.get(box.id),
            lambda: theirs.exec(box.id, "true"),
            lambda: theirs.read(box.id, "kept"),
            lambda: theirs.write(box.id, "kept", b""),
            lambda: theirs.pause(box.id),
            lambda: theirs.kill(box.id),
            lambda: theirs.metrics(box.id),
            lambda: theirs.set_timeout(box.id, 5),
        ):
            with pytest.raises(NotFound):
                ask()
    assert stack.client.sandboxes.get(box.id).state == "running"


def test_what_the_runtime_cannot_do_is_refused_with_its_reason(stack: Stack, box: Sandbox) -> None:
    (template,) = stack.client.sandboxes.templates()
    assert (template.name, template.runtime) == ("default", "process")
    assert template.can["live_fork"] is False
    core = stack.client._core._transport
    for verb in ("fork", "snapshot"):
        with pytest.raises(ApiError) as refused:
            run_now(core.send(Request("POST", f"/v1/sandboxes/{box.id}/{verb}")))
        assert (refused.value.status, refused.value.code) == (501, "not_supported")
        assert "process" in refused.value.detail


def test_a_node_agent_that_dies_ends_its_sandboxes_with_the_cause(stack: Stack) -> None:
    client = stack.client.sandboxes
    box = client.create(lifetime_s=600)
    for host in stack.hosts("node"):
        host.send(signal.SIGKILL)
    wait_until(lambda: client.get(box.id).state == "ended", WITHIN_S)
    ended = client.get(box.id)
    assert ended.cause == "node_agent_lost"
    assert ended.detail
    again = client.create()
    assert client.exec(again.id, "echo back").stdout == "back\n"
    client.kill(again.id)
