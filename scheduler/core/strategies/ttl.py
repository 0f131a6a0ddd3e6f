"""Continuum / CacheTTL (arXiv 2511.02230; code: vllm-continuum): `ttl`.

Engines pin a rollout's pages at a tool call for a time to live (`kv.ttl`), after which they may be
evicted, and serve programs, not requests, in the order in which they arrived: a later turn of an early
program goes before the first turn of a late one. That order is the rank here: the place of the group's
task, inside it the member that has come least far; a task that is queued again keeps its place. It has
no trainer; its groups are counted like those of `slime-bounded`, within the job's a and m. Routing is by
program: the group's engine, else the least loaded.

The time to live is the engine's to compute, from its own measurements; the knobs are the limits of it.
A pin never holds the last room: an engine whose running turns do not fit breaks pins.
"""

from scheduler.core.strategies.slime import SlimeBounded


class Ttl(SlimeBounded):
    """First program, first served; pins are the engine's matter (`kv.rules`)."""
