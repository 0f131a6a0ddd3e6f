"""What the modelled engine costs, as pure functions of token counts.

The numbers are the caller's; `benchmarks/fixed.toml` holds those of the benchmark. An engine's step
costs its floor (weights read once, plus overhead), the KV of every sequence that decodes in it, and
its prefill chunk, all added, never overlapped. A prefix shared by a group is in that KV once.
"""

from dataclasses import dataclass
from typing import Final

PREFILL_TOKENS_PER_STEP: Final = 2_048
"""A longer prompt is cut into chunks of this, so that decoding neighbours wait one chunk at most."""


@dataclass(frozen=True, slots=True)
class EnginePhysics:
    """One engine and the links around it; every cost is in seconds."""

    weights_bytes: float
    kv_bytes_per_token: float
    bandwidth: float
    """Bytes of device memory read in a second, what is lost to inefficiency taken off."""
    step_overhead_s: float
    kv_capacity_tokens: int
    parameters: float
    layers: int
    width: int
    prefill_flops: float
    """Floating-point operations a second that prefill reaches."""
    slots: int
    host_link_bytes_s: float
    network_bytes_s: float
    disk_bytes_s: float
    host_tier_tokens: int
    reads_prefix_once: bool = True
    """A step reads the prefix that its sequences share once; else each of them reads its own context."""

    @property
    def step_floor_s(self) -> float:
        """What every step costs, one that only prefills too: the weights and the overhead."""
        return self.weights_bytes / self.bandwidth + self.step_overhead_s

    def kv_read_s(self, tokens: float) -> float:
        """Reading the KV of `tokens` once."""
        return tokens * self.kv_bytes_per_token / self.bandwidth

    def decode_step_s(self, kv_tokens: float) -> float:
        """One step whose decoding sequences hold `kv_tokens` together, shared prefixes once."""
        return self.step_floor_s + self.kv_read_s(kv_tokens)

    def decode_steps_s(self, first_kv_tokens: float, sequences: int, steps: int) -> float:
        """`steps` steps on end; the KV is `first_kv_tokens` in the first, then grows by `sequences`."""
        grown = sequences * (steps * (steps - 1) // 2)
        return steps * self.step_floor_s + self.kv_read_s(steps * first_kv_tokens + grown)

    def prefill_s(self, tokens: float, mean_context: float) -> float:
        """The arithmetic of `tokens` that attend to `mean_context` tokens each; no step floor in it.

        Two operations a parameter, and 4 x layers x width a token attended to: score and value.
        """
        per_token = 2 * self.parameters + 4 * self.layers * self.width * mean_context
        return tokens * per_token / self.prefill_flops

    def prefill_after_s(self, tokens: int, cached_tokens: int) -> float:
        """Prefill of `tokens` behind `cached_tokens` in the cache; the same sum however it is cut."""
        return self.prefill_s(tokens, cached_tokens + tokens / 2)

    def reload_s(self, tokens: float) -> float:
        """Moving KV between device and host tier, one way."""
        return tokens * self.kv_bytes_per_token / self.host_link_bytes_s

    def disk_s(self, tokens: float) -> float:
        """Moving KV between host and disk tier, one way."""
        return tokens * self.kv_bytes_per_token / self.disk_bytes_s

    def transfer_s(self, tokens: float) -> float:
        """Moving KV to another machine."""
        return tokens * self.kv_bytes_per_token / self.network_bytes_s


def prefill_steps(tokens: int) -> int:
    """Steps that a prompt of `tokens` takes when nothing else prefills."""
    return -(-tokens // PREFILL_TOKENS_PER_STEP)
