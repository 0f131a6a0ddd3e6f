"""Shares of organizations in the pool, as they are written in the environment."""

import math

from domain.ids import OrganizationId
from domain.plan import TenantShare

FORM = "organization=weight[:engines:trainers:sandboxes]"


def tenant_shares(text: str) -> tuple[TenantShare, ...]:
    """Shares split by commas, each in the form of `FORM`; what is left out is guaranteed nothing."""
    found = tuple(_share(one.strip()) for one in text.split(",") if one.strip())
    names = [one.organization_id for one in found]
    if len(set(names)) < len(names):
        raise ValueError("an organization is named twice")
    return found


def _share(text: str) -> TenantShare:
    name, is_given, numbers = text.partition("=")
    weight, *promised = numbers.split(":")
    if not name or not is_given or len(promised) not in (0, 3):
        raise ValueError(f"{text!r} is not {FORM}")
    if not (math.isfinite(float(weight)) and float(weight) > 0):
        raise ValueError(f"the weight of {name} must be above 0")
    engines, trainers, sandboxes = (int(one) for one in promised or (0, 0, 0))
    if min(engines, trainers, sandboxes) < 0:
        raise ValueError(f"the guarantee of {name} must be 0 or more")
    return TenantShare(OrganizationId(name), float(weight), engines, trainers, sandboxes)
