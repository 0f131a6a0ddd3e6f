"""What an engine counts, in the text format of Prometheus; read when somebody asks, kept nowhere.

No label says whose rollouts they are: whoever may scrape a host learns how full it is and nothing else.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from domain.engine import EngineStats
from domain.kv_ticket import KvFailure

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

PREFIX: Final = "venus_engine_"

GAUGES: Final = {
    "slots": "Sequences that may run at once.",
    "active": "Sequences that run.",
    "waiting": "Turns that wait for a slot.",
    "paused": "Whether no sequence is decoded now, for an update of weights.",
    "version": "Policy version in use; -1 before the first.",
    "retained_rollouts": "Rollouts whose keys are kept and of which no turn has started.",
}

COUNTERS: Final = {
    "steps": "Decode steps.",
    "sampled_tokens": "Tokens sampled.",
    "prefilled_tokens": "Prompt tokens computed.",
    "cached_tokens": "Prompt tokens that were found.",
    "finished": "Turns that ended by themselves or at their limit.",
    "aborted": "Turns that were ended.",
    "refused": "Requests that were refused.",
    "preemptions": "Turns that lost their slot to a better one.",
    "weight_updates": "Updates of weights that a probe confirmed.",
    "sync_failures": "Updates of weights that failed.",
    "busy_s": "Seconds of computing.",
    "engaged_s": "Seconds with turns in slots.",
    "prefill_s": "Seconds of computing prompts.",
    "attended_tokens": "Tokens that prefilled tokens attended to.",
    "kv_read_tokens": "Contexts of decoding turns, summed over the steps.",
}

KV_GAUGES: Final = {
    "pages": ("tier", "Pages of the tier."),
    "used_pages": ("tier", "Pages of the tier that hold keys."),
    "locked_pages": ("", "Pages of running turns."),
}

KV_COUNTERS: Final = {
    "hit_tokens": ("class", "Tokens found on the device or brought back."),
    "recomputed_tokens": ("", "Prefilled tokens whose keys had been here before."),
    "restored_tokens": ("", "Tokens that turns got back after they had lost their slot."),
    "evicted_pages": ("reason", "Pages that left the device, by what room was made for."),
    "evicted_classes": ("class", "The same pages by class."),
    "left_pages": ("to", "Where pages went that left the device."),
    "moved_bytes": ("way", "Bytes between tiers."),
    "fetch_failures": ("cause", "Pages that did not come back from an outer tier."),
    "store_failures": ("", "Pages that an outer tier could not take."),
    "retractions": ("", "Turns that lost their slot because pages ran out."),
    "slot_starts": ("class", "Slots given."),
    "slot_wait_s": ("class", "Seconds waited for them."),
}
"""By the name of the field: its label, empty for none, and what it is. Label sets are closed."""

MOVED: Final = {
    "exports": "Departures for which a copy of pages was kept.",
    "exports_expired": "Copies that nobody fetched in time.",
    "exported_tokens": "Tokens in these copies.",
    "exported_bytes": "Bytes of these copies.",
    "imports": "Arrivals whose pages were taken in.",
    "imported_tokens": "Tokens of arrivals that were new here.",
    "imported_bytes": "Bytes of their pages.",
}
"""Of rollouts that move between engines, by the names of `KvTransfer.figures` behind `kv_`."""

MOVE_WAYS: Final = ("export", "fetch", "import")
"""Where a move can fail: keeping a copy, reading it, taking its pages in."""


class Exposition(Collector):
    """Of one engine."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        moves: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        """`moves` gives the figures of what is handed over between engines, where that is done."""
        self._stats = stats
        self._moves = moves
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Everything as of now."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Asked by the registry."""
        stats = self._stats()
        for name, text in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, float(getattr(stats, name)))
        for name, text in COUNTERS.items():
            yield CounterMetricFamily(PREFIX + _spelled(name), text, float(getattr(stats, name)))
        for kind, names in ((GaugeMetricFamily, KV_GAUGES), (CounterMetricFamily, KV_COUNTERS)):
            for name, (label, text) in names.items():
                full = f"{PREFIX}kv_{_spelled(name)}"
                family = kind(full, text, labels=[label] if label else [])
                for which, value in _values(getattr(stats.kv, name)).items():
                    family.add_metric([which] if label else [], float(value))
                yield family
        if self._moves is not None:
            yield from _moved(self._moves())


def _moved(figures: Mapping[str, float]) -> Iterable[Metric]:
    """All of them from the start on: what has not happened is 0."""
    for name, text in MOVED.items():
        yield CounterMetricFamily(f"{PREFIX}kv_{name}", text, figures.get(f"kv_{name}", 0.0))
    held = figures.get("kv_export_bytes", 0.0)
    yield GaugeMetricFamily(f"{PREFIX}kv_export_bytes", "Bytes of copies that are kept now.", held)
    text = "Pages that were not handed over and are computed anew."
    family = CounterMetricFamily(f"{PREFIX}kv_move_failures", text, labels=["way", "reason"])
    for way in MOVE_WAYS:
        for reason in KvFailure:
            count = figures.get(f"kv_{way}_failed_{reason.value}", 0.0)
            family.add_metric([way, reason.value], count)
    yield family


def _values(value: Mapping[str, float] | float) -> Mapping[str, float]:
    return value if isinstance(value, Mapping) else {"": value}


def _spelled(name: str) -> str:
    """Units are written out in Prometheus."""
    return f"{name[:-2]}_seconds" if name.endswith("_s") else name
