"""What an environment's author sees: messages, tool calls, tasks, turns, rollouts.

Plain values of the standard library only. The same types cross the wire between the node agent and
the environment process (`venusrl/env/wire.py`). Text here is for the environment: training reads
token ids, never this text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from venusrl.env.sandbox import Sandbox

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""What JSON can say."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""Who speaks."""

Finish: TypeAlias = Literal["stop", "length"]
"""Why a generation ended: by itself, or cut by its token limit."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asked for; `arguments` is its raw text, valid JSON or not.

    `error` says why the model's text is no whole call, for instance because it was cut: such a call
    is answered with the error and never run.
    """

    id: str
    name: str
    arguments: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the conversation; a tool's reply names the call that it answers."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str = ""
    """What a reasoning model wrote before its answer; never part of `content`."""


class NewHistory(tuple[Message, ...]):
    """`Environment.reply` may give this: from here on the model reads only these messages.

    For compaction and the like: `NewHistory([Message("user", summary)])`. The last message is not
    the assistant's, and a call among the messages is followed by its replies. Needs
    `rewrites_history = true` in `venus.toml`; training then sees one token sequence before the
    rewrite and another one after it.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Task:
    """One item of an environment. `answer` and `metadata` never enter the agent's sandbox."""

    id: str
    prompt: tuple[Message, ...]
    answer: Json = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """What `Environment.reply` answers: the newest assistant message and all that came before it.

    `index` counts from 0. Calls of `sandbox` are keyed to this turn, so each runs at most once.
    """

    index: int
    message: Message
    history: tuple[Message, ...]
    sandbox: Sandbox
    finish: Finish = "stop"


@dataclass(frozen=True, slots=True)
class Rollout:
    """A finished rollout as its grader sees it; `messages` starts with the task's prompt.

    `state` is the environment's last snapshot, `end` the word of the glossary for how it stopped;
    `artefacts` are the files listed in `venus.toml`, taken from the agent's sandbox at its end.
    """

    id: str
    index: int
    task: Task
    messages: tuple[Message, ...]
    end: str
    turns: int
    state: Json = None
    artefacts: Mapping[str, str] = field(default_factory=dict)

    @property
    def answer_text(self) -> str:
        """The content of the last assistant message, empty when there is none."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.content
        return ""
