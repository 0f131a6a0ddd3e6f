"""`venus env eval` against a real socket: what counts, what does not, and how it ends."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.integration.environments.helpers import CALC
from tests.support.chat_server import ChatServer, Completion, Script, chat_server, completion
from venusrl.cli.app import app
from venusrl.env.host import chat_wire


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_wire, "BACKOFF_MAX_S", 0.0)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    done = CliRunner().invoke(app, ["env", "init", "sums", "--in", str(tmp_path)])
    assert done.exit_code == 0
    return tmp_path / "sums"


def run(folder: Path, server: ChatServer | str, *options: str) -> Result:
    url = server if isinstance(server, str) else server.url
    words = ["env", "eval", str(folder), "--model", "m", "--base-url", url, "--plain", *options]
    return CliRunner().invoke(app, words)


def evaluated(folder: Path, script: Script, *options: str) -> dict[str, Any]:
    with chat_server(script) as server:
        done = run(folder, server, "--json", *options)
    assert done.exit_code == 0, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def answer_of(body: Mapping[str, Any]) -> int:
    left, right = re.findall(r"\d+", body["messages"][0]["content"])
    return int(left) + int(right)


def test_pass_at_k_and_shares_come_from_the_packages_own_rewards(sums: Path) -> None:
    def right_where_even(body: Mapping[str, Any], number: int) -> Completion:
        right = answer_of(body)
        return completion(str(right if right % 2 == 0 else -1))

    found = evaluated(sums, right_where_even, "-k", "4")
    assert (found["tasks"], found["rollouts"], found["scored"]) == (20, 80, 80)
    share = found["share_all"]
    assert 0 < share < 1
    assert found["share_none"] == pytest.approx(1 - share)
    assert found["pass_at"] == {k: pytest.approx(share) for k in ("1", "2", "4")}
    assert found["reward"]["mean"] == pytest.approx(share)
    assert found["reward"]["low"] < share < found["reward"]["high"]
    assert (found["prompt_tokens"], found["sampled_tokens"]) == (800, 400)
    assert found["ends"] == {"done": 80}


def test_tools_run_in_the_packages_own_loop() -> None:
    def with_the_tool(body: Mapping[str, Any], number: int) -> Completion:
        messages = body["messages"]
        assert body["tools"][0]["function"]["name"] == "calculator"
        terms = messages[0]["content"].split("+")
        done = [one["content"] for one in messages if one["role"] == "tool"]
        left = done[-1] if done else terms[0]
        rest = terms[1 + len(done) :]
        if not rest:
            return completion(left)
        assert len(done) == sum(one["role"] == "assistant" for one in messages)
        return completion("", ("calculator", json.dumps({"expression": f"{left}+{rest[0]}"})))

    found = evaluated(CALC, with_the_tool, "-k", "2", "--tasks", "6")
    assert found["pass_at"] == {"1": 1.0, "2": 1.0}
    assert found["metrics"]["n_calls"] >= 1
    assert found["tool_s"] > 0


def test_a_server_that_fails_in_passing_is_asked_again_with_the_key(
    sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")

    def flaky(body: Mapping[str, Any], number: int) -> Completion:
        return (503, "busy") if number % 2 == 0 else completion(str(answer_of(body)))

    with chat_server(flaky) as server:
        done = run(sums, server, "--json", "-k", "1", "--tasks", "4", "--at-once", "1",
                   "--key-variable", "MY_KEY")  # fmt: skip
    found = json.loads(done.stdout)
    assert (found["scored"], found["failed"]) == (4, {})
    assert set(server.keys) == {"Bearer sk-1"}


def test_a_failure_of_the_transport_is_never_a_reward_of_zero(sums: Path) -> None:
    broken: set[str] = set()

    def one_task_fails(body: Mapping[str, Any], number: int) -> Completion:
        text = body["messages"][0]["content"]
        broken.add(text) if not broken else None
        return (500, "no") if text in broken else completion(str(answer_of(body)))

    found = evaluated(sums, one_task_fails, "-k", "2", "--tasks", "5", "--at-once", "1")
    assert (found["rollouts"], found["scored"]) == (10, 8)
    assert found["failed"] == {"unreachable": 2}
    assert found["reward"]["mean"] == 1.0
    assert found["whole_tasks"] == 4


@pytest.mark.parametrize("body", ["{", '{"choices": []}', '{"choices": [{"message": null}]}', "[]"])
def test_an_answer_that_is_none_is_a_typed_failure(sums: Path, body: str) -> None:
    with chat_server(lambda asked, number: (200, body)) as server:
        done = run(sums, server, "--json", "-k", "1", "--tasks", "2")
    assert done.exit_code == 1
    assert json.loads(done.stderr.splitlines()[-1])["error"]["code"] == "bad_answer"


def test_a_wrong_key_ends_it_at_once_and_a_dead_server_is_unreachable(sums: Path) -> None:
    with chat_server(lambda asked, number: (401, "bad key")) as server:
        done = run(sums, server, "--json", "-k", "2", "--at-once", "1")
    assert done.exit_code == 1
    assert len(server.asked) == 1
    assert run(sums, server, "-k", "1", "--tasks", "1").exit_code == 3


def test_cut_answers_and_full_contexts_are_truncations(sums: Path) -> None:
    def limited(body: Mapping[str, Any], number: int) -> Completion:
        if number % 2:
            return 400, '{"error": {"code": "context_length_exceeded"}}'
        return completion(str(answer_of(body)), finish="length", tokens=None)

    found = evaluated(sums, limited, "-k", "1", "--tasks", "4", "--at-once", "1")
    assert found["truncated"] == 4
    assert found["ends"] == {"truncated": 2, "context_overflow": 2}
    assert found["sampled_tokens"] is None


def test_unscorable_rollouts_are_counted_by_reason_not_as_zero(sums: Path) -> None:
    source = (sums / "env.py").read_text().replace("return 1.0 if", "return None if")
    (sums / "env.py").write_text(source)
    found = evaluated(sums, lambda body, number: completion(str(answer_of(body))), "-k", "2")
    assert (found["scored"], found["unscorable"]) == (0, {"bad_type": 40})
    assert found["reward"] is None


def test_the_table_is_for_people(sums: Path) -> None:
    with chat_server(lambda body, number: completion(str(answer_of(body)))) as server:
        done = run(sums, server, "-k", "2", "--tasks", "3")
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines())
    assert lines["pass@2"] == "1.000"
    assert lines["tasks at 2/2"] == "100.0%"
    assert lines["failed"] == "none"


def test_without_a_url_that_is_usage(sums: Path) -> None:
    done = CliRunner().invoke(app, ["env", "eval", str(sums), "--model", "m"])
    assert done.exit_code == 2
    assert "--base-url" in done.stderr
