"""Rewards that ask a judge: metered, and never a zero when it gives no answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.integration.environments.helpers import write_package
from tests.support.chat_server import ChatServer, chat_server, completion
from venusrl.cli.app import app
from venusrl.env.host import chat_wire

ASKING = """
class Env(Environment):
    @reward()
    async def liked(self, rollout):
        said = await self.judge.ask(f"Is this good? {rollout.answer_text}")
        return float(said == "yes") + 0 * self.judge.tokens

    @metric
    async def cost(self, rollout):
        await self.judge.ask("again")
        return self.judge.tokens
"""

SWALLOWING = """
class Env(Environment):
    @reward()
    async def liked(self, rollout):
        try:
            return float(await self.judge.ask("?") == "yes")
        except Exception:
            return 0.0
"""

ENDLESS = """
class Env(Environment):
    @reward()
    async def liked(self, rollout):
        while True:
            await self.judge.ask("?")
"""

IN_A_TOOL = """
class Env(Environment):
    @tool
    async def opinion(self) -> str:
        return await self.judge.ask("?")
    @reward()
    async def liked(self, rollout):
        return 1.0
"""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_wire, "BACKOFF_MAX_S", 0.0)


def evaluated(
    folder: Path, source: str, judge: ChatServer | None, *calls: tuple[str, str]
) -> tuple[int, dict[str, Any]]:
    """Status and document of one rollout of two tasks each, whose model makes these calls."""
    write_package(folder, source, "sandbox = false\n")
    asks = () if judge is None else ("--judge-url", judge.url, "--judge-model", "j")
    with chat_server(lambda body, number: completion("fine", *calls)) as model:
        words = ["env", "eval", str(folder), "--model", "m", "--base-url", model.url]
        words += ["-k", "1", "--tasks", "2", "--plain", "--json", *asks]
        done = CliRunner().invoke(app, words)
    text = done.stdout if done.exit_code == 0 else done.stderr.splitlines()[-1]
    document: dict[str, Any] = json.loads(text)
    return done.exit_code, document


def test_answers_decide_and_calls_and_tokens_are_counted(tmp_path: Path) -> None:
    with chat_server(lambda body, number: completion("yes")) as judge:
        _, found = evaluated(tmp_path, ASKING, judge)
    assert found["reward"]["mean"] == 1.0
    assert found["metrics"] == {"cost": 15.0}
    assert found["judge"] == {
        "calls": 4, "failed": 0, "prompt_tokens": 40, "sampled_tokens": 20,
    }  # fmt: skip
    questions = {body["messages"][0]["content"] for body in judge.asked}
    assert questions == {"Is this good? fine", "again"}


@pytest.mark.parametrize("source", [ASKING, SWALLOWING])
def test_without_a_judge_rewards_are_unscorable_with_a_typed_reason(
    tmp_path: Path, source: str
) -> None:
    _, found = evaluated(tmp_path, source, None)
    assert (found["scored"], found["unscorable"]) == (0, {"judge_not_configured": 2})


@pytest.mark.parametrize(
    ("status", "reason"), [(500, "judge_unreachable"), (400, "judge_refused"), (200, "judge_bad_answer")]
)  # fmt: skip
def test_a_judge_that_fails_is_never_a_zero(tmp_path: Path, status: int, reason: str) -> None:
    with chat_server(lambda body, number: (status, "{}")) as judge:
        _, found = evaluated(tmp_path, SWALLOWING, judge)
    assert (found["scored"], found["unscorable"]) == (0, {reason: 2})
    assert found["judge"]["failed"] == 2


def test_a_loop_of_questions_ends_at_its_limit(tmp_path: Path) -> None:
    with chat_server(lambda body, number: completion("yes")) as judge:
        _, found = evaluated(tmp_path, ENDLESS, judge)
    assert found["unscorable"] == {"judge_exhausted": 2}
    assert found["judge"]["calls"] == 128


def test_a_judge_that_fails_in_a_turn_is_no_tool_result(tmp_path: Path) -> None:
    status, found = evaluated(tmp_path, IN_A_TOOL, None, ("opinion", "{}"))
    assert status == 1
    assert "judge" in found["error"]["detail"]
