"""`cases/*.jsonl` of a package: scripted turns with the verdict that they must get.

One object a line:
```
{"name": "right answer", "split": "test", "task": "test-0000",
 "turns": [{"tool_calls": [{"name": "calculator", "arguments": "{}"}], "replies": ["19"]},
           {"content": "$answer"}],
 "expect": {"end": "done", "total": 1.0, "components": {"correct": 1.0}}}
```
`$answer` stands for the task's answer. `replies` and every key of `expect` may be left out; an
expected value may be `{"unscorable": reason}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from venusrl.env.host.manifest import Finding
from venusrl.env.messages import Finish, Json, Message, Task, ToolCall
from venusrl.env.wire import BadRecord, as_record, list_field, record_field, text_field

ANSWER: Final = "$answer"
"""Content that stands for the task's answer."""

CASES_MAX: Final = 1000
"""A package's cases are examples; a benchmark belongs into its test split."""

TURNS_MAX: Final = 1000
"""No case is longer than the longest rollout."""


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One assistant message, and the contents that the environment must answer with."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    replies: tuple[str, ...] | None = None

    def message(self, task: Task) -> Message:
        """The assistant message, with the task's answer where the script asks for it."""
        answer = task.answer
        said = answer if isinstance(answer, str) else json.dumps(answer)
        return Message("assistant", self.content.replace(ANSWER, said), self.tool_calls)


@dataclass(frozen=True, slots=True)
class Case:
    """One scripted rollout; `file` and `line` say where it stands."""

    file: str
    line: int
    name: str
    split: str
    task: str
    turns: tuple[ScriptedTurn, ...]
    end: str | None = None
    expected: Mapping[str, Json] = field(default_factory=dict)

    def finding(self, pointer: str, message: str, hint: str = "") -> Finding:
        """A finding at this case."""
        return Finding(self.file, f"/{self.line}{pointer}", f"{self.name}: {message}", hint)


def read_cases(folder: Path) -> tuple[list[Case], list[Finding]]:
    """All cases of a package in order, and what is wrong with the unreadable ones."""
    cases: list[Case] = []
    findings: list[Finding] = []
    for path in sorted((folder / "cases").glob("*.jsonl")):
        name = f"cases/{path.name}"
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            if len(cases) >= CASES_MAX:
                return cases, [*findings, Finding(name, "", f"more than {CASES_MAX} cases")]
            try:
                cases.append(_case(name, number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                findings.append(Finding(name, f"/{number}", f"not a case: {error}"))
    return cases, findings


def case_record(
    name: str,
    of: tuple[str, Task],
    said: Sequence[Message],
    expect: Mapping[str, Json],
) -> Mapping[str, Json] | None:
    """What happened after a task's prompt as a line of a cases file; `of` is split and task.

    None where a script cannot say it: a call that could not be read, a first message that is not the
    assistant's, or a content with the word that stands for the answer.
    """
    split, task = of
    turns: list[dict[str, Json]] = []
    replies: list[list[str]] = []
    for message in said:
        if message.role != "assistant" and not turns:
            return None
        if message.role != "assistant":
            replies[-1].append(message.content)
            continue
        if ANSWER in message.content or any(call.error for call in message.tool_calls):
            return None
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        turns.append({"content": message.content, "tool_calls": calls})
        replies.append([])
    for turn, answered in zip(turns, replies, strict=True):
        turn["replies"] = answered
    return {"name": name, "split": split, "task": task.id, "turns": turns, "expect": expect}


def _case(file: str, line: int, value: Json) -> Case:
    record = as_record(value, "a case")
    turns = tuple(_turn(one) for one in list_field(record, "turns"))
    if not 0 < len(turns) <= TURNS_MAX:
        raise BadRecord(f"turns must hold 1 to {TURNS_MAX} entries")
    expect = record_field(record, "expect")
    unknown = sorted(set(expect) - {"end", "total", "components"})
    if unknown:
        raise BadRecord(f"unknown key expect.{unknown[0][:64]}")
    expected = dict(record_field(expect, "components"))
    if "total" in expect:
        expected["total"] = expect["total"]
    split = text_field(record, "split") if "split" in record else "train"
    name = text_field(record, "name") if "name" in record else f"case {line}"
    end = text_field(expect, "end") if "end" in expect else None
    return Case(file, line, name, split, text_field(record, "task"), turns, end, expected)


def _turn(value: Json) -> ScriptedTurn:
    record = as_record(value, "a turn")
    unknown = sorted(set(record) - {"content", "tool_calls", "finish", "replies"})
    if unknown:
        raise BadRecord(f"unknown key {unknown[0][:64]} of a turn")
    finish = record.get("finish", "stop")
    if finish not in ("stop", "length"):
        raise BadRecord("finish must be stop or length")
    calls = tuple(
        _call(number, as_record(one, "a tool call"))
        for number, one in enumerate(list_field(record, "tool_calls"))
    )
    replies = list_field(record, "replies")
    if not all(isinstance(one, str) for one in replies):
        raise BadRecord("replies must be text")
    return ScriptedTurn(
        content=text_field(record, "content") if "content" in record else "",
        tool_calls=calls,
        finish=finish,
        replies=tuple(cast("list[str]", replies)) if "replies" in record else None,
    )


def _call(number: int, record: Mapping[str, Json]) -> ToolCall:
    arguments = record.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(f"call_{number}", text_field(record, "name"), text)
