"""The scripted engine is a test's, and only where failpoints are allowed."""

from pathlib import Path

import pytest

from infra.settings import BadSettingError
from workers.rollout.seams import scripted_engine


def test_without_a_variable_there_is_no_script() -> None:
    assert scripted_engine({}) is None
    assert scripted_engine({"VENUS_ENGINE": "embedded"}) is None


def test_the_script_counts_only_where_failpoints_are_allowed() -> None:
    named = {"VENUS_ENGINE": "scripted", "VENUS_ENGINE_SCRIPT": "/s.json"}
    with pytest.raises(BadSettingError):
        scripted_engine(named)
    assert scripted_engine(named | {"VENUS_ALLOW_FAILPOINTS": "1"}) == Path("/s.json")


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(BadSettingError):
        scripted_engine({"VENUS_ENGINE": "other"})
