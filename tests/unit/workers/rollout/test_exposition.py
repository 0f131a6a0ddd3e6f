"""What an engine counts, as Prometheus reads it."""

from dataclasses import fields, replace

from prometheus_client.parser import text_string_to_metric_families

from domain.engine import EngineStats
from domain.kv_stats import KvStats
from tests.unit.workers.rollout.test_turn_queue import STATS
from workers.rollout.exposition import KV_COUNTERS, KV_GAUGES, Exposition

KV = KvStats(
    pages={"device": 32, "host": 64},
    hit_tokens={"low_ref": 5},
    recomputed_tokens=7,
    slot_wait_s={"critical": 1.5},
)


def samples(stats: EngineStats) -> dict[str, float]:
    """By name and labels."""
    text = Exposition(lambda: stats).text().decode()
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


def test_the_text_is_of_the_moment_in_which_it_is_asked_for() -> None:
    now = [STATS]
    one = Exposition(lambda: now[0])
    before = one.text()
    now[0] = replace(STATS, active=STATS.active + 1)
    assert one.text() != before
