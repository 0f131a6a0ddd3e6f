"""Decisions about the shared sandbox pool, pure: pages, growth, admission, placement, ladder, cost.

The leader places groups on nodes (`placement.py`, over what nodes report); a node admits or refuses
(`admission.py`, over its own `pages.py` and `demand.py`) and says what to do under memory pressure
(`ladder.py`). Who samples memory, forks, pauses and kills is outside; time is an argument.
"""
