"""The tries that a node agent holds, by (rollout, try); a key is held once, whatever is asked twice.

    forking -> ready -> sealed          `sealed` keeps its journal until its rollout is closed
        \\-> failed <-/                  `failed` stays as a tombstone that answers late requests

A fork of a later try supersedes all earlier ones of its rollout.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from domain.ids import AttemptId, GroupId, RolloutId, attempt_of, group_of, index_of
from domain.sandbox import MemberKey, SandboxPurpose
from domain.states import End
from domain.wire import Sealed
from sandboxes.node.calls import CallLog
from sandboxes.node.journal import Journal


class TryKey(NamedTuple):
    """Identity of a held try."""

    rollout_id: RolloutId
    try_: int


class TryState(StrEnum):
    """Where a held try stands."""

    FORKING = "forking"
    READY = "ready"
    SEALED = "sealed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a try is over, in the words of the ledger."""

    end: End
    cause: str


@dataclass(slots=True, eq=False)
class HeldTry:
    """One try. `hop` only rises; `failure` and `sealed` are set once."""

    key: TryKey
    hop: int
    seed: int
    journal: Journal
    state: TryState = TryState.FORKING
    is_released: bool = False
    """Nobody wants it any more: whoever works on it stops and cleans up."""
    has_slot: bool = False
    calls: CallLog | None = None
    reply: "asyncio.Task[None] | None" = None
    """The reply that runs for the open intent."""
    sealing: "asyncio.Task[Sealed | None] | None" = None
    """The seal, run once; None is its answer when the try failed first."""
    failure: Failure | None = None

    @property
    def attempt_id(self) -> AttemptId:
        """The attempt that it belongs to."""
        return attempt_of(group_of(self.key.rollout_id))

    @property
    def group_id(self) -> GroupId:
        """The group that it belongs to."""
        return group_of(self.key.rollout_id)

    @property
    def member(self) -> MemberKey:
        """The key of its sandbox."""
        return MemberKey(
            attempt_id=self.attempt_id,
            group_id=self.group_id,
            index=index_of(self.key.rollout_id),
            try_=self.key.try_,
            purpose=SandboxPurpose.AGENT,
        )


H = TypeVar("H", bound=HeldTry)


class Registry(Generic[H]):
    """All held tries of a node."""

    def __init__(self) -> None:
        self._held: dict[TryKey, H] = {}

    def get(self, key: TryKey) -> H | None:
        """A held try."""
        return self._held.get(key)

    def add(self, held: H) -> None:
        """Hold a try; its key must be new."""
        assert held.key not in self._held, f"{held.key} is held already"
        self._held[held.key] = held

    def remove(self, held: H) -> bool:
        """Let go of a try and mark it released; False when that happened before."""
        held.is_released = True
        return self._held.pop(held.key, None) is held

    def of_member(self, member: MemberKey) -> H | None:
        """The try whose sandbox has this key."""
        return next((held for held in self._held.values() if held.member == member), None)

    def up_to(self, rollout_id: RolloutId, try_: int) -> list[H]:
        """Tries of a rollout up to this one."""
        return [
            held
            for held in self._held.values()
            if held.key.rollout_id == rollout_id and held.key.try_ <= try_
        ]

    def of_attempt(self, attempt_id: AttemptId) -> list[H]:
        """Tries of an attempt."""
        return [held for held in self._held.values() if held.attempt_id == attempt_id]

    def all(self) -> list[H]:
        """Every held try."""
        return list(self._held.values())

    def in_state(self, *states: TryState) -> list[H]:
        """Tries in one of these states."""
        return [held for held in self._held.values() if held.state in states]
