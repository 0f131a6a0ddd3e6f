"""Each fault of the chaos environment ends as `docs/reference/chaos-environment.md` says."""

from typing import Any

import pytest

from tests.integration.environments.helpers import (
    ADD,
    CHAOS,
    opened,
    rollout_of,
    running,
)
from tests.support.requirements import requires
from tests.support.sandbox_port import RecordingPort
from venusrl.env.host.ports import EnvironmentFault, EnvironmentProcess, Observation
from venusrl.env.messages import Message, ToolCall
from venusrl.env.values import Unscorable

pytestmark = requires("bwrap")


def faults(name: str, **more: Any) -> dict[str, Any]:
    return {"faults": {name: 1.0}, **more}


async def caused(config: dict[str, Any], *, alive: bool, **limits: float) -> str:
    """The cause of the fault that ends the first turn; whether the process outlives it."""
    async with running(CHAOS, config, None, **limits) as environment:
        with pytest.raises(EnvironmentFault) as caught:
            await first_turn(environment)
        assert (environment.fault is None) == alive
    return caught.value.cause


async def first_turn(environment: EnvironmentProcess) -> Observation:
    """Setup and the reply to a tool call."""
    key = await opened(environment)
    return await environment.reply(key, 0, ADD)


@pytest.mark.parametrize(
    ("fault", "cause", "alive"),
    [
        ("crash", "process_exited", False),
        ("sigkill", "process_killed", False),
        ("hang", "call_timeout", True),
        ("spin", "loop_blocked", False),
        ("raise", "raised", True),
        ("exit", "raised", True),
        ("bad_reply", "bad_reply", True),
        ("missing_reply", "bad_reply", True),
        ("bad_snapshot", "bad_state", True),
        ("hang_reset", "call_timeout", True),
        ("raise_reset", "raised", True),
    ],
)
async def test_a_broken_turn_has_its_cause(fault: str, cause: str, alive: bool) -> None:
    limits = {"reply_s": 1.0, "setup_s": 1.0, "blocked_s": 2.5}
    assert await caused(faults(fault), alive=alive, **limits) == cause


async def test_a_slow_reset_within_its_limit_is_no_fault() -> None:
    async with running(CHAOS, faults("slow_reset", slow_reset_s=0.2)) as environment:
        key = await opened(environment)
        assert (await environment.reply(key, 0, ADD)).messages


async def test_huge_output_reaches_the_host_whole() -> None:
    async with running(CHAOS, faults("huge_output")) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, ADD)
    assert seen.messages is not None
    assert len(seen.messages[0].content) == 70_000


async def test_raw_bytes_are_replaced() -> None:
    async with running(CHAOS, faults("raw_bytes")) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, ADD)
    assert seen.messages == (Message("tool", "\ufffd\ufffd1", tool_call_id="c1"),)


async def test_a_broken_tool_is_told_to_the_model() -> None:
    async with running(CHAOS, faults("tool_error")) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, ADD)
    assert seen.messages is not None
    assert seen.messages[0].content == "error: ValueError: chaos: the tool failed"


async def test_malformed_calls_are_answered_under_their_ids() -> None:
    calls = tuple(
        ToolCall(f"c{number}", "calculator", text)
        for number, text in enumerate(('{"a":1,,}', '{"expression": "12', "", "{}"))
    )
    async with running(CHAOS) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, Message("assistant", "", calls))
    assert seen.messages is not None
    assert [one.tool_call_id for one in seen.messages] == [call.id for call in calls]
    assert all(one.content.startswith("error: ") for one in seen.messages)


async def test_context_overflow_is_left_to_the_host() -> None:
    async with running(CHAOS, faults("context_overflow")) as environment:
        key = await opened(environment)
        seen = await environment.reply(key, 0, ADD)
    assert seen.messages is not None
    assert len(seen.messages[-1].content) == 5_000


async def test_an_empty_prompt_never_reaches_an_engine() -> None:
    async with running(CHAOS, faults("empty_prompt")) as environment:
        (task, *_) = await environment.load("train")
        with pytest.raises(EnvironmentFault) as caught:
            await opened(environment, task=task)
    assert caught.value.cause == "empty_prompt"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("reward_nan", "not_finite"),
        ("reward_inf", "not_finite"),
        ("reward_none", "bad_type"),
        ("reward_bool", "bad_type"),
        ("reward_text", "bad_type"),
        ("reward_empty", "bad_type"),
        ("reward_huge", "out_of_range"),
        ("grader_crash", "grader_crashed"),
        ("grader_sigkill", "grader_crashed"),
        ("grader_hang", "timeout"),
        ("grader_spin", "timeout"),
        ("grader_raise", "raised"),
    ],
)
async def test_a_broken_reward_is_unscorable_never_zero(fault: str, reason: str) -> None:
    async with running(CHAOS, faults(fault)) as environment:
        (grade,) = await environment.grade([rollout_of("19")], 0, None)
        assert environment.fault is None
    assert isinstance(grade.total, Unscorable)
    assert grade.total.reason == reason


async def test_tampering_with_the_check_in_the_sandbox_wins_nothing() -> None:
    async with running(CHAOS, faults("tamper")) as environment:
        port = RecordingPort()
        key = await opened(environment, port)
        assert port.files["check.py"] != b"assert True\n"
        await environment.reply(key, 0, ADD)
        assert port.files["check.py"] == b"assert True\n"
        (grade,) = await environment.grade([rollout_of("18")], 0, None)
    assert grade.total == 0.0


async def test_a_rate_strikes_some_rollouts_and_the_same_at_each_try() -> None:
    config = {"faults": {"reward_none": 0.5}}
    async with running(CHAOS, config) as environment:
        rollouts = [rollout_of("19", index) for index in range(8)]
        struck = []
        for seed in range(20):
            first = await environment.grade(rollouts[:1], seed, None)
            again = await environment.grade(rollouts[:1], seed, None)
            assert first == again
            struck.append(isinstance(first[0].total, Unscorable))
        assert 0 < sum(struck) < 20
        together = await environment.grade(rollouts, 1, None)
    assert 0 < sum(isinstance(grade.total, Unscorable) for grade in together) < 8


async def test_faults_keep_to_the_chosen_tasks() -> None:
    config = faults("raise", tasks=["other"])
    async with running(CHAOS, config) as environment:
        key = await opened(environment)
        assert (await environment.reply(key, 0, ADD)).messages


async def test_an_unknown_fault_is_refused() -> None:
    async with running(CHAOS, faults("crush")) as environment:
        with pytest.raises(EnvironmentFault, match="unknown fault crush"):
            await opened(environment)
