"""Whether an engine keeps a rollout's pages while its tool runs, by what it measured."""

import pytest

from domain.ids import RolloutId
from kv.rules import RANKED
from workers.rollout.embedded.admission import ANY_TOOL, Admission
from workers.rollout.embedded.pages.nodes import Namespace
from workers.rollout.embedded.pages.table import PageTable
from workers.rollout.embedded.pages.tree import EvictReason

ANN = Namespace("ann", "sha")
TOKENS = tuple(range(48))
GAP_S = 20.0
ROLLOUT = RolloutId("a")


def in_a_gap() -> PageTable:
    """Four pages, three of them of a rollout whose tool has just begun to run."""
    table = PageTable(4)
    lease = table.open(ROLLOUT, ANN, TOKENS, 0.0)
    assert table.grow(lease, len(TOKENS), EvictReason.PROMPT, 0.0)
    table.fill(lease, TOKENS, 0.0)
    table.close(lease, True, 0.0)
    return table


@pytest.mark.parametrize(
    ("page_s", "reload_s", "is_kept"),
    [
        (10.0, None, True),
        (0.001, None, False),
        (10.0, 0.001, False),
        (10.0, 9.0, True),
        (10.0, 11.0, True),
        (0.001, 11.0, False),
    ],
    ids=[
        "dear to compute", "cheap to compute", "cheap to reload", "dear either way",
        "a dear tier counts for nothing", "cheap to compute beside a dear tier",
    ],
)  # fmt: skip
def test_pages_stay_where_the_cheaper_way_back_is_dear(
    page_s: float, reload_s: float | None, is_kept: bool
) -> None:
    table = in_a_gap()
    admission = Admission(table, RANKED, slots=2, page_s=page_s, reload_s=reload_s)
    for _ in range(8):
        admission.gaps.add(ANY_TOOL, GAP_S)
    admission.decided(0.0, [], [], slots_free=2)
    assert table.tree.trajectories[ROLLOUT].is_low is not is_kept
