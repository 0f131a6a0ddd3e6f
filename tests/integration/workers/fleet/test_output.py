"""What environments print is kept for the try that printed it, above all where it failed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stores.system.outputs import Output
from tests.integration.environments.helpers import write_package
from tests.support.fleet import ATTEMPT, Node, answer, member, running_node
from tests.support.requirements import requires
from tests.support.waiting import eventually
from workers.rollout.agent_client import AgentRefusal

pytestmark = requires("bwrap")

PRINTING = """
import os, sys
class Env(Environment):
    async def setup(self, task, sandbox):
        print("setting up", task.id)
    async def reply(self, turn):
        asked = turn.message.content
        print("asked", asked)
        print("to stderr", file=sys.stderr)
        if asked == "raise":
            raise RuntimeError("broken by hand")
        if asked == "die":
            os._exit(3)
        if asked == "block":
            while True:
                pass
        if asked == "much":
            for number in range(3000):
                print(number, "x" * 100)
        if asked == "secret":
            print("key vrl_abcdefghijklmnopqrstuvwx and hf_abcdefghijklmnopqrst")
        return None
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    package = tmp_path / "package"
    package.mkdir()
    write_package(package, PRINTING, "[limits]\nblocked_s = 1\n")
    async with running_node(tmp_path, package) as made:
        yield made


async def lines_of(node: Node, index: int = 0, try_: int | None = 1) -> list[str]:
    """The stored lines of a try, or of the process without one."""
    rollout = member(index) if try_ else None

    def found() -> list[Output]:
        return [one for one in node.printed if (one.rollout_id, one.try_) == (rollout, try_)]

    (one,) = await eventually(found)
    data = await node.blobs.read(one.uri, one.sha)
    assert one.lines == data.count(b"\n")
    return [json.loads(line)[1] for line in data.splitlines()]


async def test_a_sealed_try_leaves_what_it_printed(node: Node) -> None:
    await node.ready(0, 1)
    await node.take(answer("fine"))
    await node.client.seal(member(0), 1, 1)
    assert await lines_of(node) == ["setting up train-0000", "asked fine", "to stderr"]
    assert [one.rollout_id for one in node.printed] == [member(0)]
    assert node.printed[0].attempt_id == ATTEMPT


@pytest.mark.parametrize("how", ["raise", "die", "block"])
async def test_a_failed_try_leaves_its_last_words(node: Node, how: str) -> None:
    await node.ready(0)
    with pytest.raises(AgentRefusal):
        await node.take(answer(how))
    assert (await lines_of(node))[:3] == ["setting up train-0000", f"asked {how}", "to stderr"]


async def test_of_much_output_the_end_is_kept_and_the_rest_counted(node: Node) -> None:
    await node.ready(0)
    await node.take(answer("much"))
    await node.client.seal(member(0), 1, 1)
    lines = await lines_of(node)
    assert lines[-1].startswith("2999 ")
    (one,) = node.printed
    assert one.lost + one.lines == 3003
    assert sum(len(line) + 8 for line in lines) <= 64 << 10


async def test_secrets_are_struck_out_before_they_are_stored(node: Node) -> None:
    await node.ready(0)
    await node.take(answer("secret"))
    await node.client.seal(member(0), 1, 1)
    assert "key vrl_abcd[redacted] and hf_[redacted]" in await lines_of(node)
