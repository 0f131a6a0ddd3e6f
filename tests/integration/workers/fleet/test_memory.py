"""Admission by measured bytes, the ladder and hints, over real sandboxes of the process runtime."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.sandbox import SandboxLimits
from domain.states import End
from infra.pool_frames import InGeneration, RoomRefused
from sandboxes.core.names import MIB
from sandboxes.node.machine import MachineUse
from sandboxes.node.registry import TryState
from tests.integration.environments.helpers import CALC
from tests.support.fleet import Node, call, member, running_node, turn_frame
from tests.support.requirements import requires
from tests.support.waiting import eventually
from workers.fleet import forks
from workers.rollout.agent_client import AgentRefusal

pytestmark = requires("bwrap")

LIMITS = SandboxLimits(memory_bytes=256 * MIB)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Eight sandboxes by count; memory of one that nobody has measured, and of graders."""
    async with running_node(tmp_path, CALC, memory_bytes=1000 * MIB) as made:
        made.sampler.see = lambda: MachineUse(0, 0, 0.0)
        yield made


def hint(index: int = 0, turn: int = 0, hop: int = 1, rank: int = 0) -> InGeneration:
    return InGeneration(member(index), 1, hop, turn, 30.0, rank)


async def test_a_fork_is_refused_by_bytes_with_the_rule_in_numbers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "ROOM_WAIT_S", 0.2)
    await node.ready(0, limits=LIMITS)
    node.fork(1, limits=LIMITS)
    (refused,) = await eventually(lambda: [f for f in node.sent if isinstance(f, RoomRefused)])
    assert refused.rule == "starts.starting", "the first one is not measured yet"
    node.sent.clear()
    await node.take(call("12+07"))
    await node.sampler.look()
    node.fork(1, limits=LIMITS)
    (refused,) = await eventually(lambda: [f for f in node.sent if isinstance(f, RoomRefused)])
    assert refused.rule == "memory.grading_reserve"
    assert refused.needed > refused.available
    assert refused.cause.startswith("memory: grading_reserve: ")
    assert "MiB needed, 324 MiB available; sandboxes: 1 agents" in refused.cause


async def test_a_group_that_an_empty_node_would_not_take_whole_starts_in_parts(
    node: Node,
) -> None:
    node.fork(0, 1, 2, limits=LIMITS)
    await node.wait_ready(0)
    assert len(node.runtime.keys()) == 1
    await node.holdings.release(member(0), 1)
    await node.wait_ready(1)
    await node.holdings.release(member(1), 1)
    await node.wait_ready(2)
    assert [f for f in node.sent if isinstance(f, RoomRefused)] == []


async def test_a_sandbox_larger_than_the_node_ends_its_try_with_the_numbers(node: Node) -> None:
    node.fork(0, limits=SandboxLimits(memory_bytes=2048 * MIB))
    failed = await node.failure()
    assert failed.end is End.SANDBOX_LOST
    assert failed.cause == ("fork_failed: memory: never_fits: 2048 MiB needed, 324 MiB available")
    assert node.runtime.keys() == ()


async def test_samples_measure_real_sandboxes_and_a_turn_ends_their_start(node: Node) -> None:
    await node.ready(0, limits=LIMITS)
    await node.take(call("12+07"))
    await node.sampler.look()
    figures = node.sampler.figures()
    assert MIB < figures["private_bytes"] < 100 * MIB
    assert figures["room_bytes"] < figures["capacity_bytes"]


async def test_a_kill_ends_the_try_as_lost_with_its_cause_and_is_no_tool_result(
    node: Node,
) -> None:
    await node.ready(0, limits=LIMITS)
    await node.take(call("12+07"))
    node.account.ledger.pages.other_bytes = 1000 * MIB
    await node.sampler.look()
    failed = await node.failure()
    assert failed.end is End.SANDBOX_LOST
    assert failed.cause.startswith("memory_pressure: the node held ")
    assert len(node.held().journal.turns) == 1
    with pytest.raises(AgentRefusal, match="sandbox_lost: memory_pressure"):
        await node.client.take_turn(turn_frame(call("1+1"), 1))
    await eventually(lambda: node.account.members() == ())
    assert node.runtime.keys() == ()


async def test_a_hint_says_that_a_rollout_is_in_generation_until_its_turn_comes(
    node: Node,
) -> None:
    await node.ready(0, limits=LIMITS)
    generations, key = node.holdings.relief, node.held().member
    assert generations is not None
    running = generations.generations.running
    node.client.hint(hint(rank=4))
    await eventually(lambda: key in running)
    assert running[key].rank == 4
    await node.take(call("12+07"))
    assert key not in running
    node.client.hint(hint(turn=0))
    node.client.hint(hint(turn=1, hop=0))
    node.client.hint(hint(turn=2))
    node.client.hint(hint(index=5))
    await node.client.attach(member(), 1, 1)  # An answer: what was sent before has arrived.
    assert key not in running, "hints that are late, of an old host or of nobody change nothing"
    node.client.hint(hint(turn=1))
    await eventually(lambda: key in running)
    await node.client.seal(member(), 1, 1)
    assert running == {}
    assert node.held().state is TryState.SEALED


async def test_a_client_without_a_connection_loses_its_hint_and_nothing_else(node: Node) -> None:
    await node.ready(0, limits=LIMITS)
    other = node.dial()
    other.hint(hint())
    await other.attach(member(), 1, 2)
    assert node.holdings.relief is not None
    assert node.holdings.relief.generations.running == {}
    await other.close()
