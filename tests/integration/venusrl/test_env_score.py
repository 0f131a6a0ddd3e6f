"""`venus env score`: what a job stored, through changed rewards, against a scripted API."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.integration.environments.helpers import write_package
from tests.support.scripted_api import Answer, Body, job_json, page, scripted_api
from venusrl.cli.app import app

CHANGED = """
class Env(Environment):
    @reward(weight=1.0)
    async def long(self, rollout):
        return float(len(rollout.answer_text) > 2)

    @reward(weight=0.5)
    async def kept(self, rollout):
        if "notes.txt" not in rollout.artefacts:
            return Unscorable("no_notes")
        return float(rollout.artefacts["notes.txt"])

    async def restore(self, state):
        assert state == {"n": 1}
"""

MANIFEST = 'sandbox = false\nartefacts = ["notes.txt", "more.txt"]\n'

SPEC = {
    "environments": [{"ref": "test@1", "split": "train", "config": {}}],
    "evaluation": {"split": "test"},
}


def stored(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"ro_{number}", "group_id": f"g_{number // 2}", "job_id": "job_1",
        "attempt_id": "att_1", "bucket": "trained",
        "index": number % 2, "purpose": "train", "task_id": "train-0", "current_try": 1, "hop": 1,
        "end": "done", "verdict": "scored", "reward": 1.0, "disposition": "trained", "turns": 1,
        "tokens": 5, "sampled_tokens": 3, "created_at": "2026-11-29T12:00:00Z",
        "components": {"rewards": {"long": 1.0}, "metrics": {}},
        **fields,
    }  # fmt: skip


def trajectory(number: int, answer: str, artefacts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "rollout_id": f"ro_{number}",
        "end": "done",
        "segments": [],
        "turns": [{}],
        "messages": [
            {"role": "user", "content": "train 0"},
            {"role": "assistant", "content": answer},
        ],
        "artefacts": {".venus/state.json": '{"n": 1}', **artefacts},
    }


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENUS_API_KEY", "vrl_test")


def scored(
    monkeypatch: pytest.MonkeyPatch, folder: Path, routes: Mapping[str, Body | Answer]
) -> tuple[int, dict[str, Any]]:
    listed = {"GET /v1/jobs/job_1": job_json(spec=SPEC), **routes}
    with scripted_api({route: [answer] for route, answer in listed.items()}) as api:
        monkeypatch.setenv("VENUS_API_URL", api.address)
        words = ["env", "score", str(folder), "--from", "job_1", "--plain", "--json"]
        done = CliRunner().invoke(app, words)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.exit_code, document


def test_old_and_new_values_stand_side_by_side(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_package(tmp_path, CHANGED, MANIFEST)
    unscorable = {"verdict": "unscorable", "reward": None, "unscorable_reason": "timeout"}
    status, found = scored(
        monkeypatch,
        tmp_path,
        {
            "GET /v1/jobs/job_1/rollouts": page(
                stored(0), stored(1), stored(2, **unscorable), stored(3, end=None)
            ),
            "GET /v1/rollouts/ro_0/trajectory": trajectory(0, "abc", {"notes.txt": "1"}),
            "GET /v1/rollouts/ro_1/trajectory": trajectory(1, "a", {"notes.txt": "0"}),
            "GET /v1/rollouts/ro_2/trajectory": trajectory(2, "abcd", {}),
        },
    )
    assert status == 0
    assert (found["rollouts"], found["graded"]) == (3, 3)
    by_name = {one["component"]: one for one in found["components"]}
    assert list(by_name) == ["long", "kept", "total"]
    assert by_name["long"]["old_mean"] == 1.0
    assert by_name["long"]["new_mean"] == pytest.approx(2 / 3)
    assert by_name["long"]["changed"] == 1
    assert by_name["kept"]["old_mean"] is None
    assert by_name["kept"]["new_unscorable"] == 1
    assert (by_name["total"]["old_unscorable"], by_name["total"]["new_unscorable"]) == (1, 1)
    assert by_name["total"]["new_mean"] == pytest.approx(0.75)
    assert [one["code"] for one in found["findings"]] == ["artefact_not_stored"]
    assert found["findings"][0]["subject"] == "more.txt"


def test_what_cannot_be_graded_is_a_typed_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_package(tmp_path, CHANGED, MANIFEST)
    gone = Answer({"status": 404, "code": "no_trajectory", "detail": "none"}, 404)
    status, found = scored(
        monkeypatch,
        tmp_path,
        {
            "GET /v1/jobs/job_1/rollouts": page(stored(0, task_id="other"), stored(1)),
            "GET /v1/rollouts/ro_1/trajectory": gone,
        },
    )
    assert status == 1
    assert found["graded"] == 0
    codes = [(one["code"], one["subject"]) for one in found["findings"]]
    assert codes == [("task_unknown", "ro_0"), ("no_trajectory", "ro_1")]
