"""Names of what the pool counts. Templates belong to one tenant, so a template's id implies it."""

from typing import Final, NewType

NodeId = NewType("NodeId", str)
TemplateId = NewType("TemplateId", str)
"""Content-addressed, the tenant included: pages are never shared across tenants."""
PlacementId = NewType("PlacementId", int)
"""Of one leader's pool, counted up: soft state, as the pool is."""

MIB: Final = 1 << 20
GIB: Final = 1 << 30
