"""The instances of this process: one environment object a rollout's try, with its conversation.

Answers of user code are checked here: a reply must answer exactly the calls that were made, in
order. What user code raises becomes a `RunnerFault`, of that instance only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeVar

from venusrl.env._runner.channel import Channel
from venusrl.env._runner.faults import RunnerFault, fault_of
from venusrl.env._runner.remote_judge import RemoteJudge
from venusrl.env._runner.remote_sandbox import RemoteSandbox, keyed_calls
from venusrl.env.environment import Environment
from venusrl.env.judge import JudgeClient
from venusrl.env.messages import Finish, Json, Message, NewHistory, Task, ToolCall, Turn
from venusrl.env.wire import ROLES, clean_text

SETUP_TURN: Final = -1
"""Same number as the environment port's: sandbox calls of `setup`."""

CONTENT_CHARS_MAX: Final = 1 << 20
"""One message's text; beyond it no context window follows, so the rest is cut and said so."""

MESSAGES_MAX: Final = 256
"""Messages of one reply; more is a loop in the environment."""

SNAPSHOT_BYTES_MAX: Final = 4 << 20
"""A snapshot is journalled at every turn, so it must stay small."""

T = TypeVar("T")


@dataclass(slots=True)
class Instance:
    """One try of one rollout."""

    name: str
    environment: Environment
    task: Task
    history: list[Message] = field(default_factory=list)


class Instances:
    """Opens, runs and closes instances."""

    def __init__(
        self, channel: Channel, cls: type[Environment], config: Mapping[str, Json]
    ) -> None:
        self._channel = channel
        self._cls = cls
        self._config = config
        self._open: dict[str, Instance] = {}

    def open(self, name: str, task: Task, seed: int) -> None:
        """Make an instance; a task without any text is refused before an engine sees it."""
        if not any(message.content.strip() for message in task.prompt):
            raise RunnerFault("empty_prompt", f"task {task.id} has an empty prompt")
        try:
            judge = RemoteJudge(self._channel, {"instance": name})
            environment = make_environment(self._cls, self._config, seed, (task, judge))
        except (Exception, SystemExit) as error:  # edge of user code
            raise fault_of(error, "__init__") from error
        self._open[name] = Instance(name, environment, task, list(task.prompt))

    async def setup(self, name: str, timeout_s: float) -> Json:
        """Run `setup`, then take the first snapshot."""
        instance = self._get(name)
        sandbox = RemoteSandbox(keyed_calls(self._channel, name, SETUP_TURN))
        task = instance.task
        await _guarded(lambda: instance.environment.setup(task, sandbox), "setup", timeout_s)
        return await self.snapshot(name, timeout_s)

    async def reply(
        self, name: str, index: int, message: Message, finish: Finish, timeout_s: float
    ) -> tuple[Sequence[Message] | None, Json]:
        """Answer an assistant message and take the snapshot that belongs to the answer."""
        instance = self._get(name)
        sandbox = RemoteSandbox(keyed_calls(self._channel, name, index))
        turn = Turn(index, message, tuple(instance.history), sandbox, finish)
        answer = await _guarded(lambda: instance.environment.reply(turn), "reply", timeout_s)
        if isinstance(answer, NewHistory):
            rewritten = check_history(answer)
            instance.history = list(rewritten)
            return rewritten, await self.snapshot(name, timeout_s)
        checked = None if answer is None else check_reply(message, answer)
        instance.history += [message, *(checked or ())]
        return checked, await self.snapshot(name, timeout_s)

    async def snapshot(self, name: str, timeout_s: float) -> Json:
        """The instance's state, checked to be JSON of bearable size."""
        instance = self._get(name)
        state = await _guarded(instance.environment.snapshot, "snapshot", timeout_s)
        try:
            size = len(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise RunnerFault("bad_state", f"the snapshot is not JSON: {error}") from error
        if size > SNAPSHOT_BYTES_MAX:
            raise RunnerFault("bad_state", f"a snapshot of {size} exceeds {SNAPSHOT_BYTES_MAX}")
        return state

    async def restore(
        self, name: str, state: Json, history: Sequence[Message], timeout_s: float
    ) -> None:
        """Take up a snapshot and the conversation that led to it."""
        instance = self._get(name)
        await _guarded(lambda: instance.environment.restore(state), "restore", timeout_s)
        instance.history = list(history)

    def close(self, name: str) -> None:
        """Forget an instance."""
        self._open.pop(name, None)

    def _get(self, name: str) -> Instance:
        instance = self._open.get(name)
        if instance is None:
            raise RunnerFault("unknown_instance", f"no instance {name} is open")
        return instance


def make_environment(
    cls: type[Environment], config: Mapping[str, Json], seed: int, given: tuple[Task, JudgeClient]
) -> Environment:
    """An environment object as user code expects it: its own generator, its task in place."""
    task, judge = given
    environment = cls(config, Random(seed), judge)
    environment.task = task
    return environment


def check_reply(asked: Message, answer: object) -> list[Message]:
    """The messages of a reply, cleaned; a reply that no chat template can say is a fault."""
    messages = [_clean(message) for message in _sequence(answer)]
    for message in messages:
        if message.role == "assistant":
            raise RunnerFault("bad_reply", "an environment cannot speak as assistant")
    answered = [message.tool_call_id for message in messages if message.role == "tool"]
    expected = [call.id for call in asked.tool_calls]
    if answered != expected:
        raise RunnerFault(
            "bad_reply", f"tool calls {expected} need one reply each, in order, not {answered}"
        )
    return messages


def check_history(answer: NewHistory) -> NewHistory:
    """A new conversation, cleaned; the model speaks next, and each call in it has its replies."""
    messages = [_clean(message) for message in _sequence(answer)]
    if not any(message.content.strip() for message in messages):
        raise RunnerFault("bad_reply", "the new history has no text")
    if messages[-1].role == "assistant":
        raise RunnerFault("bad_reply", "the new history ends with the assistant; nobody asks it")
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not waiting or message.tool_call_id != waiting.pop(0):
                detail = f"the reply to {message.tool_call_id!r} has no call before it"
                raise RunnerFault("bad_reply", f"new history: {detail}")
        elif waiting:
            raise RunnerFault("bad_reply", f"new history: call {waiting[0]!r} has no reply")
        else:
            waiting = [call.id for call in message.tool_calls]
    if waiting:
        raise RunnerFault("bad_reply", f"new history: call {waiting[0]!r} has no reply")
    return NewHistory(messages)


def _sequence(answer: object) -> Sequence[object]:
    if isinstance(answer, (str, bytes)) or not isinstance(answer, Sequence):
        raise RunnerFault("bad_reply", f"reply gave a {type(answer).__name__}, not messages")
    if len(answer) > MESSAGES_MAX:
        raise RunnerFault("bad_reply", f"{len(answer)} messages exceed {MESSAGES_MAX}")
    return answer


def _clean(message: object) -> Message:
    if not isinstance(message, Message):
        raise RunnerFault("bad_reply", f"reply gave a {type(message).__name__}, not a Message")
    if message.role not in ROLES:
        raise RunnerFault("bad_reply", f"an environment cannot speak as {message.role}")
    content: object = message.content
    if not isinstance(content, (str, bytes, bytearray)):
        raise RunnerFault("bad_reply", f"content is a {type(content).__name__}, not text")
    text = clean_text(content)
    if len(text) > CONTENT_CHARS_MAX:
        lost = len(text) - CONTENT_CHARS_MAX
        text = f"{text[:CONTENT_CHARS_MAX]}\n[{lost} characters cut]"
    calls = _calls(message) if message.role == "assistant" else ()
    return Message(message.role, text, calls, message.tool_call_id)


def _calls(message: Message) -> tuple[ToolCall, ...]:
    """Calls of an assistant message in a new history, as the wire can say them."""
    calls: object = message.tool_calls
    if not isinstance(calls, (tuple, list)) or not all(isinstance(c, ToolCall) for c in calls):
        raise RunnerFault("bad_reply", "tool_calls must hold ToolCall")
    for call in calls:
        texts: tuple[object, ...] = (call.id, call.name, call.arguments, call.error or "")
        if not all(isinstance(text, str) for text in texts):
            raise RunnerFault(
                "bad_reply", f"a tool call holds a value that is no text: {call!r}"[:200]
            )
    return tuple(calls)


async def _guarded(call: Callable[[], Awaitable[T]], where: str, timeout_s: float) -> T:
    """Await user code within its time; whatever it raises becomes a fault."""
    try:
        async with asyncio.timeout(timeout_s):
            return await call()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # edge of user code
        raise fault_of(error, where) from error
