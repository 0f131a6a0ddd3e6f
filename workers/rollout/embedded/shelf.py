"""The adapters that an engine has loaded, by tenant and name.

Two tenants may have adapters of one name; nobody reaches another tenant's. A request holds the adapter
that it found, so what leaves the shelf is still there for the turns that use it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from domain.engine import AdapterRef, EngineRefused, Refusal
from workers.rollout.embedded.adapters import PackedAdapter

ADAPTERS_MAX: Final = 256
"""Loaded adapters; the one that was asked for longest ago goes first. Each is far smaller than a model."""

Key = tuple[str, str]
"""Tenant and name."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapter:
    """One version of an adapter."""

    key: Key
    version: int
    epoch: int
    packed: PackedAdapter

    @property
    def sha(self) -> str:
        """Identity of its numbers and scale."""
        return self.packed.sha


class AdapterShelf:
    """Newest version of every adapter."""

    def __init__(self) -> None:
        self._loaded: OrderedDict[Key, LoadedAdapter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._loaded)

    def newest(self, key: Key) -> LoadedAdapter | None:
        """What is loaded under a tenant's name."""
        return self._loaded.get(key)

    def shas(self) -> tuple[str, ...]:
        """Identities of all that is loaded."""
        return tuple(one.sha for one in self._loaded.values())

    def saved(self) -> dict[Key, LoadedAdapter]:
        """All that is loaded, for `restore`."""
        return dict(self._loaded)

    def restore(self, loaded: Mapping[Key, LoadedAdapter]) -> None:
        """Have loaded what was loaded then, what had to make room since included."""
        self._loaded = OrderedDict(loaded)

    def find(self, tenant: str, ref: AdapterRef | None) -> LoadedAdapter | None:
        """The adapter that a request asks for. Raises EngineRefused when it is not here."""
        if ref is None:
            return None
        found = self._loaded.get((tenant, ref.name))
        if found is None:
            raise EngineRefused(Refusal.UNKNOWN_ADAPTER, f"{ref.name!r} is not loaded")
        self._loaded.move_to_end(found.key)
        if ref.sha is not None and ref.sha != found.sha:
            detail = f"{ref.name!r} is loaded as {found.sha}, {ref.sha} was asked for"
            raise EngineRefused(Refusal.WEIGHTS_MISMATCH, detail)
        return found

    def put(self, adapter: LoadedAdapter) -> None:
        """Load or replace."""
        self._loaded.pop(adapter.key, None)
        self._loaded[adapter.key] = adapter
        while len(self._loaded) > ADAPTERS_MAX:
            self._loaded.popitem(last=False)
