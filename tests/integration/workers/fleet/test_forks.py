"""Forks of tries: idempotent, within the node's room, failing with their cause."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.events import SandboxReady, TryFailed
from domain.sandbox import SandboxPurpose
from domain.states import End
from infra.pool_frames import RoomRefused
from sandboxes.node.registry import TryState
from tests.integration.environments.helpers import CALC, CHAOS, write_package
from tests.support.fleet import ATTEMPT, GROUP, Node, answer, call, member, running_node
from tests.support.requirements import requires
from tests.support.waiting import eventually
from venusrl.env.sandbox import ReadRequest
from workers.fleet import forks
from workers.rollout.agent_client import AgentRefusal

pytestmark = requires("bwrap")

AGENT = SandboxPurpose.AGENT


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, CALC, capacity=5) as made:
        yield made


@pytest.fixture
async def chaos(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, CHAOS) as made:
        yield made


async def test_a_group_gets_a_sandbox_and_an_instance_each(node: Node) -> None:
    node.fork(0, 1, 2)
    for index in range(3):
        (event,) = await node.wait_ready(index)
        assert (event.node, event.node_epoch) == ("host_node0", 1)
    assert len(node.runtime.keys()) == 3


async def test_the_same_fork_again_answers_again_and_makes_nothing(node: Node) -> None:
    node.fork(0)
    node.fork(0)
    await eventually(lambda: node.heard(SandboxReady))
    node.fork(0)
    assert len(node.heard(SandboxReady)) == 2
    assert len(node.runtime.keys()) == 1
    assert node.holdings.slots.taken(AGENT) == 1


async def test_a_later_try_destroys_the_earlier_one(node: Node) -> None:
    await node.ready(0)
    first = node.held().member
    await node.ready(0, try_=2)
    await eventually(lambda: node.runtime.get(first) is None)
    assert node.holdings.slots.taken(AGENT) == 1
    with pytest.raises(AgentRefusal, match="unknown"):
        await node.client.attach(member(), 1, 9)


async def test_a_full_node_refuses_with_the_limits_name(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "ROOM_WAIT_S", 0.2)
    await node.ready(0, 1, 2, 3)
    node.fork(4, 5)
    (refused,) = await eventually(lambda: [f for f in node.sent if isinstance(f, RoomRefused)])
    assert refused.rule == "sandboxes"
    assert refused.members == ((member(4), 1), (member(5), 1))
    assert refused.cause == "sandboxes: 4 agents and 0 graders of 5, 1 reserved for grading"
    await node.holdings.release(member(0), 1)
    node.fork(4)
    await eventually(lambda: node.heard(SandboxReady, 4))


async def test_a_fork_waits_for_the_room_that_releases_make(node: Node) -> None:
    await node.ready(0, 1, 2, 3)
    node.fork(4)
    await node.holdings.release(member(0), 1)
    await eventually(lambda: node.heard(SandboxReady, 4))
    assert [f for f in node.sent if isinstance(f, RoomRefused)] == []


async def test_a_release_while_it_forks_leaves_nothing(node: Node) -> None:
    node.fork(0, 1)
    await node.holdings.release(member(0), 1)
    await eventually(lambda: node.heard(SandboxReady, 1))
    await eventually(lambda: node.holdings.slots.taken(AGENT) == 1)
    assert len(node.runtime.keys()) == 1
    assert not node.heard(SandboxReady, 0)
    assert not node.heard(TryFailed, 0)


async def test_releasing_an_attempt_in_any_state_leaves_nothing(node: Node) -> None:
    await node.ready(0)
    node.fork(1, 2)
    await node.holdings.release_attempt(ATTEMPT)
    await node.environments.stop_attempt(ATTEMPT)
    await eventually(lambda: node.holdings.slots.taken(AGENT) == 0)
    assert node.runtime.keys() == ()
    assert node.environments.attempts() == ()
    assert node.holdings.registry.all() == []


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"faults": {"raise_reset": 1.0}}, "raised"),
        ({"faults": {"no_such_fault": 1.0}}, "raised"),
    ],
)
async def test_a_setup_that_fails_ends_the_try_with_its_cause(
    chaos: Node, config: dict[str, object], cause: str
) -> None:
    chaos.fork(0, config=config, hop=3)
    failed = await chaos.failure()
    assert (failed.end, failed.hop) == (End.ENV_FAILED, 3)
    assert failed.cause.startswith(cause)
    await eventually(lambda: chaos.runtime.keys() == ())
    chaos.fork(0, config=config, hop=3)
    assert len(chaos.heard(TryFailed)) == 2


async def test_an_empty_prompt_ends_the_try_with_its_cause(chaos: Node) -> None:
    chaos.fork(0, prompt="")
    assert (await chaos.failure()).cause.startswith("empty_prompt")


async def test_a_package_that_cannot_be_read_ends_its_tries(node: Node) -> None:
    await node.blobs.delete(node.package.uri)
    node.fork(0, 1)
    for index in range(2):
        failed = await node.failure(index)
        assert failed.end is End.ENV_FAILED
        assert failed.cause.startswith("package_unreadable")
    assert node.holdings.slots.taken(AGENT) == 0


async def test_a_package_that_does_not_import_ends_its_tries(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, "import no_such_module\nclass Env(Environment): pass\n")
    async with running_node(tmp_path, folder) as node:
        node.fork(0)
        failed = await node.failure()
        assert failed.end is End.ENV_FAILED
        assert "no_such_module" in failed.cause


async def test_an_environment_without_a_sandbox_has_a_journal_only(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, "class Env(Environment): pass\n", "sandbox = false\n")
    async with running_node(tmp_path, folder) as node:
        await node.ready(0)
        assert node.runtime.keys() == ()
        assert (await node.take(answer("19"))).done
        assert node.holdings.slots.taken(AGENT) == 1


async def test_answers_never_enter_the_agents_sandbox(node: Node) -> None:
    await node.ready(0)
    await node.take(call("12+07"))
    sandbox = node.runtime.get(node.held().member)
    assert sandbox is not None
    log = await sandbox.call(ReadRequest("calls.jsonl"))
    assert isinstance(log, bytes)
    assert b"answer" not in log
    assert node.held().state is TryState.READY
    assert node.held().group_id == GROUP
