"""The scripted engine is a test's, and only where failpoints are allowed."""

from pathlib import Path

import pytest

from domain.ids import AttemptId
from infra.settings import BadSettingError
from workers.rollout.seams import scripted_engine

ATTEMPT = AttemptId("att_1")


def test_without_a_variable_there_is_no_script() -> None:
    assert scripted_engine(ATTEMPT, {}) is None
    assert scripted_engine(ATTEMPT, {"VENUS_ENGINE": "embedded"}) is None


def test_the_script_counts_only_where_failpoints_are_allowed() -> None:
    named = {"VENUS_ENGINE": "scripted", "VENUS_ENGINE_SCRIPT": "/s.json"}
    with pytest.raises(BadSettingError):
        scripted_engine(ATTEMPT, named)
    assert scripted_engine(ATTEMPT, named | {"VENUS_ALLOW_FAILPOINTS": "1"}) == Path("/s.json")


def test_a_folder_holds_a_script_for_some_attempts(tmp_path: Path) -> None:
    named = {
        "VENUS_ENGINE": "scripted",
        "VENUS_ENGINE_SCRIPT": str(tmp_path),
        "VENUS_ALLOW_FAILPOINTS": "1",
    }
    own = tmp_path / f"{ATTEMPT}.json"
    own.touch()
    assert scripted_engine(ATTEMPT, named) == own
    assert scripted_engine(AttemptId("att_2"), named) is None


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(BadSettingError):
        scripted_engine(ATTEMPT, {"VENUS_ENGINE": "other"})
