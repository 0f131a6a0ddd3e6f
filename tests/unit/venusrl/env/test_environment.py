"""The default `reply`: every tool call gets exactly one answer, under its id, in order."""

import json
from pathlib import Path
from random import Random

import pytest

from venusrl.env import (
    Environment,
    ExecResult,
    Message,
    Sandbox,
    SandboxError,
    Task,
    ToolCall,
    ToolError,
    Turn,
    read_tasks,
    tool,
)
from venusrl.env._runner.remote_sandbox import RemoteSandbox
from venusrl.env.judge import NoJudge
from venusrl.env.sandbox import ExecRequest, SandboxRequest, SandboxResult
from venusrl.env.wire import BadRecord


class Tools(Environment):
    @tool
    async def echo(self, text: str) -> str:
        """Say it again."""
        return text

    @tool
    async def raw(self) -> bytes:
        """Bytes that are not UTF-8."""
        return b"a\xf0\xff"

    @tool
    def count(self) -> object:
        """A value that is not text."""
        return {"n": 1}

    @tool
    async def refuse(self) -> str:
        """An error for the model."""
        raise ToolError("no such page")

    @tool
    async def broken(self) -> str:
        """A defect that the model's input found."""
        return str(int("x"))

    @tool
    async def run(self, sandbox: Sandbox) -> str:
        """A command in the sandbox."""
        return (await sandbox.exec(["true"])).text


def reply_to(*calls: ToolCall, result: SandboxResult | SandboxError = None) -> Turn:
    async def call(request: SandboxRequest) -> SandboxResult:
        assert request == ExecRequest(("true",))
        if isinstance(result, SandboxError):
            raise result
        return result

    message = Message("assistant", "text", calls)
    return Turn(0, message, (Message("user", "go"),), RemoteSandbox(call))


def environment() -> Tools:
    return Tools({}, Random(0), NoJudge())


async def answers(turn: Turn) -> list[tuple[str | None, str]]:
    messages = await environment().reply(turn)
    assert messages is not None
    assert all(message.role == "tool" for message in messages)
    return [(message.tool_call_id, message.content) for message in messages]


async def test_a_message_without_tool_calls_ends_the_episode() -> None:
    assert await environment().reply(reply_to()) is None


async def test_each_call_gets_one_reply_in_order_though_the_first_is_bad() -> None:
    turn = reply_to(
        ToolCall("c1", "echo", '{"text": "a",,}'), ToolCall("c2", "echo", '{"text": "b"}')
    )
    (first, second) = await answers(turn)
    assert first[0] == "c1"
    assert first[1].startswith("error: arguments are not valid JSON")
    assert second == ("c2", "b")


async def test_a_call_that_was_cut_is_answered_and_never_run() -> None:
    cut = ToolCall("c1", "echo", '{"text": "a"}', error="unterminated: cut before its end")
    whole = ToolCall("c2", "echo", '{"text": "b"}')
    assert await answers(reply_to(cut, whole)) == [
        ("c1", "error: unterminated: cut before its end"),
        ("c2", "b"),
    ]


async def test_an_unknown_tool_is_answered_with_an_error() -> None:
    assert await answers(reply_to(ToolCall("c1", "rm", "{}"))) == [("c1", "error: unknown tool rm")]


async def test_private_methods_are_not_callable() -> None:
    ((_, text),) = await answers(reply_to(ToolCall("c1", "snapshot", "{}")))
    assert text == "error: unknown tool snapshot"


async def test_calls_with_one_id_are_each_answered() -> None:
    turn = reply_to(ToolCall("c", "echo", '{"text":"a"}'), ToolCall("c", "echo", '{"text":"b"}'))
    assert await answers(turn) == [("c", "a"), ("c", "b")]


async def test_results_that_are_not_text_become_text() -> None:
    turn = reply_to(ToolCall("c1", "raw", "{}"), ToolCall("c2", "count", "{}"))
    assert await answers(turn) == [("c1", "a\ufffd\ufffd"), ("c2", '{"n": 1}')]


async def test_exceptions_of_a_tool_are_told_to_the_model() -> None:
    turn = reply_to(ToolCall("c1", "refuse", "{}"), ToolCall("c2", "broken", "{}"))
    (first, second) = await answers(turn)
    assert first == ("c1", "error: no such page")
    assert second[1].startswith("error: ValueError")


async def test_a_flood_of_calls_is_answered_without_running_them_all() -> None:
    calls = [ToolCall(f"c{n}", "echo", '{"text":"a"}') for n in range(70)]
    found = await answers(reply_to(*calls))
    assert [call_id for call_id, _ in found] == [call.id for call in calls]
    assert found[63][1] == "a"
    assert found[64][1].startswith("error: more than 64")


async def test_a_tool_runs_in_the_sandbox_of_the_turn() -> None:
    turn = reply_to(ToolCall("c1", "run", "{}"), result=ExecResult(0, b"out\xff"))
    assert await answers(turn) == [("c1", "out\ufffd")]


async def test_a_lost_sandbox_is_never_a_tool_result() -> None:
    turn = reply_to(ToolCall("c1", "run", "{}"), result=SandboxError("lost", "out of memory"))
    with pytest.raises(SandboxError, match="lost"):
        await environment().reply(turn)


async def test_a_file_that_does_not_exist_is_a_tool_result() -> None:
    turn = reply_to(ToolCall("c1", "run", "{}"), result=SandboxError("not_found", "x"))
    assert await answers(turn) == [("c1", "error: not_found: x")]


def test_tasks_of_a_file_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    records = [
        {"id": "a", "prompt": "hi", "answer": 1},
        {"id": "b", "prompt": [{"role": "system", "content": "s"}], "files": {"x": "y"}},
    ]
    path.write_text("\n\n".join(json.dumps(record) for record in records))
    assert list(read_tasks(path)) == [
        Task("a", (Message("user", "hi"),), 1),
        Task("b", (Message("system", "s"),), files={"x": "y"}),
    ]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"id": 1}', '{"id":"a"}', '{"id":"a","prompt":"x","extra":1}']
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"id": "a", "prompt": "x"}\n' + line)
    with pytest.raises(BadRecord, match=r"train\.jsonl:2"):
        list(read_tasks(path))


def test_a_subclass_keeps_and_overrides_declarations() -> None:
    class More(Tools):
        @tool
        async def echo(self, text: str, times: int = 2) -> str:
            """Say it often."""
            return text * times

    assert list(More.tools()) == list(Tools.tools())
    assert More.tools()["echo"].description == "Say it often."
    assert Tools.tools()["echo"].description == "Say it again."
