"""Decisions about KV pages, pure: shared by the coordinator, the engines and the simulator.

Ranks and classes, what an engine obeys for a job (`rules`), eviction, demotion, turn admission,
retraction, tier choice. Engines call these with their own state and compare ranks; they never
compute them. Imports `domain` and the standard library only.
"""
