"""Turns through the data port: exactly once, whoever asks, however often, whatever dies."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from domain.sandbox import SandboxPurpose
from domain.states import End
from domain.wire import TakeTurn
from infra import failpoints
from sandboxes.node.registry import TryState
from sandboxes.ports import EventKind
from tests.integration.environments.helpers import CALC, CHAOS, write_package
from tests.support.failpoints import ArmedFailpoints
from tests.support.fleet import Node, answer, call, member, running_node, turn_frame
from tests.support.requirements import requires
from tests.support.waiting import eventually
from venusrl.env.host.artefacts import STATE_ARTEFACT
from venusrl.env.sandbox import PythonRequest, ReadRequest
from workers.fleet import seams
from workers.rollout.agent_client import AgentLost, AgentRefusal

pytestmark = requires("bwrap")

AGENT = SandboxPurpose.AGENT

COUNTING = """
class Env(Environment):
    async def setup(self, task, sandbox):
        self.n = 0
    async def reply(self, turn):
        await turn.sandbox.python("open('effects', 'a').write('x')")
        if turn.message.content == "wait":
            await asyncio.sleep(0.5)
        if turn.message.content == "block":
            await asyncio.sleep(60)
        self.n += 1
        return [Message("user", f"{self.n} of {len(turn.history)}")]
    async def snapshot(self):
        return {"n": self.n}
    async def restore(self, state):
        self.n = state["n"]
"""
"""Counts its turns in its state, and its effects in the sandbox."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, CALC) as made:
        yield made


@pytest.fixture
async def chaos(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, CHAOS) as made:
        yield made


@pytest.fixture
async def counting(tmp_path: Path) -> AsyncIterator[Node]:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, COUNTING)
    async with running_node(tmp_path, folder) as made:
        yield made


async def effects(node: Node, index: int = 0) -> bytes:
    """What replies left in the sandbox."""
    sandbox = node.runtime.get(node.held(index).member)
    assert sandbox is not None
    found = await sandbox.call(ReadRequest("effects"))
    assert isinstance(found, bytes)
    return found


def kill_environment(node: Node) -> None:
    """SIGKILL the environment process of the held try."""
    process = node.held().process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)  # type: ignore[attr-defined]  # of the real adapter


async def test_an_episode_runs_its_tools_in_the_sandbox(node: Node) -> None:
    await node.ready(0)
    first = await node.take(call("12+07"))
    assert [m["content"] for m in first.messages] == ["19"]
    assert (first.replied, first.done, first.token_ids) == (True, False, (1, 2, 3))
    last = await node.take(answer("19"), 1, tokens=(4,))
    assert (last.done, last.messages) == (True, ())
    sealed = await node.client.seal(member(), 1, 1)
    (line,) = sealed.artefacts["calls.jsonl"].splitlines()
    assert json.loads(line) == {"expression": "12+07", "result": "19"}
    assert node.runtime.keys() == ()
    assert node.holdings.slots.taken(AGENT) == 0


async def test_attach_returns_task_tools_and_journal(node: Node) -> None:
    await node.ready(0)
    await node.take(call("12+07"))
    attached = await node.client.attach(member(), 1, 2)
    assert attached.opening == ({"role": "user", "content": "12+07"},)
    assert attached.tools[0]["name"] == "calculator"
    assert [turn.token_ids for turn in attached.turns] == [(1, 2, 3)]


async def test_a_lower_hop_and_an_unattached_one_are_refused(node: Node) -> None:
    await node.ready(0)
    await node.client.attach(member(), 1, 5)
    for hop in (4, 6):
        with pytest.raises(AgentRefusal) as refused:
            await node.take(call("12+07"), hop=hop)
        assert refused.value.reason == "hop"
    with pytest.raises(AgentRefusal, match="hop"):
        await node.client.attach(member(), 1, 4)
    assert (await node.take(call("12+07"), hop=5)).replied


async def test_the_same_turn_again_is_the_same_reply(counting: Node) -> None:
    await counting.ready(0)
    first, second = await asyncio.gather(
        counting.take(answer("wait")), counting.take(answer("wait"))
    )
    assert first == second == await counting.take(answer("wait"))
    assert await effects(counting) == b"x"


async def test_other_tokens_for_a_turn_are_refused(counting: Node) -> None:
    await counting.ready(0)
    await counting.take(answer("go"))
    with pytest.raises(AgentRefusal) as refused:
        await counting.take(answer("go"), tokens=(9,))
    assert refused.value.reason == "intent"
    assert await effects(counting) == b"x"


async def test_a_new_host_waits_for_the_reply_that_runs(counting: Node) -> None:
    await counting.ready(0)
    lost = asyncio.create_task(counting.take(answer("wait")))
    await eventually(lambda: counting.held().journal.is_waiting)
    lost.cancel()
    await counting.client.close()
    other = counting.dial()
    attached = await other.attach(member(), 1, 2)
    (turn,) = attached.turns
    assert not turn.replied
    reply = await other.take_turn(turn_frame(answer("wait"), hop=2))
    assert reply.replied
    assert await effects(counting) == b"x"
    await other.close()


async def test_a_superseded_host_cannot_act_after_the_new_one_attached(counting: Node) -> None:
    await counting.ready(0)
    other = counting.dial()
    await other.attach(member(), 1, 2)
    with pytest.raises(AgentRefusal, match="hop"):
        await counting.take(answer("go"))
    assert (await other.take_turn(turn_frame(answer("go"), hop=2))).replied
    assert await effects(counting) == b"x"
    await other.close()


async def test_a_slow_tool_delays_nobody_else(counting: Node) -> None:
    await counting.ready(0, 1)
    slow = asyncio.create_task(counting.take(answer("wait"), index=0))
    await eventually(lambda: counting.held(0).journal.is_waiting)
    for turn in range(5):
        await counting.take(answer("go"), turn, index=1)
    assert not slow.done()
    await slow


async def test_an_environment_that_died_between_turns_is_resumed(counting: Node) -> None:
    await counting.ready(0)
    await counting.take(answer("go"))
    former = counting.held().process
    kill_environment(counting)
    await eventually(lambda: former is not None and former.fault)
    second = await counting.take(answer("go"), 1)
    # Prompt, answer and reply stand before this turn, and the state went on counting.
    assert second.messages[0]["content"] == "2 of 3"
    assert await effects(counting) == b"xx"


async def test_an_environment_that_cannot_be_resumed_ends_its_tries(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    folder.mkdir()
    write_package(folder, COUNTING, "resumable = false\n")
    async with running_node(tmp_path, folder) as node:
        await node.ready(0)
        former = node.held().process
        kill_environment(node)
        await eventually(lambda: former is not None and former.fault)
        with pytest.raises(AgentRefusal) as refused:
            await node.take(answer("go"))
        assert refused.value.reason == "env_failed"
        assert (await node.failure()).end is End.ENV_FAILED
        await node.ready(0, try_=2)
        assert (await node.take(answer("go"), try_=2)).replied


async def test_a_reply_that_was_running_when_its_process_died_ends_the_try(
    counting: Node,
) -> None:
    await counting.ready(0, 1)
    running = asyncio.create_task(counting.take(answer("block"), index=0))
    await eventually(lambda: counting.held(0).journal.is_waiting)
    kill_environment(counting)
    with pytest.raises(AgentRefusal) as refused:
        await running
    assert refused.value.reason == "env_failed"
    assert (await counting.failure(0)).hop == 1
    with pytest.raises(AgentRefusal, match="env_failed"):
        await counting.client.attach(member(0), 1, 2)
    # The sibling had no reply running: it goes on in the new process.
    assert (await counting.take(answer("go"), index=1)).replied


@pytest.mark.parametrize("fault", ["crash", "sigkill", "raise", "bad_reply", "exit"])
async def test_each_fault_of_a_reply_ends_the_try_and_the_next_one_starts(
    chaos: Node, fault: str
) -> None:
    config = {"faults": {fault: 1.0}}
    for try_ in (1, 2):
        await chaos.ready(0, try_=try_, config=config)
        with pytest.raises(AgentRefusal) as refused:
            await chaos.take(call("12+07"), try_=try_)
        assert refused.value.reason == "env_failed"
        failed = await chaos.failure(0, try_)
        assert failed.end is End.ENV_FAILED
        assert failed.cause
    await eventually(lambda: chaos.holdings.slots.taken(AGENT) == 0)
    assert chaos.runtime.keys() == ()


async def test_a_sandbox_that_runs_out_of_memory_ends_the_try_at_once(counting: Node) -> None:
    await counting.ready(0)
    running = asyncio.create_task(counting.take(answer("block")))
    await eventually(lambda: counting.held().journal.is_waiting)
    sandbox = counting.runtime.get(counting.held().member)
    assert sandbox is not None
    sandbox.kill(EventKind.OOM, "out of memory: its processes held too much")
    with pytest.raises(AgentRefusal) as refused:
        await running
    assert refused.value.reason == "sandbox_lost"
    assert (await counting.failure()).cause.startswith("oom: out of memory")


async def test_a_lost_sandbox_is_never_an_observation(counting: Node) -> None:
    await counting.ready(0)
    sandbox = counting.runtime.get(counting.held().member)
    assert sandbox is not None
    sandbox.kill(EventKind.LOST, "test")
    with pytest.raises(AgentRefusal) as refused:
        await counting.take(answer("go"))
    assert refused.value.reason == "sandbox_lost"


async def test_a_seal_may_be_repeated_and_keeps_the_journal(counting: Node) -> None:
    await counting.ready(0)
    await counting.take(answer("go"))
    first, second = await asyncio.gather(
        counting.client.seal(member(), 1, 1), counting.client.seal(member(), 1, 1)
    )
    assert first.artefacts == second.artefacts == {STATE_ARTEFACT: '{"n": 1}'}
    attached = await counting.client.attach(member(), 1, 2)
    assert len(attached.turns) == 1
    again = await counting.client.seal(member(), 1, 2)
    assert again.artefacts == first.artefacts
    assert counting.held().state is TryState.SEALED
    with pytest.raises(AgentRefusal, match="unknown"):
        await counting.take(answer("go"), 1, hop=2)


async def test_a_seal_ends_a_reply_that_still_runs(counting: Node) -> None:
    await counting.ready(0)
    running = asyncio.create_task(counting.take(answer("block")))
    await eventually(lambda: counting.held().journal.is_waiting)
    sealed = await counting.client.seal(member(), 1, 1)
    assert sealed.artefacts == {STATE_ARTEFACT: '{"n": 0}'}
    with pytest.raises(AgentRefusal, match="unknown"):
        await running


async def test_a_seal_of_a_lost_sandbox_is_refused(node: Node) -> None:
    await node.ready(0)
    sandbox = node.runtime.get(node.held().member)
    assert sandbox is not None
    sandbox.kill(EventKind.LOST, "test")
    with pytest.raises(AgentRefusal) as refused:
        await node.client.seal(member(), 1, 1)
    assert refused.value.reason == "sandbox_lost"


async def test_a_release_ends_the_reply_that_runs(counting: Node) -> None:
    await counting.ready(0)
    running = asyncio.create_task(counting.take(answer("block")))
    await eventually(lambda: counting.held().journal.is_waiting)
    await counting.holdings.release(member(), 1)
    with pytest.raises(AgentRefusal, match="unknown"):
        await running
    assert counting.runtime.keys() == ()


async def test_who_does_not_hold_the_data_key_is_turned_away(node: Node) -> None:
    await node.ready(0)
    stranger = node.dial(key="another key")
    with pytest.raises(AgentLost):
        await stranger.attach(member(), 1, 1)
    await stranger.close()


async def test_a_message_that_is_none_is_refused_and_changes_nothing(node: Node) -> None:
    await node.ready(0)
    frame = turn_frame(answer("x"))
    bad = TakeTurn(**{name: getattr(frame, name) for name in frame.__slots__} | {"assistant": {}})
    with pytest.raises(AgentRefusal) as refused:
        await node.client.take_turn(bad)
    assert refused.value.reason == "intent"
    assert node.held().journal.turns == ()


async def test_a_failure_after_the_reply_leaves_no_half_record(
    counting: Node, armed: ArmedFailpoints
) -> None:
    failpoints.configure("test", armed.environ)
    armed.arm(f"{seams.REPLIED}=raise")
    await counting.ready(0)
    asked = asyncio.create_task(counting.take(answer("go")))
    await eventually(lambda: counting.holdings.broken.done())
    assert isinstance(counting.holdings.broken.exception(), failpoints.FailpointError)
    assert not counting.held().journal.turn(0).replied
    assert counting.held().journal.state == {"n": 0}
    await asyncio.gather(asked, return_exceptions=True)
    counting.holdings.broken = asyncio.get_running_loop().create_future()


async def test_warm_names_of_the_sandbox_outlive_the_environment(node: Node) -> None:
    await node.ready(0)
    await node.take(call("12+07"))
    kill_environment(node)
    former = node.held().process
    await eventually(lambda: former is not None and former.fault)
    assert (await node.take(call("19+30"), 1)).messages[0]["content"] == "49"
    sandbox = node.runtime.get(node.held().member)
    assert sandbox is not None
    result = await sandbox.call(PythonRequest("print(add('01+01'))"))
    assert getattr(result, "stdout", b"") == b"02\n"
