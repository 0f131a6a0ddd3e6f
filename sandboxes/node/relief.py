"""The pressure ladder, acted out on one node: what `sandboxes.core.ladder` decides is done here.

    look -> Pressed -> climb -> stop admission | reclaim | pause, reclaim | kill
                                                            |
    wake(key), before a turn runs or a seal reads: wait for the page-out, resume

A sandbox is paused only while its rollout is in generation. `wake` ends the generation first, so that
nothing begins to page out what is about to run. At most one sandbox is killed in a look: what the
others of this machine use moves by itself, and the next look knows.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from domain.errors import VenusError
from domain.sandbox import MemberKey, SandboxPurpose
from infra.logging import get_logger
from sandboxes.core.ladder import Action, Pressed, Resident, Rung, Tools, climb
from sandboxes.core.names import MIB
from sandboxes.core.pages import PageUse
from sandboxes.node.account import NodeAccount
from sandboxes.node.elastic import Elasticity
from sandboxes.node.generation import Generation, Generations
from venusrl.env.sandbox import SandboxError

PRESSED_SHARE: Final = 0.95
"""Of RAM in use: from here on somebody waits for memory now and then."""

RELIEF_SHARE: Final = 0.94
"""The ladder wants to get below it, or it would be climbed at every look."""

FREE_SHARE: Final = 0.5
"""Of private bytes a balloon is expected to get, once in a generation, where the runtime cannot say."""

UNRANKED: Final = 1 << 62
"""Of a sandbox whose rollout has not generated yet: worse than any, since nothing of it would be lost."""

Lose = Callable[[MemberKey, str], None]
"""End the try of a sandbox with this cause."""


@dataclass(slots=True)
class _Sleep:
    work: "asyncio.Task[None]"
    """Pause and page-out."""
    waking: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class Relief:
    """One node's ladder. `lose` never waits; `spawn` keeps background work until it ends."""

    account: NodeAccount
    elasticity: Elasticity | None
    lose: Lose
    generations: Generations = field(default_factory=Generations)
    done: Counter[Rung] = field(default_factory=Counter)
    """Actions by rung, since the start."""
    freed_bytes: int = 0
    """By balloons and page-outs, since the start, as the runtime said."""
    _sleeping: dict[MemberKey, _Sleep] = field(default_factory=dict)
    _squeezing: dict[MemberKey, "asyncio.Task[None]"] = field(default_factory=dict)
    _squeezed: dict[MemberKey, Generation] = field(default_factory=dict)
    """In which generation a balloon was tried last."""
    _pending: dict[MemberKey, int] = field(default_factory=dict)
    """Bytes that work under way will probably free: nobody is killed for them meanwhile."""
    _doomed: set[MemberKey] = field(default_factory=set)
    """Killed, and not gone yet."""

    @property
    def paused(self) -> int:
        """Sandboxes that are stopped, or are about to be."""
        return len(self._sleeping)

    def is_paused(self, key: MemberKey) -> bool:
        """Whether it is stopped, or is about to be."""
        return key in self._sleeping

    def look(self, now: float, swap_free_bytes: int) -> tuple[Action, ...]:
        """Climb if the node is pressed; returns what was begun."""
        pages = self.account.ledger.pages
        if pages.resident_bytes <= PRESSED_SHARE * pages.capacity_bytes:
            return ()
        actions = climb(self.pressed(now, swap_free_bytes))
        begun: list[Action] = []
        for action in actions:
            if action.rung is Rung.KILL and any(one.rung is Rung.KILL for one in begun):
                break
            begun.append(action)
            self._do(action)
        return tuple(begun)

    def pressed(self, now: float, swap_free_bytes: int) -> Pressed:
        """The node as the ladder sees it; what is being squeezed already is not asked again."""
        pages = self.account.ledger.pages
        wanted = pages.resident_bytes - round(RELIEF_SHARE * pages.capacity_bytes)
        wanted -= sum(self._pending.values())
        elasticity = self.elasticity
        return Pressed(
            bytes_wanted=max(0, wanted),
            is_admitting=self.account.ledger.gate.is_open,
            residents=tuple(
                self._resident(key, now)
                for key in self.account.members()
                if key.purpose is SandboxPurpose.AGENT and key not in self._doomed
            ),
            tools=Tools(
                can_balloon=elasticity is not None and elasticity.can_balloon,
                can_page_out=elasticity is not None and elasticity.can_page_out,
                can_evict=False,
                swap_free_bytes=swap_free_bytes,
            ),
        )

    async def wake(self, key: MemberKey) -> None:
        """Its rollout needs it: it runs when this returns. Raises SandboxError when it is lost."""
        self.generations.end(key)
        sleep = self._sleeping.get(key)
        if sleep is None:
            return
        if sleep.waking is None:
            sleep.waking = asyncio.create_task(self._resume(key, sleep))
        # Shielded: whoever asks next must not find it half awake.
        await asyncio.shield(sleep.waking)

    def forget(self, key: MemberKey) -> None:
        """The sandbox is gone or about to be."""
        self.generations.forget(key)
        self._squeezed.pop(key, None)
        self._pending.pop(key, None)
        self._doomed.discard(key)
        sleep = self._sleeping.pop(key, None)
        if sleep is not None:
            sleep.work.cancel()
        squeezing = self._squeezing.pop(key, None)
        if squeezing is not None:
            squeezing.cancel()

    def _resident(self, key: MemberKey, now: float) -> Resident:
        use, generation = self.account.use(key), self.generations.running.get(key)
        assert use is not None, "only held sandboxes are looked at"
        is_idle = generation is not None and key not in self._sleeping
        free = 0
        if is_idle and key not in self._squeezing and self._squeezed.get(key) != generation:
            free = round(FREE_SHARE * (use.private_bytes - use.swapped_bytes))
        return Resident(
            key=key,
            rank=self.generations.ranks.get(key, UNRANKED),
            is_critical=False,
            is_in_generation=is_idle,
            gap_left_s=generation.left_s(now) if generation is not None and is_idle else 0.0,
            private_bytes=use.private_bytes - use.swapped_bytes,
            overhead_bytes=use.overhead_bytes,
            free_bytes=free,
        )

    def _do(self, action: Action) -> None:
        self.done[action.rung] += 1
        if action.key is None:
            self.account.ledger.gate.stop()
            get_logger().info("node.admission_stopped")
            return
        self._pending[action.key] = self._pending.get(action.key, 0) + action.bytes_expected
        match action.rung:
            case Rung.BALLOON:
                work = self._squeeze(action.key, action.bytes_expected)
                self._squeezed[action.key] = self.generations.running[action.key]
                self._squeezing[action.key] = asyncio.create_task(work)
            case Rung.PAGE_OUT:
                task = asyncio.create_task(self._page_out(action.key, action.bytes_expected))
                self._sleeping[action.key] = _Sleep(task)
            case Rung.KILL:
                self._doomed.add(action.key)
                self.lose(action.key, self._why(action.key))
            case _:
                raise AssertionError(f"no runtime offers {action.rung.name}")

    def _why(self, key: MemberKey) -> str:
        pages, use = self.account.ledger.pages, self.account.use(key) or PageUse(0)
        return (
            f"memory_pressure: the node held {pages.resident_bytes // MIB} of"
            f" {pages.capacity_bytes // MIB} MiB, no cheaper relief was left, and of its"
            f" {len(self.account.members())} sandboxes this one, of {use.private_bytes // MIB} MiB,"
            f" ranked worst"
        )

    async def _squeeze(self, key: MemberKey, wanted: int) -> None:
        assert self.elasticity is not None
        try:
            self.freed_bytes += await self.elasticity.runtime.reclaim(key, wanted)
        except (SandboxError, VenusError, OSError) as error:
            get_logger().info("sandbox.not_reclaimed", cause=str(error))
        finally:
            if self._squeezing.get(key) is asyncio.current_task():
                del self._squeezing[key]
                self._settle(key, wanted)

    async def _page_out(self, key: MemberKey, wanted: int) -> None:
        """A page-out that fails leaves the sandbox paused, and `wake` finds out what is left of it."""
        assert self.elasticity is not None
        squeezing = self._squeezing.get(key)
        if squeezing is not None:
            await asyncio.wait({squeezing})
        runtime = self.elasticity.runtime
        try:
            await runtime.pause(key)
            self.freed_bytes += await runtime.reclaim(key, wanted)
        except (SandboxError, VenusError, OSError) as error:
            get_logger().info("sandbox.not_paged_out", cause=str(error))
        finally:
            self._settle(key, wanted)

    def _settle(self, key: MemberKey, expected: int) -> None:
        """Work is over: from now on only samples say what it freed."""
        left = self._pending.get(key, 0) - expected
        if left > 0:
            self._pending[key] = left
        else:
            self._pending.pop(key, None)

    async def _resume(self, key: MemberKey, sleep: _Sleep) -> None:
        assert self.elasticity is not None
        await asyncio.wait({sleep.work})
        try:
            await self.elasticity.runtime.resume(key)
        except (SandboxError, VenusError, OSError) as error:
            self.lose(key, f"resume_failed: {error}")
            raise SandboxError("lost", f"resume_failed: {error}") from error
        finally:
            if self._sleeping.get(key) is sleep:
                del self._sleeping[key]
