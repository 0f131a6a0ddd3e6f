"""Migration beside prefill: what is timed really moved."""

from pathlib import Path

from benchmarks.engine import moves
from benchmarks.engine.models import LEAST
from workers.rollout.embedded.arena import PAGE_TOKENS


def test_whole_pages_of_every_context_move_by_both_ways(tmp_path: Path) -> None:
    found = moves.measure("least", LEAST, tmp_path, contexts=(64, 130), repeats=1)
    page_bytes = 2 * 4 * LEAST.key_width * PAGE_TOKENS * LEAST.num_hidden_layers
    # The last token of an answer has no keys yet, and what is no whole page stays.
    assert [one.moved_bytes for one in found] == [3 * page_bytes, 8 * page_bytes]
    assert [one.context for one in found] == [64, 130]
    assert {one.http_ms.count for one in found} == {1}
