"""The client's closed words are those of the platform, and each is explained."""

from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest

from domain.schedule import Lane, NextGroup, RolloutStage, WaitReason
from venusrl.models import schedule

REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "schedule.md"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (Lane, schedule.Lane),
        (RolloutStage, schedule.Stage),
        (WaitReason, schedule.WaitReason),
        (NextGroup, schedule.NextGroupReason),
    ],
)
def test_the_client_knows_the_platforms_words(words: type[StrEnum], shown: Any) -> None:
    assert list(get_args(shown)) == [word.value for word in words]


def test_every_reason_and_lane_has_its_row_in_the_reference() -> None:
    text = REFERENCE.read_text()
    for word in (*WaitReason, *Lane):
        assert f"| `{word.value}` |" in text, word
    for word in NextGroup:
        assert f"`{word.value}`" in text, word
