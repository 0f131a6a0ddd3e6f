"""Grading in children: a broken reward is unscorable with its cause, and nothing else suffers."""

import asyncio
from pathlib import Path

from tests.integration.environments.helpers import CALC, TASK, rollout_of, running, running_source
from tests.support.requirements import requires
from tests.support.sandbox_port import RecordingPort
from venusrl.env._runner.grading import CHILDREN_MAX
from venusrl.env.host.ports import GRADING_TURN, EnvironmentFault
from venusrl.env.messages import Message, Task
from venusrl.env.sandbox import CallKey, SandboxError
from venusrl.env.values import Unscorable, Value

pytestmark = requires("bwrap")

PROMPT = (Message("user", "go"),)


def group(*names: str) -> list[Task]:
    return [Task(name, PROMPT) for name in names]


async def totals(
    tmp_path: Path, body: str, *names: str, port: RecordingPort | None = None
) -> list[Value]:
    """Totals of one rollout a task id, under a class with this body."""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    async with running_source(tmp_path, f"class Env(Environment):\n{lines}") as environment:
        rollouts = [rollout_of("a", index, task) for index, task in enumerate(group(*names))]
        grades = await environment.grade(rollouts, 0, port)
        assert environment.fault is None
        assert [grade.rollout for grade in grades] == [rollout.id for rollout in rollouts]
    return [grade.total for grade in grades]


def reasons(values: list[Value]) -> list[str | float]:
    return [value.reason if isinstance(value, Unscorable) else value for value in values]


async def test_calc_scores_right_wrong_and_bad_format() -> None:
    async with running(CALC) as environment:
        rollouts = [rollout_of(text, index) for index, text in enumerate(("19", "18", "x"))]
        grades = await environment.grade(rollouts, 0, None)
    assert [grade.total for grade in grades] == [1.0, 0.0, -0.2]
    assert grades[0].components == {"correct": 1.0}
    assert grades[0].metrics == {"n_calls": 0.0}


async def test_an_author_says_unscorable_by_returning_or_raising_it(tmp_path: Path) -> None:
    body = """
@reward()
async def score(self, rollout):
    from venusrl.env import Unscorable
    if rollout.task.id == "returned":
        return Unscorable("no_screenshot", "page 3")
    raise Unscorable("no_screenshot", "page 3")
"""
    expected = Unscorable("no_screenshot", "page 3")
    assert await totals(tmp_path, body, "returned", "raised") == [expected, expected]


async def test_degenerate_rewards_are_unscorable_and_a_real_zero_stays_zero(
    tmp_path: Path,
) -> None:
    body = """
VALUES = {"nan": float("nan"), "inf": float("inf"), "none": None, "bool": True, "text": "abc",
          "empty": "", "huge": 1e308, "zero": 0}
@reward()
async def score(self, rollout):
    return self.VALUES[rollout.task.id]
"""
    names = ("nan", "inf", "none", "bool", "text", "empty", "huge", "zero")
    assert reasons(await totals(tmp_path, body, *names)) == [
        "not_finite", "not_finite", "bad_type", "bad_type", "bad_type", "bad_type",
        "out_of_range", 0.0,
    ]  # fmt: skip


async def test_a_reward_that_ends_its_process_harms_no_other(tmp_path: Path) -> None:
    body = """
@reward(timeout_s=5)
async def score(self, rollout):
    if self.task.id == "exit":
        os._exit(3)
    if self.task.id == "kill":
        os.kill(os.getpid(), 9)
    await asyncio.sleep(0.05)
    return 0.5
"""
    found = await totals(tmp_path, body, "good", "exit", "kill", "fine")
    assert reasons(found) == [0.5, "grader_crashed", "grader_crashed", 0.5]


async def test_rewards_that_hang_or_spin_time_out_alone(tmp_path: Path) -> None:
    body = """
@reward(timeout_s=1)
async def score(self, rollout):
    if self.task.id == "hang":
        await asyncio.Event().wait()
    while self.task.id == "spin":
        pass
    return 1.0
"""
    assert reasons(await totals(tmp_path, body, "spin", "hang", "good")) == [
        "timeout",
        "timeout",
        1.0,
    ]


async def test_a_reward_that_dies_is_no_timeout_however_long_it_stood_behind_others(
    tmp_path: Path,
) -> None:
    body = """
@reward(timeout_s=0.3)
async def score(self, rollout):
    if rollout.task.id == "dies":
        os._exit(3)
    while True: pass
"""
    spinning = ["spins"] * CHILDREN_MAX
    values = await totals(tmp_path, body, *spinning, "dies")
    assert reasons(values) == ["timeout"] * CHILDREN_MAX + ["grader_crashed"]


async def test_what_a_reward_raises_is_its_reason(tmp_path: Path) -> None:
    body = """
@reward()
async def score(self, rollout):
    if self.task.id == "exit":
        raise SystemExit(1)
    raise ValueError("no verdict file")
"""
    first, second = await totals(tmp_path, body, "raise", "exit")
    assert isinstance(first, Unscorable)
    assert first.reason == "raised"
    assert "no verdict file" in first.detail
    assert isinstance(second, Unscorable)


async def test_a_reward_cannot_change_later_verdicts(tmp_path: Path) -> None:
    body = """
@reward()
async def score(self, rollout):
    async def cheat(self, rollout):
        return 1.0
    Env.score = cheat
    return 0.0
"""
    source = "class Env(Environment):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    async with running_source(tmp_path, source) as environment:
        for _ in range(2):
            (grade,) = await environment.grade([rollout_of("a")], 0, None)
            assert grade.total == 0.0


async def test_group_rewards_see_the_group_and_metrics_decide_nothing(tmp_path: Path) -> None:
    body = """
@reward(weight=1.0)
def right(self, rollout):
    return 1.0
@group_reward(weight=0.5)
async def rank(self, rollouts):
    return [float(rollout.index) for rollout in rollouts]
@metric
async def broken(self, rollout):
    return float("nan")
@metric
async def length(self, rollout):
    return len(rollout.messages)
"""
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    async with running_source(tmp_path, f"class Env(Environment):\n{lines}") as environment:
        rollouts = [rollout_of("a", index) for index in range(3)]
        grades = await environment.grade(rollouts, 0, None)
    assert [grade.total for grade in grades] == [1.0, 1.5, 2.0]
    assert [dict(grade.metrics) for grade in grades] == [{"length": 2.0}] * 3


async def test_a_group_reward_of_wrong_length_leaves_the_group_unscorable(tmp_path: Path) -> None:
    body = """
@group_reward()
async def rank(self, rollouts):
    return [1.0]
"""
    assert reasons(await totals(tmp_path, body, "a", "b")) == ["bad_length", "bad_length"]


async def test_rewards_see_the_last_snapshot(tmp_path: Path) -> None:
    source = """
class Env(Environment):
    seen = -1.0
    async def restore(self, state):
        self.seen = state["n"]
    @reward()
    async def score(self, rollout):
        return self.seen
"""
    rollout = rollout_of("a")
    async with running_source(tmp_path, source) as environment:
        with_state = type(rollout)(
            rollout.id, 0, TASK, rollout.messages, "done", 1, state={"n": 3.0}
        )
        (grade,) = await environment.grade([with_state], 0, None)
    assert grade.total == 3.0


GRADED_IN_SANDBOX = """
@reward(timeout_s=5)
async def score(self, rollout, grader: Sandbox):
    await grader.write("answer", b"a")
    return float(len(await grader.read("answer")))
"""


async def test_a_grading_sandbox_is_reached_from_a_reward(tmp_path: Path) -> None:
    port = RecordingPort()
    found = await totals(tmp_path, GRADED_IN_SANDBOX, "a", "b", port=port)
    assert found == [1.0, 1.0]
    assert set(port.keys) == {
        CallKey(rollout, 0, GRADING_TURN, ordinal)
        for rollout in ("ro_0", "ro_1")
        for ordinal in (0, 1)
    }


async def test_a_lost_grading_sandbox_is_never_a_zero(tmp_path: Path) -> None:
    port = RecordingPort()
    port.failure = SandboxError("lost", "out of memory")
    found = await totals(tmp_path, GRADED_IN_SANDBOX, "a", port=port)
    assert reasons(found) == ["grader_lost"]


async def test_many_groups_are_graded_side_by_side() -> None:
    async with running(CALC) as environment:
        groups = [[rollout_of("19", index) for index in range(8)] for _ in range(12)]
        graded = await asyncio.gather(*(environment.grade(one, 0, None) for one in groups))
        assert all(grade.total == 1.0 for grades in graded for grade in grades)
        fault: EnvironmentFault | None = environment.fault
        assert fault is None
