"""The environment process: turns, faults of one instance, faults of the whole process."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.integration.environments.helpers import (
    ADD,
    CALC,
    TASK,
    opened,
    running,
    running_source,
    write_package,
)
from tests.support.requirements import requires
from tests.support.sandbox_port import RecordingPort
from tests.support.waiting import eventually
from venusrl.env.host.ports import (
    EnvironmentCrashed,
    EnvironmentHung,
    EnvironmentRaised,
    InstanceKey,
    SandboxLost,
)
from venusrl.env.messages import Message, Task, ToolCall
from venusrl.env.sandbox import CallKey, PythonRequest, SandboxError

pytestmark = requires("bwrap")

DONE = Message("assistant", "19")


async def test_a_rollout_is_played_through_the_tool_and_ends() -> None:
    async with running(CALC) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        seen = await environment.reply(key, 0, ADD)
        assert seen.messages == (Message("tool", "19", tool_call_id="c1"),)
        assert (await environment.reply(key, 1, DONE)).messages is None
        await environment.close(key)
    assert port.keys == [CallKey("ro_1", 1, -1, 0), CallKey("ro_1", 1, 0, 0)]
    assert port.files["calls.jsonl"] == b'{"expression": "12+07", "result": "19"}\n'


async def test_a_turn_of_a_closed_instance_is_a_fault_and_not_our_crash() -> None:
    async with running(CALC) as environment:
        key = await opened(environment, RecordingPort())
        await environment.close(key)
        with pytest.raises(EnvironmentRaised, match="unknown_instance"):
            await environment.setup(key)


async def test_the_tool_refuses_what_is_no_sum_without_running_it() -> None:
    async with running(CALC) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        evil = ToolCall("c1", "calculator", "{\"expression\": \"__import__('os').system('x')\"}")
        cut = ToolCall("c2", "calculator", '{"expression": "12')
        seen = await environment.reply(key, 0, Message("assistant", "", (evil, cut)))
        assert seen.messages is not None
        assert [message.tool_call_id for message in seen.messages] == ["c1", "c2"]
        assert seen.messages[0].content == ""
        assert len(port.requests) == 1


async def test_tasks_load_whole_and_equal_each_time() -> None:
    async with running(CALC) as environment:
        train = await environment.load("train")
        assert len(train) == 2048
        assert train == await environment.load("train")
        assert len(await environment.load("test")) == 512
        with pytest.raises(EnvironmentRaised) as caught:
            await environment.load("nowhere")
        assert caught.value.cause == "bad_task"


async def test_64_instances_are_served_side_by_side() -> None:
    async with running(CALC) as environment:

        async def play(number: int) -> list[int]:
            port = RecordingPort()
            key = await opened(environment, port, f"ro_{number}")
            for turn in range(3):
                await environment.reply(key, turn, ADD)
            await environment.close(key)
            assert {one.rollout for one in port.keys} == {f"ro_{number}"}
            return [one.turn for one in port.keys]

        played = await asyncio.gather(*(play(number) for number in range(64)))
    assert played == [[-1, 0, 1, 2]] * 64


async def test_user_code_that_raises_ends_its_own_instance_only(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        if self.task.id == "bad":
            print("about to fail")
            raise KeyError("gone")
        if self.task.id == "exit":
            sys.exit(3)
        return [Message("user", "more")]
"""
    log: list[tuple[str, str]] = []
    async with running_source(tmp_path, source, log) as environment:
        good = await opened(environment, rollout="ro_good")
        for name in ("bad", "exit"):
            key = await opened(environment, None, f"ro_{name}", Task(name, TASK.prompt))
            with pytest.raises(EnvironmentRaised) as caught:
                await environment.reply(key, 0, DONE)
            assert caught.value.cause == "raised"
        assert (await environment.reply(good, 0, DONE)).messages == (Message("user", "more"),)
        await eventually(lambda: ("ro_bad/1", "about to fail") in log)
        await eventually(lambda: any("KeyError: 'gone'" in text for _, text in log))


async def test_an_instance_that_never_answers_hangs_alone(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        if self.task.id == "hang":
            await asyncio.Event().wait()
        return None
"""
    async with running_source(tmp_path, source, reply_s=1.0) as environment:
        good = await opened(environment, rollout="ro_good")
        key = await opened(environment, None, "ro_hang", Task("hang", TASK.prompt))
        with pytest.raises(EnvironmentHung) as caught:
            await environment.reply(key, 0, DONE)
        assert caught.value.cause == "call_timeout"
        assert (await environment.reply(good, 0, DONE)).messages is None


async def test_a_blocked_loop_is_killed_and_every_call_learns_why(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        if self.task.id == "spin":
            while True:
                pass
        await asyncio.Event().wait()
"""
    async with running_source(tmp_path, source, blocked_s=2.0) as environment:
        waiting = await opened(environment, rollout="ro_waiting")
        key = await opened(environment, None, "ro_spin", Task("spin", TASK.prompt))
        other = asyncio.create_task(environment.reply(waiting, 0, DONE))
        with pytest.raises(EnvironmentHung) as caught:
            await environment.reply(key, 0, DONE)
        assert caught.value.cause == "loop_blocked"
        with pytest.raises(EnvironmentHung):
            await other
        assert environment.fault is caught.value


async def test_lag_of_the_loop_is_shown(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        time.sleep(0.8)
        return None
"""
    async with running_source(tmp_path, source) as environment:
        key = await opened(environment)
        await environment.reply(key, 0, DONE)
        await eventually(lambda: environment.worst_lag_s > 0.2)


async def test_a_killed_process_is_a_crash_with_its_signal() -> None:
    async with running(CALC) as environment:
        key = await opened(environment)
        os.kill(environment.pid, signal.SIGKILL)
        await eventually(lambda: environment.fault is not None)
        with pytest.raises(EnvironmentCrashed) as caught:
            await environment.reply(key, 0, ADD)
        assert caught.value.cause == "process_killed"
        with pytest.raises(EnvironmentCrashed):
            await environment.load("train")


async def test_an_exit_is_a_crash_with_its_code(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        os.write(2, b"last \\xf0\\xff words")
        os._exit(3)
"""
    async with running_source(tmp_path, source) as environment:
        key = await opened(environment)
        with pytest.raises(EnvironmentCrashed) as caught:
            await environment.reply(key, 0, DONE)
        assert caught.value.cause == "process_exited"
        assert "exit code 3" in caught.value.detail
        assert "last \ufffd\ufffd words" in caught.value.detail


async def test_a_process_dies_with_its_stop_and_calls_in_flight_say_so(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        await asyncio.Event().wait()
"""
    async with running_source(tmp_path, source) as environment:
        key = await opened(environment)
        call = asyncio.create_task(environment.reply(key, 0, DONE))
        await environment.snapshot(await opened(environment, rollout="ro_2"))
        await environment.stop()
        with pytest.raises(EnvironmentCrashed) as caught:
            await call
        assert caught.value.cause == "stopped"
        assert not Path(f"/proc/{environment.pid}").exists()


async def test_state_and_history_move_to_a_new_process(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    count = 0
    async def reply(self, turn):
        self.count += 1
        return [Message("user", f"{self.count} after {len(turn.history)}")]
    async def snapshot(self):
        return {"count": self.count}
    async def restore(self, state):
        self.count = state["count"]
"""
    async with running_source(tmp_path, source) as environment:
        key = await opened(environment)
        first = await environment.reply(key, 0, DONE)
        assert first.state == {"count": 1}
        assert first.messages == (Message("user", "1 after 1"),)
        history = [*TASK.prompt, DONE, *first.messages]
        await environment.stop()
    async with running_source(tmp_path, source) as environment:
        await environment.open(key, TASK, 7, None)
        await environment.restore(key, first.state, history)
        assert (await environment.reply(key, 1, DONE)).messages == (Message("user", "2 after 3"),)


async def test_the_generator_is_the_same_at_each_try(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def snapshot(self):
        return self.rng.random()
"""
    async with running_source(tmp_path, source) as environment:
        states = []
        for try_ in (1, 2):
            key = InstanceKey("ro_1", try_)
            await environment.open(key, TASK, 7, None)
            states.append(await environment.setup(key))
    assert states[0] == states[1]


@pytest.mark.parametrize("reason", ["lost", "refused"])
async def test_a_lost_sandbox_ends_the_try_whatever_user_code_makes_of_it(
    tmp_path: Path, reason: str
) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        try:
            await turn.sandbox.python("print(1)")
        except Exception:
            pass
        return [Message("user", "all is well")]
"""
    async with running_source(tmp_path, source) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        port.failure = SandboxError(reason, "out of memory")  # type: ignore[arg-type]
        with pytest.raises(SandboxLost, match="out of memory"):
            await environment.reply(key, 0, DONE)
        assert environment.fault is None


async def test_sandbox_calls_are_counted_in_each_turn(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        for n in range(3):
            await turn.sandbox.python(f"x = {n}")
        try:
            await turn.sandbox.read("missing")
        except SandboxError as error:
            return [Message("user", error.reason)]
"""
    async with running_source(tmp_path, source) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        seen = await environment.reply(key, 5, DONE)
        assert seen.messages == (Message("user", "not_found"),)
    assert port.keys == [CallKey("ro_1", 1, 5, ordinal) for ordinal in range(4)]


async def test_a_handle_of_an_older_turn_is_refused(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    kept = None
    async def reply(self, turn):
        if self.kept is None:
            self.kept = turn.sandbox
            return [Message("user", "kept")]
        try:
            await self.kept.python("x = 1")
        except SandboxError as error:
            return [Message("user", error.reason)]
"""
    async with running_source(tmp_path, source) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        await environment.reply(key, 0, DONE)
        seen = await environment.reply(key, 1, DONE)
        assert seen.messages == (Message("user", "denied"),)
    assert PythonRequest("x = 1") not in port.requests


async def test_an_import_that_fails_is_told_with_its_reason(tmp_path: Path) -> None:
    for source, says in (
        ("import no_such_module\n", "no_such_module"),
        ("Env = 3\n", "not a subclass"),
        ("class Other(Environment): pass\n", "no attribute 'Env'"),
        ("raise SystemExit(1)\n", "SystemExit"),
    ):
        write_package(tmp_path, source)
        with pytest.raises(EnvironmentRaised, match=says) as caught:
            async with running(tmp_path):
                pass
        assert caught.value.cause == "import_failed"


async def test_an_empty_prompt_is_refused_before_an_engine_sees_it(tmp_path: Path) -> None:
    async with running_source(tmp_path, "class Env(Environment): pass\n") as environment:
        task = Task("t", (Message("user", " \n"),))
        with pytest.raises(EnvironmentRaised) as caught:
            await environment.open(InstanceKey("ro_1", 1), task, 0, None)
        assert caught.value.cause == "empty_prompt"


async def test_a_flood_of_prints_does_not_stop_the_environment(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    async def reply(self, turn):
        for n in range(20_000):
            print("noise", n)
        os.write(1, b"x" * 3_000_000)
        return [Message("user", "done")]
"""
    log: list[tuple[str, str]] = []
    async with running_source(tmp_path, source, log) as environment:
        key = await opened(environment)
        assert (await environment.reply(key, 0, DONE)).messages == (Message("user", "done"),)
        # What the reader could not keep up with is counted; a reader that kept up has the last line.
        ends = ("lines lost", "noise 19999")
        await eventually(lambda: any(end in text for end in ends for _, text in log))
    assert max(len(text) for _, text in log) <= 8192
