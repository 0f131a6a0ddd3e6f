"""Page-level accounting of one node: who holds which bytes, each byte counted once.

    RAM:  | private, resident | overhead | shared, once a template | other | free |
    swap: | private, swapped  |

- Private bytes of a sandbox are anonymous plus swapped pages of its RAM mapping. They do not depend
  on neighbours, as Private_Dirty and Pss do: those change when a sibling comes or goes.
- A snapshot's resident pages are counted once for its template, however many sandboxes map them, and
  stay while a sandbox of the template lives.
- Overhead is the monitor's own memory, apart; `other` is what the node itself holds (its agent, the
  store of compressed swap).

The sums are kept, not derived; `faults()` derives them anew. Called by the node agent at each sample.
"""

from dataclasses import dataclass

from domain.sandbox import MemberKey
from sandboxes.core.names import TemplateId


@dataclass(frozen=True, slots=True)
class PageUse:
    """What one sandbox holds. Bytes; `private_bytes` includes `swapped_bytes`."""

    private_bytes: int
    swapped_bytes: int = 0
    overhead_bytes: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.swapped_bytes <= self.private_bytes, "swapped pages are private ones"
        assert self.overhead_bytes >= 0

    @property
    def resident_bytes(self) -> int:
        """In RAM now, shared pages apart."""
        return self.private_bytes - self.swapped_bytes + self.overhead_bytes


NOTHING = PageUse(0)


@dataclass(slots=True)
class TemplatePages:
    """The snapshot of one template on this node."""

    resident_bytes: int
    sandboxes: int = 0
    """That map it now."""


@dataclass(slots=True)
class _Held:
    template: TemplateId
    use: PageUse


class NodePages:
    """The account of a node. A call that contradicts it is a defect of the caller and asserts."""

    def __init__(self, capacity_bytes: int, other_bytes: int = 0) -> None:
        assert capacity_bytes > 0
        self.capacity_bytes = capacity_bytes
        self.other_bytes = other_bytes
        self.private_bytes = 0
        """Of all sandboxes, swapped pages included: they come back when a tool runs."""
        self.swapped_bytes = 0
        self.overhead_bytes = 0
        self.shared_bytes = 0
        self._held: dict[MemberKey, _Held] = {}
        self._templates: dict[TemplateId, TemplatePages] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: MemberKey) -> bool:
        return key in self._held

    def use_of(self, key: MemberKey) -> PageUse:
        """What a sandbox held at its last sample."""
        return self._held[key].use

    @property
    def committed_bytes(self) -> int:
        """Bytes that must fit into RAM once everything swapped is back."""
        return self.private_bytes + self.overhead_bytes + self.shared_bytes + self.other_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes in RAM now; above the capacity the node has overflowed."""
        return self.committed_bytes - self.swapped_bytes

    def has_template(self, template: TemplateId) -> bool:
        """Whether the snapshot's pages are counted here already."""
        return template in self._templates

    def load(self, template: TemplateId, resident_bytes: int) -> None:
        """A snapshot's resident pages, first or anew: they grow as clones touch them."""
        assert resident_bytes >= 0
        pages = self._templates.setdefault(template, TemplatePages(0))
        self.shared_bytes += resident_bytes - pages.resident_bytes
        pages.resident_bytes = resident_bytes

    def unload(self, template: TemplateId) -> int:
        """The snapshot leaves; returns the bytes that it held. Nobody may map it any more."""
        pages = self._templates.pop(template)
        assert pages.sandboxes == 0, "a mapped snapshot must not be modified or dropped"
        self.shared_bytes -= pages.resident_bytes
        return pages.resident_bytes

    def admit(self, key: MemberKey, template: TemplateId, use: PageUse = NOTHING) -> None:
        """A sandbox begins, cloned from a loaded template."""
        assert key not in self._held, "one key, one sandbox"
        self._templates[template].sandboxes += 1
        self._held[key] = _Held(template, NOTHING)
        self.measure(key, use)

    def measure(self, key: MemberKey, use: PageUse) -> None:
        """A new sample of a sandbox."""
        held = self._held[key]
        before = held.use
        self.private_bytes += use.private_bytes - before.private_bytes
        self.swapped_bytes += use.swapped_bytes - before.swapped_bytes
        self.overhead_bytes += use.overhead_bytes - before.overhead_bytes
        held.use = use

    def release(self, key: MemberKey) -> PageUse:
        """A sandbox ended; returns what it held. Its template stays until `unload`."""
        held = self._held.pop(key)
        self.private_bytes -= held.use.private_bytes
        self.swapped_bytes -= held.use.swapped_bytes
        self.overhead_bytes -= held.use.overhead_bytes
        self._templates[held.template].sandboxes -= 1
        return held.use

    def idle_templates(self) -> tuple[TemplateId, ...]:
        """Snapshots that nobody maps, by id: what can be unloaded without harm."""
        return tuple(sorted(one for one, pages in self._templates.items() if not pages.sandboxes))

    def faults(self) -> list[str]:
        """Differences between the kept sums and what the sandboxes add up to; empty when sound."""
        uses = [held.use for held in self._held.values()]
        mapped = dict.fromkeys(self._templates, 0)
        for held in self._held.values():
            mapped[held.template] += 1
        derived = {
            "private": (self.private_bytes, sum(use.private_bytes for use in uses)),
            "swapped": (self.swapped_bytes, sum(use.swapped_bytes for use in uses)),
            "overhead": (self.overhead_bytes, sum(use.overhead_bytes for use in uses)),
            "shared": (
                self.shared_bytes,
                sum(pages.resident_bytes for pages in self._templates.values()),
            ),
            **{
                f"mappings of {one}": (self._templates[one].sandboxes, n)
                for one, n in mapped.items()
            },
        }
        return [
            f"{name}: {kept} kept, {sound} held"
            for name, (kept, sound) in derived.items()
            if kept != sound
        ]
