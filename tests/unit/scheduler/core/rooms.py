"""Nodes that say their rooms, in bytes that are easy to count: a member of `JOB` needs EACH."""

from typing import Any, Final

from domain.commands import ForkSandboxes
from domain.events import ForksDeclined, NodeReported
from domain.ids import HostId, node_host_id
from domain.plan import JobPlan
from domain.sandbox import NodeRoom, SandboxTemplate, TemplateRoom
from scheduler.core.records import GroupRecord, RolloutRecord
from tests.simulation.plans import plan
from tests.unit.scheduler.core.bench import Bench

EACH: Final = 50
"""The ceiling: so much may a template that nobody has measured need, by the prior."""

TEMPLATE: Final = SandboxTemplate("version/agent", EACH)


def job(name: str = "a", **changes: Any) -> JobPlan:
    """A small job of one group of two, with a template."""
    return plan(
        name, **{"templates": (TEMPLATE,), "groups_per_batch": 1, "async_ratio": 1.0, **changes}
    )


def room(room_bytes: int, **changes: Any) -> NodeRoom:
    """What a node of 1000 bytes says when it has so many left."""
    made: dict[str, Any] = {
        "capacity_bytes": 1_000, "private_bytes": 0, "reserve_bytes": 0, "shared_bytes": 0,
        "overhead_bytes": 0, "other_bytes": 0, "room_bytes": room_bytes, "largest_bytes": 900,
        "places": 100, "places_max": 100, "each_overhead_bytes": 0, "pressure": 0.0, "is_open": True,
        "templates": (), **changes,
    }  # fmt: skip
    return NodeRoom(**made)


def present(each: int = EACH, shared: int = 0, rollouts: int = 0) -> tuple[TemplateRoom, ...]:
    """The template's snapshot is on the node."""
    return (TemplateRoom(TEMPLATE.name, each, shared, True, rollouts),)


def tell(bench: Bench, index: int, said: NodeRoom, epoch: int = 1) -> None:
    """A node reports."""
    bench.feed(NodeReported(node_host_id(index), epoch, said))


def bench_of(*rooms: NodeRoom, plans: tuple[JobPlan, ...] = ()) -> Bench:
    """Running jobs on nodes with these rooms."""
    bench = Bench()
    for index, said in enumerate(rooms):
        bench.node(index)
        tell(bench, index, said)
    for one in plans or (job(),):
        bench.start(one)
    return bench


def parts(bench: Bench, ordinal: int = 0) -> list[tuple[HostId, int]]:
    """Forks of a group so far: node and members."""
    group = bench.group(ordinal).group_id
    return [(f.node, len(f.members)) for f in forks(bench) if f.group_id == group]


def forks(bench: Bench) -> list[ForkSandboxes]:
    """All forks so far."""
    return bench.found(ForkSandboxes, bench.commands)


def decline(
    bench: Bench,
    group: GroupRecord,
    index: int,
    rule: str = "memory.no_room",
    members: tuple[RolloutRecord, ...] | None = None,
) -> None:
    """A node has no room for members of a group."""
    who = tuple(group.rollouts) if members is None else members
    names = tuple((one.rollout_id, one.try_) for one in who)
    bench.feed(ForksDeclined(node_host_id(index), 1, group.group_id, names, rule, 100.0, 70.0))
