"""What an engine counts of its keys and values. All label sets are closed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class KvStats:
    """Gauges of now (`pages`, `used_pages`), everything else since the start of the engine."""

    pages: Mapping[str, int] = field(default_factory=dict)
    """By tier: device, host, disk."""
    used_pages: Mapping[str, int] = field(default_factory=dict)
    """By tier; on the device those that hold keys, needed or not."""
    locked_pages: int = 0
    """On the device, of running turns."""
    hit_tokens: Mapping[str, int] = field(default_factory=dict)
    """Found on the device or brought back, by class: unused, low_ref, high_ref."""
    recomputed_tokens: int = 0
    """Prefilled tokens whose keys the engine had before, for the same tenant at the same weights."""
    restored_tokens: int = 0
    """Tokens that turns had before they lost their slot and got back without computing them."""
    evicted_pages: Mapping[str, int] = field(default_factory=dict)
    """By what room was made for: prompt, growth, fetch, branch, import."""
    evicted_classes: Mapping[str, int] = field(default_factory=dict)
    """The same pages by class."""
    left_pages: Mapping[str, int] = field(default_factory=dict)
    """Pages that others may want again, by where they went: host, disk, or dropped, cheaper, busy."""
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    """By way: device_host, device_disk, host_disk, host_device, disk_device."""
    fetch_failures: Mapping[str, int] = field(default_factory=dict)
    """Pages that did not come back, by cause: failed, short, checksum, late."""
    store_failures: int = 0
    retractions: int = 0
    """Turns that lost their slot because pages ran out."""
    slot_starts: Mapping[str, int] = field(default_factory=dict)
    """Slots given, by class of rank."""
    slot_wait_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds waited for them, by class of rank."""

    def figures(self) -> dict[str, float]:
        """All of them under flat names: `kv_hit_tokens_high_ref`."""
        found: dict[str, float] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                found |= {f"kv_{name}_{label}": float(count) for label, count in value.items()}
            else:
                found[f"kv_{name}"] = float(value)
        return found


NO_KV_STATS: Final = KvStats()
"""Of an engine that has no keys."""
