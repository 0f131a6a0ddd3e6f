"""A node without processes: a scripted elastic runtime, its account, and the asks of groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxPurpose
from sandboxes.commands import Command, Process
from sandboxes.core.names import GIB, MIB
from sandboxes.files import FileRequest, FileResult
from sandboxes.node.account import NodeAccount, RoomAsk, make_account, template_of
from sandboxes.ports import (
    Capabilities,
    Isolation,
    Listener,
    Sandbox,
    SandboxSpec,
    SandboxStats,
)
from venusrl.env.sandbox import SandboxError

AGENT, GRADER = SandboxPurpose.AGENT, SandboxPurpose.GRADER


def member(index: int, group: str = "g", purpose: SandboxPurpose = AGENT) -> MemberKey:
    """A sandbox of a group."""
    return MemberKey(AttemptId("att"), GroupId(group), index, 1, purpose)


def ask(
    count: int = 1, group: str = "g", purpose: SandboxPurpose = AGENT, ceiling: int = GIB
) -> RoomAsk:
    """So many members of a group."""
    spec = template_of("ever", purpose, ceiling)
    return RoomAsk(purpose, spec, tuple(member(i, group, purpose) for i in range(count)))


def account(capacity: int = 64 * GIB, grading_reserve: int = 0) -> NodeAccount:
    """An empty node."""
    return make_account(capacity, 8.0, grading_reserve, owns_all=True)


def learned(node: NodeAccount, held_mib: int = 100, ceiling: int = GIB) -> None:
    """Enough rollouts have ended, each with this peak, that the prior is out."""
    for group in range(6):
        wave = ask(4, f"past{group}", ceiling=ceiling)
        node.begin(wave)
        for _ in range(8):
            for key in wave.members:
                node.measure(key, SandboxStats(held_mib * MIB, 3))
                node.turn_ended(key)
        for key in wave.members:
            node.end(key, has_finished=True)


@dataclass
class ScriptedSandbox:
    """Its figures are set from outside."""

    key: MemberKey
    private_bytes: int = 0

    def stats(self) -> SandboxStats:
        """What the test said."""
        return SandboxStats(self.private_bytes, 1)

    async def start(self, command: Command) -> Process:
        """Nobody runs programs in it."""
        raise AssertionError(command)

    async def files(self, request: FileRequest) -> FileResult:
        """Nobody asks it."""
        raise AssertionError(request)

    async def call(self, request: object) -> None:
        """Nothing runs."""
        raise SandboxError("lost", "nothing runs here")


@dataclass
class ElasticRuntime:
    """Keeps the order of what was asked of it; `broken` names calls that fail."""

    balloon: bool = True
    page_out: bool = True
    gets: float = 1.0
    """Share of what is asked that a reclaim gets."""
    asked: list[tuple[str, int]] = field(default_factory=list)
    live: dict[MemberKey, ScriptedSandbox] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def capabilities(self) -> Capabilities:
        """A machine with snapshots, more or less."""
        return Capabilities(
            Isolation.VM, True, False, self.balloon, self.page_out, False, False, True, pause=True
        )

    def listen(self, listener: Listener) -> None:
        """No sandbox ends by itself."""

    def hold(self, key: MemberKey, private_mib: int) -> ScriptedSandbox:
        """A live sandbox of this size."""
        made = self.live[key] = ScriptedSandbox(key, private_mib * MIB)
        return made

    async def fork(self, members: Sequence[SandboxSpec]) -> tuple[Sandbox, ...]:
        """Not asked here."""
        raise NotImplementedError

    def get(self, key: MemberKey) -> Sandbox | None:
        """A live one."""
        return self.live.get(key)

    def keys(self) -> tuple[MemberKey, ...]:
        """Live ones."""
        return tuple(self.live)

    async def destroy(self, key: MemberKey) -> None:
        """End one."""
        self.live.pop(key, None)

    async def close(self) -> None:
        """End all."""
        self.live.clear()

    async def pause(self, key: MemberKey) -> None:
        """Stop it."""
        self._ask("pause", key)

    async def resume(self, key: MemberKey) -> None:
        """Let it go on."""
        self._ask("resume", key)

    async def reclaim(self, key: MemberKey, bytes_: int) -> int:
        """Take memory from it."""
        self._ask("reclaim", key)
        sandbox = self.live[key]
        freed = min(sandbox.private_bytes, round(self.gets * bytes_))
        sandbox.private_bytes -= freed
        return freed

    def _ask(self, name: str, key: MemberKey) -> None:
        self.asked.append((name, key.index))
        if name in self.broken:
            raise SandboxError("lost", f"{name} failed")
