"""What an engine counts, as Prometheus reads it."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from prometheus_client.parser import text_string_to_metric_families

from domain.engine import EngineStats
from domain.kv_stats import KvStats
from domain.kv_ticket import KvFailure, KvRefused
from tests.unit.workers.rollout.test_turn_queue import STATS
from workers.rollout.exposition import KV_COUNTERS, KV_GAUGES, Exposition
from workers.rollout.kv_transfer.transfer import KvTransfer

KV = KvStats(
    pages={"device": 32, "host": 64},
    hit_tokens={"low_ref": 5},
    recomputed_tokens=7,
    slot_wait_s={"critical": 1.5},
)


def samples(
    stats: EngineStats, moves: Callable[[], Mapping[str, float]] | None = None
) -> dict[str, float]:
    """By name and labels."""
    text = Exposition(lambda: stats, moves).text().decode()
    return {
        one.name + "".join(f"/{value}" for value in one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def test_gauges_counters_and_labels_come_as_they_are() -> None:
    found = samples(replace(STATS, active=3, sampled_tokens=11, busy_s=2.5, kv=KV))
    assert found["venus_engine_active"] == 3.0
    assert found["venus_engine_sampled_tokens_total"] == 11.0
    assert found["venus_engine_busy_seconds_total"] == 2.5
    assert found["venus_engine_kv_pages/device"] == 32.0
    assert found["venus_engine_kv_pages/host"] == 64.0
    assert found["venus_engine_kv_hit_tokens_total/low_ref"] == 5.0
    assert found["venus_engine_kv_recomputed_tokens_total"] == 7.0
    assert found["venus_engine_kv_slot_wait_seconds_total/critical"] == 1.5


def test_every_count_of_keys_is_shown() -> None:
    assert {one.name for one in fields(KvStats)} == KV_GAUGES.keys() | KV_COUNTERS.keys()


def test_rollouts_that_move_between_engines_are_shown_with_why_they_did_not() -> None:
    transfer = KvTransfer(lambda: 0.0)
    transfer.count_failure("fetch", KvRefused(KvFailure.LATE))
    transfer.counts.update(exports=2, exports_expired=1, imports=3, imported_bytes=4096)
    found = samples(STATS, transfer.figures)
    assert found["venus_engine_kv_exports_total"] == 2.0
    assert found["venus_engine_kv_exports_expired_total"] == 1.0
    assert found["venus_engine_kv_imports_total"] == 3.0
    assert found["venus_engine_kv_imported_bytes_total"] == 4096.0
    assert found["venus_engine_kv_exported_bytes_total"] == 0.0
    assert found["venus_engine_kv_move_failures_total/late/fetch"] == 1.0
    assert found["venus_engine_kv_move_failures_total/checksum/import"] == 0.0
    assert found["venus_engine_kv_export_bytes"] == 0.0


def test_an_engine_that_hands_nothing_over_shows_no_moves() -> None:
    assert not [name for name in samples(STATS) if "export" in name]


def test_the_text_is_of_the_moment_in_which_it_is_asked_for() -> None:
    now = [STATS]
    one = Exposition(lambda: now[0])
    before = one.text()
    now[0] = replace(STATS, active=STATS.active + 1)
    assert one.text() != before
