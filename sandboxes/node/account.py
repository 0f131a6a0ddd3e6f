"""The node's memory as admission sees it: the pure ledger, fed with samples of real sandboxes.

An ask is admitted by bytes when `sandboxes.core.admission` admits it; from then on its members are in
the ledger, until `end`. A sandbox's peak since its last turn teaches what its template needs.

CPU is not admitted here: runtimes do not measure it of single sandboxes.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from domain.ids import AttemptId, GroupId, OrganizationId
from domain.sandbox import MemberKey, SandboxLimits, SandboxPurpose, template_name
from sandboxes.core.admission import Refused, Resource, Rules, Why, room_bytes
from sandboxes.core.growth import PRIOR_SHARE
from sandboxes.core.ledger import Life, NodeLedger, TemplateSpec
from sandboxes.core.names import MIB, TemplateId
from sandboxes.core.pages import NodePages, PageUse
from sandboxes.core.reserve import Z
from sandboxes.ports import SandboxStats

UNMEASURED_SHARE: Final = PRIOR_SHARE * (2 + Z)
"""Of its ceiling a grader that nobody has measured needs at most, however it pools with agents."""

UNMEASURED_LIFE: Final = Life(0.0, 0.0, 0.0)
"""Teaches nothing of CPU."""


@dataclass(frozen=True, slots=True)
class RoomAsk:
    """Sandboxes that want to start together."""

    purpose: SandboxPurpose
    spec: TemplateSpec
    members: tuple[MemberKey, ...]

    @property
    def group_id(self) -> GroupId:
        """Its name in the ledger: graders of a group are clones of another template."""
        return GroupId(f"{self.members[0].group_id}/{self.purpose}")


@dataclass(slots=True)
class _Group:
    spec: TemplateSpec
    members: int = 0


@dataclass(slots=True)
class _Held:
    group_id: GroupId
    spec: TemplateSpec
    peak_bytes: int = 0
    """Of the turn so far."""


@dataclass(slots=True)
class NodeAccount:
    """One node's ledger by member key. `end` and `measure` of unknown keys are nothing."""

    ledger: NodeLedger
    owns_all: bool = False
    """The capacity is the pool's alone: what others use is not taken off."""
    _held: dict[MemberKey, _Held] = field(default_factory=dict)
    _groups: dict[GroupId, _Group] = field(default_factory=dict)
    _shared: dict[TemplateId, int] = field(default_factory=dict)
    """The most that a sandbox of a template mapped of it: siblings that wrote more map less. What several
    templates share, the warm interpreter of one runtime, counts in each."""

    def refusal(self, ask: RoomAsk) -> Refused | None:
        """Why the node does not take them now; None when it does.

        A grading wave that an empty node would refuse, by what is expected of graders nobody has
        measured, is taken when what is held leaves the limit unreached: its group needs all of it.
        """
        answer = self.ledger.answer(ask.spec, len(ask.members), ask.purpose)
        if not isinstance(answer, Refused):
            return None
        if answer.why is Why.NEVER_FITS and ask.purpose is SandboxPurpose.GRADER:
            return self._measured_only()
        return answer

    def begin(self, ask: RoomAsk) -> None:
        """They start: their overhead counts now, their growth from now on.

        A member that is held already (released and asked for again within a moment) counts once.
        """
        fresh = tuple(key for key in ask.members if key not in self._held)
        if not fresh:
            return
        group = self._groups.setdefault(ask.group_id, _Group(ask.spec))
        self.ledger.begin(group.spec, ask.group_id, fresh)
        group.members += len(fresh)
        for key in fresh:
            self._held[key] = _Held(ask.group_id, group.spec)

    def end(self, key: MemberKey, has_finished: bool = False) -> None:
        """A sandbox is gone; `has_finished`: its rollout ran to its end in it, and teaches."""
        held = self._held.pop(key, None)
        if held is None:
            return
        if has_finished:
            self.ledger.turn_ended(held.group_id, key, held.peak_bytes)
        self.ledger.end(held.group_id, key)
        group = self._groups[held.group_id]
        group.members -= 1
        if not group.members:
            del self._groups[held.group_id]
        if has_finished:
            self.ledger.taught(held.spec, UNMEASURED_LIFE, is_last_of_group=not group.members)
        for template in self.ledger.pages.idle_templates():
            self.ledger.pages.unload(template)
            self._shared.pop(template, None)

    def measure(self, key: MemberKey, stats: SandboxStats) -> None:
        """A sample of one sandbox."""
        held = self._held.get(key)
        if held is None:
            return
        use = use_of(stats)
        self.ledger.sample(held.group_id, key, use)
        held.peak_bytes = max(held.peak_bytes, use.private_bytes)
        template = held.spec.template
        if stats.shared_bytes > self._shared.get(template, 0):
            self._shared[template] = stats.shared_bytes
            self.ledger.pages.load(template, stats.shared_bytes)

    def turn_ended(self, key: MemberKey) -> None:
        """Its rollout's turn ended; the next one begins."""
        held = self._held.get(key)
        if held is not None:
            self.ledger.turn_ended(held.group_id, key, held.peak_bytes)
            held.peak_bytes = 0

    def others_use(self, machine_used_bytes: int) -> None:
        """Take off what is used on the machine and is not a sandbox's."""
        pages = self.ledger.pages
        if not self.owns_all:
            ours = pages.resident_bytes - pages.other_bytes
            pages.other_bytes = max(0, machine_used_bytes - ours)

    def use(self, key: MemberKey) -> PageUse | None:
        """What a sandbox held at its last sample; None when it is not held."""
        return self.ledger.pages.use_of(key) if key in self._held else None

    def members(self) -> tuple[MemberKey, ...]:
        """All that are held, in the order in which they began."""
        return tuple(self._held)

    def room_bytes(self) -> float:
        """Below the packing limit, for agents: reserves taken off."""
        return room_bytes(self.ledger.load(), self.ledger.rules)

    def shared_bytes(self, template: TemplateId) -> int:
        """Working set of a template, as far as sandboxes here have touched it."""
        return self._shared.get(template, 0)

    def private_of(self) -> dict[AttemptId, int]:
        """Private bytes and overhead by attempt."""
        found: Counter[AttemptId] = Counter()
        for key in self._held:
            use = self.ledger.pages.use_of(key)
            found[key.attempt_id] += use.private_bytes + use.overhead_bytes
        return dict(found)

    def _measured_only(self) -> Refused | None:
        load, rules = self.ledger.load(), self.ledger.rules
        limit = rules.packing * load.capacity_bytes
        if load.committed_bytes > limit or not load.gate.is_open:
            return Refused(Why.NO_ROOM, Resource.MEMORY, float(load.committed_bytes), limit)
        return None


def make_account(
    capacity_bytes: int, cores: float, grading_reserve: int, owns_all: bool = False
) -> NodeAccount:
    """The account of an empty node that keeps so many sandboxes' memory for graders."""
    rules = Rules(
        is_cpu_admitted=False,
        grading_reserve_bytes=round(
            grading_reserve * UNMEASURED_SHARE * SandboxLimits().memory_bytes
        ),
    )
    return NodeAccount(NodeLedger(NodePages(capacity_bytes), cores, rules), owns_all)


def template_of(name: str, purpose: SandboxPurpose, ceiling_bytes: int) -> TemplateSpec:
    """What is known beforehand of sandboxes that are not clones: nothing shared, no overhead apart.

    `name` belongs to one tenant (an environment version) or says nothing of any (a package's bytes).
    """
    return TemplateSpec(
        tenant=OrganizationId(""),
        template=TemplateId(template_name(name, purpose)),
        ceiling_bytes=ceiling_bytes,
        shared_bytes=0,
        overhead_bytes=0,
    )


def use_of(stats: SandboxStats) -> PageUse:
    """A runtime's figures as pages; what it does not tell apart is private and resident."""
    swapped = min(stats.swapped_bytes, stats.private_bytes)
    return PageUse(stats.private_bytes, swapped, stats.overhead_bytes)


def in_words(refused: Refused) -> str:
    """A refusal for people: the rule, then its numbers."""
    if refused.resource is Resource.PRESSURE:
        numbers = f"{refused.needed:.1%} of time waited for memory, {refused.available:.0%} is calm"
    elif refused.resource is Resource.CPU:
        numbers = f"{refused.needed:.1f} cores needed, {refused.available:.1f} available"
    else:
        needed, available = refused.needed / MIB, refused.available / MIB
        numbers = f"{needed:.0f} MiB needed, {available:.0f} MiB available"
    return f"{refused.resource}: {refused.why}: {numbers}"
