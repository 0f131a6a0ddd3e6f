"""What every server process needs and no aggregate owns: settings, clock, ids, logging, failpoints, codec.

Imports `domain` only. Everything here is constructed once, in a composition root, and handed down.
"""
