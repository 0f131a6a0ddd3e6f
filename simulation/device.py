"""Device and host tier of one modelled engine: pages in use + free = total, always.

A group's prefix is held once. Pages leave from the end of a context; with a host tier they go there
(a copy is made in the background, the link to the device is what costs), else they are gone. A prefix
that nothing stands on any more stays until it is evicted itself, or until its last member is gone; the
host tier does not take it.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from domain.ids import GroupId
from simulation.stream import Prefix, Stream

FIRST_PREFIX_KEY: Final = 1 << 48
"""More streams than an engine ever has."""


@dataclass(slots=True)
class TierCounts:
    """What moved and what was lost, in tokens and events."""

    evictions: int = 0
    evicted_tokens: int = 0
    offloads: int = 0
    offloaded_tokens: int = 0
    reloads: int = 0
    reloaded_tokens: int = 0
    host_evicted_tokens: int = 0
    retractions: int = 0


@dataclass(slots=True)
class Device:
    """Accounting of one engine's pages."""

    pages: int
    page_tokens: int
    host_tokens: int = 0
    """Capacity of the host tier; 0 when it is off."""
    free: int = field(init=False)
    idle: dict[GroupId, Prefix] = field(default_factory=dict)
    """Prefixes that may be evicted, in the order in which they became so."""
    hosted: OrderedDict[int, Stream] = field(default_factory=OrderedDict)
    """Streams with pages on the host tier, least recently stored first."""
    host_used: int = 0
    counts: TierCounts = field(default_factory=TierCounts)

    def __post_init__(self) -> None:
        """All pages are free at first."""
        self.free = self.pages

    def pages_for(self, stream: Stream, context: int) -> int:
        """Private pages of a context of this length."""
        private = context - stream.prefix.tokens
        return -(-private // self.page_tokens) if private > 0 else 0

    def missing_for(self, stream: Stream, context: int) -> int:
        """Pages that must be taken before the stream holds a context of this length."""
        prefix = 0 if stream.prefix.is_resident else stream.prefix.pages
        return self.pages_for(stream, context) - stream.pages + prefix

    def hold(self, stream: Stream, context: int) -> None:
        """Take the pages of a context; the caller has made room."""
        prefix = stream.prefix
        if not stream.is_on_prefix:
            stream.is_on_prefix = True
            prefix.streams += 1
            self.idle.pop(prefix.group_id, None)
        if not prefix.is_resident:
            prefix.is_resident = True
            self.free -= prefix.pages
        wanted = self.pages_for(stream, context)
        if wanted > stream.pages:
            self.free -= wanted - stream.pages
            stream.pages = wanted
            stream.holds_up_to = prefix.tokens + wanted * self.page_tokens
        assert self.free >= 0, "more pages in use than there are"

    def shed(self, stream: Stream, pages: int) -> int:
        """Free up to so many pages from the end of a context; how many were freed."""
        taken = min(pages, stream.pages)
        if taken <= 0:
            if stream.pages == 0:
                self._leave_prefix(stream)
            return 0
        before = stream.cached
        stream.pages -= taken
        self.free += taken
        stream.holds_up_to = stream.prefix.tokens + stream.pages * self.page_tokens
        stream.cached = min(before, stream.holds_up_to)
        self.counts.evictions += 1
        self.counts.evicted_tokens += before - stream.cached
        if self.host_tokens and not stream.is_unused:
            self._offload(stream, before - stream.cached)
        if stream.pages == 0:
            self._leave_prefix(stream)
        return taken

    def evict_prefix(self, prefix: Prefix) -> None:
        """An idle prefix is gone from the device; computed anew by whoever needs it next."""
        self.counts.evictions += 1
        self.counts.evicted_tokens += prefix.tokens
        self._free_prefix(prefix)

    def join(self, stream: Stream) -> None:
        """A rollout is on this engine from now on, without pages yet."""
        prefix = stream.prefix
        if not prefix.members:
            prefix.key = FIRST_PREFIX_KEY + stream.key
        prefix.members.append(stream)

    def fetched(self, stream: Stream) -> int:
        """The host tier's part of a context is on the device again; its tokens."""
        tokens = stream.hosted
        self.forget_hosted(stream)
        stream.cached += tokens
        self.counts.reloads += 1
        self.counts.reloaded_tokens += tokens
        return tokens

    def forget_hosted(self, stream: Stream) -> None:
        """Nothing of the context is on the host tier any more."""
        if self.hosted.pop(stream.key, None) is not None:
            self.host_used -= stream.hosted
        stream.hosted = 0

    def release(self, stream: Stream) -> None:
        """A stream is gone: its pages are free on every tier, its prefix too if it was the last."""
        self.free += stream.pages
        stream.pages = stream.cached = stream.holds_up_to = 0
        self.forget_hosted(stream)
        self._leave_prefix(stream)
        prefix = stream.prefix
        if stream in prefix.members:
            prefix.members.remove(stream)
        if not prefix.members and prefix.is_idle:
            self._free_prefix(prefix)

    def _offload(self, stream: Stream, tokens: int) -> None:
        if tokens <= 0:
            return
        self.hosted.pop(stream.key, None)
        self.hosted[stream.key] = stream
        stream.hosted += tokens
        self.host_used += tokens
        self.counts.offloads += 1
        self.counts.offloaded_tokens += tokens
        while self.host_used > self.host_tokens:
            oldest = next(iter(self.hosted.values()))
            self.counts.host_evicted_tokens += oldest.hosted
            self.forget_hosted(oldest)

    def _leave_prefix(self, stream: Stream) -> None:
        """The last one that leaves a prefix leaves it idle, if it was ever computed."""
        prefix = stream.prefix
        if not stream.is_on_prefix:
            return
        stream.is_on_prefix = False
        stream.cached = 0
        prefix.streams -= 1
        prefix.left_at = max(prefix.left_at, stream.last_used)
        if prefix.streams > 0:
            return
        if prefix.is_computed:
            self.idle[prefix.group_id] = prefix
        else:
            self._free_prefix(prefix)

    def _free_prefix(self, prefix: Prefix) -> None:
        self.idle.pop(prefix.group_id, None)
        prefix.is_resident = prefix.is_computed = False
        self.free += prefix.pages
