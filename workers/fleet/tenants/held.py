"""One sandbox of a tenant that this node holds, and its calls: each key runs once."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from domain.ids import AttemptId, GroupId
from domain.sandbox import MemberKey, SandboxPurpose
from domain.tenant_sandboxes import TENANT_LIMITS, SandboxState
from infra.door_frames import DoorExec, DoorExecuted, DoorReason
from sandboxes.client import CallRefused
from sandboxes.ports import SandboxSpec

ANSWERS_MAX: Final = 16
"""Kept of one sandbox, for callers whose answer was lost; older ones are known by their key alone."""

KEYS_MAX: Final = 4096
"""Keys of one sandbox that are known to have run."""

Run = Callable[[], Coroutine[Any, Any, DoorExecuted]]


@dataclass(frozen=True, slots=True)
class _Ran:
    digest: bytes
    answer: "asyncio.Task[DoorExecuted] | None"


@dataclass(slots=True)
class Calls:
    """Commands of one sandbox by the key of their request."""

    _ran: OrderedDict[str, _Ran] = field(default_factory=OrderedDict)

    async def once(self, frame: DoorExec, run: Run) -> DoorExecuted:
        """Run it, or hand out what this key has run. Raises CallRefused and what `run` raises."""
        digest = _digest(frame)
        known = self._ran.get(frame.key)
        if known is None:
            known = _Ran(digest, asyncio.create_task(run()))
            self._ran[frame.key] = known
            self._forget()
        if known.digest != digest:
            raise CallRefused(DoorReason.OTHER_CALL, "its key was used for another command")
        if known.answer is None:
            raise CallRefused(DoorReason.FORGOTTEN, "it ran, and its answer is no longer kept")
        # A caller that hangs up ends nothing: whoever asks again wants this command's answer.
        return await asyncio.shield(known.answer)

    def _forget(self) -> None:
        ended = [key for key, one in self._ran.items() if one.answer and one.answer.done()]
        for key in ended[: max(0, len(ended) - ANSWERS_MAX)]:
            one = self._ran[key]
            if one.answer is not None and not one.answer.cancelled():
                one.answer.exception()  # nobody may ever have looked at it
            self._ran[key] = _Ran(one.digest, None)
        forgotten = [key for key, one in self._ran.items() if one.answer is None]
        for key in forgotten[: max(0, len(self._ran) - KEYS_MAX)]:
            del self._ran[key]


@dataclass(slots=True, eq=False, kw_only=True)
class HeldSandbox:
    """`state` is what is so here; its row follows."""

    sandbox_id: str
    group_id: str
    project_id: str
    member: MemberKey
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: SandboxState = SandboxState.REQUESTED
    deadline: float | None = None
    """End of its lifetime or pause by the node's clock, as its row last said."""
    has_slot: bool = False
    work: "asyncio.Task[None] | None" = None
    """Its start, or what moves it now."""
    complaint: str = ""
    """Why what was last wanted of it could not be."""
    calls: Calls = field(default_factory=Calls)

    @property
    def is_moving(self) -> bool:
        """Whether something is being done to it."""
        return self.work is not None and not self.work.done()

    def spec(self) -> SandboxSpec:
        """What its runtime starts."""
        name = self.sandbox_id.rpartition("_")[2]
        seed = int.from_bytes(hashlib.sha256(self.sandbox_id.encode()).digest()[:7], "big")
        return SandboxSpec(self.member, f"sbx-{name[-13:]}", seed, TENANT_LIMITS)


def member_of(organization_id: str, group_id: str, member: int) -> MemberKey:
    """Its key in the runtime and in the node's account: an agent's, so that graders keep their reserve.

    In the place of an attempt stands its organization.
    """
    return MemberKey(
        attempt_id=AttemptId(organization_id),
        group_id=GroupId(group_id),
        index=member,
        try_=0,
        purpose=SandboxPurpose.AGENT,
    )


def _digest(frame: DoorExec) -> bytes:
    asked = (frame.argv, frame.stdin, sorted(frame.env.items()), frame.timeout_s)
    return hashlib.sha256(repr((asked, frame.output_bytes)).encode()).digest()
