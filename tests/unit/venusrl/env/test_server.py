"""The runner's server over a socket pair, in this process: requests, faults, sandbox calls."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from venusrl.env._runner.channel import Channel, ChannelClosed
from venusrl.env._runner.logs import LogStream
from venusrl.env._runner.server import Server
from venusrl.env.messages import Json
from venusrl.env.wire import Record

SOURCE = """
import asyncio
from venusrl.env import Environment, Message, NewHistory, ToolCall, tool, reward, Sandbox, Task

class Env(Environment):
    async def reply(self, turn):
        text = turn.message.content
        if text == "hang":
            await asyncio.Event().wait()
        if text == "raise":
            raise ValueError("no")
        if text == "exec":
            result = await turn.sandbox.exec(["ls"], stdin=b"x")
            await turn.sandbox.write("a", b"b")
            return [Message("user", result.text + (await turn.sandbox.read("a")).decode())]
        if text.startswith("rewrite"):
            made = {
                "rewrite": [Message("system", "s"), Message("user", "u")],
                "rewrite calls": [
                    Message("user", "u"), Message("assistant", "", (ToolCall("x", "f", "{}"),)),
                    Message("tool", "r", tool_call_id="x"),
                ],
                "rewrite empty": [],
                "rewrite blank": [Message("user", " ")],
                "rewrite answered": [Message("user", "u"), Message("assistant", "a")],
                "rewrite unasked": [Message("user", "u"), Message("tool", "r", tool_call_id="x")],
                "rewrite open": [Message("assistant", "", (ToolCall("x", "f", "{}"),)), Message("user", "u")],
                "rewrite typed": [Message("assistant", "", ("x",)), Message("user", "u")],
                "rewrite text": ["u"],
            }
            return NewHistory(made[text])
        if text == "print":
            print("hello")
        return [Message("user", f"{turn.index} {turn.finish} {len(turn.history)}")]
    async def snapshot(self):
        return {"task": self.task.id}
    async def restore(self, state):
        assert state
    @reward(weight=2.0)
    async def right(self, rollout):
        return 1.0
"""

TASK: Json = {"id": "t", "prompt": "go"}


class Parent:
    """The other end: sends requests, answers sandbox calls, keeps logs."""

    def __init__(self, channel: Channel, log: LogStream) -> None:
        self._channel = channel
        self.log = log
        self.logs: list[tuple[Json, Json]] = []
        self.parts: list[Json] = []
        self.asked: list[Record] = []

    async def listen(self) -> None:
        async for frame in self._channel.frames():
            match frame["t"]:
                case "log":
                    self.logs.append((frame["instance"], frame["text"]))
                case "part":
                    items = frame["items"]
                    assert isinstance(items, list)
                    self.parts += items
                case "sandbox":
                    await self._answer(frame)

    async def _answer(self, frame: Record) -> None:
        self.asked.append(frame)
        request: Any = frame["request"]
        answer: Json = {"exec": None, "write": None, "read": "Yg=="}[request["verb"]]
        if request["verb"] == "exec":
            answer = {
                "exit_code": 0, "stdout": "YQ==", "stderr": "", "truncated_bytes": 0,
                "timed_out": False,
            }  # fmt: skip
        await self._channel.send({"t": "result", "id": frame["id"], "ok": answer})

    async def call(self, method: str, **params: Json) -> Any:
        frame = await self._channel.request({"t": "call", "method": method, "params": params})
        return frame.get("ok") if "error" not in frame else frame["error"]

    async def reply(self, content: str, turn: int = 0, timeout_s: float = 5.0) -> Any:
        message: Json = {"role": "assistant", "content": content}
        return await self.call(
            "reply", instance="i", turn=turn, message=message, finish="stop", timeout_s=timeout_s
        )


@contextlib.asynccontextmanager
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parent]:
    (tmp_path / "env.py").write_text(SOURCE)
    (tmp_path / "tasks").mkdir()
    lines = "\n".join(f'{{"id": "{n}", "prompt": "p"}}' for n in range(600))
    (tmp_path / "tasks" / "train.jsonl").write_text(lines)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "env", raising=False)
    ours, theirs = socket.socketpair()
    channel = Channel(*await asyncio.open_connection(sock=ours))
    inner = Channel(*await asyncio.open_connection(sock=theirs))
    server = Server(inner)
    running = asyncio.create_task(server.serve())
    parent = Parent(channel, server.log)
    listening = asyncio.create_task(parent.listen())
    try:
        yield parent
    finally:
        channel.close()
        await running
        inner.close()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        sys.modules.pop("env", None)


@pytest.fixture
async def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Parent]:
    async with served(tmp_path, monkeypatch) as one:
        await one.call("start", entry="env:Env", config={}, secrets={})
        await one.call("open", instance="i", task=TASK, seed=1)
        yield one


async def test_start_tells_what_the_class_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path, monkeypatch) as one:
        told = await one.call("start", entry="env:Env", config={}, secrets={})
        assert told["components"] == [
            {"name": "right", "kind": "reward", "weight": 2.0, "timeout_s": 60.0}
        ]
        assert (await one.call("start", entry="env:Nothing", config={}, secrets={}))[
            "cause"
        ] == "import_failed"


async def test_a_large_split_comes_in_parts(parent: Parent) -> None:
    assert await parent.call("load", split="train") == 600
    assert len(parent.parts) == 600
    assert (await parent.call("load", split="none"))["cause"] == "bad_task"


async def test_turns_grow_the_history_and_carry_the_snapshot(parent: Parent) -> None:
    assert await parent.call("setup", instance="i", timeout_s=5.0) == {"task": "t"}
    first = await parent.reply("a")
    assert first["messages"] == [{"role": "user", "content": "0 stop 1"}]
    assert first["state"] == {"task": "t"}
    second = await parent.reply("b", turn=1)
    assert second["messages"][0]["content"] == "1 stop 3"
    history: Json = [{"role": "user", "content": "go"}]
    await parent.call("restore", instance="i", state={"n": 1}, history=history, timeout_s=5.0)
    assert (await parent.reply("c"))["messages"][0]["content"] == "0 stop 1"


async def test_a_new_history_replaces_the_conversation(parent: Parent) -> None:
    seen = await parent.reply("rewrite")
    assert seen["is_rewrite"] is True
    assert [one["content"] for one in seen["messages"]] == ["s", "u"]
    assert (await parent.reply("a", turn=1))["messages"][0]["content"] == "1 stop 2"
    with_calls = await parent.reply("rewrite calls", turn=2)
    assert [one["role"] for one in with_calls["messages"]] == ["user", "assistant", "tool"]
    assert (await parent.reply("a", turn=3))["is_rewrite"] is False


@pytest.mark.parametrize("how", ["empty", "blank", "answered", "unasked", "open", "typed", "text"])
async def test_a_new_history_that_no_template_can_say_is_a_fault(parent: Parent, how: str) -> None:
    assert (await parent.reply(f"rewrite {how}"))["cause"] == "bad_reply"


async def test_sandbox_calls_carry_turn_and_ordinal(parent: Parent) -> None:
    seen = await parent.reply("exec", turn=4)
    assert seen["messages"][0]["content"] == "ab"
    assert [(one["instance"], one["turn"], one["ordinal"]) for one in parent.asked] == [
        ("i", 4, 0),
        ("i", 4, 1),
        ("i", 4, 2),
    ]


async def test_faults_of_user_code_have_causes(parent: Parent) -> None:
    assert (await parent.reply("raise"))["cause"] == "raised"
    assert (await parent.reply("hang", timeout_s=0.05))["cause"] == "call_timeout"
    await parent.call("restore", instance="i", state=None, history=[], timeout_s=5.0)
    assert await parent.call("snapshot", instance="i", timeout_s=5.0) == {"task": "t"}


async def test_requests_that_make_no_sense_are_answered(parent: Parent) -> None:
    assert (await parent.call("dance", instance="i"))["cause"] == "bad_frame"
    assert (await parent.call("open", instance="j", task={}, seed=1))["cause"] == "bad_frame"
    empty: Json = {"id": "t", "prompt": " "}
    assert (await parent.call("open", instance="j", task=empty, seed=1))["cause"] == "empty_prompt"
    assert (await parent.call("snapshot", instance="j", timeout_s=1.0))[
        "cause"
    ] == "unknown_instance"


async def test_a_closed_instance_is_forgotten(parent: Parent) -> None:
    assert await parent.call("close", instance="i") is None
    assert (await parent.reply("a"))["cause"] == "unknown_instance"


async def test_prints_reach_the_parent_under_the_instance(parent: Parent) -> None:
    with contextlib.redirect_stdout(parent.log):
        await parent.reply("print")
    await eventually(lambda: ("i", "hello") in parent.logs)


async def test_a_channel_that_closes_fails_what_waits() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(*await asyncio.open_connection(sock=ours))
    waiting = asyncio.create_task(channel.request({"t": "call"}))

    async def drain() -> None:
        async for _ in channel.frames():
            pass

    draining = asyncio.create_task(drain())
    theirs.close()
    with pytest.raises((ChannelClosed, ConnectionError)):
        await waiting
    await asyncio.gather(draining, return_exceptions=True)
    channel.close()
