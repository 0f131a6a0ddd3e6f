"""A node's whole account: pages, groups with their turns, and what their templates are known to need.

Folds what the node agent samples and answers what admission needs. A group's members count at the turn
of the one that is furthest behind, which has the most growth before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.ids import GroupId, OrganizationId
from domain.sandbox import MemberKey, SandboxPurpose
from sandboxes.core.admission import Admitted, Ask, NodeLoad, Refused, Rules, admit
from sandboxes.core.cpu import CpuModel, GroupCpu
from sandboxes.core.gate import PressureGate
from sandboxes.core.growth import GrowthModel
from sandboxes.core.names import TemplateId
from sandboxes.core.pages import NodePages, PageUse
from sandboxes.core.reserve import GroupDemand


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """What is declared of a template, and what its snapshot is known to hold."""

    tenant: OrganizationId
    template: TemplateId
    ceiling_bytes: int
    """Hard limit of one sandbox."""
    shared_bytes: int
    """Working set of the snapshot; 0 where the runtime shares nothing."""
    overhead_bytes: int
    """Of one sandbox of this runtime."""


@dataclass(frozen=True, slots=True)
class Life:
    """CPU of one sandbox over its life: seconds, and means of its cores and of their square."""

    seconds: float
    mean_cores: float
    mean_square: float


@dataclass(slots=True)
class Known:
    """What ended sandboxes of one (tenant, template) have taught."""

    growth: GrowthModel
    cpu: CpuModel = field(default_factory=CpuModel)


@dataclass(slots=True)
class _Group:
    spec: TemplateSpec
    turns: dict[MemberKey, int]
    held_bytes: int = 0


class NodeLedger:
    """One node. Calls that contradict the account are defects of the caller and assert."""

    def __init__(self, pages: NodePages, cores: float, rules: Rules) -> None:
        self.pages = pages
        self.cores = cores
        self.rules = rules
        self.gate = PressureGate()
        self._groups: dict[GroupId, _Group] = {}
        self._known: dict[tuple[OrganizationId, TemplateId], Known] = {}

    def known(self, spec: TemplateSpec) -> Known:
        """The models of a template; new ones when nothing of it was seen."""
        key = (spec.tenant, spec.template)
        if key not in self._known:
            self._known[key] = Known(GrowthModel(spec.ceiling_bytes))
        return self._known[key]

    def templates(self) -> tuple[TemplateId, ...]:
        """All that anything is known of, the first heard of first."""
        return tuple(dict.fromkeys(template for _, template in self._known))

    def growth_of(self, template: TemplateId) -> GrowthModel:
        """The best-taught model of a template that is known."""
        found = [one.growth for (_, name), one in self._known.items() if name == template]
        return max(found, key=lambda growth: growth.rollouts)

    def ask(self, spec: TemplateSpec, members: int, purpose: SandboxPurpose) -> Ask:
        """What so many new sandboxes of a template would need here."""
        known = self.known(spec)
        return Ask(
            demand=GroupDemand(members, 0.0, known.growth.growth(0)),
            cpu=_cpu_of(members, known.cpu),
            overhead_bytes=spec.overhead_bytes,
            template_bytes=0 if self.pages.has_template(spec.template) else spec.shared_bytes,
            purpose=purpose,
        )

    def answer(
        self, spec: TemplateSpec, members: int, purpose: SandboxPurpose = SandboxPurpose.AGENT
    ) -> Admitted | Refused:
        """Whether they may start; nothing is changed."""
        return admit(self.load(), self.ask(spec, members, purpose), self.rules)

    def begin(self, spec: TemplateSpec, group_id: GroupId, keys: Sequence[MemberKey]) -> None:
        """Members of a group start, after an answer that admitted them."""
        if not self.pages.has_template(spec.template):
            self.pages.load(spec.template, spec.shared_bytes)
        group = self._groups.setdefault(group_id, _Group(spec, {}))
        assert group.spec == spec, "a group has one template"
        for key in keys:
            self.pages.admit(key, spec.template, PageUse(0, 0, spec.overhead_bytes))
            group.turns[key] = 0

    def sample(self, group_id: GroupId, key: MemberKey, use: PageUse) -> None:
        """A new sample of one sandbox."""
        group = self._groups[group_id]
        group.held_bytes += use.private_bytes - self.pages.use_of(key).private_bytes
        self.pages.measure(key, use)

    def turn_ended(self, group_id: GroupId, key: MemberKey, peak_bytes: int) -> None:
        """A turn of its rollout ended, with this peak of private bytes; the next one begins."""
        group = self._groups[group_id]
        turn = group.turns[key]
        self.known(group.spec).growth.turn_ended(turn, peak_bytes)
        group.turns[key] = turn + 1

    def end(self, group_id: GroupId, key: MemberKey) -> PageUse:
        """A sandbox is gone, however it ended; returns what it held."""
        group = self._groups[group_id]
        use = self.pages.release(key)
        group.held_bytes -= use.private_bytes
        del group.turns[key]
        if not group.turns:
            del self._groups[group_id]
        return use

    def taught(self, spec: TemplateSpec, life: Life, is_last_of_group: bool) -> None:
        """A rollout ran to its end in its sandbox: what it used of CPU, and that it counts."""
        known = self.known(spec)
        known.growth.rollout_ended(is_last_of_group)
        known.cpu.rollout_ended(life.seconds, life.mean_cores, life.mean_square)

    def load(self) -> NodeLoad:
        """The node as admission sees it."""
        groups = list(self._groups.values())
        return NodeLoad(
            capacity_bytes=self.pages.capacity_bytes,
            cores=self.cores,
            committed_bytes=self.pages.committed_bytes,
            groups=tuple(self._demand(group) for group in groups),
            cpu=tuple(_cpu_of(len(one.turns), self.known(one.spec).cpu) for one in groups),
            gate=self.gate,
        )

    def _demand(self, group: _Group) -> GroupDemand:
        turn = min(group.turns.values())
        growth = self.known(group.spec).growth.growth(turn)
        return GroupDemand(len(group.turns), group.held_bytes, growth, turn)

    def faults(self) -> list[str]:
        """Where the account contradicts itself; empty when sound."""
        found = self.pages.faults()
        members = 0
        for group_id, group in self._groups.items():
            held = sum(self.pages.use_of(key).private_bytes for key in group.turns)
            members += len(group.turns)
            if held != group.held_bytes:
                found.append(f"{group_id}: {group.held_bytes} kept, {held} held")
        if members != len(self.pages):
            found.append(f"{members} members, {len(self.pages)} sandboxes")
        return found


def _cpu_of(members: int, cpu: CpuModel) -> GroupCpu:
    return GroupCpu(members, cpu.expected_cores, cpu.deviation_cores)
