"""A simulated node under a demand that never ends: the real ledger and ladder, second by second.

Groups start together: all members in the same second, several groups at each wave, and members of a
group do the same at the same time. That is the hardest demand for a pooled reserve. What the kernel
says of pressure is modelled: 0 below `PRESSED_SHARE` of RAM, `STOP_PRESSURE` halfway to the limit.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxPurpose
from sandboxes.core.admission import Refused, Rules
from sandboxes.core.gate import STOP_PRESSURE
from sandboxes.core.ladder import SMALLEST_BYTES, Action, Pressed, Resident, Rung, Tools, climb
from sandboxes.core.ledger import Life, NodeLedger, TemplateSpec
from sandboxes.core.pages import NodePages, PageUse
from simulation.sandboxes.demand import MemoryTrace

PRESSED_SHARE: Final = 0.95
"""Of RAM: from here on somebody waits for memory now and then."""

RELIEF_SHARE: Final = 0.94
"""The ladder wants to get below it, or it would be climbed every second."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one group does: the life of each member, and what it is cloned from."""

    spec: TemplateSpec
    trace: MemoryTrace
    private_of_base: int
    """Bytes of each sandbox's memory that are the snapshot's; the rest is private."""


class TaskSource(Protocol):
    """Groups without end."""

    def draw(self, chance: Random) -> Task:
        """The next one."""
        ...


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """A node and how it is asked."""

    capacity_bytes: int
    cores: float
    rules: Rules
    members: int
    wave_s: int
    """Groups start at multiples of it, all together."""
    tools: Tools
    is_ladder_on: bool = False
    """Off: what admission alone lets overflow is seen."""


@dataclass(slots=True)
class Tally:
    """What a run came to. Byte-seconds and sandbox-seconds from `measured_from` on; the rest of all."""

    seconds: int = 0
    sandbox_s: int = 0
    sandbox_s_all: int = 0
    resident_byte_s: int = 0
    private_byte_s: int = 0
    overhead_byte_s: int = 0
    shared_byte_s: int = 0
    mapped_byte_s: int = 0
    core_s: float = 0.0
    slowed_s: int = 0
    """Seconds in which sandboxes wanted more cores than there are."""
    overflow_s: int = 0
    """Seconds with more in RAM than there is, after the ladder."""
    overflow_sandbox_s: int = 0
    """Sandbox-seconds lived in them."""
    resident_max: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Waves by what ended them: resource, or reason where that says more."""
    rungs: Counter[str] = field(default_factory=Counter)
    early_kills: int = 0
    """Kills while a cheaper rung was left, as `too_early` says."""
    rollouts_ended: int = 0
    largest_served: int = 0
    """Peak of a sandbox that ended by itself."""


@dataclass(slots=True)
class _Live:
    group_id: GroupId
    task: Task
    keys: list[MemberKey]
    swapped: dict[MemberKey, int] = field(default_factory=dict)
    second: int = 0
    peak_bytes: int = 0
    """Of the turn so far, private."""


class SimulatedNode:
    """One node. `tick` is one second."""

    def __init__(self, setting: NodeSetting, source: TaskSource, seed: int) -> None:
        self.setting = setting
        self.tally = Tally()
        self.ledger = NodeLedger(NodePages(setting.capacity_bytes), setting.cores, setting.rules)
        self._source = source
        self._chance = Random(seed)
        self._live: list[_Live] = []
        self._next: Task | None = None
        self._begun = 0
        self._now = 0

    def run(self, seconds: int, measured_from: int) -> Tally:
        """So many seconds; levels are measured once the node has filled and learned."""
        for _ in range(seconds):
            self.tick(self._now >= measured_from)
        assert self.ledger.faults() == [], "the account adds up"
        return self.tally

    def tick(self, is_measured: bool) -> None:
        """One second: lives go on, pressure is relieved, groups start, figures are taken."""
        self._live = [one for one in self._live if self._goes_on(one)]
        pages = self.ledger.pages
        share = pages.resident_bytes / pages.capacity_bytes
        pressure = max(0.0, share - PRESSED_SHARE) / (1 - PRESSED_SHARE) * 2 * STOP_PRESSURE
        self.ledger.gate.sample(float(self._now), pressure)
        if self.setting.is_ladder_on and share > PRESSED_SHARE:
            self._relieve()
        if self._now % self.setting.wave_s == 0:
            self._wave()
        self._count(is_measured)
        self._now += 1

    def _goes_on(self, one: _Live) -> bool:
        """One second of a group; False when it has ended."""
        trace, second = one.task.trace, one.second
        if second == len(trace):
            self._end(one)
            return False
        private = max(0, trace.rss_bytes[second] - one.task.private_of_base)
        changed = not second or trace.rss_bytes[second] != trace.rss_bytes[second - 1]
        if second and trace.turns[second] != trace.turns[second - 1]:
            for key in one.keys:
                self.ledger.turn_ended(one.group_id, key, one.peak_bytes)
            one.peak_bytes = 0
        if one.swapped and not trace.in_generation[second]:
            one.swapped.clear()
            changed = True
        one.peak_bytes = max(one.peak_bytes, private)
        if changed:
            self._sample(one, private)
        one.second += 1
        return bool(one.keys)

    def _sample(self, one: _Live, private: int) -> None:
        overhead = one.task.spec.overhead_bytes
        use = PageUse(private, 0, overhead)
        for key in one.keys:
            swapped = min(private, one.swapped.get(key, 0))
            sampled = PageUse(private, swapped, overhead) if swapped else use
            self.ledger.sample(one.group_id, key, sampled)

    def _end(self, one: _Live) -> None:
        cores = one.task.trace.cores
        square = sum(value * value for value in cores) / len(cores)
        life = Life(len(cores), sum(cores) / len(cores), square)
        for key in one.keys:
            self.ledger.turn_ended(one.group_id, key, one.peak_bytes)
            self.ledger.end(one.group_id, key)
            self.ledger.taught(one.task.spec, life, key == one.keys[-1])
        self.tally.rollouts_ended += len(one.keys)
        if one.keys:
            self.tally.largest_served = max(
                self.tally.largest_served, max(one.task.trace.rss_bytes)
            )
        for template in self.ledger.pages.idle_templates():
            self.ledger.pages.unload(template)

    def _wave(self) -> None:
        """Groups start until the node refuses one; that one waits."""
        while True:
            task = self._next or self._source.draw(self._chance)
            answer = self.ledger.answer(task.spec, self.setting.members)
            if isinstance(answer, Refused):
                self._next = task
                self.tally.refused[answer.resource.value] += 1
                return
            self._next = None
            self._begin(task)

    def _begin(self, task: Task) -> None:
        group_id = GroupId(f"g{self._begun:06d}")
        self._begun += 1
        keys = [
            MemberKey(AttemptId("att"), group_id, index, 1, SandboxPurpose.AGENT)
            for index in range(self.setting.members)
        ]
        self.ledger.begin(task.spec, group_id, keys)
        self._live.append(_Live(group_id, task, keys))

    def pressed(self) -> Pressed:
        """The node as the ladder sees it."""
        wanted = self.ledger.pages.resident_bytes - round(
            RELIEF_SHARE * self.setting.capacity_bytes
        )
        residents = [
            self._resident(one, key, rank)
            for rank, one in enumerate(self._live)
            if one.second
            for key in one.keys
        ]
        tools = self.setting.tools
        return Pressed(max(0, wanted), self.ledger.gate.is_open, tuple(residents), tools)

    def _resident(self, one: _Live, key: MemberKey, rank: int) -> Resident:
        """Older groups rank better; the oldest tenth is critical."""
        trace, now = one.task.trace, one.second - 1
        use = self.ledger.pages.use_of(key)
        idle = trace.in_generation[now]
        left = next((i for i in range(now, len(trace)) if not trace.in_generation[i]), len(trace))
        return Resident(
            key=key,
            rank=rank,
            is_critical=rank < len(self._live) // 10,
            is_in_generation=idle,
            gap_left_s=float(left - now),
            private_bytes=use.private_bytes - use.swapped_bytes,
            overhead_bytes=use.overhead_bytes,
        )

    def _relieve(self) -> None:
        node = self.pressed()
        actions = climb(node)
        self.tally.early_kills += too_early(node, actions)
        by_key = {key: one for one in self._live for key in one.keys}
        for action in actions:
            self.tally.rungs[action.rung.name.lower()] += 1
            if action.key is None:
                self.ledger.gate.stop()
            else:
                self._do(action, action.key, by_key[action.key])

    def _do(self, action: Action, key: MemberKey, one: _Live) -> None:
        if action.rung in (Rung.EVICT, Rung.KILL):
            one.keys.remove(key)
            self.ledger.end(one.group_id, key)
            return
        use = self.ledger.pages.use_of(key)
        swapped = use.swapped_bytes + action.bytes_expected
        one.swapped[key] = swapped
        out = PageUse(use.private_bytes, swapped, use.overhead_bytes)
        self.ledger.sample(one.group_id, key, out)

    def _count(self, is_measured: bool) -> None:
        tally, pages = self.tally, self.ledger.pages
        sandboxes, resident = len(pages), pages.resident_bytes
        tally.sandbox_s_all += sandboxes
        tally.resident_max = max(tally.resident_max, resident)
        if resident > pages.capacity_bytes:
            tally.overflow_s += 1
            tally.overflow_sandbox_s += sandboxes
        if not is_measured:
            return
        wanted = sum(
            len(one.keys) * one.task.trace.cores[one.second - 1] for one in self._live if one.second
        )
        tally.seconds += 1
        tally.sandbox_s += sandboxes
        tally.resident_byte_s += resident
        tally.private_byte_s += pages.private_bytes
        tally.overhead_byte_s += pages.overhead_bytes
        tally.shared_byte_s += pages.shared_bytes
        tally.mapped_byte_s += sum(len(o.keys) * o.task.spec.shared_bytes for o in self._live)
        tally.core_s += min(wanted, self.setting.cores)
        tally.slowed_s += wanted > self.setting.cores


def too_early(node: Pressed, actions: Sequence[Action]) -> int:
    """Kills while a cheaper rung was left: told from the snapshot and the actions alone."""
    left = {one.key: one.private_bytes for one in node.residents}
    swap, disk = node.tools.swap_free_bytes, node.tools.disk_free_bytes
    early = 0
    for action in actions:
        if action.key is None:
            continue
        if action.rung is Rung.KILL:
            others = [one for one in node.residents if one.key in left]
            early += any(_can_shrink(node.tools, o, left[o.key], swap, disk) for o in others)
            del left[action.key]
        elif action.rung is Rung.EVICT:
            disk -= left.pop(action.key)
        else:
            left[action.key] -= action.bytes_expected
            swap -= action.bytes_expected if action.rung is Rung.PAGE_OUT else 0
    return early


def _can_shrink(tools: Tools, one: Resident, private: int, swap: int, disk: int) -> bool:
    out = min(private, swap)
    pays = one.gap_left_s > 2 * private / tools.swap_bytes_s
    pages = tools.can_page_out and one.is_in_generation and out >= SMALLEST_BYTES and pays
    size = private + one.overhead_bytes
    return pages or (tools.can_evict and size >= SMALLEST_BYTES and private <= disk)
