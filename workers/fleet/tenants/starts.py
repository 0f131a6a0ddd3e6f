"""Starts of a fork's members: room for all of them, then all of them or none."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from domain.errors import SecretUnavailable
from domain.sandbox import SandboxPurpose
from domain.tenant_sandboxes import TEMPLATE, TENANT_LIMITS, SandboxEnd
from infra.settings import Settings
from infra.vault import Vault, variables_context
from sandboxes.node.account import RoomAsk, template_of
from sandboxes.node.slots import NeverFits, Slots
from sandboxes.ports import ForkFailed, Runtime
from workers.fleet.tenants.held import HeldSandbox, member_of

ROOM_WAIT_S: Final = 5.0
"""In the node's line; nobody overtakes in it, so that one who finds no room must leave it to others."""


class StartRefused(Exception):
    """It ends now, with this cause."""

    def __init__(self, cause: SandboxEnd, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail


class NoRoom(Exception):
    """It waits on; the message says for what."""


@dataclass(slots=True)
class Starter:
    """Takes room of the node's slots, at most `most` for all tenants' sandboxes together."""

    runtime: Runtime
    slots: Slots
    most: int
    taken: int = 0

    async def start(self, members: Sequence[HeldSandbox]) -> None:
        """All run when it returns. Raises StartRefused, NoRoom; then none of them does."""
        await self._take_room(members)
        try:
            await self.runtime.fork([one.spec() for one in members])
        except ForkFailed as error:
            raise StartRefused(SandboxEnd.START_FAILED, str(error)) from error

    def give(self, one: HeldSandbox, has_finished: bool) -> None:
        """Its processes are gone: give room and memory back. Nothing for one that has none."""
        if not one.has_slot:
            return
        one.has_slot = False
        self.taken -= 1
        if self.slots.account is not None:
            self.slots.account.end(one.member, has_finished=has_finished)
        self.slots.give(SandboxPurpose.AGENT)

    async def _take_room(self, members: Sequence[HeldSandbox]) -> None:
        count = len(members)
        if count > self.most:
            words = f"{count} sandboxes at once where a node has {self.most} for tenants"
            raise StartRefused(SandboxEnd.NEVER_FITS, words)
        if self.taken + count > self.most:
            raise NoRoom(f"{self.taken} of a node's {self.most} sandboxes for tenants are taken")
        ask = _ask(members)
        self.taken += count
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                await self.slots.take(SandboxPurpose.AGENT, count, ask)
            for one in members:
                one.has_slot = True
        except NeverFits as error:
            raise StartRefused(SandboxEnd.NEVER_FITS, str(error)) from error
        except TimeoutError as error:
            raise NoRoom(self.slots.describe(ask)) from error
        finally:
            if not members[0].has_slot:
                self.taken -= count


def most_of(slots: Slots) -> int:
    """Of a node's sandboxes, for tenants: half of what is not reserved, so that jobs always go on."""
    return max(1, slots.most(SandboxPurpose.AGENT) // 2)


def held_of(row: Any) -> HeldSandbox:
    """A claimed row; what it holds in secret is opened apart."""
    return HeldSandbox(
        sandbox_id=row.id,
        group_id=row.group_id,
        project_id=row.project_id,
        member=member_of(row.organization_id, row.group_id, row.member),
    )


def opened(settings: Settings, row: Any) -> dict[str, str]:
    """Values of its variables. Raises StartRefused."""
    if row.env_sealed is None:
        return {}
    try:
        vault = Vault.of(settings)
        text = vault.open(bytes(row.env_sealed), variables_context(row.project_id, row.group_id))
    except SecretUnavailable as error:
        words = f"its variables cannot be opened: {error}"
        raise StartRefused(SandboxEnd.START_FAILED, words) from error
    values: dict[str, str] = json.loads(text)
    return values


def _ask(members: Sequence[HeldSandbox]) -> RoomAsk:
    """Whose memory they need: the template of a project learns from that project alone."""
    name = f"tenant/{members[0].project_id}/{TEMPLATE}"
    spec = template_of(name, SandboxPurpose.AGENT, TENANT_LIMITS.memory_bytes)
    return RoomAsk(SandboxPurpose.AGENT, spec, tuple(one.member for one in members))
