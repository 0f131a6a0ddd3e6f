"""Ids of one try as they grow: one segment, and a new one where its history is written anew.

    segment 0   opening | sampled 0 | observation 0 | sampled 1
    segment 1   opening | sampled 0' | observation 0 | sampled 1' | observation 1 | sampled 2

Every sampled token stands with its loss in the one segment in which it was sampled; where a later
segment shows it again (`'`: as the template shows it by then) it is context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from domain.trajectory import Segment

NO_VERSION: Final = -1
"""Version of a token that no policy sampled."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sampled turn as the engine, or the journal, gave it."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: str
    generate_s: float = 0.0


class TokenBuffer:
    """Four vectors of one length that only grow."""

    def __init__(self) -> None:
        self._token_ids: list[int] = []
        self._mask: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self.has_sampled = False

    def __len__(self) -> int:
        return len(self._token_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All ids so far."""
        return tuple(self._token_ids)

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Add ids that the model reads: no loss."""
        n = len(token_ids)
        self._token_ids += token_ids
        self._mask += [0] * n
        self._logprobs += [0.0] * n
        self._versions += [NO_VERSION] * n

    def append_sampled(self, sampled: Sampled) -> None:
        """Add ids that the policy sampled, its end token included: loss on each."""
        n = len(sampled.token_ids)
        assert n == len(sampled.logprobs) == len(sampled.versions)
        assert all(version >= 0 for version in sampled.versions), "a sampled token has a version"
        self._token_ids += sampled.token_ids
        self._mask += [1] * n
        self._logprobs += sampled.logprobs
        self._versions += sampled.versions
        self.has_sampled = True

    def segment(self, is_masked: bool = False) -> Segment:
        """The record so far; masked: its ids stay, but nothing of it is trained."""
        n = len(self)
        return Segment(
            token_ids=self.token_ids,
            mask=(0,) * n if is_masked else tuple(self._mask),
            logprobs=(0.0,) * n if is_masked else tuple(self._logprobs),
            versions=(NO_VERSION,) * n if is_masked else tuple(self._versions),
        )


class TokenRecord:
    """All segments of one try, of which only the last one grows."""

    def __init__(self) -> None:
        self._buffers = [TokenBuffer()]
        self._later: list[int] = []
        """The newest segment as a template that drops reasoning shows it after the next turn."""

    @property
    def number(self) -> int:
        """Place of the segment that grows."""
        return len(self._buffers) - 1

    @property
    def tokens(self) -> int:
        """Length of the segment that grows: what the model reads next."""
        return len(self._buffers[-1])

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the segment that grows."""
        return self._buffers[-1].token_ids

    @property
    def later(self) -> tuple[int, ...]:
        """The same without the reasoning of its turns."""
        return tuple(self._later)

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Add ids that the model reads."""
        self._buffers[-1].append_context(token_ids)
        self._later += token_ids

    def append_sampled(self, sampled: Sampled, later: Sequence[int]) -> None:
        """Add ids that the policy sampled; `later`: the same ids without their reasoning."""
        self._buffers[-1].append_sampled(sampled)
        self._later += later

    def begin_anew(self, token_ids: Sequence[int]) -> None:
        """The history is these ids from here on: another segment."""
        if not self._buffers[-1].has_sampled:
            self._buffers.pop()  # Nobody ever answered it.
        self._buffers.append(TokenBuffer())
        self._later = []
        self.append_context(token_ids)

    def segments(self, is_masked: bool = False) -> tuple[Segment, ...]:
        """All segments; a rewritten history that was never answered is none."""
        kept = self._buffers
        if len(kept) > 1 and not kept[-1].has_sampled:
            kept = kept[:-1]
        return tuple(buffer.segment(is_masked) for buffer in kept)
