"""How much of their context the members of a group share on this host: the ids that all begin with.

An engine may keep these pages once, and the coordinator charges them once. Members of one task usually
begin alike; an environment may begin each differently, so what is shared is compared, never assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from domain.ids import GroupId, RolloutId


@dataclass(slots=True)
class Prefix:
    """The longest common beginning of the members that came so far, and those that are still here."""

    token_ids: tuple[int, ...]
    came: set[RolloutId] = field(default_factory=set)
    here: set[RolloutId] = field(default_factory=set)


class SharedPrefixes:
    """Prefixes of the groups that have members on this host."""

    def __init__(self) -> None:
        self._groups: dict[GroupId, Prefix] = {}

    def join(self, group: GroupId, rollout: RolloutId, token_ids: Sequence[int]) -> None:
        """A member begins with these ids."""
        known = self._groups.setdefault(group, Prefix(tuple(token_ids)))
        known.token_ids = known.token_ids[: _common(known.token_ids, token_ids)]
        known.came.add(rollout)
        known.here.add(rollout)

    def leave(self, group: GroupId, rollout: RolloutId) -> None:
        """A member is gone; with the last one the group is forgotten."""
        known = self._groups.get(group)
        if known is None:
            return
        known.here.discard(rollout)
        if not known.here:
            del self._groups[group]

    def tokens(self, group: GroupId) -> int:
        """Tokens that the members share; 0 while only one of them has come: it shares with nobody."""
        known = self._groups.get(group)
        return len(known.token_ids) if known is not None and len(known.came) > 1 else 0


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count
