"""Small inputs of the sandbox core, with defaults."""

from typing import Any

from domain.ids import AttemptId, GroupId, OrganizationId
from domain.sandbox import MemberKey, SandboxPurpose
from sandboxes.core.asks import GroupAsk, NodeReport
from sandboxes.core.growth import Growth
from sandboxes.core.ladder import Resident
from sandboxes.core.ledger import TemplateSpec
from sandboxes.core.names import GIB, MIB, NodeId, TemplateId


def key(index: int, group: str = "g") -> MemberKey:
    return MemberKey(AttemptId("att"), GroupId(group), index, 1, SandboxPurpose.AGENT)


def spec(name: str = "t", **changes: Any) -> TemplateSpec:
    made = {
        "ceiling_bytes": 2 * GIB,
        "shared_bytes": 90 * MIB,
        "overhead_bytes": 5 * MIB,
        **changes,
    }
    return TemplateSpec(OrganizationId("org"), TemplateId(name), **made)


def growth(expected: float, deviation: float = 0.0, reserve: float | None = None) -> Growth:
    return Growth(expected, deviation, expected if reserve is None else reserve, 1e15)


def resident(index: int, **changes: Any) -> Resident:
    made: dict[str, Any] = {
        "rank": index, "is_critical": False, "is_in_generation": True, "gap_left_s": 60.0,
        "private_bytes": 200 * MIB, "overhead_bytes": 5 * MIB, **changes,
    }  # fmt: skip
    return Resident(key(index), **made)


def report(index: int, **changes: Any) -> NodeReport:
    made: dict[str, Any] = {
        "room_bytes": 100.0, "room_cores": 100.0, "largest_bytes": 1_000.0, "largest_cores": 100.0,
        "overhead_bytes": 1, "pressure": 0.0, "is_open": True, **changes,
    }  # fmt: skip
    return NodeReport(NodeId(f"node{index:04d}"), **made)


def ask(number: int = 1, **changes: Any) -> GroupAsk:
    made: dict[str, Any] = {
        "tenant": OrganizationId("org"), "template": TemplateId("t"), "members": 4,
        "expected_bytes": 9.0, "expected_cores": 1.0, "template_bytes": 20.0, **changes,
    }  # fmt: skip
    return GroupAsk(group_id=GroupId(f"g{number}"), **made)
