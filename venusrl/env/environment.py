"""`Environment`: the class that an author derives from. One instance serves one rollout.

The life of an instance: `__init__`, `setup`, then `reply` once for each assistant message until it
returns None; after each reply the platform takes a `snapshot`. Grading makes a new instance,
restores the last snapshot into it and calls the declared rewards.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from types import FunctionType
from typing import ClassVar, Final

from venusrl.env.judge import JudgeClient, JudgeUnavailable
from venusrl.env.messages import Json, Message, Task, ToolCall, Turn
from venusrl.env.rewards import ComponentSpec, component_spec
from venusrl.env.sandbox import Sandbox, SandboxError
from venusrl.env.tools import (
    TOOL_MARK,
    BadArguments,
    ToolError,
    ToolSpec,
    parse_arguments,
    tool_spec,
)
from venusrl.env.wire import BadRecord, task_from_json

TOOL_CALLS_MAX: Final = 64
"""Calls of one assistant message that are run; further ones are answered with an error."""


class Environment:
    """Base class of environments; every method but `__init__` has a default that works."""

    config: Mapping[str, Json]
    rng: Random
    judge: JudgeClient
    task: Task
    _tool_specs: ClassVar[dict[str, ToolSpec]] = {}
    _component_specs: ClassVar[tuple[ComponentSpec, ...]] = ()

    def __init_subclass__(cls, **options: object) -> None:
        """Read the declarations of a new environment class; a bad signature fails at import."""
        super().__init_subclass__(**options)
        members = _members(cls)
        cls._tool_specs = {
            name: tool_spec(name, member)
            for name, member in members.items()
            if getattr(member, TOOL_MARK, False)
        }
        specs = (component_spec(member) for member in members.values())
        cls._component_specs = tuple(spec for spec in specs if spec is not None)

    def __init__(self, config: Mapping[str, Json], rng: Random, judge: JudgeClient) -> None:
        """`rng` is seeded by the platform, the same at each try of a rollout."""
        self.config = config
        self.rng = rng
        self.judge = judge

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterable[Task]:
        """The tasks of a split, always the same ones in the same order.

        By default `tasks/{split}.jsonl` beside the class.
        """
        return read_tasks(Path(inspect.getfile(cls)).parent / "tasks" / f"{split}.jsonl")

    @classmethod
    def tools(cls) -> Mapping[str, ToolSpec]:
        """The declared tools by name."""
        return cls._tool_specs

    @classmethod
    def components(cls) -> tuple[ComponentSpec, ...]:
        """The declared rewards, group rewards and metrics in the order of declaration."""
        return cls._component_specs

    async def setup(self, task: Task, sandbox: Sandbox) -> None:
        """Prepare the sandbox. By default the task's files are written into it."""
        for path, text in task.files.items():
            await sandbox.write(path, text.encode())

    async def reply(self, turn: Turn) -> Sequence[Message] | None:
        """Answer an assistant message. By default its tool calls are run; None: the episode ends.

        `NewHistory` replaces the conversation instead of going on with it.

        Each call gets exactly one reply under its id, in order; cut calls, bad arguments, unknown
        tools and exceptions of a tool are answered with an error. Only a lost sandbox and a judge
        that gives no answer end the try.
        """
        if not turn.message.tool_calls:
            return None
        replies = []
        for ordinal, call in enumerate(turn.message.tool_calls):
            text = await self._answer(ordinal, call, turn)
            replies.append(Message("tool", text, tool_call_id=call.id))
        return replies

    async def snapshot(self) -> Json:
        """State that `restore` needs, JSON only. By default none."""
        return None

    async def restore(self, state: Json) -> None:
        """Take up the state of a snapshot. By default nothing to do."""

    async def _answer(self, ordinal: int, call: ToolCall, turn: Turn) -> str:
        if ordinal >= TOOL_CALLS_MAX:
            return f"error: more than {TOOL_CALLS_MAX} tool calls in one message"
        if call.error is not None:
            return f"error: {call.error}"
        spec = self._tool_specs.get(call.name)
        if spec is None:
            return f"error: unknown tool {call.name[:64]}"
        try:
            arguments: dict[str, object] = dict(parse_arguments(spec, call.arguments))
        except BadArguments as error:
            return f"error: {error}"
        arguments.update(dict.fromkeys(spec.sandbox_parameters, turn.sandbox))
        arguments.update(dict.fromkeys(spec.turn_parameters, turn))
        try:
            result = getattr(self, spec.attribute)(**arguments)
            return _text(await result if inspect.isawaitable(result) else result)
        except JudgeUnavailable:
            raise  # An outage of the platform's side is no answer that a model should read.
        except ToolError as error:
            return f"error: {error}"
        except SandboxError as error:
            if error.reason in ("lost", "refused"):
                raise
            return f"error: {error}"
        except Exception as error:  # noqa: BLE001 - edge of user code; the model reads it
            return f"error: {type(error).__name__}: {error}"


def read_tasks(path: Path) -> Iterator[Task]:
    """Tasks of a JSONL file, one object a line; BadRecord names file and line of a bad one."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield task_from_json(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise BadRecord(f"{path.name}:{number}: {error}") from error


def _members(cls: type) -> dict[str, FunctionType]:
    """Functions of a class and its bases, in the order of declaration, overrides in place."""
    members: dict[str, FunctionType] = {}
    for base in reversed(cls.__mro__):
        members.update((k, v) for k, v in vars(base).items() if isinstance(v, FunctionType))
    return members


def _text(result: object) -> str:
    """A tool's result as text: bytes are decoded with replacement, other values become JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, (bytes, bytearray)):
        return bytes(result).decode("utf-8", errors="replace")
    return json.dumps(result, default=str)
