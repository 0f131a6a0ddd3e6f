"""Gaps by tool, with a bound on what a model may make up."""

from venusrl.env.messages import Message, ToolCall
from workers.models.chat import ParsedAnswer
from workers.rollout.gaps import KINDS_MAX, ToolGaps


def calling(*names: str) -> ParsedAnswer:
    calls = tuple(ToolCall(f"call_{n}", name, "{}") for n, name in enumerate(names))
    return ParsedAnswer(Message("assistant", "", calls))


def test_a_tools_own_history_speaks_once_it_is_long_enough() -> None:
    gaps = ToolGaps()
    assert gaps.expected_s(calling("slow")) == 0.0
    for _ in range(8):
        gaps.add(calling("slow", "slow"), 10.0)
        gaps.add(calling("fast"), 1.0)
    assert gaps.expected_s(calling("slow")) == 10.0
    assert gaps.expected_s(calling("fast")) == 1.0
    assert gaps.expected_s(calling("fast", "slow")) == 5.5


def test_names_that_a_model_makes_up_take_no_more_room() -> None:
    gaps = ToolGaps()
    for number in range(10 * KINDS_MAX):
        gaps.add(calling(f"tool_{number}"), 1.0)
    assert len(gaps._history.by_kind) == KINDS_MAX + 1
