"""Three turns whatever the model says; each appends its text to a file in the rollout's sandbox.

The reply is the number of lines so far, so that an effect that is lost or done twice shows in the
trajectory at once, and in the file at the end. The reward is near to a coin's toss over the text:
groups seldom agree, so that each one trains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from random import Random

from venusrl.env import (
    Environment,
    Json,
    JudgeClient,
    Message,
    Rollout,
    Sandbox,
    SandboxError,
    Task,
    Turn,
    Value,
    reward,
)

TURNS = 3
N_TASKS = 256

CODE = """
import json
def note(line):
    with open("diary.jsonl", "a", encoding="ascii") as diary:
        diary.write(line + "\\n")
    with open("diary.jsonl", encoding="ascii") as diary:
        print(f"{len(diary.readlines()):02d}")
"""


class Diary(Environment):
    """One diary."""

    def __init__(self, config: Mapping[str, Json], rng: Random, judge: JudgeClient) -> None:
        super().__init__(config, rng, judge)
        self.turns = 0

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterable[Task]:
        """Sums of two numbers, which nobody grades."""
        del config
        for number in range(N_TASKS):
            random = Random(f"{split}/{number}")
            prompt = f"{random.randint(0, 49):02d}+{random.randint(0, 49):02d}"
            yield Task(f"{split}-{number:04d}", (Message("user", prompt),), "")

    async def setup(self, task: Task, sandbox: Sandbox) -> None:
        """Put the writer into the sandbox."""
        await _run(sandbox, CODE)

    async def reply(self, turn: Turn) -> Sequence[Message] | None:
        """Write the line; answer with the number of lines until the last turn."""
        if turn.index != self.turns:
            raise ValueError(f"turn {turn.index} after {self.turns} turns")
        self.turns += 1
        line = json.dumps({"turn": turn.index, "text": turn.message.content})
        count = await _run(turn.sandbox, f"note({line!r})")
        if self.turns == TURNS:
            return None
        calls = turn.message.tool_calls
        if calls:
            return [Message("tool", count, tool_call_id=call.id) for call in calls]
        return [Message("user", count)]

    async def snapshot(self) -> Json:
        """How many turns were answered."""
        return self.turns

    async def restore(self, state: Json) -> None:
        """Go on after them."""
        assert isinstance(state, int)
        self.turns = state

    @reward(weight=1.0, timeout_s=10)
    async def coin(self, rollout: Rollout) -> Value:
        """One or zero, by what was said."""
        said = "".join(m.content for m in rollout.messages if m.role == "assistant")
        return float(sum(said.encode()) % 2)


async def _run(sandbox: Sandbox, source: str) -> str:
    result = await sandbox.python(source)
    if result.exit_code != 0:
        raise SandboxError("lost", result.stderr.decode(errors="replace"))
    return result.text.strip()
