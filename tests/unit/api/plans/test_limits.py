"""Which places of a spec a what-if can change, and why not the others."""

from typing import Any, get_args

import pytest

from api.plans.limits import MODELLED, NO_EFFECT, leaves, too_large, unmodelled
from simulation.declared import KNOWN_ENGINES
from venusrl.models.plans import EngineName


def test_every_modelled_place_may_be_changed() -> None:
    for pointer in sorted(MODELLED):
        document: Any = 1
        for part in reversed(pointer.strip("/").split("/")):
            document = {part: document}
        assert unmodelled(document) == []


@pytest.mark.parametrize(
    ("pointer", "reason"),
    [
        ("/rollout/sampling/top_p", "other sampling"),
        ("/rollout/on_failure/tries", "no failing tries"),
        ("/name", NO_EFFECT),
        ("/scheduling", "name those that change"),
        ("/resources/rollout_gpus", "name its bounds"),
    ],
)
def test_the_longest_prefix_gives_the_reason(pointer: str, reason: str) -> None:
    document: Any = 1
    for part in reversed(pointer.strip("/").split("/")):
        document = {part: document}
    (finding,) = unmodelled(document)
    assert reason in finding.message


def test_a_mapping_without_entries_is_a_change_of_its_own() -> None:
    assert list(leaves({"a": {}, "b": {"c": 1}})) == ["/a", "/b/c"]


def test_only_beyond_the_limit_a_plan_is_too_large() -> None:
    assert too_large(50_000) == []
    assert len(too_large(50_001)) == 1


def test_the_api_names_the_engines_of_the_table() -> None:
    assert set(get_args(EngineName)) == set(KNOWN_ENGINES)
