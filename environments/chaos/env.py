"""An environment that breaks on demand: each fault by its name and rate in `config.faults`.

```
{"faults": {"crash": 0.1, "reward_nan": 1.0}, "seed": 7, "tasks": ["train-0003"], "turn": 0,
 "by_task": {"train-0004": {"hang": 0.5}}}
```
Without faults it is the sum task of `calc`. Whether a fault strikes a rollout depends on the seed,
the task and the rollout's own generator, so every try of one rollout meets the same faults.
`docs/reference/chaos-environment.md` says how each one must end.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, cast

from venusrl.env import (
    Environment,
    Json,
    JudgeClient,
    Message,
    Rollout,
    Sandbox,
    Task,
    Turn,
    Value,
    reward,
    tool,
)

TURN_FAULTS = (
    "crash",
    "sigkill",
    "hang",
    "spin",
    "raise",
    "exit",
    "bad_reply",
    "missing_reply",
    "context_overflow",
)
TOOL_FAULTS = ("huge_output", "raw_bytes", "tool_error", "tamper")
RESET_FAULTS = ("slow_reset", "hang_reset", "raise_reset")
REWARD_VALUES: Mapping[str, Any] = {
    "reward_nan": float("nan"),
    "reward_inf": float("inf"),
    "reward_none": None,
    "reward_bool": True,
    "reward_text": "abc",
    "reward_empty": "",
    "reward_huge": 1e308,
}
REWARD_FAULTS = ("grader_crash", "grader_sigkill", "grader_hang", "grader_spin", "grader_raise")
OTHER_FAULTS = ("empty_prompt", "bad_snapshot")
FAULTS = frozenset(
    (*TURN_FAULTS, *TOOL_FAULTS, *RESET_FAULTS, *REWARD_VALUES, *REWARD_FAULTS, *OTHER_FAULTS)
)
"""Every fault by name; an unknown name in the config is refused."""

HUGE_CHARS = 70_000
OVERFLOW_CHARS = 5_000
SLOW_RESET_S = 2.0
REWARD_TIMEOUT_S = 2.0
N_TASKS = 64
CHECK = "assert answer == expected\n"
"""What `tamper` overwrites in the sandbox; the reward never reads it."""


class Chaos(Environment):
    """The sum of two numbers, and trouble."""

    def __init__(self, config: Mapping[str, Json], rng: Random, judge: JudgeClient) -> None:
        super().__init__(config, rng, judge)
        named = {*_rates(config), *(f for rates in _by_task(config).values() for f in rates)}
        unknown = sorted(named - FAULTS)
        if unknown:
            raise ValueError(f"unknown fault {unknown[0]}")
        self._draw = f"{config.get('seed', 0)}/{rng.random()}"

    @classmethod
    def load(cls, split: str, config: Mapping[str, Json]) -> Iterable[Task]:
        """Sums of two numbers; some prompts empty where the config says so."""
        for number in range(cast(int, config.get("n_tasks", N_TASKS))):
            random = Random(f"{config.get('seed', 0)}/{split}/{number}")
            left, right = random.randint(0, 49), random.randint(0, 49)
            task_id = f"{split}-{number:04d}"
            prompt = f"{left:02d}+{right:02d}"
            if random.random() < _rate(config, task_id, "empty_prompt"):
                prompt = ""
            yield Task(task_id, (Message("user", prompt),), f"{left + right:02d}")

    async def setup(self, task: Task, sandbox: Sandbox) -> None:
        """Leave the file that an agent may tamper with."""
        if self._strikes("slow_reset"):
            await asyncio.sleep(cast(float, self.config.get("slow_reset_s", SLOW_RESET_S)))
        if self._strikes("hang_reset"):
            await asyncio.Event().wait()
        if self._strikes("raise_reset"):
            raise RuntimeError("chaos: reset failed")
        await sandbox.write("check.py", CHECK.encode())

    async def reply(self, turn: Turn) -> Sequence[Message] | None:
        """Break at the turn that the config names, else answer as usual."""
        if turn.index != self.config.get("turn", 0):
            return await super().reply(turn)
        for fault in TURN_FAULTS[:6]:
            if self._strikes(fault):
                await _end_badly(fault)
        if self._strikes("bad_reply"):
            return [Message("tool", "0", tool_call_id="no such call")]
        if self._strikes("missing_reply"):
            return []
        replies = await super().reply(turn)
        if self._strikes("context_overflow"):
            return [*(replies or []), Message("user", "0" * OVERFLOW_CHARS)]
        return replies

    async def snapshot(self) -> Json:
        """Nothing, or something that is not JSON."""
        return cast(Json, object()) if self._strikes("bad_snapshot") else None

    @tool
    async def calculator(self, expression: str, sandbox: Sandbox) -> bytes | str:
        """Add two numbers.

        Args:
            expression: two numbers with a plus between them, for instance 12+07
        """
        if self._strikes("huge_output"):
            return "0" * HUGE_CHARS
        if self._strikes("raw_bytes"):
            return b"\xf0\xff1"
        if self._strikes("tool_error"):
            raise ValueError("chaos: the tool failed")
        if self._strikes("tamper"):
            await sandbox.write("check.py", b"assert True\n")
        left, plus, right = expression.partition("+")
        if not (plus and left.isdigit() and right.isdigit()):
            return ""
        return f"{int(left) + int(right):02d}"

    @reward(weight=1.0, timeout_s=REWARD_TIMEOUT_S)
    async def correct(self, rollout: Rollout) -> Value:
        """1 for the right sum, -0.2 for what is not a number, or whatever fault strikes."""
        for fault, value in REWARD_VALUES.items():
            if self._strikes(fault):
                return cast(Value, value)
        for fault in REWARD_FAULTS:
            if self._strikes(fault):
                await _end_badly(fault.removeprefix("grader_"))
        if not rollout.answer_text.isdigit():
            return -0.2
        return 1.0 if rollout.answer_text == rollout.task.answer else 0.0

    def _strikes(self, fault: str) -> bool:
        rate = _rate(self.config, self.task.id, fault)
        return rate > 0.0 and Random(f"{self._draw}/{self.task.id}/{fault}").random() < rate


def _rates(config: Mapping[str, Json]) -> dict[str, float]:
    return dict(cast("Mapping[str, float]", config.get("faults", {})))


def _by_task(config: Mapping[str, Json]) -> Mapping[str, Mapping[str, float]]:
    return cast("Mapping[str, Mapping[str, float]]", config.get("by_task", {}))


def _rate(config: Mapping[str, Json], task_id: str, fault: str) -> float:
    """How often a fault strikes a task: what the task says itself, else what all say."""
    own = _by_task(config).get(task_id, {})
    chosen = cast("Sequence[str]", config.get("tasks", ()))
    is_chosen = not chosen or task_id in chosen
    return own.get(fault, _rates(config).get(fault, 0.0) if is_chosen else 0.0)


async def _end_badly(fault: str) -> None:
    """Do what the fault's name says; only `raise` leaves the process as it was."""
    match fault:
        case "crash":
            os._exit(3)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            await asyncio.Event().wait()
        case "spin":
            while True:
                pass
        case "exit":
            raise SystemExit(4)
        case "raise":
            raise RuntimeError("chaos: raised")
