"""Sums of two to four operands, with a tool that adds two numbers.

The prompt is `12+07+30`, the answer `49`. The tool runs in the rollout's own sandbox and appends
each call to `calls.jsonl` there, so that its effects can be compared with the trajectory.
"""

from __future__ import annotations

import re

from venusrl.env import (
    Environment,
    Rollout,
    Sandbox,
    SandboxError,
    Task,
    Value,
    metric,
    reward,
    tool,
)

EXPRESSION = re.compile(r"[0-9]{2,3}\+[0-9]{2,3}")
"""What the tool adds."""

ANSWER = re.compile(r"[0-9]{1,9}")
"""A final answer of good format: digits only."""

BAD_FORMAT = -0.2
"""Below a wrong answer, so that the model learns to end with an answer first."""

TOOL_CODE = """
import json
def add(expression):
    left, right = expression.split("+")
    result = f"{int(left) + int(right):02d}"
    with open("calls.jsonl", "a", encoding="ascii") as log:
        log.write(json.dumps({"expression": expression, "result": result}) + "\\n")
    return result
"""
"""Defined once in the sandbox's warm interpreter; a call then costs no new process."""


class Calc(Environment):
    """One sum."""

    async def setup(self, task: Task, sandbox: Sandbox) -> None:
        """Put the tool into the sandbox."""
        await run(sandbox, TOOL_CODE)

    @tool
    async def calculator(self, expression: str, sandbox: Sandbox) -> str:
        """Add two numbers.

        Args:
            expression: two numbers with a plus between them, for instance 12+07
        """
        if not EXPRESSION.fullmatch(expression):
            return ""
        return await run(sandbox, f"print(add({expression!r}))")

    @reward(weight=1.0, timeout_s=10)
    async def correct(self, rollout: Rollout) -> Value:
        """1 for the right sum, 0 for another number, less than 0 for anything else."""
        answer = final_answer(rollout)
        if answer is None:
            return BAD_FORMAT
        return 1.0 if answer == rollout.task.answer else 0.0

    @metric
    async def n_calls(self, rollout: Rollout) -> float:
        """How often the tool was called."""
        return float(sum(len(message.tool_calls) for message in rollout.messages))


async def run(sandbox: Sandbox, source: str) -> str:
    """What the source prints. It cannot fail in a healthy sandbox, so a failure loses the try."""
    result = await sandbox.python(source)
    if result.exit_code != 0:
        raise SandboxError("lost", result.stderr.decode(errors="replace"))
    return result.text.strip()


def final_answer(rollout: Rollout) -> str | None:
    """The answer of a last message that calls nothing and holds digits only."""
    last = rollout.messages[-1]
    if last.role != "assistant" or last.tool_calls or not ANSWER.fullmatch(last.content):
        return None
    return last.content
