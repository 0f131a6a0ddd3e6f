"""A turn on its way through the engine: a ticket that waits, a running turn, one that lost its slot."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from domain.engine import (
    EngineRefused,
    Finish,
    GenRequest,
    GenResult,
    RequestId,
    TokenChunk,
    spans_of,
)
from workers.rollout.embedded.pages.nodes import WORST_RANK, Lease
from workers.rollout.embedded.shelf import LoadedAdapter


def engine_rank(rank: int) -> int:
    """A rank as `kv.ranks` composes them; what nobody composed is taken to the nearest one."""
    return min(max(0, rank), WORST_RANK)


@dataclass(slots=True, eq=False)
class Running:
    """One turn in an engine slot; `weights_sha` were in use when it started."""

    ticket: "Ticket"
    started_s: float
    weights_sha: str
    lease: Lease
    digests: tuple[bytes, ...]
    """Of the whole pages of its prompt, and of what it had sampled when it lost its slot: what others may
    have computed, and what an outer tier may hold."""
    known_tokens: int = 0
    """Leading tokens whose keys it had itself at these weights: computing them is computing again."""
    known_tail: range = range(0)
    """Positions that stood in the last page of its rollout, which was not full."""
    reached_tokens: int = 0
    """Leading tokens that it had at any time, computed for it or found."""
    cached_tokens: int = 0
    """Of its prompt, found and not computed for it; what it had before and got back is none of them."""
    streamed: int = 0
    is_loading: bool = False
    """Pages of an outer tier are on their way."""

    def find(self, length: int) -> int:
        """So many leading tokens have keys now, none of them computed just now: how many are cached ones."""
        prompt = len(self.ticket.request.token_ids) - 1  # the last token is always computed
        gained = max(min(length, prompt) - self.reached_tokens, 0)
        self.cached_tokens += gained
        self.reach(length)
        return gained

    def reach(self, length: int) -> None:
        """So many leading tokens have keys now."""
        self.reached_tokens = max(self.reached_tokens, length)


@dataclass(slots=True, eq=False)
class Sampled:
    """What a turn that is not in a slot has sampled: copies of its row."""

    running: Running
    tokens: npt.NDArray[np.int64]
    logprobs: npt.NDArray[np.float32]
    versions: npt.NDArray[np.int64]
    noise: npt.NDArray[np.float64]
    prompt_length: int

    @property
    def record(self) -> "Record":
        """The sampled part."""
        return Record(
            tuple(self.tokens[self.prompt_length :].tolist()),
            tuple(self.logprobs.tolist()),
            tuple(self.versions.tolist()),
        )


@dataclass(frozen=True, slots=True)
class Record:
    """Sampled tokens: ids, log-probabilities, versions."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def chunk(self, request_id: RequestId, finish: Finish | None, start: int = 0) -> TokenChunk:
        """Those from `start` on, to be streamed."""
        return TokenChunk(
            request_id,
            self.token_ids[start:],
            self.logprobs[start:],
            spans_of(self.versions[start:]),
            finish,
        )


@dataclass(slots=True, eq=False)
class Ticket:
    """An accepted request and where its answer goes. Smaller (rank, arrival) starts first."""

    request: GenRequest
    rank: int
    arrival: int
    accepted_s: float
    deliver: Callable[[GenResult | EngineRefused], None]
    deliver_chunk: Callable[[TokenChunk], None] | None = None
    adapter: LoadedAdapter | None = None
    """What it runs with; without a pinned sha an update puts the newer version here."""
    parked: Sampled | None = None
    is_expecting: bool = False
    """Pages that come with it are looked at: it waits, and does not start before."""
    waiting_since_s: float = field(init=False)
    waited_s: float = 0.0
    """In the queue so far, before the first slot and between two."""
    digests: tuple[bytes, ...] | None = None

    def __post_init__(self) -> None:
        """It waits from now on."""
        self.waiting_since_s = self.accepted_s

    @property
    def deadline_s(self) -> float:
        """Monotonic time at which the request ends with what it has, or infinity."""
        relative = self.request.deadline_s
        return math.inf if relative is None else self.accepted_s + relative

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first, by rank."""
        return self.rank, self.arrival

    @property
    def length(self) -> int:
        """Tokens of its context so far."""
        return len(self.request.token_ids) if self.parked is None else len(self.parked.tokens)

    @property
    def end(self) -> int:
        """Tokens that its context has at most."""
        return len(self.request.token_ids) + self.request.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Retractable:
    """A running turn as `kv.retraction` looks at it."""

    running: Running
    rank: int
    sampled: int
    prompt: int
    key: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended."""

    finish: Finish
    weights_sha: str
    now: float
    error: str | None = None


def result_of(ticket: Ticket, record: Record, ending: Ending, cached_tokens: int) -> GenResult:
    """The whole answer to a ticket."""
    request = ticket.request
    return GenResult(
        request_id=request.request_id,
        rollout_id=request.rollout_id,
        token_ids=record.token_ids,
        logprobs=record.logprobs,
        version_spans=spans_of(record.versions),
        finish=ending.finish,
        weights_sha=ending.weights_sha,
        cached_tokens=cached_tokens,
        queued_s=ticket.waited_s,
        generate_s=ending.now - ticket.accepted_s - ticket.waited_s,
        error=ending.error,
    )
