"""What sandboxes cost, three ways side by side, at a price table with its source and date.

- declared: the bill of a hosted sandbox, allocated vCPU and GiB for the whole wall time;
- used: the same unit prices on CPU seconds and private bytes (shared pages of its own counted whole);
- shared: used, with each template's pages counted once per node.

`saving = 1 - ours / declared` has an arithmetic ceiling: what is used can not be packed any denser than
the packing limit, whatever the scheduler.
"""

from dataclasses import dataclass

from sandboxes.core.names import GIB


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars a second of a vCPU and of a GiB."""

    vcpu_s: float
    gib_s: float
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Of any number of sandboxes, summed. Byte-seconds are bytes times seconds."""

    vcpu_s_declared: float
    byte_s_declared: float
    cpu_s: float
    byte_s_private: float
    """Pages of their own, the monitor's overhead included."""
    byte_s_mapped: float
    """Pages of the snapshot, counted for each sandbox that maps them."""
    byte_s_shared: float
    """The same pages, counted once for each node."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.vcpu_s_declared + other.vcpu_s_declared,
            self.byte_s_declared + other.byte_s_declared,
            self.cpu_s + other.cpu_s,
            self.byte_s_private + other.byte_s_private,
            self.byte_s_mapped + other.byte_s_mapped,
            self.byte_s_shared + other.byte_s_shared,
        )


@dataclass(frozen=True, slots=True)
class Bill:
    """Dollars by model."""

    declared: float
    used: float
    shared: float


def bill(usage: Usage, prices: Prices, packing: float = 1.0) -> Bill:
    """All three; `packing` charges the use for the room that is kept free beside it."""
    assert 0 < packing <= 1

    def dollars(cpu_s: float, byte_s: float) -> float:
        return cpu_s * prices.vcpu_s + byte_s / GIB * prices.gib_s

    private = usage.byte_s_private
    return Bill(
        declared=dollars(usage.vcpu_s_declared, usage.byte_s_declared),
        used=dollars(usage.cpu_s, private + usage.byte_s_mapped) / packing,
        shared=dollars(usage.cpu_s, private + usage.byte_s_shared) / packing,
    )


def saving(ours: float, declared: float) -> float:
    """The share of the declared cost that is not paid."""
    assert declared > 0
    return 1.0 - ours / declared


def saving_ceiling(used_bytes: float, declared_bytes: float, packing: float) -> float:
    """The saving without any reserve: mean bytes of one sandbox, overhead included, packed full."""
    return saving(used_bytes / packing, declared_bytes)
