"""A failing test in a small repository: find the bug with a shell and fix it.

The repository lies in the rollout's sandbox. Its two source files are taken from there at the end and
put into a fresh sandbox, where `grader/driver.py` calls them with the inputs of hidden tests. The
expected results never enter a sandbox: they are the task's answer and are compared here, so neither
weakened tests nor code that meddles with its own grading can pass.
"""

from __future__ import annotations

import json

from venusrl.env import (
    Environment,
    Json,
    Rollout,
    Sandbox,
    ToolError,
    Unscorable,
    Value,
    metric,
    reward,
    tool,
)

OUTPUT_CHARS_MAX = 4000
"""Of each command that the model reads; a flood would only push its own work out of the context."""

COMMAND_S = 20
"""A command that the model starts by mistake must not take the whole rollout."""

GRADING_S = 20
"""Longer than any right solution needs by far; a wrong one may not end."""

VISIBLE = "tests/test_app.py"

READY = "driver ready"
"""Said by the driver before any code of the agent runs: without it the grader is at fault."""

DRIVE = """
import os, subprocess, sys
driver = os.path.join(os.environ.get("VENUS_GRADER", "/grader"), "driver.py")
run = subprocess.run([sys.executable, "-I", "-S", driver, {task!r}], capture_output=True, text=True)
print(run.stdout)
"""


class Shell(Environment):
    """One repository with one bug."""

    @tool
    async def run(self, command: str, sandbox: Sandbox) -> str:
        """Run a shell command in the repository.

        Args:
            command: for instance: python3 -m unittest -q
        """
        result = await sandbox.exec(["sh", "-c", command], timeout_s=COMMAND_S)
        if result.timed_out:
            raise ToolError(f"the command did not end within {COMMAND_S} s")
        text = result.text + result.stderr.decode("utf-8", errors="replace")
        cut = len(text) - OUTPUT_CHARS_MAX
        if cut > 0:
            text = f"{text[:OUTPUT_CHARS_MAX]}\n[{cut} characters cut]"
        return f"{text.rstrip()}\n[exit {result.exit_code}]".lstrip()

    @tool
    async def write(self, path: str, content: str, sandbox: Sandbox) -> str:
        """Replace a file of the repository.

        Args:
            path: for instance: app/core.py
            content: the whole new content
        """
        await sandbox.write(path, content.encode())
        return f"{path} has {len(content.splitlines())} lines"

    @reward(weight=1.0, timeout_s=60)
    async def fixed(self, rollout: Rollout, grader: Sandbox) -> Value:
        """1 when every hidden test passes on the agent's source files, 0 otherwise."""
        result = await grader.python(DRIVE.format(task=rollout.task.id), timeout_s=GRADING_S)
        if result.timed_out:
            return 0.0
        ready, _, said = result.text.partition("\n")
        if ready != READY:
            return Unscorable("grader_broken", result.stderr.decode("utf-8", errors="replace"))
        return 1.0 if results_of(said) == rollout.task.answer else 0.0

    @metric
    async def tests_changed(self, rollout: Rollout) -> float:
        """1 when the agent changed the visible tests; shown, never trained on."""
        return float(rollout.artefacts.get(VISIBLE) != rollout.task.files[VISIBLE])

    @metric
    async def commands(self, rollout: Rollout) -> float:
        """How many tool calls the agent made."""
        return float(sum(len(message.tool_calls) for message in rollout.messages))


def results_of(said: str) -> Json:
    """The last line that the driver wrote, as plain values; None for anything else."""
    lines = said.strip().splitlines()
    try:
        results: Json = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return results
